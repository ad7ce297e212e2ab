//! Owns: late replies over MC protocol: one to an abandoned request is never taken for another (SEND-05).
//! May call: the rig, the simulator.
//! Never: count a read that failed as one that was right.

use crate::rig::{Form, connected, cpu, read, until_connected, values, write};
use holdfast::core::contract::{Outcome, Reply};
use holdfast::core::jitter::Jitter;
use holdfast::core::melsec::{Code, Frame, Transport};
use holdfast::core::spec::{DataType, Value};
use holdfast::plc::link::Link;
use holdfast::simulator::{ALWAYS, Act, Device, Fault, Matching, Span};
use std::collections::HashSet;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

const ROUNDS: u16 = 1_000;
/// A write is at the CPU by then, if it gets there at all.
const ARRIVES: Duration = Duration::from_millis(200);
/// The register whose writes are lost; it holds no number of a round.
const PAIRED: &str = "D5000";
/// How long a reply is waited for, in milliseconds: short, so that many come late.
const TIMEOUT_MS: u64 = 12;
/// Latest of the late replies, in milliseconds.
const LATE_MS_MAX: u64 = 30;

/// Every register holds its own number, so that a reply to another request shows.
async fn rounds(form: Form, seed: u64) {
    let cpu = cpu(form).await;
    let device = cpu.device();
    (0..ROUNDS).for_each(|at| device.set_holding(at, at));
    let mut link = connected(form, cpu.address(), TIMEOUT_MS).await;
    let mut random = Jitter::new(seed);
    let (mut right, mut lost, mut pairs) = (0, 0, 0);
    for round in 0..ROUNDS {
        until_connected(&mut link).await;
        let late = Act::LateReply(Span::ms(1 + random.below(LATE_MS_MAX)));
        match random.below(6) {
            0 | 1 => device.push_fault(Fault::next(Matching::Reads, late)),
            2 => pairs += u32::from(pair(&mut link, &device, late, round).await),
            _ => {}
        }
        let place = format!("D{round}");
        let exchange = link.run(&read(&[(&place, DataType::U16)])).await;
        device.clear_faults();
        match &exchange.outcome {
            Outcome::DeviceReplied(Reply::Values(_)) => {
                assert_eq!(
                    values(&exchange),
                    [Value::Int(round.into())],
                    "{form:?} seed {seed}"
                );
                right += 1;
            }
            Outcome::SentNoReply { .. } => {
                assert!(!link.is_open());
                lost += 1;
            }
            other => panic!("{form:?} seed {seed} round {round}: {other:?}"),
        }
    }
    assert!(
        right > 300 && lost > 100 && pairs > 50,
        "{form:?}: {right} right, {lost} lost, {pairs} pairs of writes"
    );
}

/// A write whose acknowledgement comes late, and the same write again, which never reaches the CPU: the bytes of the
/// first's acknowledgement would fit the second too. Whether the first's came too late.
async fn pair(link: &mut Link, device: &Device, late: Act, round: u16) -> bool {
    let job = write(PAIRED, &[round]);
    device.push_fault(Fault::next(Matching::Writes, late));
    let effects = device.effects();
    let first = link.run(&job).await.outcome;
    // A busy computer may hand it over after the timeout, or a reset may take it back.
    let done = device.wait_for(ARRIVES, |d| d.effects() > effects).await;
    device.clear_faults();
    until_connected(link).await;
    if !done {
        return false;
    }
    device.push_fault(Fault::next(Matching::Writes, Act::Drop).times(ALWAYS));
    let second = link.run(&job).await.outcome;
    until_connected(link).await;
    let unknown = matches!(second, Outcome::SentNoReply { .. });
    assert!(unknown, "round {round}: {first:?}, then {second:?}");
    assert_eq!(device.effects(), effects + 1, "round {round}");
    device.clear_faults();
    matches!(first, Outcome::SentNoReply { .. })
}

/// Each form on a line of its own, at once: they do nothing but wait.
async fn late_over(frame: Frame, transport: Transport) {
    let over = |code| rounds(Form(frame, code, transport), 0x3E ^ (code as u64) << 8);
    tokio::join!(over(Code::Binary), over(Code::Ascii));
}

// covers: SEND-05, SEND-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_replies_over_3e_tcp_are_nobodys() {
    late_over(Frame::E3, Transport::Tcp).await;
}

// covers: SEND-05, SEND-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_replies_over_3e_udp_are_nobodys() {
    late_over(Frame::E3, Transport::Udp).await;
}

// covers: SEND-05, SEND-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_replies_over_4e_are_nobodys() {
    late_over(Frame::E4, Transport::Tcp).await;
    late_over(Frame::E4, Transport::Udp).await;
}

/// The binary 3E reply to a loopback test: count and digits, as they came.
fn given_back(request: &[u8]) -> Vec<u8> {
    let mut reply = request[..7].to_vec();
    reply[0] |= 0x80;
    let data = &request[15..];
    reply.extend_from_slice(&(2 + data.len() as u16).to_le_bytes());
    [&reply, &[0, 0][..], data].concat()
}

/// A binary reply to `request` with one word.
fn answer(request: &[u8], word: u16) -> Vec<u8> {
    let route_end = if request[0] == 0x54 { 11 } else { 7 };
    let mut reply = request[..route_end].to_vec();
    reply[0] |= 0x80;
    reply.extend_from_slice(&[4, 0, 0, 0]);
    reply.extend_from_slice(&word.to_le_bytes());
    reply
}

// covers: SEND-05
#[tokio::test]
async fn on_one_connection_a_4e_reply_is_known_by_its_serial_number() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 256];
        for round in 0u16.. {
            // The client ends with a reset.
            let Ok(length @ 1..) = stream.read(&mut request).await else {
                break;
            };
            let mut stale = request[..length].to_vec();
            stale[2] = stale[2].wrapping_sub(1);
            // The last request's reply once more, then the right one.
            let both = [answer(&stale, 0xBAD), answer(&request[..length], round)].concat();
            stream.write_all(&both).await.unwrap();
        }
    });
    let form = Form(Frame::E4, Code::Binary, Transport::Tcp);
    let mut link = connected(form, at, 5_000).await;
    for round in 1..50 {
        let exchange = link.run(&read(&[("D1", DataType::U16)])).await;
        assert_eq!(values(&exchange), [Value::Int(round)]);
    }
    assert_eq!(crate::rig::counter(&link, "stale_reply"), 50);
    drop(link);
    server.await.unwrap();
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn an_unasked_3e_reply_leaves_the_line_in_doubt_and_nothing_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (twice, written) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 256];
        let length = stream.read(&mut request).await.unwrap();
        assert_eq!(request[11..13], [0x19, 0x06]);
        let echo = given_back(&request[..length]);
        stream.write_all(&echo).await.unwrap();
        let length = stream.read(&mut request).await.unwrap();
        let reply = answer(&request[..length], 7);
        stream
            .write_all(&[reply.clone(), reply].concat())
            .await
            .unwrap();
        twice.send(()).unwrap();
        let rest = stream.read(&mut request).await;
        assert!(
            !matches!(rest, Ok(1..)),
            "a second request was sent: {rest:?}"
        );
    });
    let form = Form(Frame::E3, Code::Binary, Transport::Tcp);
    let mut link = connected(form, at, 5_000).await;
    written.await.unwrap();
    let exchange = link.run(&read(&[("D1", DataType::U16)])).await;
    match &exchange.outcome {
        Outcome::NotSent { why } => assert!(why.contains("stray bytes"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(!link.is_open());
    server.await.unwrap();
}

/// A CPU on a thread of its own that acknowledges the first write once more when it is told to, and loses the second.
/// Says when, and in the end how many writes came.
fn acknowledges_twice(
    listener: std::net::TcpListener,
    told: std::sync::mpsc::Receiver<()>,
    done: std::sync::mpsc::Sender<()>,
) -> u32 {
    use std::io::{Read as _, Write as _};
    let (mut stream, _) = listener.accept().unwrap();
    // Otherwise the kernel holds the second back until the first is known to have come.
    stream.set_nodelay(true).unwrap();
    let mut request = [0; 256];
    let mut writes = 0;
    while let Ok(length @ 1..) = stream.read(&mut request) {
        let request = &request[..length];
        let acknowledged = [&[0xD0, 0][..], &request[2..7], &[2, 0, 0, 0]].concat();
        match request[11..13] {
            [0x19, 0x06] => stream.write_all(&given_back(request)).unwrap(),
            [0x01, 0x14] => {
                writes += 1;
                if writes > 1 {
                    continue;
                }
                stream.write_all(&acknowledged).unwrap();
                told.recv().unwrap();
                stream.write_all(&acknowledged).unwrap();
                done.send(()).unwrap();
            }
            _ => stream.write_all(&answer(request, 7)).unwrap(),
        }
    }
    writes
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn an_unasked_reply_that_the_runtime_has_not_heard_of_yet_is_not_the_next_requests() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (done, is_done) = std::sync::mpsc::channel();
    let cpu = std::thread::spawn(move || acknowledges_twice(listener, told, done));
    let form = Form(Frame::E3, Code::Binary, Transport::Tcp);
    let mut link = connected(form, at, 1_000).await;
    let first = link.run(&write("D1", &[1])).await.outcome;
    assert!(matches!(first, Outcome::DeviceReplied(_)), "{first:?}");
    // This thread is the runtime's only one: as on a busy computer it has not looked at the socket since.
    tell.send(()).unwrap();
    is_done.recv().unwrap();
    match link.run(&write("D1", &[2])).await.outcome {
        Outcome::NotSent { why } => assert!(why.contains("stray bytes"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(link);
    assert_eq!(cpu.join().unwrap(), 1);
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn over_udp_no_local_port_is_used_again_after_a_doubt() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let at = socket.local_addr().unwrap();
    let form = Form(Frame::E3, Code::Binary, Transport::Udp);
    let mut link = crate::rig::link(&crate::rig::spec(form, at, 20));
    let mut ports = HashSet::new();
    let mut request = [0; 256];
    for _ in 0..40 {
        assert!(link.connect().await.is_err());
        let received = tokio::time::timeout(Duration::from_secs(5), socket.recv_from(&mut request));
        let (_, from) = received.await.unwrap().unwrap();
        assert!(ports.insert(from.port()), "{from} twice");
    }
}
