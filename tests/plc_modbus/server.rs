//! Owns: a TCP server that answers with scripted bytes and keeps what it was sent.
//! May call: tokio.
//! Never: interpret a request beyond its frame.

use holdfast::core::ids::BootId;
use holdfast::core::spec::{
    Address, DataType, GateSpec, IdentityCheck, LinkSpec, MachineSpec, ModbusArea, ModbusTcp,
    Scalar, Value, WordOrder,
};
use holdfast::core::time::Now;
use holdfast::plc::link::Link;
use holdfast::plc::modbus::Clock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The link's timeout in these tests.
pub(crate) const TIMEOUT_MS: u64 = 150;
/// Longest wait for something that must come.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Where the fingerprint stands; the server answers it by itself, so that scripts see only what matters.
const IDENTITY: u16 = 999;

/// One step of an answer.
pub(crate) enum Act {
    Bytes(Vec<u8>),
    Pause(u64),
    Fin,
    Rst,
}

#[derive(Default)]
pub(crate) struct Log {
    /// Requests but for the fingerprint's.
    pub(crate) requests: Vec<Vec<u8>>,
    /// How each connection ended, seen from the server.
    pub(crate) ends: Vec<&'static str>,
    pub(crate) open: usize,
    pub(crate) open_max: usize,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    log: Arc<Mutex<Log>>,
}

type Script = Arc<Mutex<dyn FnMut(&[u8]) -> Vec<Act> + Send>>;

impl Server {
    pub(crate) async fn start(script: impl FnMut(&[u8]) -> Vec<Act> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Log::default()));
        let script: Script = Arc::new(Mutex::new(script));
        let kept = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, script) = (Arc::clone(&kept), Arc::clone(&script));
                tokio::spawn(async move {
                    {
                        let mut log = log.lock().unwrap();
                        log.open += 1;
                        log.open_max = log.open_max.max(log.open);
                    }
                    let end = serve(stream, &log, &script).await;
                    let mut log = log.lock().unwrap();
                    log.open -= 1;
                    log.ends.push(end);
                });
            }
        });
        Self { port, log }
    }

    pub(crate) fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    /// How many requests of `function` came.
    pub(crate) fn count(&self, function: u8) -> usize {
        let log = self.log();
        log.requests.iter().filter(|r| r[7] == function).count()
    }

    pub(crate) async fn until(&self, what: impl Fn(&Log) -> bool) {
        let begun = Instant::now();
        while !what(&self.log()) {
            assert!(begun.elapsed() < WAIT_MAX, "waited in vain");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; 6];
    stream.read_exact(&mut frame).await?;
    let rest = usize::from(u16::from_be_bytes([frame[4], frame[5]]));
    frame.resize(6 + rest, 0);
    stream.read_exact(&mut frame[6..]).await?;
    Ok(frame)
}

async fn serve(mut stream: TcpStream, log: &Mutex<Log>, script: &Script) -> &'static str {
    stream.set_nodelay(true).unwrap();
    loop {
        let request = match read_frame(&mut stream).await {
            Ok(request) => request,
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return "eof",
            Err(_) => return "reset",
        };
        let acts = if request[7] == 3 && request[8..10] == IDENTITY.to_be_bytes() {
            vec![Act::Bytes(reply(&request, &[3, 2, 0x12, 0x67]))]
        } else {
            log.lock().unwrap().requests.push(request.clone());
            (script.lock().unwrap())(&request)
        };
        for act in acts {
            match act {
                Act::Bytes(bytes) => {
                    if stream.write_all(&bytes).await.is_err() {
                        return "reset";
                    }
                }
                Act::Pause(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                Act::Fin => return "fin",
                Act::Rst => {
                    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                    return "rst";
                }
            }
        }
    }
}

/// A frame with the request's header and this PDU.
pub(crate) fn reply(request: &[u8], pdu: &[u8]) -> Vec<u8> {
    let length = u16::try_from(pdu.len() + 1).unwrap().to_be_bytes();
    let header = [
        request[0], request[1], 0, 0, length[0], length[1], request[6],
    ];
    [&header, pdu].concat()
}

/// A read reply with these registers.
pub(crate) fn registers(request: &[u8], words: &[u16]) -> Vec<u8> {
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let head = [request[7], u8::try_from(data.len()).unwrap()];
    reply(request, &[&head[..], &data].concat())
}

/// An exception reply.
pub(crate) fn exception(request: &[u8], code: u8) -> Vec<u8> {
    reply(request, &[request[7] | 0x80, code])
}

/// The right echo of a write.
pub(crate) fn echo(request: &[u8]) -> Vec<u8> {
    reply(request, &request[7..12])
}

/// Start and quantity of a request.
pub(crate) fn asked(request: &[u8]) -> (u16, u16) {
    let word = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
    (word(8), word(10))
}

pub(crate) fn holding(offset: u16) -> Address {
    Address::Modbus {
        area: ModbusArea::Holding,
        offset,
    }
}

pub(crate) fn scalar(offset: u16, data_type: DataType) -> Scalar {
    Scalar {
        address: holding(offset),
        data_type,
        word_order: WordOrder::HighFirst,
    }
}

pub(crate) fn spec(port: u16) -> MachineSpec {
    MachineSpec {
        name: "press-1".into(),
        owner: "gw".into(),
        read_only: false,
        link: LinkSpec::ModbusTcp(ModbusTcp {
            host: "127.0.0.1".into(),
            port,
            unit: 3,
            answering_unit: None,
            timeout_ms: TIMEOUT_MS,
            read_registers_max: 125,
            reconnect_ms_min: 10,
            reconnect_ms_max: 100,
            heartbeat_ms: 1000,
        }),
        gate: GateSpec {
            identity: Some(IdentityCheck {
                at: scalar(IDENTITY, DataType::U16),
                equals: Value::Int(0x1267),
            }),
            ..GateSpec::default()
        },
        tags: Vec::new(),
        groups: Vec::new(),
        events: Vec::new(),
        commands: Vec::new(),
        mailbox: None,
    }
}

pub(crate) fn clock() -> Clock {
    let begun = Instant::now();
    Arc::new(move || Now {
        boot_id: BootId([1; 16]),
        boottime_ns: 1_000_000_000 + u64::try_from(begun.elapsed().as_nanos()).unwrap(),
        wall_us: 1_800_000_000_000_000,
        wall_trusted: true,
    })
}

pub(crate) async fn connected(spec: &MachineSpec) -> Link {
    let mut link = Link::new(spec, clock());
    link.connect().await.unwrap();
    assert!(link.is_connected());
    link
}

pub(crate) fn counter(link: &Link, name: &str) -> u64 {
    let found = link.counters().into_iter().find(|(n, _)| n == name);
    found.unwrap().1
}

/// The link of a machine that speaks Modbus TCP.
pub(crate) fn modbus_link(spec: &mut MachineSpec) -> &mut ModbusTcp {
    match &mut spec.link {
        LinkSpec::ModbusTcp(link) => link,
        other => panic!("{other:?}"),
    }
}
