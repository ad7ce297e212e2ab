//! Owns: a serial server as it stands in cabinets: one address, several units, some of them silent.
//! May call: sockets.
//! Never: share code with the gateway's side.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What came, by unit: when, and over which connection.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) requests: BTreeMap<u8, Vec<(Instant, usize)>>,
    connections: usize,
}

/// Answers every read with ones, unless the unit is silent.
pub(crate) struct Bus {
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

impl Bus {
    pub(crate) async fn start(silent: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Mutex<Log>>::default();
        let shared = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let log = Arc::clone(&shared);
                tokio::spawn(async move { serve(stream, &log, silent).await });
            }
        });
        Self { address, log }
    }

    /// When requests for `unit` came.
    pub(crate) fn times(&self, unit: u8) -> Vec<Instant> {
        let log = self.log.lock().unwrap();
        let of_unit = log.requests.get(&unit);
        of_unit.map_or_else(Vec::new, |all| all.iter().map(|(at, _)| *at).collect())
    }

    /// How many connections carried requests for `unit`.
    pub(crate) fn connections(&self, unit: u8) -> usize {
        let log = self.log.lock().unwrap();
        let mut numbers: Vec<usize> = log
            .requests
            .get(&unit)
            .map_or_else(Vec::new, |all| all.iter().map(|(_, n)| *n).collect());
        numbers.dedup();
        numbers.len()
    }
}

async fn serve(mut stream: TcpStream, log: &Mutex<Log>, silent: &[u8]) {
    let number = {
        let mut log = log.lock().unwrap();
        log.connections += 1;
        log.connections
    };
    let mut request = [0; 12];
    while stream.read_exact(&mut request).await.is_ok() {
        let (unit, count) = (request[6], request[11]);
        log.lock()
            .unwrap()
            .requests
            .entry(unit)
            .or_default()
            .push((Instant::now(), number));
        if silent.contains(&unit) {
            continue;
        }
        let mut reply = request[..8].to_vec();
        reply[5] = 3 + 2 * count;
        reply.push(2 * count);
        reply.extend([0, 1].repeat(usize::from(count)));
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}
