//! Owns: the proof of a line's silences: what comes late, what comes unasked, who waits for whom.
//! May call: link, port and what they stand on; a pipe in place of the line.
//! Never: tell a late reply from a true one by anything but its value.

use super::super::link::Link;
use super::super::rtu::crc;
use super::super::rtu::tests::{clock, link};
use super::*;
use crate::core::contract::{Job, Outcome, Reply};
use crate::core::jitter::Jitter;
use crate::core::serial::{ModbusRtu, Parity, SerialLine};
use crate::core::spec::{
    Address, DataType, GateSpec, LinkSpec, MachineSpec, ModbusArea, Scalar, Tag, WordOrder,
};
use std::sync::atomic::{AtomicBool, AtomicU32};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::TcpListener;

fn serial_line(baud: u32) -> Way {
    Way::Serial(SerialLine {
        path: "/dev/null".into(),
        baud,
        data_bits: 8,
        parity: Parity::Even,
        stop_bits: 1,
        rs485: false,
    })
}

fn machine(link: &ModbusRtu) -> MachineSpec {
    MachineSpec {
        name: "press-1".into(),
        owner: "gw".into(),
        read_only: false,
        link: LinkSpec::ModbusRtu(link.clone()),
        gate: GateSpec::default(),
        tags: vec![Tag {
            name: "first".into(),
            at: holding(900),
            unit: None,
            poll_ms: 100,
            no_value: Vec::new(),
            group: None,
        }],
        groups: Vec::new(),
        events: Vec::new(),
        commands: Vec::new(),
        mailbox: None,
    }
}

fn holding(offset: u16) -> Scalar {
    Scalar {
        address: Address::Modbus {
            area: ModbusArea::Holding,
            offset,
        },
        data_type: DataType::U16,
        word_order: WordOrder::HighFirst,
    }
}

fn manners(link: &ModbusRtu) -> Manners {
    Manners::of(&LinkSpec::ModbusRtu(link.clone())).unwrap()
}

/// A line with somebody at its other end, and a link on it.
fn on_pipe(link: &ModbusRtu) -> (Link, Arc<Port>, DuplexStream) {
    let (near, far) = duplex(1 << 16);
    let ports = Ports::default();
    let port = ports.get(&link.way);
    port.opened(Box::new(near), &manners(link));
    (Link::on(&ports, &machine(link), clock()), port, far)
}

/// The reply to a read of one register.
fn value(unit: u8, value: u16) -> Vec<u8> {
    let [high, low] = value.to_be_bytes();
    let body = [unit, 3, 2, high, low];
    [&body[..], &crc(&body).to_le_bytes()].concat()
}

/// What the device at the far end has seen of writes.
#[derive(Default)]
struct Written {
    /// The one under way is to be lost: no effect, no reply.
    lose: AtomicBool,
    /// Those that had an effect.
    done: AtomicU32,
}

/// Answers each read with the register's own number, as late as `late` has it, in the order of the requests; a write
/// is acknowledged after the timeout, or lost.
async fn serve(
    mut far: impl AsyncRead + AsyncWrite + Unpin,
    mut late: impl FnMut() -> Duration,
    written: Arc<Written>,
) {
    let mut request = [0; 8];
    while far.read_exact(&mut request).await.is_ok() {
        let register = u16::from_be_bytes([request[2], request[3]]);
        let reply = match request[1] {
            6 if written.lose.load(Relaxed) => continue,
            6 => {
                written.done.fetch_add(1, Relaxed);
                tokio::time::sleep(Duration::from_millis(LATE_MS)).await;
                request.to_vec()
            }
            _ => {
                tokio::time::sleep(late()).await;
                value(request[0], register)
            }
        };
        if far.write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// A write that is acknowledged late, and the same again, which is lost: not one byte tells the acknowledgement of the
/// first from one of the second.
async fn pair(link: &mut Link, written: &Written, round: u16) {
    let job = Job::Write {
        start: holding(900).address,
        words: vec![round],
    };
    let before = written.done.load(Relaxed);
    let first = link.run(&job).await.outcome;
    assert!(matches!(first, Outcome::SentNoReply { .. }), "{first:?}");
    until_connected(link).await;
    written.lose.store(true, Relaxed);
    let second = link.run(&job).await.outcome;
    written.lose.store(false, Relaxed);
    assert!(matches!(second, Outcome::SentNoReply { .. }), "{second:?}");
    assert_eq!(written.done.load(Relaxed), before + 1);
}

async fn until_connected(link: &mut Link) {
    let until = Instant::now() + Duration::from_secs(30);
    while !link.is_connected() {
        let tried = link.connect().await;
        assert!(tried.is_ok() || Instant::now() < until, "{tried:?}");
    }
}

async fn read(link: &mut Link, offset: u16) -> Option<i128> {
    let points = vec![("v".to_owned(), holding(offset))];
    match link.run(&Job::Read { points }).await.outcome {
        Outcome::DeviceReplied(Reply::Values(values)) => values[0].1.as_int(),
        _ => None,
    }
}

/// In time, or too late by at most half of what the line is left to settle.
fn lateness(seed: u64) -> impl FnMut() -> Duration + Send + 'static {
    let mut dice = Jitter::new(seed);
    move || match dice.below(3) {
        0 => Duration::from_millis(22 + dice.below(40)),
        _ => Duration::from_millis(dice.below(8)),
    }
}

/// How late a write is acknowledged, in milliseconds: after the timeout, and before the line has settled.
const LATE_MS: u64 = 55;

/// One line's rounds: how many were answered, how many were not.
async fn rounds(over_tcp: bool, seed: u64) -> (u32, u32) {
    const ROUNDS: u16 = 20;
    let mut spec = link(1, false);
    (spec.timeout_ms, spec.settle_ms) = (20, 90);
    let written = Arc::<Written>::default();
    let shown = Arc::clone(&written);
    let (mut link, device) = if over_tcp {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (host, port) = ("127.0.0.1".into(), listener.local_addr().unwrap().port());
        spec.way = Way::Tcp { host, port };
        let link = Link::on(&Ports::default(), &machine(&spec), clock());
        let device = tokio::spawn(async move {
            for connection in 0.. {
                let (far, _) = listener.accept().await.unwrap();
                let late = lateness(seed << 16 | connection);
                tokio::spawn(serve(far, late, Arc::clone(&shown)));
            }
        });
        (link, device)
    } else {
        spec.way = serial_line(115_200);
        let (link, _, far) = on_pipe(&spec);
        (link, tokio::spawn(serve(far, lateness(seed), shown)))
    };
    let (mut good, mut none) = (0, 0);
    for round in 0..ROUNDS {
        if round % 5 == 4 {
            until_connected(&mut link).await;
            pair(&mut link, &written, round).await;
        }
        if !link.is_connected() && link.connect().await.is_err() {
            none += 1;
            continue;
        }
        match read(&mut link, round).await {
            Some(found) => {
                assert_eq!(found, i128::from(round), "TCP {over_tcp} seed {seed}");
                good += 1;
            }
            None => none += 1,
        }
    }
    device.abort();
    (good, none)
}

// covers: SEND-05, SEND-06, F003
#[tokio::test]
async fn a_reply_to_an_abandoned_request_is_never_taken_for_another() {
    const LINES: u64 = 50;
    for over_tcp in [false, true] {
        let lines = (0..LINES).map(|seed| rounds(over_tcp, seed));
        let (mut good, mut none) = (0, 0);
        for (of_line, lost) in futures_util::future::join_all(lines).await {
            good += of_line;
            none += lost;
        }
        assert!(good > 200 && none > 100, "{good} good, {none} without");
        assert_eq!(good + none, 1_000);
    }
}

// covers: F003
#[tokio::test]
async fn a_late_reply_that_waited_for_the_next_request_is_found_out_by_what_follows_it() {
    let mut spec = link(1, false);
    spec.way = serial_line(115_200);
    spec.timeout_ms = 60;
    let (mut link, _, mut far) = on_pipe(&spec);
    let device = tokio::spawn(async move {
        let mut request = [0; 8];
        let mut abandoned = None;
        while far.read_exact(&mut request).await.is_ok() {
            let register = u16::from_be_bytes([request[2], request[3]]);
            if register == 0 {
                // Comes only with the next request, whatever the line was left to settle.
                abandoned = Some(value(1, 0xAAAA));
                continue;
            }
            if let Some(late) = abandoned.take() {
                far.write_all(&late).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            far.write_all(&value(1, 0xBBBB)).await.unwrap();
        }
    });
    link.connect().await.unwrap();
    assert_eq!(read(&mut link, 0).await, None);
    assert!(!link.is_connected());
    link.connect().await.unwrap();
    for _ in 0..3 {
        assert_eq!(read(&mut link, 100).await, Some(0xBBBB));
    }
    let counters = link.counters();
    assert!(
        counters.contains(&("noise_bytes".into(), 7)),
        "{counters:?}"
    );
    device.abort();
}

// covers: F025, F027
#[tokio::test]
async fn a_request_goes_out_only_after_three_and_a_half_characters_of_silence() {
    const ROUNDS: u16 = 500;
    let mut first = link(1, false);
    first.way = serial_line(9_600);
    first.settle_ms = 10;
    first.timeout_ms = 5_000;
    let second = ModbusRtu {
        unit: 2,
        ..first.clone()
    };
    let (near, mut far) = duplex(1 << 16);
    let ports = Ports::default();
    let port = ports.get(&first.way);
    port.opened(Box::new(near), &manners(&first));
    let mut links = [&first, &second].map(|spec| Link::on(&ports, &machine(spec), clock()));
    let device = tokio::spawn(async move {
        let mut request = [0; 8];
        let mut last = None;
        let mut least = Duration::MAX;
        for _ in 0..2 * ROUNDS + 2 {
            far.read_exact(&mut request).await.unwrap();
            if let Some(last) = last {
                least = least.min(Instant::now() - last);
            }
            let register = u16::from_be_bytes([request[2], request[3]]);
            let reply = value(request[0], register);
            last = Some(Instant::now());
            far.write_all(&reply).await.unwrap();
        }
        least
    });
    for link in &mut links {
        link.connect().await.unwrap();
    }
    for round in 0..ROUNDS {
        for link in &mut links {
            assert_eq!(read(link, round).await, Some(round.into()));
        }
    }
    let least = device.await.unwrap();
    assert!(least >= Duration::from_micros(4_010), "{least:?}");
    // Each was answered before the sender had done anything else.
    for link in &links {
        let counters = link.counters();
        assert!(counters.contains(&("timeouts".into(), 0)), "{counters:?}");
    }
}

// covers: F019, F013
#[tokio::test]
async fn what_comes_while_nothing_is_asked_is_dropped_and_counted() {
    let mut spec = link(1, false);
    spec.way = serial_line(115_200);
    let (mut link, port, mut far) = on_pipe(&spec);
    let stranger = [0x07, 0x41, 0x01, 0x02, 0x03, 0x95, 0x5D];
    for round in 0..20 {
        far.write_all(&stranger).await.unwrap();
        // It would fit the request that follows.
        far.write_all(&value(1, 0xDEAD)).await.unwrap();
        let (asked, _) = tokio::join!(
            async {
                if !link.is_connected() {
                    link.connect().await.unwrap();
                }
                read(&mut link, round).await
            },
            async {
                let requests = if round == 0 { 2 } else { 1 };
                for _ in 0..requests {
                    let mut request = [0; 8];
                    far.read_exact(&mut request).await.unwrap();
                    let register = u16::from_be_bytes([request[2], request[3]]);
                    far.write_all(&value(1, register)).await.unwrap();
                }
            }
        );
        assert_eq!(asked, Some(round.into()));
    }
    assert!(port.is_open(1), "the port stays open");
    let counters = link.counters();
    assert!(
        counters.contains(&("noise_bytes".into(), 20 * 14)),
        "{counters:?}"
    );
    assert!(counters.contains(&("timeouts".into(), 0)), "{counters:?}");
}

#[tokio::test]
async fn a_line_that_never_falls_silent_is_said_to_be_so() {
    let mut spec = link(1, false);
    spec.way = serial_line(115_200);
    let (_, port, mut far) = on_pipe(&spec);
    let babble = tokio::spawn(async move {
        while far.write_all(&[0x55; 64]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let mut manners = manners(&spec);
    // A busy computer may hold the babble up for a while, and that must not pass for silence.
    manners.settle = Duration::from_millis(800);
    port.settle(&manners);
    let tally = Tally::default();
    let error = port
        .quiet(&manners, &clock(), &tally)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not fall silent"), "{error}");
    assert!(tally.noise_bytes.load(Relaxed) > 1_000);
    babble.abort();
}

// covers: F021
#[tokio::test]
async fn one_units_silence_takes_the_line_from_nobody_else() {
    let mut first = link(1, false);
    first.way = serial_line(115_200);
    first.timeout_ms = 40;
    let (near, far) = duplex(1 << 16);
    let ports = Ports::default();
    let port = ports.get(&first.way);
    port.opened(Box::new(near), &manners(&first));
    let unit = |unit| ModbusRtu {
        unit,
        ..first.clone()
    };
    let mut good = Link::on(&ports, &machine(&unit(1)), clock());
    let mut silent = Link::on(&ports, &machine(&unit(2)), clock());
    let device = tokio::spawn(async move {
        let mut far = far;
        let mut request = [0; 8];
        while far.read_exact(&mut request).await.is_ok() {
            if request[0] == 1 {
                let register = u16::from_be_bytes([request[2], request[3]]);
                far.write_all(&value(1, register)).await.unwrap();
            }
        }
    });
    good.connect().await.unwrap();
    for round in 0..5 {
        assert!(silent.connect().await.is_err());
        assert!(good.is_connected());
        assert_eq!(read(&mut good, round).await, Some(round.into()));
    }
    // When the line itself goes, both know.
    device.abort();
    let _ = device.await;
    assert_eq!(read(&mut good, 9).await, None);
    assert!(!good.is_open() && !silent.is_open());
    assert!(good.why_ended().contains("is gone"), "{}", good.why_ended());
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn what_came_unasked_and_the_runtime_has_not_heard_of_yet_is_nobodys() {
    use std::io::{Read as _, Write as _};
    use std::sync::mpsc;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut spec = link(1, false);
    let (host, at) = ("127.0.0.1".into(), listener.local_addr().unwrap().port());
    spec.way = Way::Tcp { host, port: at };
    let (tell, told) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    // Echoes the first write once more when it is told to, and loses the second.
    let device = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Otherwise the kernel holds the second back until the first is known to have come.
        stream.set_nodelay(true).unwrap();
        let mut request = [0; 8];
        let mut writes = 0;
        while stream.read_exact(&mut request).is_ok() {
            writes += u32::from(request[1] == 6);
            match (request[1], writes) {
                (6, 1) => {
                    stream.write_all(&request).unwrap();
                    told.recv().unwrap();
                    stream.write_all(&request).unwrap();
                    done.send(()).unwrap();
                }
                (6, _) => {}
                _ => stream.write_all(&value(1, 0)).unwrap(),
            }
        }
        writes
    });
    let mut link = Link::on(&Ports::default(), &machine(&spec), clock());
    link.connect().await.unwrap();
    let job = Job::Write {
        start: holding(900).address,
        words: vec![7],
    };
    let first = link.run(&job).await.outcome;
    assert!(matches!(first, Outcome::DeviceReplied(_)), "{first:?}");
    // This thread is the runtime's only one: as on a busy computer it has not looked at the socket since.
    tell.send(()).unwrap();
    is_done.recv().unwrap();
    let second = link.run(&job).await.outcome;
    assert!(matches!(second, Outcome::SentNoReply { .. }), "{second:?}");
    drop(link);
    assert_eq!(device.join().unwrap(), 2);
}
