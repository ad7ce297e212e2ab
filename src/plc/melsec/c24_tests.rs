//! Owns: the proof of C24 links by bytes: frames that others made, replies that are nobody's, codes that prove nothing.
//! May call: c24, metered, exchange; a pipe in place of a line.
//! Never: leave to a simulator what bytes alone can show.

use super::super::super::exchange::{Called, Framed};
use super::super::super::metered::{Clock, Line, Tally};
use super::super::super::plan::Span;
use super::super::tests::{VECTORS, bytes};
use super::*;
use crate::core::c24::{C24Format, C24Frame, C24Route};
use crate::core::ids::BootId;
use crate::core::melsec::{Device, Family, Remote};
use crate::core::spec::{Address, Area};
use crate::core::time::Now;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

fn link(frame: C24Frame, format: C24Format) -> C24Link {
    C24Link {
        way: Way::Tcp {
            host: "pipe".into(),
            port: 1,
        },
        frame,
        format,
        sum_check: true,
        family: Family::Q,
        route: C24Route::default(),
        timeout_ms: 300,
        settle_ms: 50,
        turnaround_ms: 0,
        echo: false,
        read_words_max: 64,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1_000,
    }
}

fn clock() -> Clock {
    Arc::new(|| Now {
        boot_id: BootId::default(),
        boottime_ns: 1,
        wall_us: 1,
        wall_trusted: true,
    })
}

fn read(place: &str, count: u16) -> Ask {
    let (device, start) = Device::parse(place, Family::Q).unwrap();
    Ask::Read(Span {
        area: Area::Melsec(device),
        start,
        count,
    })
}

fn write(place: &str, word: u16) -> Ask {
    let (device, number) = Device::parse(place, Family::Q).unwrap();
    Ask::Write {
        start: Address::Melsec { device, number },
        words: vec![word],
    }
}

/// What was sent, and how it ended when `reply` came in single bytes.
async fn exchanged(link: &C24Link, ident: u16, ask: &Ask, reply: &[u8]) -> (Vec<u8>, Called) {
    let (near, mut far) = duplex(1 << 16);
    let tally: Arc<Tally> = Arc::default();
    let framing = Box::new(C24Framing::new(link));
    let line = Line::new(Box::new(near), framing, clock(), Arc::clone(&tally));
    let timeout = Duration::from_millis(link.timeout_ms);
    let codec = C24Codec::new(link);
    let expected = codec.encode(ask, ident).unwrap();
    let mut session = Framed::over(Box::new(codec), line, tally, timeout);
    let module = async {
        let mut request = vec![0; expected.len()];
        far.read_exact(&mut request).await.unwrap();
        for byte in reply {
            far.write_all(&[*byte]).await.unwrap();
        }
        request
    };
    let (called, request) = tokio::join!(session.call(ident, ask), module);
    (request, called)
}

fn vector(name: &str) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let line = VECTORS
        .lines()
        .find(|line| line.split('\t').next() == Some(name));
    let mut columns = line
        .unwrap_or_else(|| panic!("no {name}"))
        .split('\t')
        .skip(1);
    let request = columns.next().and_then(bytes);
    (request, columns.next().and_then(bytes))
}

// covers: SEND-04, SEND-05
#[tokio::test]
async fn frames_that_others_made_go_through_the_link() {
    use C24Format::{F1, F3, F4, F5};
    use C24Frame::{C1, C3, C4};
    let refused = End::Code(end_code::coded(0x7E40));
    let two = || End::Words(vec![0x1234, 0x1010]);
    let cases = [
        (
            "4c-f5 read reply 1234H 1010H",
            C4,
            F5,
            read("D100", 2),
            two(),
        ),
        (
            "4c-f5 error 7E40H",
            C4,
            F5,
            write("D100", 0x1234),
            refused.clone(),
        ),
        ("3c-f4 0401 D100 x2", C3, F4, read("D100", 2), two()),
        (
            "3c-f4 1401 D100=1234H",
            C3,
            F4,
            write("D100", 0x1234),
            End::Echo,
        ),
        ("3c-f4 refused", C3, F4, write("D100", 0x1234), refused),
        ("3c-f3 0401 D100 x2", C3, F3, read("D100", 2), two()),
        (
            "1c-f1 WR D0232 x1 station 5",
            C1,
            F1,
            read("D232", 1),
            End::Words(vec![5]),
        ),
    ];
    for (name, frame, format, ask, end) in cases {
        let mut link = link(frame, format);
        if frame == C1 {
            link.route.station = 5;
        }
        let (request, reply) = vector(name);
        let reply = reply.unwrap();
        let (sent, called) = exchanged(&link, 7, &ask, &reply).await;
        if let Some(request) = request {
            assert_eq!(sent, request, "{name}");
        }
        assert_eq!(called.end, end, "{name}");
        // Behind noise, and behind another station's reply.
        let mut foreign = reply.clone();
        let at = if format == F5 { 6 } else { 4 };
        foreign[at] ^= 1;
        let behind = [&[0x00, 0x02, 0x10][..], &foreign, &reply].concat();
        let (_, called) = exchanged(&link, 7, &ask, &behind).await;
        assert_eq!(called.end, end, "{name} behind noise");
    }
}

// covers: SEND-05
#[tokio::test]
async fn an_echo_is_passed_over_where_it_is_known_and_a_doubt_where_it_is_not() {
    for (frame, format) in [
        (C24Frame::C4, C24Format::F5),
        (C24Frame::C3, C24Format::F3),
        (C24Frame::C3, C24Format::F4),
    ] {
        let mut link = link(frame, format);
        link.echo = true;
        let ask = read("D100", 2);
        let name = match format {
            C24Format::F5 => "4c-f5 read reply 1234H 1010H",
            C24Format::F3 => "3c-f3 0401 D100 x2",
            _ => "3c-f4 0401 D100 x2",
        };
        let reply = vector(name).1.unwrap();
        let own = C24Codec::new(&link).encode(&ask, 1).unwrap();
        let both = [&own[..], &reply].concat();
        let (_, called) = exchanged(&link, 1, &ask, &both).await;
        assert_eq!(called.end, End::Words(vec![0x1234, 0x1010]), "{format:?}");
        link.echo = false;
        let (_, called) = exchanged(&link, 1, &ask, &both).await;
        match &called.end {
            End::NoReply(why) => assert!(why.contains("echo = true"), "{why}"),
            other => panic!("{format:?}: {other:?}"),
        }
    }
}

// covers: SEND-05
#[tokio::test]
async fn what_is_not_the_replys_own_is_never_a_reply() {
    let f4 = link(C24Frame::C3, C24Format::F4);
    let f5 = link(C24Frame::C4, C24Format::F5);
    let f2 = link(C24Frame::C3, C24Format::F2);
    let mut wrong_sum = vector("4c-f5 read reply 1234H 1010H").1.unwrap();
    *wrong_sum.last_mut().unwrap() ^= 1;
    let acknowledged = vector("3c-f4 1401 D100=1234H").1.unwrap();
    let data = vector("3c-f4 0401 D100 x2").1.unwrap();
    let fewer: &[u8] = b"\x02F90000FF001234\x03F8\r\n";
    let block_6: &[u8] = b"\x0606F90000FF00";
    for (link, ask, reply) in [
        (&f5, read("D100", 2), wrong_sum.as_slice()),
        (&f4, read("D100", 2), &acknowledged),
        (&f4, write("D100", 1), &data),
        (&f4, read("D100", 2), fewer),
        (&f2, write("D100", 1), block_6),
    ] {
        let (_, called) = exchanged(link, 7, &ask, reply).await;
        assert!(matches!(called.end, End::NoReply(_)), "{:?}", called.end);
    }
    let (_, called) = exchanged(&f2, 6, &write("D100", 1), block_6).await;
    assert_eq!(called.end, End::Echo);
}

// covers: SEND-04, F065
#[tokio::test]
async fn a_nak_proves_what_the_one_table_says_and_one_of_1c_proves_nothing() {
    for (frame, reply, proof) in [
        (
            C24Frame::C3,
            &b"\x15F90000FF007E43"[..],
            Proof::RefusedPlace,
        ),
        (C24Frame::C3, b"\x15F90000FF007E70", Proof::Unclear),
        (C24Frame::C2, b"\x15FB00007F24", Proof::Refused),
        (C24Frame::C1, b"\x1500FF55", Proof::Unclear),
    ] {
        let link = link(frame, C24Format::F1);
        let (_, called) = exchanged(&link, 7, &write("D100", 1), reply).await;
        match called.end {
            End::Code(coded) => assert_eq!(coded.proof, proof, "{coded:?}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn one_c_tells_no_cpu_to_stop() {
    let codec = C24Codec::new(&link(C24Frame::C1, C24Format::F1));
    assert!(codec.encode(&Ask::Remote(Remote::Stop), 1).is_err());
}
