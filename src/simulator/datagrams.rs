//! Owns: the simulated PLC's port for datagrams: one request each, answered to where it came from.
//! May call: device, server (what becomes of a request), incoming, fault.
//! Never: know what a request means.

use super::device::Device;
use super::fault::Outgoing;
use super::incoming;
use super::server::{Connection, REPLIES_MAX};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Longest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Most senders that are remembered.
const SENDERS_MAX: usize = 4_096;

/// Opens the port.
pub(super) fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// A sender, as a connection is one.
struct Sender {
    connection: Connection,
    replies: mpsc::Sender<Outgoing>,
}

/// Serves while the link is up; ends only with its task.
pub(super) async fn serve(device: Device, socket: UdpSocket) -> io::Result<()> {
    let socket = Arc::new(socket);
    let spec = device.lock().spec.clone();
    let mut link = device.link();
    let mut senders: HashMap<SocketAddr, Sender> = HashMap::new();
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let now = *link.borrow_and_update();
        if now.frozen {
            let _ = link.changed().await;
            continue;
        }
        let (length, from) = tokio::select! {
            biased;
            _ = link.changed() => continue,
            // A sender that has gone is no error of this port.
            found = socket.recv_from(&mut datagram) => match found {
                Ok(found) => found,
                Err(_) => continue,
            },
        };
        if now.black_hole || !now.listening {
            continue;
        }
        senders.retain(|_, sender| sender.connection.generation == now.generation);
        if senders.len() >= SENDERS_MAX {
            senders.clear();
        }
        let mut bytes = datagram[..length].to_vec();
        let Ok(Some(request)) = incoming::take(&mut bytes, &spec) else {
            continue;
        };
        let sender = senders
            .entry(from)
            .or_insert_with(|| welcome(&device, now.generation, &socket, from));
        sender.connection.answer(request, &sender.replies);
    }
}

fn welcome(device: &Device, generation: u64, socket: &Arc<UdpSocket>, to: SocketAddr) -> Sender {
    let (replies, waiting) = mpsc::channel(REPLIES_MAX);
    tokio::spawn(write(device.clone(), Arc::clone(socket), to, waiting));
    // Datagrams take no slot.
    let number = device.change(|state| {
        state.connections += 1;
        state.connections
    });
    let connection = Connection {
        device: device.clone(),
        number,
        generation,
        units: Arc::default(),
    };
    Sender {
        connection,
        replies,
    }
}

async fn write(
    device: Device,
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    mut waiting: mpsc::Receiver<Outgoing>,
) {
    let mut link = device.link();
    while let Some(outgoing) = waiting.recv().await {
        for (pause, bytes) in outgoing.parts {
            sleep(pause).await;
            while link.borrow_and_update().frozen {
                let _ = link.changed().await;
            }
            let now = *link.borrow();
            if !now.black_hole && now.listening {
                let _ = socket.send_to(&bytes, to).await;
            }
        }
    }
}
