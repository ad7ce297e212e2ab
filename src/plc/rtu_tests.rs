//! Owns: the proof of RTU framing by byte vectors: each that was met elsewhere, and any that chance makes.
//! May call: rtu, metered, exchange; a pipe in place of a line.
//! Never: leave to a simulator what bytes alone can show.

use super::super::exchange::{Called, Framed, Proof};
use super::super::metered::{Clock, Line, Tally};
use super::super::plan::Span;
use super::*;
use crate::core::contract::{DeviceCode, Outcome};
use crate::core::ids::BootId;
use crate::core::spec::{Address, Area, ModbusArea};
use crate::core::time::Now;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

pub(in super::super) fn link(unit: u8, echo: bool) -> ModbusRtu {
    ModbusRtu {
        way: Way::Tcp {
            host: "pipe".into(),
            port: 1,
        },
        unit,
        timeout_ms: 250,
        settle_ms: 50,
        turnaround_ms: 0,
        echo,
        read_registers_max: 125,
        reconnect_ms_min: 1,
        reconnect_ms_max: 1,
        heartbeat_ms: 1_000,
    }
}

pub(in super::super) fn clock() -> Clock {
    Arc::new(|| Now {
        boot_id: BootId::default(),
        boottime_ns: 1,
        wall_us: 1,
        wall_trusted: true,
    })
}

struct Pipe {
    session: Framed,
    far: DuplexStream,
    tally: Arc<Tally>,
}

fn pipe(link: &ModbusRtu) -> Pipe {
    let (near, far) = duplex(1 << 17);
    let tally: Arc<Tally> = Arc::default();
    let framing = Box::new(RtuFraming::new(link.echo));
    let line = Line::new(Box::new(near), framing, clock(), Arc::clone(&tally));
    let timeout = Duration::from_millis(link.timeout_ms);
    let codec = Box::new(RtuCodec::new(link));
    Pipe {
        session: Framed::over(codec, line, Arc::clone(&tally), timeout),
        far,
        tally,
    }
}

impl Pipe {
    /// Asks, and has `reply` come, in `parts` with a pause between.
    async fn ask(&mut self, ask: &Ask, parts: &[&[u8]], pause: Duration) -> (Vec<u8>, Called) {
        let Self { session, far, .. } = self;
        let answer = async {
            let mut request = vec![0; FRAME_BYTES_MAX];
            let length = far.read(&mut request).await.unwrap();
            request.truncate(length);
            for part in parts {
                // The line may have been given up over an earlier part.
                let _ = far.write_all(part).await;
                tokio::time::sleep(pause).await;
            }
            request
        };
        let (called, request) = tokio::join!(session.call(0, ask), answer);
        (request, called)
    }
    fn noise(&self) -> u64 {
        self.tally.noise_bytes.load(Relaxed)
    }
}

fn read(area: ModbusArea, start: u32, count: u16) -> Ask {
    Ask::Read(Span {
        area: Area::Modbus(area),
        start,
        count,
    })
}

fn write(area: ModbusArea, offset: u16, words: &[u16]) -> Ask {
    Ask::Write {
        start: Address::Modbus { area, offset },
        words: words.to_vec(),
    }
}

fn holding(start: u32, count: u16) -> Ask {
    read(ModbusArea::Holding, start, count)
}

/// With its check sum.
fn sound(bytes: &[u8]) -> Vec<u8> {
    [bytes, &crc(bytes).to_le_bytes()].concat()
}

const READ_0: [u8; 8] = [0x01, 0x03, 0x00, 0x00, 0x00, 0x01, 0x84, 0x0A];
const REPLY_42: [u8; 7] = [0x01, 0x03, 0x02, 0x00, 0x2A, 0x39, 0x9B];

// covers: F003, F028, F013, F019
#[test]
fn the_check_sum_is_that_of_frames_from_elsewhere() {
    let frames: [&[u8]; 7] = [
        &READ_0,
        &REPLY_42,
        &[0x01, 0x03, 0x00, 0x64, 0x00, 0x01, 0xC5, 0xD5],
        &[0x01, 0x03, 0x02, 0xAA, 0xAA, 0x46, 0x9B],
        &[0x01, 0x03, 0x02, 0xBB, 0xBB, 0x8A, 0xC7],
        &[0x01, 0x04, 0x02, 0x00, 0x07, 0xF8, 0xF2],
        &[0x07, 0x41, 0x01, 0x02, 0x03, 0x95, 0x5D],
    ];
    for frame in frames {
        assert!(is_sound(frame), "{}", hex(frame));
    }
    assert!(!is_sound(&[1, 3, 2, 0, 0x2B, 0x39, 0x9B]));
}

#[tokio::test]
async fn each_request_goes_out_and_its_reply_comes_in_byte_for_byte() {
    use ModbusArea::{Coil, Discrete, Holding, Input};
    let mut pipe = pipe(&link(1, false));
    let echo = |head: &[u8]| (sound(head), End::Echo);
    let words = |head: &[u8], words: &[u16]| (sound(head), End::Words(words.to_vec()));
    type Case<'a> = (Ask, &'a [u8], (Vec<u8>, End));
    let cases: [Case<'_>; 8] = [
        (
            read(Coil, 3, 10),
            &[1, 1, 0, 3, 0, 10],
            words(&[1, 1, 2, 0x05, 0x02], &[1, 0, 1, 0, 0, 0, 0, 0, 0, 1]),
        ),
        (
            read(Discrete, 0, 1),
            &[1, 2, 0, 0, 0, 1],
            words(&[1, 2, 1, 1], &[1]),
        ),
        (
            read(Holding, 300, 2),
            &[1, 3, 1, 44, 0, 2],
            words(&[1, 3, 4, 1, 2, 3, 4], &[0x0102, 0x0304]),
        ),
        (
            read(Input, 0, 1),
            &[1, 4, 0, 0, 0, 1],
            words(&[1, 4, 2, 0, 7], &[7]),
        ),
        (
            write(Coil, 9, &[1]),
            &[1, 5, 0, 9, 0xFF, 0],
            echo(&[1, 5, 0, 9, 0xFF, 0]),
        ),
        (
            write(Holding, 9, &[500]),
            &[1, 6, 0, 9, 1, 0xF4],
            echo(&[1, 6, 0, 9, 1, 0xF4]),
        ),
        (
            write(Coil, 9, &[1, 0, 1]),
            &[1, 15, 0, 9, 0, 3, 1, 5],
            echo(&[1, 15, 0, 9, 0, 3]),
        ),
        (
            write(Holding, 9, &[1, 2]),
            &[1, 16, 0, 9, 0, 2, 4, 0, 1, 0, 2],
            echo(&[1, 16, 0, 9, 0, 2]),
        ),
    ];
    for (ask, request, (reply, end)) in cases {
        let (sent, called) = pipe.ask(&ask, &[&reply], Duration::ZERO).await;
        assert_eq!(sent, sound(request), "{ask:?}");
        assert_eq!(called.end, end, "{ask:?}");
        assert_eq!(called.ident, "unit=1");
        assert_eq!((called.meter.sent, called.meter.reply), (sent.len(), reply));
    }
    assert_eq!(pipe.noise(), 0);
}

// covers: SEND-04, F043
#[tokio::test]
async fn exceptions_are_replies_and_keep_their_code() {
    let mut pipe = pipe(&link(1, false));
    for (code, proof) in [(2, Proof::RefusedPlace), (0x0B, Proof::Offline)] {
        let reply = sound(&[1, 0x83, code]);
        let (_, called) = pipe.ask(&holding(0, 1), &[&reply], Duration::ZERO).await;
        let End::Code(found) = called.end else {
            panic!("{called:?}")
        };
        assert_eq!((found.code.code, found.proof), (u32::from(code), proof));
        let DeviceCode { family, .. } = found.code;
        assert_eq!(family, "modbus");
    }
}

// covers: F013
#[tokio::test]
async fn a_byte_behind_every_reply_is_noise_and_costs_no_poll() {
    let mut pipe = pipe(&link(1, false));
    let ask = read(ModbusArea::Input, 0, 1);
    let reply = [0x01, 0x04, 0x02, 0x00, 0x07, 0xF8, 0xF2, 0x00];
    for poll in 0..200 {
        let (_, called) = pipe.ask(&ask, &[&reply], Duration::ZERO).await;
        assert_eq!(called.end, End::Words(vec![7]), "poll {poll}");
    }
    // The last one is found when somebody looks.
    let (_, called) = pipe.ask(&ask, &[&reply[..7]], Duration::ZERO).await;
    assert_eq!(called.end, End::Words(vec![7]));
    assert_eq!(pipe.noise(), 200);
    assert_eq!(pipe.tally.timeouts.load(Relaxed), 0);
}

// covers: F015
#[tokio::test]
async fn a_burst_of_garbage_is_passed_over_in_linear_time() {
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let spent_us = |garbage: &[u8]| {
        let framing = &mut RtuFraming::new(false);
        framing.outgoing(&mut READ_0.to_vec()).unwrap();
        let began = cpu();
        let mut bytes = garbage.to_vec();
        // As they come in, in parts of what is read at once.
        let mut raw = Vec::new();
        while !bytes.is_empty() {
            raw.extend(bytes.drain(..bytes.len().min(4_096)));
            while let Skip::Noise(noise, _) = framing.skip(&raw).unwrap() {
                raw.drain(..noise);
            }
            assert!(raw.len() <= FRAME_BYTES_MAX);
        }
        let end = cpu();
        (end.tv_sec - began.tv_sec) * 1_000_000 + (end.tv_nsec - began.tv_nsec) / 1_000
    };
    let burst = [1, 3].repeat(32 * 1024);
    let (once, four) = (spent_us(&burst), spent_us(&burst.repeat(4)));
    assert!(once < 50_000, "{once} us");
    assert!(four < 50_000 * 4, "{four} us");

    let mut pipe = pipe(&link(1, false));
    let noise = burst.len() as u64;
    let parts: [&[u8]; 2] = [&burst, &REPLY_42];
    let (_, called) = pipe.ask(&holding(0, 1), &parts, Duration::ZERO).await;
    assert_eq!(called.end, End::Words(vec![42]));
    assert_eq!(pipe.noise(), noise);
}

// covers: F019
#[tokio::test]
async fn frames_of_others_are_ignored_before_beside_and_behind_a_reply() {
    let mut pipe = pipe(&link(1, false));
    let strangers: [&[u8]; 3] = [
        &[0, 16, 0, 0, 0, 2, 4, 0, 1, 0, 1, 0x67, 0x53],
        &[0x07, 0x41, 0x01, 0x02, 0x03, 0x95, 0x5D],
        &sound(&[2, 3, 2, 0xAA, 0xAA]),
    ];
    let mut noise = 0;
    for stranger in strangers {
        let around = [stranger, &REPLY_42, stranger].concat();
        let (_, called) = pipe.ask(&holding(0, 1), &[&around], Duration::ZERO).await;
        assert_eq!(called.end, End::Words(vec![42]));
        noise += 2 * stranger.len() as u64;
        // And right behind the reply to a write.
        let ask = write(ModbusArea::Holding, 9, &[500]);
        let reply = sound(&[1, 6, 0, 9, 1, 0xF4]);
        let around = [&reply, stranger].concat();
        let (_, called) = pipe.ask(&ask, &[&around], Duration::ZERO).await;
        assert_eq!(called.end, End::Echo);
        noise += stranger.len() as u64;
    }
    let (_, called) = pipe.ask(&holding(0, 1), &[&REPLY_42], Duration::ZERO).await;
    assert_eq!(called.end, End::Words(vec![42]));
    assert_eq!(pipe.noise(), noise);
    assert!(!pipe.session.is_closed());
}

// covers: SEND-05
#[tokio::test]
async fn a_reply_that_differs_in_any_field_is_none() {
    let ask = holding(0, 2);
    let good = sound(&[1, 3, 4, 0, 1, 0, 2]);
    for (at, byte) in [(0, 2), (1, 4), (2, 2), (3, 9), (7, 0xFF)] {
        let mut pipe = pipe(&link(1, false));
        let mut bad = good.clone();
        bad[at] = byte;
        let (_, called) = pipe.ask(&ask, &[&bad], Duration::ZERO).await;
        assert!(
            matches!(called.end, End::NoReply(_)),
            "byte {at}: {called:?}"
        );
        assert!(pipe.session.is_closed());
    }
    let mut pipe = pipe(&link(1, false));
    let ask = write(ModbusArea::Holding, 9, &[500]);
    let other = sound(&[1, 6, 0, 9, 1, 0xF5]);
    let (_, called) = pipe.ask(&ask, &[&other], Duration::ZERO).await;
    assert!(matches!(called.end, End::NoReply(_)), "{called:?}");
}

#[tokio::test]
async fn what_came_instead_is_said() {
    let mut pipe = pipe(&link(1, false));
    let mut bad = REPLY_42;
    bad[4] = 0x2B;
    let (_, called) = pipe.ask(&holding(0, 1), &[&bad], Duration::ZERO).await;
    let End::NoReply(why) = called.end else {
        panic!("{called:?}")
    };
    assert!(why.contains("wrong check sum"), "{why}");
    assert!(why.contains("01 03 02 00 2B 39 9B"), "{why}");
    let mut pipe = self::pipe(&link(1, false));
    let (_, called) = pipe.ask(&holding(0, 1), &[], Duration::ZERO).await;
    let End::NoReply(why) = called.end else {
        panic!("{called:?}")
    };
    assert!(why.contains("nothing has answered"), "{why}");
}

// covers: F026
#[tokio::test]
async fn a_reply_in_batches_with_long_pauses_is_one_reply() {
    let mut patient = link(1, false);
    patient.timeout_ms = 10_000;
    let mut pipe = pipe(&patient);
    let words: Vec<u16> = (0..125).map(|n| n * 517).collect();
    let mut reply = vec![1, 3, 250];
    reply.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    let reply = sound(&reply);
    for pause in [16, 40] {
        let parts: Vec<&[u8]> = reply.chunks(62).collect();
        let pause = Duration::from_millis(pause);
        let (_, called) = pipe.ask(&holding(0, 125), &parts, pause).await;
        assert_eq!(called.end, End::Words(words.clone()));
    }
    assert_eq!(pipe.noise(), 0);
}

// covers: F028
#[tokio::test]
async fn a_local_echo_is_skipped_whole_or_without_its_first_byte() {
    for lost in 0..=2 {
        let mut pipe = pipe(&link(1, true));
        let chunk = [&READ_0[lost..], &REPLY_42].concat();
        let (_, called) = pipe.ask(&holding(0, 1), &[&chunk], Duration::ZERO).await;
        assert_eq!(called.end, End::Words(vec![42]), "{lost} lost");
        assert_eq!(pipe.noise(), 0);
    }
    // A single write's echo is the same as its reply: only the second one is the reply.
    let ask = write(ModbusArea::Holding, 9, &[500]);
    let frame = sound(&[1, 6, 0, 9, 1, 0xF4]);
    let mut twice = pipe(&link(1, true));
    let (_, called) = twice.ask(&ask, &[&frame, &frame], Duration::ZERO).await;
    assert_eq!(called.end, End::Echo);
    let mut once = pipe(&link(1, true));
    let (_, called) = once.ask(&ask, &[&frame], Duration::ZERO).await;
    assert!(matches!(called.end, End::NoReply(_)), "{called:?}");
}

// covers: F028
#[tokio::test]
async fn an_echo_that_nobody_configured_is_named() {
    // Also when it comes in pieces.
    for cut in [0, 1, 3, 7] {
        let mut pipe = pipe(&link(1, false));
        let parts: [&[u8]; 3] = [&READ_0[..cut], &READ_0[cut..], &REPLY_42];
        let (_, called) = pipe.ask(&holding(0, 1), &parts, Duration::ZERO).await;
        let End::NoReply(why) = called.end else {
            panic!("{called:?}")
        };
        assert!(why.contains("local echo"), "{why}");
    }
    let mut pipe = pipe(&link(1, false));
    let chunk = [&READ_0[1..], &REPLY_42].concat();
    let (_, called) = pipe.ask(&holding(0, 1), &[&chunk], Duration::ZERO).await;
    assert_eq!(called.end, End::Words(vec![42]));
    assert_eq!(pipe.noise(), 7);
}

// covers: F031
#[tokio::test]
async fn a_broadcast_is_one_frame_that_nothing_confirms() {
    use ModbusArea::{Coil, Holding};
    let mut pipe = pipe(&link(0, false));
    let writes: [(Ask, &[u8]); 4] = [
        (write(Coil, 9, &[1]), &[0, 5, 0, 9, 0xFF, 0]),
        (write(Holding, 9, &[500]), &[0, 6, 0, 9, 1, 0xF4]),
        (write(Coil, 9, &[1, 1]), &[0, 15, 0, 9, 0, 2, 1, 3]),
        (
            write(Holding, 9, &[1, 2]),
            &[0, 16, 0, 9, 0, 2, 4, 0, 1, 0, 2],
        ),
    ];
    for (ask, frame) in writes {
        let (sent, called) = pipe.ask(&ask, &[], Duration::ZERO).await;
        assert_eq!(sent, sound(frame));
        let outcome = super::super::link::write_outcome(&called.end);
        let unconfirmable = Outcome::SentNoReply {
            why: "sent, unconfirmable".into(),
        };
        assert_eq!(outcome, unconfirmable);
    }
    assert_eq!(
        pipe.tally.timeouts.load(Relaxed),
        0,
        "nothing was waited for"
    );
    let called = pipe.session.call(0, &holding(0, 1)).await;
    assert!(matches!(called.end, End::NotSent(_)), "{called:?}");
}

#[test]
fn the_wait_for_a_reply_begins_when_the_request_has_left() {
    use crate::core::serial::{Parity, SerialLine};
    let mut slow = link(1, true);
    slow.way = Way::Serial(SerialLine {
        path: "/dev/null".into(),
        baud: 1_200,
        data_bits: 8,
        parity: Parity::Even,
        stop_bits: 1,
        rs485: false,
    });
    let codec = RtuCodec::new(&slow);
    let ask = holding(0, 100);
    let request = codec.encode(&ask, 0).unwrap();
    // Request, its echo, 205 bytes of reply; 11 bits each.
    let characters = 8 + 8 + 205;
    let expected = Duration::from_micros(characters * 11 * 1_000_000 / 1_200);
    let found = codec.line_time(&ask, &request);
    assert!(found >= expected && found < expected + Duration::from_millis(1));
}

proptest! {
    // covers: OPS-03
    #[test]
    fn no_bytes_panic_and_what_is_passed_over_is_bounded(
        bytes in proptest::collection::vec(prop_oneof![Just(1_u8), Just(3), Just(2), any::<u8>()], 0..600),
        echo: bool,
    ) {
        let mut framing = RtuFraming::new(echo);
        framing.outgoing(&mut READ_0.to_vec()).unwrap();
        let mut rest = bytes.clone();
        let mut steps = 0;
        while let Ok(Skip::Noise(n, _) | Skip::Echo(n)) = framing.skip(&rest) {
            prop_assert!(n > 0 && n <= rest.len());
            rest.drain(..n);
            steps += 1;
            prop_assert!(steps <= bytes.len() + 1);
        }
        if let Ok(Some(length)) = framing.frame_bytes(&rest) {
            prop_assert!(matches!(framing.fit(&READ_0, &rest[..length]), Fit::Reply));
        }
    }

    // covers: SEND-05, F015
    #[test]
    fn a_reply_is_found_behind_any_noise(noise in proptest::collection::vec(any::<u8>(), 0..300), value: u16) {
        let mut framing = RtuFraming::new(false);
        framing.outgoing(&mut READ_0.to_vec()).unwrap();
        let reply = sound(&[&[1, 3, 2][..], &value.to_be_bytes()].concat());
        let mut bytes = [noise, reply.clone()].concat();
        while let Ok(Skip::Noise(n, _)) = framing.skip(&bytes) {
            bytes.drain(..n);
        }
        // Noise that is a reply itself cannot be told from one.
        let length = framing.frame_bytes(&bytes).unwrap();
        prop_assert_eq!(length, Some(7));
        prop_assert!(bytes.len() > 7 || bytes == reply);
    }
}
