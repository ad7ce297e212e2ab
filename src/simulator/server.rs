//! Owns: the simulated PLC's socket and connections: who is let in, what is read, how replies leave.
//! May call: device, fault, incoming.
//! Never: know what a request means.

use super::device::{Device, Ending, Link};
use super::fault::{Act, Apply, End, Outgoing};
use super::frame;
use super::incoming::{self, Garbage, Incoming};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// Connections that wait to be accepted.
const BACKLOG_CONNECTIONS: u32 = 64;
/// Replies of one connection that wait to be written; of a peer that never reads, more are dropped.
pub(super) const REPLIES_MAX: usize = 256;
const READ_BYTES: usize = 4096;
/// How often the port is asked for again, and the pause between.
const RESERVE_TRIES_MAX: usize = 500;
const RESERVE_PAUSE_MS: u64 = 10;

/// A socket that owns the port but does not listen: connections are refused, and nobody else gets it.
pub(super) fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// The same port again. Any process that is just being started holds a copy of the old socket until it has
/// become its own program.
async fn reserve_again(address: SocketAddr) -> io::Result<TcpSocket> {
    for _ in 0..RESERVE_TRIES_MAX {
        match reserve(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                sleep(Duration::from_millis(RESERVE_PAUSE_MS)).await;
            }
            other => return other,
        }
    }
    reserve(address)
}

/// Opens the port for the first time.
pub(super) fn open(address: SocketAddr) -> io::Result<TcpListener> {
    reserve(address)?.listen(BACKLOG_CONNECTIONS)
}

/// Accepts while the link is up; ends only with its task.
pub(super) async fn accept(
    device: Device,
    units: Arc<Vec<Device>>,
    listener: TcpListener,
    address: SocketAddr,
) -> io::Result<()> {
    let mut link = device.link();
    let mut connections = JoinSet::new();
    let mut open = Some(listener);
    // The first one, even if the link was cut before this task began.
    let mut generation = 0;
    loop {
        let now = *link.borrow_and_update();
        // Whoever waits to be accepted belongs to the old generation too.
        if now.generation != generation && now.ending != Ending::Fin {
            open = None;
        }
        generation = now.generation;
        match &open {
            Some(listener) if !now.frozen => {
                tokio::select! {
                    biased;
                    _ = link.changed() => {}
                    Some(_) = connections.join_next() => {}
                    Ok((stream, _)) = listener.accept() => {
                        welcome(&device, &units, stream, generation, &mut connections);
                    }
                }
            }
            Some(_) => {
                let _ = link.changed().await;
            }
            None => {
                let socket = reserve_again(address).await?;
                while !link.borrow_and_update().listening {
                    let _ = link.changed().await;
                }
                open = Some(socket.listen(BACKLOG_CONNECTIONS)?);
                generation = link.borrow().generation;
            }
        }
    }
}

fn welcome(
    device: &Device,
    units: &Arc<Vec<Device>>,
    stream: TcpStream,
    generation: u64,
    connections: &mut JoinSet<()>,
) {
    let Some(number) = device.change(|state| state.connect(Instant::now())) else {
        return;
    };
    let connection = Connection {
        device: device.clone(),
        number,
        generation,
        units: Arc::clone(units),
    };
    connections.spawn(connection.serve(stream, device.link()));
}

/// Why a connection is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// The peer closed, or this side answered its last.
    Closed,
    /// This side resets.
    Reset,
    /// The link was lost: nobody saw a FIN.
    Lost,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub(super) device: Device,
    pub(super) number: u64,
    pub(super) generation: u64,
    /// All devices behind it, where each request says which it is for.
    pub(super) units: Arc<Vec<Device>>,
}

impl Connection {
    async fn serve(self, stream: TcpStream, link: watch::Receiver<Link>) {
        let _ = stream.set_nodelay(true);
        let (reader, mut writer) = stream.into_split();
        let (replies, waiting) = mpsc::channel(REPLIES_MAX);
        let over = tokio::select! {
            over = self.read(reader, replies, link.clone()) => over,
            over = write(&mut writer, waiting, link.clone()) => over,
            over = self.ended(link) => over,
        };
        if over == Over::Reset {
            let _ = writer.as_ref().set_zero_linger();
            // Otherwise dropping it would send a FIN before the RST.
            writer.forget();
        }
        self.device
            .change(|state| state.disconnect(self.number, over == Over::Lost, Instant::now()));
    }

    /// Waits until connections of this generation are over.
    async fn ended(&self, mut link: watch::Receiver<Link>) -> Over {
        loop {
            let now = *link.borrow_and_update();
            if now.generation != self.generation {
                return match now.ending {
                    Ending::Fin => Over::Closed,
                    Ending::Rst => Over::Reset,
                    Ending::Lost => Over::Lost,
                };
            }
            if link.changed().await.is_err() {
                return Over::Closed;
            }
        }
    }

    async fn read(
        &self,
        mut reader: OwnedReadHalf,
        replies: mpsc::Sender<Outgoing>,
        mut link: watch::Receiver<Link>,
    ) -> Over {
        let spec = self.device.lock().spec.clone();
        let idle_close = spec.idle_close.0;
        let mut buffer = Vec::new();
        let mut bytes = [0; READ_BYTES];
        let mut freezes = link.borrow().freezes;
        let mut last = tokio::time::Instant::now();
        loop {
            let now = *link.borrow_and_update();
            if now.frozen {
                let _ = link.changed().await;
                continue;
            }
            // What a sender has reset was still on its side of the cable, so it never arrives.
            let frozen_before = std::mem::replace(&mut freezes, now.freezes) != now.freezes;
            if frozen_before && !matches!(reader.as_ref().take_error(), Ok(None)) {
                return Over::Closed;
            }
            let count = tokio::select! {
                biased;
                _ = link.changed() => continue,
                count = reader.read(&mut bytes) => count,
                () = sleep_until(last + idle_close), if !idle_close.is_zero() => return Over::Closed,
            };
            match count {
                Ok(count) if count > 0 => buffer.extend_from_slice(&bytes[..count]),
                _ => return Over::Closed,
            }
            last = tokio::time::Instant::now();
            if now.black_hole {
                buffer.clear();
                continue;
            }
            loop {
                match incoming::take(&mut buffer, &spec) {
                    Ok(Some(request)) => self.dispatch(request, &replies),
                    Ok(None) => break,
                    Err(Garbage::Close) => return Over::Closed,
                    Err(Garbage::Ignore) => {
                        buffer.clear();
                        break;
                    }
                }
            }
        }
    }

    /// Hands a request to the device that it is for, or to all; a unit that is not there says nothing.
    pub(super) fn dispatch(&self, request: Incoming, replies: &mpsc::Sender<Outgoing>) {
        let Some(unit) = request.on_line() else {
            return self.answer(request, replies);
        };
        // To everybody, and answered by nobody.
        let to_all = request.is_for_all();
        let (nobody, _) = mpsc::channel(REPLIES_MAX);
        let replies = if to_all { &nobody } else { replies };
        for device in self.units.iter() {
            if to_all || device.lock().spec.unit == unit {
                let generation = device.link().borrow().generation;
                let own = Self {
                    device: device.clone(),
                    generation,
                    ..self.clone()
                };
                own.answer(request.clone(), replies);
            }
        }
    }

    /// Decides what becomes of one request, and does it now or lets it happen later.
    pub(super) fn answer(&self, frame: Incoming, replies: &mpsc::Sender<Outgoing>) {
        let act = self
            .device
            .change(|state| state.arrive(self.number, &frame, Instant::now()));
        let Some(act) = act else {
            if let Some(reply) = self.apply(&frame, true) {
                let _ = replies.try_send(Outgoing::whole(reply));
            }
            return;
        };
        match act.apply() {
            Apply::Now => {
                if let Some(reply) = self.apply(&frame, true) {
                    send(replies.clone(), frame.dress(&act, reply));
                }
            }
            Apply::Never => {
                let reply = match act {
                    Act::Exception(code) => frame.exception(code),
                    Act::EndCode(code) => frame.end_code(code),
                    _ => frame.exception(0),
                };
                send(replies.clone(), frame.dress(&act, reply));
            }
            Apply::Later(delay) => {
                if let Act::Acknowledge(_) = act {
                    send(
                        replies.clone(),
                        Outgoing::whole(frame.exception(frame::ACKNOWLEDGE)),
                    );
                    self.clone().later(frame, delay, false, None);
                } else {
                    self.clone()
                        .later(frame, delay, false, Some(replies.clone()));
                }
            }
            Apply::Held(delay) => self
                .clone()
                .later(frame, delay, true, Some(replies.clone())),
        }
    }

    fn later(
        self,
        frame: Incoming,
        delay: Duration,
        only_if_open: bool,
        replies: Option<mpsc::Sender<Outgoing>>,
    ) {
        tokio::spawn(async move {
            sleep(delay).await;
            if only_if_open && replies.as_ref().is_some_and(mpsc::Sender::is_closed) {
                return;
            }
            let reply = self.apply(&frame, only_if_open);
            if let (Some(reply), Some(replies)) = (reply, replies) {
                let _ = replies.try_send(Outgoing::whole(reply));
            }
        });
    }

    /// Carries the request out; `None`: its connection ended before, so nothing happened.
    fn apply(&self, frame: &Incoming, only_if_open: bool) -> Option<Vec<u8>> {
        let link = self.device.link();
        self.device.change(|state| {
            if only_if_open && link.borrow().generation != self.generation {
                return None;
            }
            Some(frame.execute(state, self.number, Instant::now()))
        })
    }
}

/// Hands a reply to the writer; one whose first part comes later does not keep others back (F001).
fn send(replies: mpsc::Sender<Outgoing>, mut outgoing: Outgoing) {
    match outgoing.parts.first_mut() {
        Some((delay, _)) if !delay.is_zero() => {
            let delay = std::mem::take(delay);
            tokio::spawn(async move {
                sleep(delay).await;
                let _ = replies.try_send(outgoing);
            });
        }
        _ => {
            let _ = replies.try_send(outgoing);
        }
    }
}

async fn write(
    writer: &mut OwnedWriteHalf,
    mut waiting: mpsc::Receiver<Outgoing>,
    mut link: watch::Receiver<Link>,
) -> Over {
    while let Some(outgoing) = waiting.recv().await {
        for (pause, bytes) in outgoing.parts {
            sleep(pause).await;
            while link.borrow_and_update().frozen {
                let _ = link.changed().await;
            }
            if link.borrow().black_hole {
                continue;
            }
            if writer.write_all(&bytes).await.is_err() {
                return Over::Closed;
            }
        }
        match outgoing.end {
            End::Open => {}
            End::Fin => return Over::Closed,
            End::Rst => return Over::Reset,
        }
    }
    Over::Closed
}
