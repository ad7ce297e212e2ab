//! Owns: cases of one request and what came back for it.
//! May call: the scripted server.
//! Never: accept a guess.

use crate::server::{
    Act, Server, TIMEOUT_MS, asked, connected, counter, echo, exception, holding, modbus_link,
    registers, reply, scalar, spec,
};
use holdfast::core::contract::{Exchange, Job, Outcome, Reply};
use holdfast::core::spec::DataType;
use holdfast::plc::link::{Link, LinkError};
use std::sync::{Arc, Mutex};

fn four() -> Job {
    let points = (0..4).map(|n| (format!("v{n}"), scalar(n, DataType::U16)));
    Job::Read {
        points: points.collect(),
    }
}

fn write_one() -> Job {
    Job::Write {
        start: holding(0x10),
        words: vec![1],
    }
}

fn write_two() -> Job {
    Job::Write {
        start: holding(0x10),
        words: vec![1, 2],
    }
}

fn ints(exchange: &Exchange) -> Vec<i128> {
    match &exchange.outcome {
        Outcome::DeviceReplied(Reply::Values(values)) => {
            values.iter().map(|(_, v)| v.as_int().unwrap()).collect()
        }
        other => panic!("no values: {other:?}"),
    }
}

fn no_reply(exchange: &Exchange) -> &str {
    match &exchange.outcome {
        Outcome::SentNoReply { why } => why,
        other => panic!("not SentNoReply: {other:?}"),
    }
}

/// Runs one job against one scripted answer.
async fn answered(
    job: Job,
    answer: impl Fn(&[u8]) -> Vec<Act> + Send + 'static,
) -> (Exchange, Server, Link) {
    let server = Server::start(answer).await;
    let mut link = connected(&spec(server.port)).await;
    let exchange = link.run(&job).await;
    (exchange, server, link)
}

fn in_pieces(frame: &[u8], cuts: &[usize], pause_ms: u64) -> Vec<Act> {
    let mut acts = Vec::new();
    let mut from = 0;
    for cut in cuts.iter().copied().chain([frame.len()]) {
        acts.push(Act::Bytes(frame[from..cut].to_vec()));
        acts.push(Act::Pause(pause_ms));
        from = cut;
    }
    acts
}

// covers: F009
#[tokio::test]
async fn a_reply_in_any_number_of_segments_is_one_reply() {
    let cuts: [Vec<usize>; 5] = [(1..17).collect(), vec![5], vec![7], vec![16], vec![]];
    for cuts in cuts {
        let shown = format!("{cuts:?}");
        let (exchange, _server, link) = answered(four(), move |request| {
            in_pieces(&registers(request, &[0, 0, 0, 1]), &cuts, 3)
        })
        .await;
        assert_eq!(ints(&exchange), [0, 0, 0, 1], "cut at {shown}");
        assert_eq!(exchange.reply.len(), 17);
        assert!(link.is_connected());
    }
}

// covers: SEND-05, F001
#[tokio::test]
async fn a_stale_reply_is_dropped_and_counted_and_the_awaited_one_still_counts() {
    let (exchange, _server, link) = answered(four(), |request| {
        let mut stale = registers(request, &[9, 9, 9, 9]);
        let earlier = u16::from_be_bytes([stale[0], stale[1]]).wrapping_sub(1);
        stale[..2].copy_from_slice(&earlier.to_be_bytes());
        vec![
            Act::Bytes(stale),
            Act::Pause(20),
            Act::Bytes(registers(request, &[1, 2, 3, 4])),
        ]
    })
    .await;
    assert_eq!(ints(&exchange), [1, 2, 3, 4]);
    assert_eq!(counter(&link, "stale_reply"), 1);
}

// covers: SEND-05, SEND-06, F001
#[tokio::test]
async fn a_timeout_affects_one_request_only_and_ends_its_connection() {
    let late = Arc::new(Mutex::new(None));
    let server = Server::start(move |request| {
        let good = registers(request, &[1, 2, 3, 4]);
        let mut late = late.lock().unwrap();
        match late.take() {
            None => {
                *late = Some(registers(request, &[7, 7, 7, 7]));
                vec![]
            }
            // The reply to the first request comes on the next connection, as a gateway may have it.
            Some(kept) => vec![Act::Bytes(kept), Act::Bytes(good)],
        }
    })
    .await;
    let mut link = connected(&spec(server.port)).await;
    let first = link.run(&four()).await;
    assert!(
        no_reply(&first).contains("no reply within 150ms"),
        "{first:?}"
    );
    assert_eq!((first.bytes_sent, first.bytes_total), (12, 12));
    assert!(!link.is_connected());
    server.until(|log| log.ends == ["reset"]).await;
    let unsent = link.run(&four()).await;
    assert!(matches!(unsent.outcome, Outcome::NotSent { .. }));

    link.connect().await.unwrap();
    assert_eq!(ints(&link.run(&four()).await), [1, 2, 3, 4]);
    assert_eq!(counter(&link, "stale_reply"), 1);
    assert_eq!(counter(&link, "timeouts"), 1);
}

// covers: SEND-05, F007
#[tokio::test]
async fn a_reply_from_another_unit_is_named_and_not_taken() {
    let from_unit_1 = |request: &[u8]| {
        let mut frame = registers(request, &[1, 2, 3, 4]);
        frame[6] = 1;
        vec![Act::Bytes(frame)]
    };
    let (exchange, server, link) = answered(four(), from_unit_1).await;
    let why = no_reply(&exchange);
    assert!(why.contains("no reply within"), "{why}");
    assert!(why.contains("reply from unit 1, expected 3"), "{why}");
    assert_eq!(exchange.reply[6..9], [1, 3, 8]);
    assert_eq!(counter(&link, "wrong_unit"), 1);

    // The option is for the device that is known to do so.
    let mut spec = spec(server.port);
    let modbus = modbus_link(&mut spec);
    modbus.answering_unit = Some(1);
    let mut link = connected(&spec).await;
    assert_eq!(ints(&link.run(&four()).await), [1, 2, 3, 4]);
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn a_reply_that_does_not_fit_its_write_is_no_reply() {
    let spoilt = |at: usize, byte: u8| {
        move |request: &[u8]| {
            let mut frame = echo(request);
            frame[at] = byte;
            vec![Act::Bytes(frame)]
        }
    };
    // Protocol, length, function, address, value or quantity.
    for (at, byte) in [(2, 1), (5, 1), (7, 3), (7, 0x0F), (9, 0x11), (11, 3)] {
        for job in [write_one(), write_two()] {
            let (exchange, server, link) = answered(job, spoilt(at, byte)).await;
            let why = no_reply(&exchange);
            assert!(!why.contains("no reply within"), "found at once: {why}");
            assert_eq!(exchange.bytes_sent, exchange.bytes_total);
            assert!(!link.is_connected());
            assert_eq!(server.log().requests.len(), 1);
        }
    }
}

// covers: SEND-05, F009, F063
#[tokio::test]
async fn a_read_reply_of_another_length_is_no_reply() {
    for pdu in [
        vec![3, 6, 0, 0, 0, 0, 0, 1],
        vec![3, 8, 0, 0, 0, 0, 0, 1],
        vec![3, 0],
        vec![3, 255, 0],
        vec![4, 8, 0, 0, 0, 0, 0, 0, 0, 1],
        vec![0x83, 2, 0],
    ] {
        let sent = pdu.clone();
        let (exchange, _server, link) = answered(four(), move |request| {
            vec![Act::Bytes(reply(request, &sent))]
        })
        .await;
        assert!(!no_reply(&exchange).is_empty(), "{pdu:?}");
        assert!(!link.is_connected());
    }
}

// covers: SEND-02, SEND-06, F004
#[tokio::test]
async fn a_reply_cut_short_leaves_one_write_and_an_unknown_outcome() {
    let (exchange, server, mut link) = answered(write_one(), |request| {
        let frame = echo(request);
        vec![
            Act::Bytes(frame[..9].to_vec()),
            Act::Pause(TIMEOUT_MS * 2),
            Act::Bytes(frame[9..].to_vec()),
        ]
    })
    .await;
    no_reply(&exchange);
    assert_eq!(exchange.reply.len(), 9);
    assert!(matches!(
        link.run(&write_one()).await.outcome,
        Outcome::NotSent { .. }
    ));
    server.until(|log| log.ends.len() == 1).await;
    assert_eq!(server.count(6), 1);
}

// covers: SEND-02
#[tokio::test]
async fn a_matched_write_carries_its_evidence() {
    let (exchange, server, _link) = answered(write_two(), |r| vec![Act::Bytes(echo(r))]).await;
    assert_eq!(exchange.outcome, Outcome::DeviceReplied(Reply::WriteEcho));
    assert_eq!((exchange.bytes_sent, exchange.bytes_total), (17, 17));
    let request = server.log().requests[0].clone();
    assert_eq!(request[7..], [16, 0, 0x10, 0, 2, 4, 0, 1, 0, 2]);
    let ident = format!("tid=0x{:02x}{:02x} unit=3", request[0], request[1]);
    assert_eq!(exchange.request_ident, ident);
    assert_eq!(exchange.reply, echo(&request));
    assert!(exchange.sent_at.unwrap().boottime_ns <= exchange.replied_at.unwrap().boottime_ns);
}

// covers: SEND-04, F039, F043
#[tokio::test]
async fn each_exception_is_what_it_proves_and_keeps_the_connection() {
    for code in [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 0x55] {
        let (exchange, _server, link) =
            answered(write_one(), move |r| vec![Act::Bytes(exception(r, code))]).await;
        let fits = match code {
            1..=3 => matches!(exchange.outcome, Outcome::DeviceRefused(_)),
            5 => exchange.outcome == Outcome::DeviceAccepted,
            6 => matches!(exchange.outcome, Outcome::DeviceBusy(_)),
            _ => matches!(exchange.outcome, Outcome::DeviceUnclear(_)),
        };
        assert!(fits, "{code}: {:?}", exchange.outcome);
        assert!(link.is_open());
        assert_eq!(link.is_connected(), !matches!(code, 10 | 11));
    }
}

// covers: SEND-03, F081
#[tokio::test]
async fn a_connection_that_the_peer_closed_before_the_write_proves_not_sent() {
    for reset in [false, true] {
        let server = Server::start(move |request| {
            let last = if reset { Act::Rst } else { Act::Fin };
            vec![Act::Bytes(registers(request, &[1, 2, 3, 4])), last]
        })
        .await;
        let mut link = connected(&spec(server.port)).await;
        assert_eq!(ints(&link.run(&four()).await), [1, 2, 3, 4]);
        server.until(|log| log.ends.len() == 1).await;
        let exchange = link.run(&write_one()).await;
        assert!(
            matches!(exchange.outcome, Outcome::NotSent { .. }),
            "{exchange:?}"
        );
        assert_eq!((exchange.bytes_sent, exchange.sent_at), (0, None));
        assert_eq!(server.count(6), 0);
        link.connect().await.unwrap();
    }
}

// covers: SEND-02
#[tokio::test]
async fn a_close_or_reset_after_the_write_proves_nothing() {
    for reset in [false, true] {
        let (exchange, server, link) = answered(write_one(), move |_| {
            vec![if reset { Act::Rst } else { Act::Fin }]
        })
        .await;
        no_reply(&exchange);
        assert_eq!((exchange.bytes_sent, exchange.bytes_total), (12, 12));
        assert!(!link.is_connected());
        assert_eq!(server.count(6), 1);
    }
}

// covers: F059, F141
#[tokio::test]
async fn one_connection_at_a_time_over_many_reconnections() {
    let server = Server::start(|_| vec![]).await;
    let mut link = connected(&spec(server.port)).await;
    for n in 1..=5 {
        no_reply(&link.run(&four()).await);
        server.until(|log| log.ends.len() == n).await;
        link.connect().await.unwrap();
        link.connect().await.unwrap();
    }
    let log = server.log();
    assert_eq!(log.open_max, 1);
    assert!(log.ends.iter().all(|end| *end == "reset"), "{:?}", log.ends);
    assert_eq!(counter(&link, "connects"), 6);
}

#[tokio::test]
async fn a_connection_that_is_refused_says_so() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let mut link = Link::new(&spec(port), crate::server::clock());
    let error = link.connect().await.unwrap_err();
    assert!(matches!(error, LinkError::Refused { .. }), "{error:?}");
    assert!(!link.is_connected());
    assert_eq!(counter(&link, "connect_failures"), 1);
}

// covers: F059, F141
#[tokio::test]
async fn the_wait_before_a_reconnection_doubles_within_its_bounds() {
    let server = Server::start(|_| vec![Act::Fin]).await;
    let mut spec = spec(server.port);
    let mut link = connected(&spec).await;
    assert_eq!((link.backoff_ms(0), link.backoff_ms(u32::MAX)), (10, 10));
    spec.gate.identity = None;
    let mut failing = Link::new(&spec, crate::server::clock());
    for longest in [20, 40, 80, 100, 100] {
        failing.connect().await.unwrap_err();
        let waits = (failing.backoff_ms(0), failing.backoff_ms(u32::MAX));
        assert_eq!(waits, (10, longest));
    }
    link.disconnect("done");
    assert!(!link.is_open());
}

// covers: F059, F141
#[tokio::test]
async fn a_silent_device_is_tried_often_and_one_that_refuses_is_left_in_peace() {
    let mute = Server::start(|_| vec![]).await;
    let mut spec = spec(mute.port);
    spec.gate.identity = None;
    let modbus = modbus_link(&mut spec);
    (
        modbus.timeout_ms,
        modbus.reconnect_ms_min,
        modbus.reconnect_ms_max,
    ) = (20, 1_000, 60_000);
    let mut silent = Link::new(&spec, crate::server::clock());
    let full = Server::start(|_| vec![Act::Fin]).await;
    let modbus = modbus_link(&mut spec);
    (modbus.port, modbus.timeout_ms) = (full.port, 2_000);
    let mut refusing = Link::new(&spec, crate::server::clock());
    for _ in 0..8 {
        silent.connect().await.unwrap_err();
        refusing.connect().await.unwrap_err();
    }
    assert_eq!(silent.backoff_ms(u32::MAX), 5_000);
    assert_eq!(refusing.backoff_ms(u32::MAX), 60_000);
    assert_eq!(
        (silent.backoff_ms(0), refusing.backoff_ms(0)),
        (1_000, 1_000)
    );
}

#[tokio::test]
async fn a_read_in_one_request_falls_back_to_pieces_where_the_device_has_a_hole() {
    let (exchange, server, _link) = answered(
        Job::Read {
            points: vec![
                ("a".into(), scalar(0, DataType::U16)),
                ("b".into(), scalar(2, DataType::U16)),
            ],
        },
        |request| {
            let (start, count) = asked(request);
            vec![Act::Bytes(match count {
                1 => registers(request, &[start + 10]),
                _ => exception(request, 2),
            })]
        },
    )
    .await;
    assert_eq!(ints(&exchange), [10, 12]);
    assert_eq!(server.log().requests.len(), 3);
}

#[tokio::test]
async fn what_no_frame_can_carry_is_not_sent() {
    let job = Job::Write {
        start: holding(0),
        words: vec![0; 124],
    };
    let (exchange, server, link) = answered(job, |_| vec![]).await;
    assert!(matches!(exchange.outcome, Outcome::NotSent { .. }));
    assert!(link.is_connected());
    assert!(server.log().requests.is_empty());
}

// covers: SEND-06
#[tokio::test]
async fn stray_bytes_before_a_write_keep_it_from_being_sent() {
    let (exchange, server, mut link) = answered(four(), |request| {
        let mut frame = registers(request, &[1, 2, 3, 4]);
        frame.extend([0xAA; 3]);
        vec![Act::Bytes(frame)]
    })
    .await;
    assert_eq!(ints(&exchange), [1, 2, 3, 4]);
    let exchange = link.run(&write_one()).await;
    assert!(
        matches!(&exchange.outcome, Outcome::NotSent { why } if why.contains("AA AA AA")),
        "{exchange:?}"
    );
    assert!(!link.is_connected());
    assert_eq!(server.count(6), 0);
}

// covers: SEND-05
#[tokio::test]
async fn a_reply_given_twice_is_counted_and_completes_nothing_later() {
    let (exchange, _server, mut link) = answered(four(), |request| {
        let frame = registers(request, &[1, 2, 3, 4]);
        vec![Act::Bytes([&frame[..], &frame].concat())]
    })
    .await;
    assert_eq!(ints(&exchange), [1, 2, 3, 4]);
    assert_eq!(ints(&link.run(&four()).await), [1, 2, 3, 4]);
    assert_eq!(counter(&link, "stale_reply"), 1);
}

// covers: SEND-06
#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_link_closed() {
    let server = Server::start(|_| vec![]).await;
    let mut link = connected(&spec(server.port)).await;
    let job = write_one();
    tokio::select! {
        exchange = link.run(&job) => panic!("ended: {exchange:?}"),
        () = server.until(|log| log.requests.len() == 1) => {}
    }
    assert!(!link.is_connected());
    let next = link.run(&write_one()).await;
    assert!(matches!(next.outcome, Outcome::NotSent { .. }));
    server.until(|log| log.ends == ["reset"]).await;
    assert_eq!(server.count(6), 1);
}
