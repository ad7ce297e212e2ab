//! Owns: the loopback test after a doubt, against devices that answer late in just the worst order (SEND-05).
//! May call: the rig, scripted devices of its own.
//! Never: wait for a time; the order of bytes is the scripted device's.

use crate::rig::{Form, counter, link, machine, read, spec, until_connected, values};
use holdfast::core::c24::{C24Format, C24Frame, C24Link, C24Route};
use holdfast::core::contract::Outcome;
use holdfast::core::melsec::{Code, Family, Frame, Transport};
use holdfast::core::serial::Way;
use holdfast::core::spec::{DataType, LinkSpec, Value};
use holdfast::plc::link::Link;
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// For what is to run out, in milliseconds.
const TIMEOUT_MS: u64 = 60;
const STALE: u16 = 0xBAD;
const RIGHT: u16 = 7;

/// What the device does with one request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Do {
    /// As it was asked: [`RIGHT`] for a read, the digits for a loopback test.
    Answer,
    Nothing,
    /// The reply to the read that was not answered.
    StaleRead,
    /// The reply to the first loopback test.
    StaleLoopback,
    Unknown,
}

/// What a request asks.
#[derive(Clone, Debug, PartialEq)]
enum Asked {
    Read,
    Loopback(Vec<u8>),
}

type Seen = Arc<Mutex<Vec<Asked>>>;

/// How the scripted device speaks.
#[derive(Clone, Copy, Debug)]
enum Speech {
    /// 3E binary.
    E3,
    /// 4C format 1 without sum.
    C4,
    /// 1C format 1 without sum.
    C1,
}

const SPEECHES: [Speech; 3] = [Speech::E3, Speech::C4, Speech::C1];

impl Speech {
    /// The first whole request of `bytes`: its head, what it asks, its length.
    fn take(self, bytes: &mut Vec<u8>) -> Option<(Vec<u8>, Asked)> {
        match self {
            Self::C1 => Self::take_1c(bytes),
            Self::E3 => {
                let length = 9 + usize::from(u16::from_le_bytes(*bytes.get(7..)?.first_chunk()?));
                let request = bytes.get(..length)?.to_vec();
                bytes.drain(..length);
                let asked = match &request[11..13] {
                    [0x01, 0x04] => Asked::Read,
                    [0x19, 0x06] => Asked::Loopback(request[17..].to_vec()),
                    other => panic!("{other:02X?}"),
                };
                Some((request[..7].to_vec(), asked))
            }
            Self::C4 => {
                // EOT has the module drop what it was doing; the script does as it likes.
                let enq = bytes.iter().position(|byte| *byte == 5)?;
                bytes.drain(..enq);
                let body = bytes.get(17..25)?.to_vec();
                let length = match body.get(..4)? {
                    b"0401" => 17 + 8 + 8 + 4,
                    b"0619" => {
                        let digits = std::str::from_utf8(bytes.get(25..29)?).unwrap();
                        17 + 8 + 4 + usize::from_str_radix(digits, 16).unwrap()
                    }
                    other => panic!("{other:02X?}"),
                };
                let request = bytes.get(..length)?.to_vec();
                bytes.drain(..length);
                let asked = match body.starts_with(b"0401") {
                    true => Asked::Read,
                    false => Asked::Loopback(request[29..].to_vec()),
                };
                Some((request[1..17].to_vec(), asked))
            }
        }
    }

    /// ENQ, station and PC number, command, message wait, data.
    fn take_1c(bytes: &mut Vec<u8>) -> Option<(Vec<u8>, Asked)> {
        let enq = bytes.iter().position(|byte| *byte == 5)?;
        bytes.drain(..enq);
        let length = match bytes.get(5..7)? {
            b"WR" => 8 + 5 + 2,
            b"TT" => {
                let digits = std::str::from_utf8(bytes.get(8..10)?).unwrap();
                10 + usize::from_str_radix(digits, 16).unwrap()
            }
            other => panic!("{other:02X?}"),
        };
        let request = bytes.get(..length)?.to_vec();
        bytes.drain(..length);
        let asked = match &request[5..7] {
            b"WR" => Asked::Read,
            _ => Asked::Loopback(request[10..].to_vec()),
        };
        Some((request[1..5].to_vec(), asked))
    }

    fn data(self, head: &[u8], data: &[u8]) -> Vec<u8> {
        match self {
            Self::E3 => {
                let length = (2 + data.len()) as u16;
                let mut reply = head.to_vec();
                reply[0] |= 0x80;
                reply.extend_from_slice(&length.to_le_bytes());
                reply.extend_from_slice(&[0, 0]);
                [reply, data.to_vec()].concat()
            }
            Self::C4 | Self::C1 => [&[2], head, data, &[3]].concat(),
        }
    }

    fn word(self, head: &[u8], word: u16) -> Vec<u8> {
        match self {
            Self::E3 => self.data(head, &word.to_le_bytes()),
            Self::C4 | Self::C1 => self.data(head, format!("{word:04X}").as_bytes()),
        }
    }

    fn digits(self, head: &[u8], digits: &[u8]) -> Vec<u8> {
        let length = digits.len() as u16;
        let length = match self {
            Self::E3 => length.to_le_bytes().to_vec(),
            Self::C4 => format!("{length:04X}").into_bytes(),
            Self::C1 => format!("{length:02X}").into_bytes(),
        };
        self.data(head, &[&length, digits].concat())
    }

    fn unknown(self, head: &[u8]) -> Vec<u8> {
        match self {
            Self::E3 => {
                let mut reply = [head, &[2, 0, 0x59, 0xC0]].concat();
                reply[0] |= 0x80;
                reply
            }
            Self::C4 => [&[0x15], head, b"7E40".as_slice()].concat(),
            Self::C1 => [&[0x15], head, b"06".as_slice()].concat(),
        }
    }

    fn link(self, at: SocketAddr) -> Link {
        link(&match self {
            Self::E3 => {
                let form = Form(Frame::E3, Code::Binary, Transport::Tcp);
                spec(form, at, TIMEOUT_MS)
            }
            Self::C4 | Self::C1 => machine(LinkSpec::C24(C24Link {
                way: Way::Tcp {
                    host: at.ip().to_string(),
                    port: at.port(),
                },
                frame: match self {
                    Self::C1 => C24Frame::C1,
                    _ => C24Frame::C4,
                },
                format: C24Format::F1,
                sum_check: false,
                family: Family::Q,
                route: C24Route::default(),
                timeout_ms: TIMEOUT_MS,
                settle_ms: 5,
                turnaround_ms: 0,
                echo: false,
                read_words_max: 64,
                reconnect_ms_min: 1,
                reconnect_ms_max: 1,
                heartbeat_ms: 1_000,
            })),
        })
    }
}

struct Script {
    speech: Speech,
    acts: Mutex<VecDeque<Do>>,
    seen: Seen,
}

impl Script {
    /// A device that does `acts` in their order, over all connections, and then answers as it is asked.
    async fn start(speech: Speech, acts: &[Do]) -> (SocketAddr, Seen) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let seen = Seen::default();
        let script = Arc::new(Self {
            speech,
            acts: Mutex::new(acts.iter().copied().collect()),
            seen: Arc::clone(&seen),
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let script = Arc::clone(&script);
                tokio::spawn(async move { script.serve(stream).await });
            }
        });
        (at, seen)
    }

    async fn serve(&self, mut stream: TcpStream) {
        let (mut bytes, mut room) = (Vec::new(), [0; 512]);
        while let Ok(read @ 1..) = stream.read(&mut room).await {
            bytes.extend_from_slice(&room[..read]);
            while let Some((head, asked)) = self.speech.take(&mut bytes) {
                let reply = self.reply(&head, asked);
                if stream.write_all(&reply).await.is_err() {
                    return;
                }
            }
        }
    }

    fn reply(&self, head: &[u8], asked: Asked) -> Vec<u8> {
        let act = self.acts.lock().unwrap().pop_front().unwrap_or(Do::Answer);
        let mut seen = self.seen.lock().unwrap();
        seen.push(asked.clone());
        let first = seen.iter().find_map(|asked| match asked {
            Asked::Loopback(digits) => Some(digits.clone()),
            Asked::Read => None,
        });
        match (act, asked) {
            (Do::Nothing, _) => Vec::new(),
            (Do::StaleRead, _) => self.speech.word(head, STALE),
            (Do::StaleLoopback, _) => self.speech.digits(head, &first.unwrap()),
            (Do::Unknown, _) => self.speech.unknown(head),
            (Do::Answer, Asked::Read) => self.speech.word(head, RIGHT),
            (Do::Answer, Asked::Loopback(digits)) => self.speech.digits(head, &digits),
        }
    }
}

fn loopbacks(seen: &Seen) -> Vec<Vec<u8>> {
    let seen = seen.lock().unwrap();
    let digits = |asked: &Asked| match asked {
        Asked::Loopback(digits) => Some(digits.clone()),
        Asked::Read => None,
    };
    seen.iter().filter_map(digits).collect()
}

async fn lose_one(link: &mut Link) {
    let lost = link.run(&read(&[("D1", DataType::U16)])).await;
    assert!(
        matches!(lost.outcome, Outcome::SentNoReply { .. }),
        "{lost:?}"
    );
}

/// Served, and asked for no test.
async fn stays_without_tests(link: &mut Link, seen: &Seen) {
    let before = loopbacks(seen).len();
    link.disconnect("a test");
    until_connected(link).await;
    is_right(link).await;
    assert_eq!(loopbacks(seen).len(), before);
}

async fn is_right(link: &mut Link) {
    let exchange = link.run(&read(&[("D2", DataType::U16)])).await;
    assert_eq!(values(&exchange), [Value::Int(RIGHT.into())]);
}

// covers: SEND-05, SEND-06
#[tokio::test]
async fn late_replies_after_the_line_has_settled_twice_in_a_row_are_nobodys() {
    for speech in SPEECHES {
        // The first connection's test and proof; a read without its reply; then each reply is the last request's.
        let acts = [
            Do::Answer,
            Do::Answer,
            Do::Nothing,
            Do::StaleRead,
            Do::StaleLoopback,
        ];
        let (at, seen) = Script::start(speech, &acts).await;
        let mut link = speech.link(at);
        link.connect().await.unwrap();
        lose_one(&mut link).await;
        for late in ["the read's reply", "the first test's reply"] {
            let error = link.connect().await.unwrap_err().to_string();
            assert!(error.contains("an old reply came"), "{late}: {error}");
            assert!(!link.is_connected());
        }
        until_connected(&mut link).await;
        is_right(&mut link).await;
        let digits = loopbacks(&seen);
        assert_eq!(digits.len(), 4, "{speech:?}");
        let others: HashSet<&Vec<u8>> = digits.iter().collect();
        assert_eq!(others.len(), digits.len());
        // Nothing else was asked before the digits had come back: test and proof, the lost read, three tests.
        let tests = &seen.lock().unwrap()[3..6];
        assert!(tests.iter().all(|asked| *asked != Asked::Read), "{tests:?}");
    }
}

// covers: SEND-05, F003
#[tokio::test]
async fn a_reply_to_whoever_had_the_line_before_is_nobodys_from_the_first_request_on() {
    for speech in SPEECHES {
        let (at, seen) = Script::start(speech, &[Do::StaleRead]).await;
        let mut link = speech.link(at);
        let error = link.connect().await.unwrap_err().to_string();
        assert!(error.contains("an old reply came"), "{speech:?}: {error}");
        until_connected(&mut link).await;
        is_right(&mut link).await;
        assert_eq!(loopbacks(&seen).len(), 2, "{speech:?}");
        // And again when the connection was given up for another reason.
        link.disconnect("a test");
        until_connected(&mut link).await;
        assert_eq!(loopbacks(&seen).len(), 3, "{speech:?}");
        let asked = seen.lock().unwrap();
        let last = &asked[asked.len() - 2..];
        assert!(
            matches!(last, [Asked::Loopback(_), Asked::Read]),
            "{last:?}"
        );
    }
}

// covers: SEND-06
#[tokio::test]
async fn a_device_without_the_test_is_asked_twice_and_then_served_as_before() {
    for speech in SPEECHES {
        let acts = [Do::Unknown, Do::Unknown, Do::Answer, Do::Nothing];
        let (at, seen) = Script::start(speech, &acts).await;
        let mut link = speech.link(at);
        link.connect().await.unwrap();
        assert_eq!(
            counter(&link, "connects"),
            1,
            "{speech:?}: no connection is lost by it"
        );
        lose_one(&mut link).await;
        until_connected(&mut link).await;
        is_right(&mut link).await;
        assert_eq!(loopbacks(&seen).len(), 2, "{speech:?}");
    }
}

// covers: SEND-05
#[tokio::test]
async fn one_refusal_alone_may_be_late_and_ends_no_doubt() {
    for speech in SPEECHES {
        let acts = [
            Do::Answer,
            Do::Answer,
            Do::Nothing,
            Do::Unknown,
            Do::StaleRead,
        ];
        let (at, seen) = Script::start(speech, &acts).await;
        let mut link = speech.link(at);
        link.connect().await.unwrap();
        lose_one(&mut link).await;
        assert!(link.connect().await.is_err(), "{speech:?}");
        until_connected(&mut link).await;
        is_right(&mut link).await;
        assert_eq!(loopbacks(&seen).len(), 4, "{speech:?}");
    }
}

// covers: F141
#[tokio::test]
async fn a_device_that_is_silent_about_the_test_is_not_lost_for_ever() {
    for speech in SPEECHES {
        // A read between two tests shows that it is there.
        let silent_to_tests = [
            Do::Nothing,
            Do::Answer,
            Do::Nothing,
            Do::Answer,
            Do::Nothing,
        ];
        let (at, seen) = Script::start(speech, &silent_to_tests).await;
        let mut link = speech.link(at);
        for _ in 0..3 {
            assert!(link.connect().await.is_err() && link.may_yet_answer());
        }
        link.connect().await.unwrap();
        is_right(&mut link).await;
        assert_eq!(loopbacks(&seen).len(), 3, "{speech:?}");
        stays_without_tests(&mut link, &seen).await;
    }
}

// covers: SEND-05
#[tokio::test]
async fn a_device_that_was_off_is_asked_for_the_test_when_it_is_back() {
    for speech in SPEECHES {
        let (at, seen) = Script::start(speech, &[Do::Nothing; 9]).await;
        let mut link = speech.link(at);
        let mut tries = 0;
        while link.connect().await.is_err() {
            tries += 1;
            assert!(tries < 12, "{speech:?}");
        }
        is_right(&mut link).await;
        let asked = seen.lock().unwrap().clone();
        let tests = asked[..9].iter().filter(|asked| **asked != Asked::Read);
        assert!((4..=6).contains(&tests.count()), "{speech:?}: {asked:?}");
        // The last read stands behind digits that came back.
        let back = asked[9..].iter().rposition(|asked| *asked != Asked::Read);
        assert!(back.is_some(), "{speech:?}: {asked:?}");
    }
}
