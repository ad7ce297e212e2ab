//! Owns: the codec against frames that others made, against its own reversal, and against any bytes.
//! May call: every file of this room.
//! Never: take an expected byte from the code under test.

use super::command::{Answer, Command};
use super::ethernet::{Head, judge};
use super::field::{Fields, Place};
use super::serial::{Format, Frame as SerialFrame, SerialHead, SerialReply, SerialRoute};
use super::{end_code, one_c};
use crate::core::melsec::{Code, Device, Family, Frame, Kind, NUMBER_MAX, Remote, Route};
use crate::plc::metered::Fit;
use proptest::collection::vec;
use proptest::prelude::*;

/// Name, request, reply and source of a frame.
pub(super) const VECTORS: &str = include_str!("vectors.tsv");

const CONTROLS: [(&str, u8); 7] = [
    ("<ENQ>", 5),
    ("<STX>", 2),
    ("<ETX>", 3),
    ("<ACK>", 6),
    ("<NAK>", 0x15),
    ("<CR>", 13),
    ("<LF>", 10),
];

pub(super) fn bytes(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() {
        return None;
    }
    if let Some(ascii) = text.strip_prefix("ascii:") {
        return Some(ascii.as_bytes().to_vec());
    }
    if text.contains('<') {
        let replaced = CONTROLS.iter().fold(text.to_owned(), |text, (name, byte)| {
            text.replace(name, &char::from(*byte).to_string())
        });
        return Some(replaced.into_bytes());
    }
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    Some(digits.chunks(2).map(pair).collect())
}

fn place(text: &str) -> Place {
    let (device, number) = Device::parse(text, Family::Q).unwrap();
    Place { device, number }
}

fn places(text: &str) -> Vec<Place> {
    text.split(' ').map(place).collect()
}

fn words(first: &str, count: u16) -> Command {
    let first = place(first);
    Command::ReadWords { first, count }
}

const OWN: SerialRoute = SerialRoute {
    station: 0,
    network: 0,
    pc: 0xFF,
    io: 0x03FF,
    module_station: 0,
    self_station: 0,
};

fn serial(frame: SerialFrame, format: Format, route: SerialRoute) -> Wrap {
    Wrap::Serial(SerialHead {
        frame,
        format,
        sum_check: true,
        route,
        block: 0,
    })
}

/// What carries a command.
enum Wrap {
    /// With this monitoring timer.
    Ethernet(Head, u16),
    Serial(SerialHead),
}

impl Wrap {
    fn request(&self, command: &Command) -> Vec<u8> {
        match self {
            Self::Ethernet(head, timer) => {
                head.request(0, *timer, &command.encode(head.code).unwrap())
            }
            Self::Serial(head) if head.frame == SerialFrame::C1 => {
                head.request(&one_c::body(command).unwrap()).unwrap()
            }
            Self::Serial(head) => {
                let body = command.encode(head.code()).unwrap();
                head.request(&body).unwrap()
            }
        }
    }

    /// Length by every beginning, then what the whole says.
    fn reply(&self, command: &Command, reply: &[u8]) -> Result<Answer, u16> {
        for cut in 0..reply.len() {
            let length = self.reply_bytes(&reply[..cut]).unwrap();
            assert!(length.is_none_or(|length| length == reply.len()), "{cut}");
        }
        assert_eq!(self.reply_bytes(reply).unwrap(), Some(reply.len()));
        match self {
            Self::Ethernet(head, _) => judge(head, command, reply).unwrap(),
            Self::Serial(head) => match head.open(reply).unwrap() {
                SerialReply::Refused(code) => Err(code),
                SerialReply::Data(data) if head.frame == SerialFrame::C1 => {
                    Ok(one_c::answer(command, &data).unwrap())
                }
                SerialReply::Data(data) => Ok(command.answer(&data, head.code()).unwrap()),
            },
        }
    }

    fn reply_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        match self {
            Self::Ethernet(head, _) => head.reply_bytes(bytes),
            Self::Serial(head) => head.reply_bytes(bytes),
        }
    }
}

fn ethernet(code: Code, timer: u16) -> Wrap {
    let head = Head {
        frame: Frame::E3,
        code,
        route: Route::default(),
    };
    Wrap::Ethernet(head, timer)
}

/// What each line of the file is: its frame, its command, and what its reply says.
fn meaning(name: &str) -> (Wrap, Command, Option<Result<Answer, u16>>) {
    use Answer::{Done, Random, Words};
    let c4 = |route| serial(SerialFrame::C4, Format::F5, route);
    let c3 = |format| serial(SerialFrame::C3, format, OWN);
    let d100 = || words("D100", 2);
    let write = || Command::WriteWords {
        first: place("D100"),
        words: vec![0x1234],
    };
    match name {
        "3e-bin 0401 D350 x2" => {
            let answer = Words(vec![0x56AB, 0x170F]);
            (
                ethernet(Code::Binary, 0),
                words("D350", 2),
                Some(Ok(answer)),
            )
        }
        "3e-bin 0403 words D0 TN0 M100 X20, dwords D1500 Y160 M1111" => {
            let command = Command::ReadRandom {
                words: places("D0 TN0 M100 X20"),
                doubles: places("D1500 Y160 M1111"),
            };
            let answer = Random {
                words: vec![0x1995, 0x1202, 0x2030, 0x4849],
                doubles: vec![0x4C54_4F4E, 0xC3DE_B9AF, 0xBADD_BCB7],
            };
            (ethernet(Code::Binary, 0), command, Some(Ok(answer)))
        }
        "3e-ascii 0401 D100 x2" => {
            let answer = Words(vec![0x1234, 0xFFFF]);
            (ethernet(Code::Ascii, 4), d100(), Some(Ok(answer)))
        }
        "3e-bin error C052 with error data" => {
            (ethernet(Code::Binary, 0), d100(), Some(Err(0xC052)))
        }
        "4c-f5 0401 bits X40 x5, route stn5 net7 PC3" => {
            let route = SerialRoute {
                station: 5,
                network: 7,
                pc: 3,
                io: 4,
                module_station: 1,
                self_station: 0,
            };
            let (first, count) = (place("X40"), 5);
            (c4(route), Command::ReadBits { first, count }, None)
        }
        "4c-f5 0401 M100 x2 words" => (c4(OWN), words("M100", 2), None),
        "4c-f5 1401 bit M100=1" => {
            let (first, bits) = (place("M100"), vec![true]);
            (c4(OWN), Command::WriteBits { first, bits }, None)
        }
        "4c-f5 read reply 1234H 1010H" => {
            let answer = Words(vec![0x1234, 0x1010]);
            (c4(OWN), d100(), Some(Ok(answer)))
        }
        "4c-f5 error 7E40H" => (c4(OWN), d100(), Some(Err(0x7E40))),
        "3c-f4 0401 D100 x2" => {
            let answer = Words(vec![0x1234, 0x1010]);
            (c3(Format::F4), d100(), Some(Ok(answer)))
        }
        "3c-f4 1401 D100=1234H" => (c3(Format::F4), write(), Some(Ok(Done))),
        "3c-f4 refused" => (c3(Format::F4), write(), Some(Err(0x7E40))),
        "3c-f3 0401 D100 x2" => {
            let answer = Words(vec![0x1234, 0x1010]);
            (c3(Format::F3), d100(), Some(Ok(answer)))
        }
        "3c-f1 0401 D100 x2" => (c3(Format::F1), d100(), None),
        "1c-f1 WR D0232 x1 station 5" => {
            let route = SerialRoute { station: 5, ..OWN };
            let wrap = serial(SerialFrame::C1, Format::F1, route);
            (wrap, words("D232", 1), Some(Ok(Words(vec![5]))))
        }
        other => panic!("{other}: a line without a meaning here"),
    }
}

// covers: SEND-05
#[test]
fn every_vector_is_encoded_and_decoded_byte_for_byte() {
    let mut lines = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or_default();
        let (name, request, reply) = (next(), bytes(next()), bytes(next()));
        let (wrap, command, says) = meaning(name);
        assert!(request.is_some() || reply.is_some(), "{name}");
        if let Some(request) = request {
            assert_eq!(wrap.request(&command), request, "{name}");
        }
        assert_eq!(reply.is_some(), says.is_some(), "{name}");
        if let (Some(reply), Some(says)) = (reply, says) {
            assert_eq!(wrap.reply(&command, &reply), says, "{name}");
        }
        lines += 1;
    }
    assert_eq!(lines, 15);
}

// covers: F061
#[test]
fn bits_stand_two_to_a_byte_the_first_in_the_high_half() {
    let read = |count, data: &[u8]| {
        let first = place("M0");
        Command::ReadBits { first, count }.answer(data, Code::Binary)
    };
    let bits = |bits: &[u8]| Ok(Answer::Bits(bits.iter().map(|bit| *bit == 1).collect()));
    assert_eq!(read(1, &[0x10]), bits(&[1]));
    assert_eq!(read(2, &[0x10]), bits(&[1, 0]));
    assert_eq!(read(3, &[0x10, 0x00]), bits(&[1, 0, 0]));
    assert_eq!(read(4, &[0x11, 0x01]), bits(&[1, 1, 0, 1]));
    assert_eq!(read(1, &[0x17]), bits(&[1]), "padding is nobody's");
    for (count, data) in [
        (1, &[0x20][..]),
        (2, &[0x12]),
        (2, &[0x10, 0]),
        (3, &[0x10]),
    ] {
        assert!(read(count, data).is_err(), "{count} {data:?}");
    }
    let three = Command::WriteBits {
        first: place("M0"),
        bits: vec![true, false, true],
    };
    let encoded = three.encode(Code::Binary).unwrap();
    assert_eq!(encoded[encoded.len() - 4..], [3, 0, 0x10, 0x10]);
}

// covers: F057
#[test]
fn every_serial_number_is_known_again_in_both_codes() {
    for code in [Code::Binary, Code::Ascii] {
        let head = Head {
            frame: Frame::E4,
            code,
            route: Route::default(),
        };
        let body = words("D0", 1).encode(code).unwrap();
        let reply_to = |serial: u16| {
            let request = head.request(serial, 4, &body);
            match code {
                Code::Binary => {
                    let mut reply = vec![0xD4, 0];
                    reply.extend_from_slice(&request[2..11]);
                    reply.extend_from_slice(&[4, 0, 0, 0, 7, 0]);
                    reply
                }
                Code::Ascii => {
                    let mut reply = b"D400".to_vec();
                    reply.extend_from_slice(&request[4..22]);
                    reply.extend_from_slice(b"000800000007");
                    reply
                }
            }
        };
        if code == Code::Ascii {
            let request = head.request(10, 4, &body);
            assert!(request.starts_with(b"5400000A0000"));
        }
        for serial in 0..=u16::MAX {
            let request = head.request(serial, 4, &body);
            let reply = reply_to(serial);
            assert_eq!(head.reply_bytes(&reply), Ok(Some(reply.len())));
            assert_eq!(head.fit(&request, &reply), Fit::Reply);
            let stale = reply_to(serial.wrapping_sub(1));
            assert!(matches!(head.fit(&request, &stale), Fit::Stale(_)));
        }
    }
}

// covers: F065
#[test]
fn error_information_is_taken_in_and_must_be_about_our_request() {
    let head = Head {
        frame: Frame::E3,
        code: Code::Binary,
        route: Route::default(),
    };
    let write = Command::WriteWords {
        first: place("D100"),
        words: vec![1],
    };
    let of_write = bytes("D0 00 00 FF FF 03 00 0B 00 55 00 00 FF FF 03 00 01 14 00 00").unwrap();
    let of_read = bytes("D0 00 00 FF FF 03 00 0B 00 56 C0 00 FF FF 03 00 01 04 00 00").unwrap();
    let bare = bytes("D0 00 00 FF FF 03 00 02 00 55 00").unwrap();
    assert_eq!(judge(&head, &write, &of_write), Ok(Err(0x0055)));
    assert_eq!(judge(&head, &write, &bare), Ok(Err(0x0055)));
    assert_eq!(judge(&head, &words("D100", 2), &of_read), Ok(Err(0xC056)));
    assert!(judge(&head, &write, &of_read).is_err());
    assert!(
        end_code::coded(0x0055)
            .code
            .meaning
            .contains("while the CPU runs")
    );
}

#[test]
fn a_reply_in_the_other_code_is_called_by_its_name() {
    let head = |frame, code| Head {
        frame,
        code,
        route: Route::default(),
    };
    let (binary, ascii) = (&[0xD0, 0, 0, 0xFF][..], b"D00000FF".as_slice());
    let said = |frame, code, bytes| head(frame, code).reply_bytes(bytes).unwrap_err();
    assert!(said(Frame::E3, Code::Binary, ascii).contains("looks like ASCII"));
    assert!(said(Frame::E3, Code::Ascii, binary).contains("looks like binary"));
    assert!(said(Frame::E4, Code::Binary, binary).contains("a 3E reply"));
    assert!(said(Frame::E3, Code::Binary, b"HTTP").contains("no MC reply"));
}

// covers: F062
#[test]
fn what_has_no_agreed_form_in_ascii_is_not_sent() {
    let read = |text: &str, family| {
        let (device, number) = Device::parse(text, family).unwrap();
        let first = Place { device, number };
        Command::ReadWords { first, count: 1 }.encode(Code::Ascii)
    };
    assert!(read("ZR100", Family::Q).is_err());
    assert!(read("X10", Family::Fx5).is_err());
    assert!(read("D1000000", Family::Q).is_err());
    let hex = read("W1F", Family::Q).unwrap();
    assert_eq!(hex, b"04010000W*00001F0001");
}

#[test]
fn limits_hold_before_any_byte() {
    let first = place("D0");
    let bits = |n: usize| Command::WriteBits {
        first: place("M0"),
        bits: vec![true; n],
    };
    let random = |w: usize, d: usize| Command::WriteRandom {
        words: vec![(first, 0); w],
        doubles: vec![(first, 0); d],
    };
    let blocks = |n: usize, points: u16| Command::ReadBlocks {
        words: vec![(first, points); n],
        bits: Vec::new(),
    };
    let fits = |command: &Command, code| command.encode(code).is_ok();
    assert!(fits(&words("D0", 960), Code::Binary) && !fits(&words("D0", 961), Code::Binary));
    assert!(!fits(&words("D0", 0), Code::Binary));
    assert!(fits(&bits(7168), Code::Binary) && !fits(&bits(7169), Code::Binary));
    assert!(fits(&bits(3584), Code::Ascii) && !fits(&bits(3585), Code::Ascii));
    assert!(fits(&random(160, 0), Code::Binary) && !fits(&random(160, 1), Code::Binary));
    assert!(fits(&random(6, 132), Code::Binary) && !fits(&random(6, 133), Code::Binary));
    assert!(fits(&blocks(120, 8), Code::Binary) && !fits(&blocks(121, 1), Code::Binary));
    assert!(!fits(&blocks(2, 481), Code::Binary));
    assert!(!fits(&Command::Loopback(b"ABg".to_vec()), Code::Binary));
}

#[test]
fn model_and_loopback_are_read_as_they_stand() {
    let mut data = b"Q06UDVCPU       ".to_vec();
    data.extend_from_slice(&[0x68, 0x03]);
    let model = Command::CpuModel.answer(&data, Code::Binary);
    let name = "Q06UDVCPU".to_owned();
    assert_eq!(model, Ok(Answer::Model { name, code: 0x0368 }));
    let loopback = Command::Loopback(b"ABCDE".to_vec());
    assert!(
        loopback
            .encode(Code::Ascii)
            .unwrap()
            .ends_with(b"0005ABCDE")
    );
    assert!(loopback.answer(b"0005ABCDE", Code::Ascii).is_ok());
    assert!(loopback.answer(b"0005ABCDF", Code::Ascii).is_err());
}

#[test]
fn a_remote_order_states_its_mode() {
    let order = |order| Command::Remote {
        order,
        force: false,
    };
    let encoded = |c: Command| c.encode(Code::Binary).unwrap();
    assert_eq!(encoded(order(Remote::Run)), [1, 0x10, 0, 0, 1, 0, 0, 0]);
    assert_eq!(encoded(order(Remote::Stop)), [2, 0x10, 0, 0, 1, 0]);
    assert_eq!(encoded(order(Remote::Pause)), [3, 0x10, 0, 0, 1, 0]);
}

#[test]
fn a_line_is_resynchronised_as_its_format_wants() {
    let head = |format| SerialHead {
        frame: SerialFrame::C3,
        format,
        sum_check: true,
        route: OWN,
        block: 0,
    };
    assert_eq!(head(Format::F1).resync(), [4]);
    assert_eq!(head(Format::F4).resync(), [4, 13, 10]);
    assert!(
        head(Format::F5).request(b"0").is_err(),
        "3C has no format 5"
    );
    let five = SerialHead {
        frame: SerialFrame::C4,
        ..head(Format::F5)
    };
    let expected = [
        0x10, 0x02, 0x0C, 0x00, 0xF8, 0, 0, 0xFF, 0xFF, 3, 0, 0, 0x15, 0x16, 0, 0, 0x10, 0x03,
    ];
    assert!(five.resync().starts_with(&expected));
}

/// A request read back: what a device would take it for.
pub(super) fn read_back(body: &[u8], code: Code) -> Result<Command, String> {
    let mut f = Fields::new(body, code);
    let (number, sub) = (f.word()?, f.word()?);
    let family = Family::Q;
    let at = |f: &mut Fields<'_>| f.place(family);
    let many = |f: &mut Fields<'_>, n: u32| {
        (0..n)
            .map(|_| f.place(family))
            .collect::<Result<Vec<_>, _>>()
    };
    let list = |f: &mut Fields<'_>, n: u16| (0..n).map(|_| f.word()).collect::<Result<Vec<_>, _>>();
    let command = match (number, sub) {
        (0x0401, _) => {
            let (first, count) = (at(&mut f)?, f.word()?);
            match sub {
                0 => Command::ReadWords { first, count },
                _ => Command::ReadBits { first, count },
            }
        }
        (0x1401, _) => {
            let (first, count) = (at(&mut f)?, f.word()?);
            match sub {
                0 => Command::WriteWords {
                    first,
                    words: list(&mut f, count)?,
                },
                _ => Command::WriteBits {
                    first,
                    bits: f.bits(count.into())?,
                },
            }
        }
        (0x0403, _) => {
            let (w, d) = (f.number(1)?, f.number(1)?);
            Command::ReadRandom {
                words: many(&mut f, w)?,
                doubles: many(&mut f, d)?,
            }
        }
        (0x1402, 0) => {
            let (w, d) = (f.number(1)?, f.number(1)?);
            let words = (0..w).map(|_| Ok((at(&mut f)?, f.word()?)));
            let words = words.collect::<Result<_, String>>()?;
            let doubles = (0..d).map(|_| Ok((at(&mut f)?, f.number(4)?)));
            Command::WriteRandom {
                words,
                doubles: doubles.collect::<Result<_, String>>()?,
            }
        }
        (0x1402, _) => {
            let n = f.number(1)?;
            let bits = (0..n).map(|_| Ok((at(&mut f)?, f.number(1)? == 1)));
            Command::WriteRandomBits(bits.collect::<Result<_, String>>()?)
        }
        (0x0406, _) => {
            let (w, b) = (f.number(1)?, f.number(1)?);
            let mut blocks = |n| {
                (0..n)
                    .map(|_| Ok((at(&mut f)?, f.word()?)))
                    .collect::<Result<_, String>>()
            };
            Command::ReadBlocks {
                words: blocks(w)?,
                bits: blocks(b)?,
            }
        }
        (0x1406, _) => {
            let (w, b) = (f.number(1)?, f.number(1)?);
            let mut blocks = |n| {
                let block = |_| {
                    let (first, points) = (at(&mut f)?, f.word()?);
                    Ok((first, list(&mut f, points)?))
                };
                (0..n).map(block).collect::<Result<_, String>>()
            };
            Command::WriteBlocks {
                words: blocks(w)?,
                bits: blocks(b)?,
            }
        }
        (0x0101, _) => Command::CpuModel,
        (0x1001..=0x1003, _) => {
            let force = f.word()? == 3;
            let order = match number {
                0x1001 => Remote::Run,
                0x1002 => Remote::Stop,
                _ => Remote::Pause,
            };
            if order == Remote::Run {
                f.word()?;
            }
            Command::Remote { order, force }
        }
        (0x0619, _) => {
            let n = f.word()?;
            Command::Loopback(f.raw(n.into())?.to_vec())
        }
        (0x1615, _) => Command::Resync,
        _ => return Err(format!("{number:04X}")),
    };
    f.end()?;
    Ok(command)
}

fn any_place() -> impl Strategy<Value = Place> {
    (0..Kind::NAMES.len(), 0..=NUMBER_MAX).prop_map(|(at, number)| Place {
        device: Device::of(Kind::NAMES[at].1, Family::Q),
        number,
    })
}

pub(super) fn any_command() -> impl Strategy<Value = Command> {
    let order = prop_oneof![Just(Remote::Run), Just(Remote::Stop), Just(Remote::Pause)];
    let block = || (any_place(), vec(any::<u16>(), 1..5));
    prop_oneof![
        (any_place(), 1..=960u16).prop_map(|(first, count)| Command::ReadWords { first, count }),
        (any_place(), 1..=3584u16).prop_map(|(first, count)| Command::ReadBits { first, count }),
        (any_place(), vec(any::<u16>(), 1..40))
            .prop_map(|(first, words)| Command::WriteWords { first, words }),
        (any_place(), vec(any::<bool>(), 1..40))
            .prop_map(|(first, bits)| Command::WriteBits { first, bits }),
        (vec(any_place(), 1..9), vec(any_place(), 0..9))
            .prop_map(|(words, doubles)| Command::ReadRandom { words, doubles }),
        (
            vec((any_place(), any::<u16>()), 1..9),
            vec((any_place(), any::<u32>()), 0..9)
        )
            .prop_map(|(words, doubles)| Command::WriteRandom { words, doubles }),
        vec((any_place(), any::<bool>()), 1..20).prop_map(Command::WriteRandomBits),
        (
            vec((any_place(), 1..9u16), 1..9),
            vec((any_place(), 1..9u16), 0..9)
        )
            .prop_map(|(words, bits)| Command::ReadBlocks { words, bits }),
        (vec(block(), 1..5), vec(block(), 0..5))
            .prop_map(|(words, bits)| Command::WriteBlocks { words, bits }),
        Just(Command::CpuModel),
        Just(Command::Resync),
        (order, any::<bool>()).prop_map(|(order, force)| Command::Remote {
            order,
            force: force && order != Remote::Stop
        }),
        "[0-9A-F]{1,40}".prop_map(|text| Command::Loopback(text.into_bytes())),
    ]
}

pub(super) fn any_serial() -> impl Strategy<Value = SerialHead> {
    let frame = prop_oneof![
        Just(SerialFrame::C4),
        Just(SerialFrame::C3),
        Just(SerialFrame::C2),
        Just(SerialFrame::C1)
    ];
    let format = prop_oneof![
        Just(Format::F1),
        Just(Format::F2),
        Just(Format::F3),
        Just(Format::F4),
        Just(Format::F5)
    ];
    (frame, format, any::<[u8; 6]>(), any::<u16>(), any::<bool>()).prop_map(
        |(
            frame,
            format,
            [station, network, pc, module_station, self_station, block],
            io,
            sum_check,
        )| {
            SerialHead {
                frame: if format == Format::F5 {
                    SerialFrame::C4
                } else {
                    frame
                },
                format,
                sum_check,
                route: SerialRoute {
                    station,
                    network,
                    pc,
                    io,
                    module_station,
                    self_station,
                },
                block,
            }
        },
    )
}

/// A reply with data as the modules make them, from the manual's layout.
fn serial_reply(head: &SerialHead, data: &[u8]) -> Vec<u8> {
    if head.format == Format::F5 {
        return head.request(&[&[0xFF, 0xFF, 0, 0], data].concat()).unwrap();
    }
    let as_three = SerialHead {
        format: Format::F3,
        ..*head
    };
    let block = format!("{:02X}", head.block).into_bytes();
    let (yes, block): (&[u8], &[u8]) = match (head.format, head.frame) {
        (Format::F3, SerialFrame::C1) => (b"GG", b""),
        (Format::F3, _) => (b"QACK", b""),
        (Format::F2, _) => (b"", &block),
        _ => (b"", b""),
    };
    // The third format wraps a body as every format wraps a reply with data.
    let wrapped = as_three.request(&[yes, data].concat()).unwrap();
    let mut inner = wrapped[1..].to_vec();
    if head.sum_check {
        inner.truncate(inner.len() - 2);
    }
    let body = [block, &inner].concat();
    let mut out = [&[2][..], &body].concat();
    if head.sum_check {
        let sum = body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        out.extend_from_slice(format!("{sum:02X}").as_bytes());
    }
    if head.format == Format::F4 {
        out.extend_from_slice(b"\r\n");
    }
    out
}

proptest! {
    #[test]
    fn a_request_read_back_is_the_request(command in any_command()) {
        for code in [Code::Binary, Code::Ascii] {
            match command.encode(code) {
                Ok(body) => prop_assert_eq!(read_back(&body, code), Ok(command.clone())),
                // Only ASCII has devices and numbers without a form.
                Err(why) => prop_assert!(code == Code::Ascii, "{}", why),
            }
        }
    }

    #[test]
    fn a_serial_reply_is_whole_at_its_last_byte_and_says_what_was_put_in(
        head in any_serial(), raw in vec(any::<u8>(), 1..40), digits in "[0-9A-F]{1,40}",
    ) {
        let data = if head.format == Format::F5 { raw } else { digits.into_bytes() };
        let reply = serial_reply(&head, &data);
        for cut in 0..reply.len() {
            let known = head.reply_bytes(&reply[..cut]);
            prop_assert!(known == Ok(None) || known == Ok(Some(reply.len())), "{}: {:?}", cut, known);
        }
        prop_assert_eq!(head.reply_bytes(&reply), Ok(Some(reply.len())));
        prop_assert_eq!(head.open(&reply), Ok(SerialReply::Data(data)));
        if head.sum_check {
            let mut wrong = reply.clone();
            let tail = if head.format == Format::F4 { 3 } else { 1 };
            let at = wrong.len() - tail;
            wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
            prop_assert!(head.open(&wrong).is_err());
        }
    }

    // covers: OPS-03
    #[test]
    fn no_bytes_at_all_panic_a_decoder(
        noise in vec(any::<u8>(), 0..200), head in any_serial(), command in any_command(),
        prefix in 0..6usize,
    ) {
        let begins: [&[u8]; 6] = [b"", &[0xD0, 0], &[0xD4, 0], b"D000", b"D400", &[0x10, 2]];
        let noise = [begins[prefix], &noise].concat();
        for frame in [Frame::E3, Frame::E4] {
            for code in [Code::Binary, Code::Ascii] {
                let own = Head { frame, code, route: Route::default() };
                let request = own.request(1, 4, &command.encode(Code::Binary).unwrap_or_default());
                if let Ok(Some(length)) = own.reply_bytes(&noise) && length <= noise.len() {
                    own.fit(&request, &noise[..length]);
                }
                own.fit(&request, &noise);
                let _ = judge(&own, &command, &noise);
                let _ = command.answer(&noise, code);
                let _ = read_back(&noise, code);
            }
        }
        let _ = head.reply_bytes(&noise);
        let _ = head.open(&noise);
        let _ = one_c::answer(&command, &noise);
        let _ = one_c::body(&command);
    }

    #[test]
    fn what_one_c_asks_stays_within_its_limits(command in any_command()) {
        if let Ok(body) = one_c::body(&command) {
            prop_assert!(body.len() <= 10 + 4 * one_c::WORDS_MAX.max(one_c::WRITE_BITS_MAX / 4));
        }
    }
}
