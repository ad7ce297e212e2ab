//! Owns: proof that every fault does on the wire, and at the device, what its name says.
//! May call: the simulator's public side, and a plain socket.
//! Never: use the gateway's client.

use super::tests::{LIMIT, ask, connect, hex, is_silent, receive, start};
use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const WRITE: &str = "00 05 00 00 00 06 01 06 00 10 00 01";
const READ: &str = "00 06 00 00 00 06 01 03 00 10 00 02";

async fn faulty(matching: Matching, act: Act) -> (Simulator, Device, TcpStream) {
    let (simulator, device, client) = start(SimulatorSpec::default()).await;
    device.set_fault(Fault::next(matching, act));
    (simulator, device, client)
}

/// The reply's bytes up to the end of the connection, and how it ended.
async fn end(client: &mut TcpStream) -> io::Result<usize> {
    timeout(LIMIT, client.read(&mut [0; 64])).await.unwrap()
}

// models: SEND-05, F007
#[tokio::test]
async fn replies_that_do_not_match_are_wrong_in_one_place_only() {
    for (request, act, reply) in [
        (
            WRITE,
            Act::WrongTransaction,
            "00 45 00 00 00 06 01 06 00 10 00 01",
        ),
        (
            WRITE,
            Act::WrongUnit(3),
            "00 05 00 00 00 06 03 06 00 10 00 01",
        ),
        (
            WRITE,
            Act::WrongFunction(5),
            "00 05 00 00 00 06 01 05 00 10 00 01",
        ),
        (
            WRITE,
            Act::WrongEchoAddress,
            "00 05 00 00 00 06 01 06 00 11 00 01",
        ),
        (
            WRITE,
            Act::WrongEchoValue,
            "00 05 00 00 00 06 01 06 00 10 00 02",
        ),
        (WRITE, Act::Corrupt, "00 05 00 00 00 06 01 06 00 10 00 FE"),
        (WRITE, Act::WrongByteCount, WRITE),
        (
            READ,
            Act::WrongByteCount,
            "00 06 00 00 00 07 01 03 02 00 00 00 00",
        ),
        (
            READ,
            Act::WrongEchoAddress,
            "00 06 00 00 00 07 01 03 04 00 00 00 00",
        ),
    ] {
        let (_simulator, device, mut client) = faulty(Matching::Any, act.clone()).await;
        assert_eq!(ask(&mut client, request).await, hex(reply), "{act:?}");
        assert_eq!(
            device.effects(),
            usize::from(request == WRITE),
            "{act:?}: applied"
        );
        let again = ask(&mut client, WRITE).await;
        assert_eq!(again, hex(WRITE), "{act:?} strikes once");
        assert_eq!(device.requests()[0].fault, Some(act));
    }
}

#[tokio::test]
async fn a_dropped_request_has_no_effect_and_a_dropped_reply_has_one() {
    for (act, effects) in [(Act::Drop, 0), (Act::DropReply, 1)] {
        let (_simulator, device, mut client) = faulty(Matching::Writes, act).await;
        client.write_all(&hex(WRITE)).await.unwrap();
        assert!(is_silent(&mut client).await);
        assert_eq!((device.effects(), device.requests().len()), (effects, 1));
    }
}

#[tokio::test]
async fn connections_end_as_told_with_or_without_the_effect() {
    for (act, effects, reset) in [
        (Act::ApplyClose, 1, false),
        (Act::ApplyReset, 1, true),
        (Act::Close, 0, false),
        (Act::Reset, 0, true),
    ] {
        let (simulator, device, mut client) =
            faulty(Matching::Functions(vec![6]), act.clone()).await;
        ask(&mut client, READ).await;
        client.write_all(&hex(WRITE)).await.unwrap();
        match end(&mut client).await {
            Ok(count) => assert!(count == 0 && !reset, "{act:?}"),
            Err(error) => assert!(
                reset && error.kind() == io::ErrorKind::ConnectionReset,
                "{act:?}"
            ),
        }
        assert_eq!(device.effects(), effects, "{act:?}");
        ask(&mut connect(&simulator).await, WRITE).await;
    }
}

// models: F001
#[tokio::test]
async fn a_late_reply_comes_while_the_next_request_is_served() {
    let (_simulator, device, mut client) =
        faulty(Matching::Reads, Act::LateReply(Span::ms(300))).await;
    client
        .write_all(&hex("00 61 00 00 00 06 01 03 00 00 00 02"))
        .await
        .unwrap();
    assert_eq!(
        ask(&mut client, "00 62 00 00 00 06 01 03 00 00 00 01").await[1],
        0x62
    );
    assert_eq!(
        receive(&mut client).await,
        hex("00 61 00 00 00 07 01 03 04 00 00 00 00")
    );
    device.set_fault(Fault::next(Matching::Writes, Act::LateReply(Span(LIMIT))));
    client.write_all(&hex(WRITE)).await.unwrap();
    assert!(
        device.wait_for(LIMIT, |device| device.effects() == 1).await,
        "applied at once"
    );
}

#[tokio::test]
async fn a_late_apply_outlives_its_connection_and_a_held_request_does_not() {
    let (simulator, device, mut client) = faulty(Matching::Writes, Act::Hold(Span::ms(250))).await;
    device.push_fault(Fault::next(Matching::Writes, Act::LateApply(Span::ms(400))));
    client.write_all(&hex(WRITE)).await.unwrap();
    assert!(
        device
            .wait_for(LIMIT, |device| device.requests().len() == 1)
            .await
    );
    drop(client);
    let mut client = connect(&simulator).await;
    client
        .write_all(&hex("00 07 00 00 00 06 01 06 00 20 00 01"))
        .await
        .unwrap();
    assert!(
        device
            .wait_for(LIMIT, |device| device.requests().len() == 2)
            .await
    );
    assert_eq!(device.effects(), 0);
    drop(client);
    assert!(
        device
            .wait_for(LIMIT, |device| device.effects_of_register(0x20) == 1)
            .await
    );
    assert_eq!(
        device.effects_of_register(0x10),
        0,
        "its 250 ms were over before the other's 400 ms"
    );
    device.set_fault(Fault::next(Matching::Writes, Act::Hold(Span::ms(20))));
    assert_eq!(ask(&mut connect(&simulator).await, WRITE).await, hex(WRITE));
    assert_eq!(device.effects_of_register(0x10), 1);
}

// models: F004
#[tokio::test]
async fn a_truncated_reply_stalls_and_may_go_on() {
    let rest_after = Some(Span::ms(100));
    for (act, whole) in [
        (
            Act::Truncated {
                keep: 9,
                rest_after: None,
            },
            false,
        ),
        (
            Act::Truncated {
                keep: 9,
                rest_after,
            },
            true,
        ),
    ] {
        let (_simulator, device, mut client) = faulty(Matching::Writes, act).await;
        client.write_all(&hex(WRITE)).await.unwrap();
        let mut bytes = [0; 9];
        timeout(LIMIT, client.read_exact(&mut bytes))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(bytes[..], hex(WRITE)[..9]);
        if whole {
            let mut rest = [0; 3];
            timeout(LIMIT, client.read_exact(&mut rest))
                .await
                .unwrap()
                .unwrap();
            assert_eq!(rest[..], hex(WRITE)[9..]);
        } else {
            assert!(is_silent(&mut client).await);
        }
        assert_eq!(device.effects(), 1);
    }
}

// models: F009
#[tokio::test]
async fn a_reply_in_parts_is_complete_and_slow() {
    for (act, gaps) in [
        (Act::Bytewise(Span::ms(5)), 12),
        (
            Act::Split {
                at: vec![5, 7, 12],
                gap: Span::ms(20),
            },
            3,
        ),
    ] {
        let (_simulator, _device, mut client) = faulty(Matching::Reads, act).await;
        let begin = Instant::now();
        client.write_all(&hex(READ)).await.unwrap();
        let mut reads = 0;
        let mut reply = Vec::new();
        while reply.len() < 13 {
            let mut part = [0; 64];
            let count = timeout(LIMIT, client.read(&mut part))
                .await
                .unwrap()
                .unwrap();
            reply.extend_from_slice(&part[..count]);
            reads += 1;
        }
        assert_eq!(reply, hex("00 06 00 00 00 07 01 03 04 00 00 00 00"));
        assert!(reads > 1 && begin.elapsed() >= Duration::from_millis(5) * gaps);
    }
}

// models: F039, F043
#[tokio::test]
async fn exceptions_have_no_effect_and_strike_as_often_as_told() {
    let (_simulator, device, mut client) = start(SimulatorSpec::default()).await;
    device.set_fault(Fault::next(Matching::Any, Act::Exception(0x0B)).times(2));
    for _ in 0..2 {
        assert_eq!(
            ask(&mut client, WRITE).await,
            hex("00 05 00 00 00 03 01 86 0B")
        );
    }
    assert_eq!(device.effects(), 0);
    assert_eq!(ask(&mut client, WRITE).await, hex(WRITE));
    device.set_fault(
        Fault::next(Matching::Reads, Act::Exception(6))
            .times(ALWAYS)
            .every(3),
    );
    let mut busy = 0;
    for _ in 0..9 {
        busy += usize::from(ask(&mut client, READ).await[7] == 0x83);
    }
    assert_eq!(busy, 3);
    device.clear_faults();
    for _ in 0..3 {
        assert_eq!(ask(&mut client, READ).await[7], 3);
    }
}

// models: SEND-04
#[tokio::test]
async fn an_acknowledged_write_is_applied_later() {
    let (_simulator, device, mut client) =
        faulty(Matching::Writes, Act::Acknowledge(Span::ms(250))).await;
    assert_eq!(
        ask(&mut client, WRITE).await,
        hex("00 05 00 00 00 03 01 86 05")
    );
    assert_eq!(device.effects(), 0);
    assert!(device.wait_for(LIMIT, |device| device.effects() == 1).await);
    assert!(
        is_silent(&mut client).await,
        "the acknowledgement was the reply"
    );
}

// models: SEND-04
#[tokio::test]
async fn an_acknowledged_write_is_reported_in_the_done_registers() {
    let spec = SimulatorSpec::from_toml(
        "[done]\nrequest_id = \"holding:501\"\nid = \"holding:510\"\nword_order = \"low_first\"",
    )
    .unwrap();
    let (_simulator, device, mut client) = start(spec).await;
    device.set_fault(Fault::next(
        Matching::Writes,
        Act::Acknowledge(Span::ms(250)),
    ));
    let reply = ask(
        &mut client,
        "00 01 00 00 00 0D 01 10 01 F4 00 03 06 00 32 00 07 00 01",
    )
    .await;
    assert_eq!(reply, hex("00 01 00 00 00 03 01 90 05"));
    assert_eq!((device.holding(500), device.holding(510)), (0, 0));
    let reported = |device: &Device| device.holding(510) == 7 && device.holding(511) == 1;
    assert!(device.wait_for(LIMIT, reported).await);
    assert_eq!(device.holding(500), 50);
}
