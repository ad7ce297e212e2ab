//! Owns: the proof that a whole frame, read as the manual has it, is what was put in: 3E, 4E and every C frame.
//! May call: every file of this room; the generators of its other tests.
//! Never: let the code that makes a frame also take it apart.

use super::command::{Answer, Command};
use super::ethernet::{Head, judge};
use super::field::Place;
use super::one_c;
use super::serial::{Format, Frame as SerialFrame, SerialHead, SerialRoute};
use super::tests::{any_command, any_serial, read_back};
use crate::core::melsec::{Code, Device, Family, Frame, Kind, Route};
use crate::plc::metered::Fit;
use proptest::collection::vec;
use proptest::prelude::*;

/// Takes fields off the front of a frame, low byte first in binary, high digit first in ASCII.
struct Reader<'a> {
    rest: &'a [u8],
    code: Code,
}

impl<'a> Reader<'a> {
    fn raw(&mut self, bytes: usize) -> &'a [u8] {
        let (head, tail) = self.rest.split_at(bytes);
        self.rest = tail;
        head
    }
    fn number(&mut self, bytes: usize) -> u32 {
        match self.code {
            Code::Binary => {
                let low_first = self.raw(bytes).iter().rev();
                low_first.fold(0, |n, byte| n << 8 | u32::from(*byte))
            }
            Code::Ascii => digits(self.raw(2 * bytes), 16),
        }
    }
    fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }
    fn word(&mut self) -> u16 {
        self.number(2) as u16
    }
}

fn digits(text: &[u8], radix: u32) -> u32 {
    u32::from_str_radix(std::str::from_utf8(text).unwrap(), radix).unwrap()
}

/// Appends a field, the other way round.
fn put(out: &mut Vec<u8>, code: Code, value: u32, bytes: usize) {
    match code {
        Code::Binary => (0..bytes).for_each(|n| out.push((value >> (8 * n)) as u8)),
        Code::Ascii => out.extend(format!("{value:00$X}", 2 * bytes).bytes()),
    }
}

/// Serial number, route, monitoring timer and command of a 3E or 4E request.
fn request_read_back(frame: Frame, code: Code, bytes: &[u8]) -> (u16, Route, u16, Command) {
    let mut f = Reader { rest: bytes, code };
    let subheader: (&[u8], &[u8]) = match frame {
        Frame::E3 => (&[0x50, 0], b"5000"),
        Frame::E4 => (&[0x54, 0], b"5400"),
    };
    match code {
        Code::Binary => assert_eq!(f.raw(2), subheader.0),
        Code::Ascii => assert_eq!(f.raw(4), subheader.1),
    }
    let serial = match frame {
        Frame::E3 => 0,
        Frame::E4 => {
            let serial = f.word();
            assert_eq!(f.word(), 0);
            serial
        }
    };
    let route = Route {
        network: f.byte(),
        pc: f.byte(),
        io: f.word(),
        station: f.byte(),
    };
    let length = f.word();
    assert_eq!(f.rest.len(), usize::from(length));
    let timer = f.word();
    (serial, route, timer, read_back(f.rest, code).unwrap())
}

/// A reply with this end code, as a CPU makes it.
fn reply(head: &Head, serial: u16, end: u16, data: &[u8]) -> Vec<u8> {
    let Head { frame, code, route } = *head;
    let mut out = match (frame, code) {
        (Frame::E3, Code::Binary) => vec![0xD0, 0],
        (Frame::E4, Code::Binary) => vec![0xD4, 0],
        (Frame::E3, Code::Ascii) => b"D000".to_vec(),
        (Frame::E4, Code::Ascii) => b"D400".to_vec(),
    };
    if frame == Frame::E4 {
        put(&mut out, code, serial.into(), 2);
        put(&mut out, code, 0, 2);
    }
    put_route(&mut out, code, route);
    let mut body = Vec::new();
    put(&mut body, code, end.into(), 2);
    body.extend_from_slice(data);
    put(&mut out, code, body.len() as u32, 2);
    out.extend(body);
    out
}

fn put_route(out: &mut Vec<u8>, code: Code, route: Route) {
    put(out, code, route.network.into(), 1);
    put(out, code, route.pc.into(), 1);
    put(out, code, route.io.into(), 2);
    put(out, code, route.station.into(), 1);
}

/// What a CPU may answer to `command`, and the data that say so.
fn answer(command: &Command, code: Code, values: &[u16]) -> (Answer, Vec<u8>) {
    let mut out = Vec::new();
    let mut next = values.iter().copied().cycle();
    let mut words = |n: usize| next.by_ref().take(n).collect::<Vec<u16>>();
    let mut put_words = |words: &[u16]| {
        words
            .iter()
            .for_each(|word| put(&mut out, code, (*word).into(), 2));
    };
    let points = |blocks: &[(Place, u16)]| blocks.iter().map(|(_, n)| usize::from(*n)).sum();
    let says = match command {
        Command::ReadWords { count, .. } => {
            let words = words((*count).into());
            put_words(&words);
            Answer::Words(words)
        }
        Command::ReadBlocks { words: w, bits } => {
            let all: usize = points(w);
            let words = words(all + points(bits));
            put_words(&words);
            Answer::Words(words)
        }
        Command::ReadRandom { words: w, doubles } => {
            let (single, double) = (words(w.len()), words(2 * doubles.len()));
            put_words(&single);
            put_words_of_doubles(&mut out, code, &double);
            let pair = |pair: &[u16]| u32::from(pair[0]) | u32::from(pair[1]) << 16;
            Answer::Random {
                words: single,
                doubles: double.chunks(2).map(pair).collect(),
            }
        }
        Command::ReadBits { count, .. } => {
            let bits: Vec<u8> = words((*count).into())
                .iter()
                .map(|w| *w as u8 & 1)
                .collect();
            match code {
                Code::Binary => out.extend(bits.chunks(2).map(|two| {
                    let low = two.get(1).copied().unwrap_or_default();
                    two[0] << 4 | low
                })),
                Code::Ascii => out.extend(bits.iter().map(|bit| b'0' + bit)),
            }
            Answer::Bits(bits.iter().map(|bit| *bit == 1).collect())
        }
        Command::CpuModel => {
            let number = words(1)[0];
            let name = format!("Q{number:02}UDVCPU");
            out.extend(format!("{name:<16}").bytes());
            put(&mut out, code, number.into(), 2);
            Answer::Model { name, code: number }
        }
        Command::Loopback(sent) => {
            put(&mut out, code, sent.len() as u32, 2);
            out.extend_from_slice(sent);
            Answer::Loopback(sent.clone())
        }
        _ => Answer::Done,
    };
    (says, out)
}

/// Low word first in binary; one number of eight digits in ASCII.
fn put_words_of_doubles(out: &mut Vec<u8>, code: Code, words: &[u16]) {
    for pair in words.chunks(2) {
        let double = u32::from(pair[0]) | u32::from(pair[1]) << 16;
        put(out, code, double, 4);
    }
}

fn any_head() -> impl Strategy<Value = Head> {
    let frame = prop_oneof![Just(Frame::E3), Just(Frame::E4)];
    let code = prop_oneof![Just(Code::Binary), Just(Code::Ascii)];
    let route = (any::<[u8; 3]>(), any::<u16>());
    (frame, code, route).prop_map(|(frame, code, ([network, pc, station], io))| Head {
        frame,
        code,
        route: Route {
            network,
            pc,
            io,
            station,
        },
    })
}

/// What stands between the control characters of a serial request, its sum compared and taken off.
fn unwrapped(head: &SerialHead, bytes: &[u8]) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
        format!("{:02X}", sum & 0xFF).into_bytes()
    };
    if head.format == Format::F5 {
        let rest = bytes.strip_prefix(&[0x10, 2]).unwrap();
        let (mut inner, mut at) = (Vec::new(), 0);
        while rest[at..at + 2] != [0x10, 3] {
            inner.push(rest[at]);
            at += if rest[at..at + 2] == [0x10, 0x10] {
                2
            } else {
                1
            };
        }
        let sum = if head.sum_check {
            sum(&inner)
        } else {
            Vec::new()
        };
        assert_eq!(rest[at + 2..], sum);
        let (length, inner) = inner.split_at(2);
        let length = u16::from_le_bytes([length[0], length[1]]);
        assert_eq!(inner.len(), usize::from(length));
        return inner.to_vec();
    }
    let begins = if head.format == Format::F3 { 2 } else { 5 };
    let mut rest = bytes.strip_prefix(&[begins]).unwrap();
    if head.format == Format::F4 {
        rest = rest.strip_suffix(b"\r\n").unwrap();
    }
    if head.sum_check {
        let (summed, given) = rest.split_at(rest.len() - 2);
        assert_eq!(given, sum(summed));
        rest = summed;
    }
    match head.format {
        Format::F3 => rest.strip_suffix(&[3]).unwrap().to_vec(),
        _ => rest.to_vec(),
    }
}

/// Block number (of format 2), route as far as the frame carries it, and command of a serial request.
fn serial_read_back(head: &SerialHead, bytes: &[u8]) -> (u8, SerialRoute, Command) {
    let inner = unwrapped(head, bytes);
    let code = match head.format {
        Format::F5 => Code::Binary,
        _ => Code::Ascii,
    };
    let mut f = Reader { rest: &inner, code };
    let block = match head.format {
        Format::F2 => f.byte(),
        _ => head.block,
    };
    // What a frame does not carry stays as it is.
    let mut route = head.route;
    let kind = match head.frame {
        SerialFrame::C4 => Some(0xF8),
        SerialFrame::C3 => Some(0xF9),
        SerialFrame::C2 => Some(0xFB),
        SerialFrame::C1 => None,
    };
    if let Some(kind) = kind {
        assert_eq!(f.byte(), kind);
    }
    route.station = f.byte();
    if matches!(head.frame, SerialFrame::C4 | SerialFrame::C3) {
        route.network = f.byte();
    }
    if head.frame != SerialFrame::C2 {
        route.pc = f.byte();
    }
    if head.frame == SerialFrame::C4 {
        route.io = f.word();
        route.module_station = f.byte();
    }
    if head.frame != SerialFrame::C1 {
        route.self_station = f.byte();
        return (block, route, read_back(f.rest, code).unwrap());
    }
    (block, route, one_c_read_back(f.rest))
}

fn one_c_read_back(body: &[u8]) -> Command {
    let mut f = Reader {
        rest: body,
        code: Code::Ascii,
    };
    let name = f.raw(2);
    assert_eq!(f.raw(1), b"0", "message wait");
    if name == b"TT" {
        let count = f.byte();
        assert_eq!(f.rest.len(), usize::from(count));
        return Command::Loopback(f.rest.to_vec());
    }
    let first = one_c_place(f.raw(5));
    let count = match f.byte() {
        0 => 256,
        count => u16::from(count),
    };
    let command = match name {
        b"WR" => Command::ReadWords { first, count },
        b"BR" => Command::ReadBits { first, count },
        b"WW" => {
            let words = (0..count).map(|_| f.word()).collect();
            Command::WriteWords { first, words }
        }
        b"BW" => {
            let bits = f.raw(count.into()).iter();
            let bits = bits.map(|digit| *digit == b'1').collect();
            Command::WriteBits { first, bits }
        }
        other => panic!("{other:?}"),
    };
    assert!(f.rest.is_empty(), "{:?}", f.rest);
    command
}

/// Letters and number, five characters together.
fn one_c_place(text: &[u8]) -> Place {
    let named = |letters: usize| {
        let name = std::str::from_utf8(&text[..letters]).unwrap();
        let kind = Kind::NAMES.iter().find(|(own, _)| *own == name)?.1;
        let device = Device::of(kind, Family::Q);
        let number = digits(&text[letters..], device.radix.base());
        Some(Place { device, number })
    };
    named(2).or_else(|| named(1)).unwrap()
}

/// What 1C has room for.
fn any_one_c() -> impl Strategy<Value = Command> {
    let place = || {
        (0..Kind::NAMES.len(), 0..=999_u32).prop_map(|(at, number)| Place {
            device: Device::of(Kind::NAMES[at].1, Family::Q),
            number,
        })
    };
    prop_oneof![
        (place(), 1..=64_u16).prop_map(|(first, count)| Command::ReadWords { first, count }),
        (place(), 1..=256_u16).prop_map(|(first, count)| Command::ReadBits { first, count }),
        (place(), vec(any::<u16>(), 1..=64))
            .prop_map(|(first, words)| Command::WriteWords { first, words }),
        (place(), vec(any::<bool>(), 1..=160))
            .prop_map(|(first, bits)| Command::WriteBits { first, bits }),
        "[0-9A-F]{1,254}".prop_map(|text| Command::Loopback(text.into_bytes())),
    ]
}

proptest! {
    // covers: SEND-05
    #[test]
    fn a_whole_request_of_3e_or_4e_read_back_is_what_was_asked(
        head in any_head(), serial in any::<u16>(), timer in any::<u16>(), command in any_command(),
    ) {
        // Only ASCII has devices and numbers without a form.
        if let Ok(body) = command.encode(head.code) {
            let request = head.request(serial, timer, &body);
            let found = request_read_back(head.frame, head.code, &request);
            let serial = if head.frame == Frame::E4 { serial } else { 0 };
            prop_assert_eq!(found, (serial, head.route, timer, command));
        } else {
            prop_assert_eq!(head.code, Code::Ascii);
        }
    }

    // covers: SEND-05
    #[test]
    fn a_whole_reply_of_3e_or_4e_says_what_was_put_in(
        head in any_head(), serial in any::<u16>(), command in any_command(),
        values in vec(any::<u16>(), 1..40), code in 1..=u16::MAX,
    ) {
        let request = head.request(serial, 4, &command.encode(head.code).unwrap_or_default());
        let (says, data) = answer(&command, head.code, &values);
        let good = reply(&head, serial, 0, &data);
        let (number, sub) = command.numbers();
        let mut refusal = Vec::new();
        put_route(&mut refusal, head.code, head.route);
        put(&mut refusal, head.code, number.into(), 2);
        put(&mut refusal, head.code, sub.into(), 2);
        let refused = reply(&head, serial, code, &refusal);
        let bare = reply(&head, serial, code, &[]);
        for (whole, says) in [(good, Ok(says)), (refused, Err(code)), (bare, Err(code))] {
            for cut in 0..whole.len() {
                let known = head.reply_bytes(&whole[..cut]).unwrap();
                prop_assert!(known.is_none_or(|length| length == whole.len()), "{}", cut);
            }
            prop_assert_eq!(head.reply_bytes(&whole), Ok(Some(whole.len())));
            prop_assert_eq!(head.fit(&request, &whole), Fit::Reply);
            prop_assert_eq!(judge(&head, &command, &whole), Ok(says));
        }
    }

    // covers: SEND-05
    #[test]
    fn a_whole_serial_request_read_back_is_what_was_asked(
        head in any_serial(), command in any_command(), short in any_one_c(),
    ) {
        let command = if head.frame == SerialFrame::C1 { short } else { command };
        let body = match head.frame {
            SerialFrame::C1 => one_c::body(&command),
            _ => command.encode(head.code()),
        };
        if let Ok(body) = body {
            let request = head.request(&body).unwrap();
            let found = serial_read_back(&head, &request);
            prop_assert_eq!(found, (head.block, head.route, command));
        } else {
            prop_assert!(head.code() == Code::Ascii && head.frame != SerialFrame::C1);
        }
    }
}
