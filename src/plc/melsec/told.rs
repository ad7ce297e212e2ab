//! Owns: by which settings of a serial module bytes are a whole reply: what a technician compares with the module's.
//! May call: serial, field of this room; core c24.
//! Never: be used to take a reply: a link takes only what its own settings make one.

use super::field::hex_number;
use super::serial::{Format, Frame, SerialHead, SerialReply, SerialRoute, undouble};
use crate::core::c24::C24Link;
use crate::core::melsec::Code;

/// Highest station number of a module; what is above is no route.
const STATION_MAX: u8 = 31;

const FORMATS: [Format; 5] = [Format::F1, Format::F2, Format::F3, Format::F4, Format::F5];
const FRAMES: [Frame; 4] = [Frame::C4, Frame::C3, Frame::C2, Frame::C1];

/// What a whole reply tells of the module's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plc) struct Told {
    pub(in crate::plc) frame: Frame,
    pub(in crate::plc) format: Format,
    /// `None`: a reply without data carries no sum in any case.
    pub(in crate::plc) sum_check: Option<bool>,
    pub(in crate::plc) route: SerialRoute,
}

/// The settings that make the end of `bytes` a whole reply; those of `link` go first, then what is nearest to them.
pub(in crate::plc) fn told(link: &C24Link, bytes: &[u8]) -> Option<Told> {
    let starts = (0..bytes.len()).filter(|at| matches!(bytes[*at], 0x02 | 0x06 | 0x10 | 0x15));
    let starts: Vec<usize> = starts.collect();
    let mut all = Vec::new();
    for frame in FRAMES {
        for format in FORMATS {
            // A sum that is right is none by chance; without one anything between STX and ETX is a reply.
            for sum_check in [true, false] {
                all.push((frame, format, sum_check));
            }
        }
    }
    // Stable: among equals the order above holds.
    all.sort_by_key(|(frame, format, sum_check)| {
        let own = [
            *frame == link.frame,
            *format == link.format,
            *sum_check == link.sum_check,
        ];
        own.iter().filter(|same| !**same).count()
    });
    let tried = |(frame, format, sum_check)| {
        let mut starts = starts.iter();
        starts.find_map(|at| reply(frame, format, sum_check, link.route, &bytes[*at..]))
    };
    all.into_iter().find_map(tried)
}

/// `bytes` as one whole reply by these settings, and no byte more.
fn reply(
    frame: Frame,
    format: Format,
    sum_check: bool,
    own: SerialRoute,
    bytes: &[u8],
) -> Option<Told> {
    if (format == Format::F5) != bytes.starts_with(&[0x10, 0x02])
        || (format == Format::F5 && frame != Frame::C4)
    {
        return None;
    }
    let mut head = SerialHead {
        frame,
        format,
        sum_check,
        route: own,
        block: 0,
    };
    let inner = match format {
        Format::F5 => undouble(&bytes[2..]).ok()?.0.get(2..)?.to_vec(),
        _ => bytes.get(1..)?.to_vec(),
    };
    (head.route, head.block) = named(&head, &inner)?;
    let whole = head.reply_bytes(bytes).ok()?? == bytes.len();
    let opened = head.open(bytes).ok().filter(|_| whole)?;
    let summed = match (format, opened) {
        (Format::F5, _) => true,
        (_, SerialReply::Data(data)) => !data.is_empty(),
        (_, SerialReply::Refused(_)) => false,
    };
    Some(Told {
        frame,
        format,
        sum_check: summed.then_some(sum_check),
        route: head.route,
    })
}

/// Route and block number that `bytes` begin with, by the frame of `head`; what it does not carry is the own one.
fn named(head: &SerialHead, bytes: &[u8]) -> Option<(SerialRoute, u8)> {
    let mut route = head.route;
    let mut rest = Taken {
        code: head.code(),
        bytes,
    };
    let block = match head.format {
        Format::F2 => rest.byte()?,
        _ => 0,
    };
    let id = match head.frame {
        Frame::C4 => Some(0xF8),
        Frame::C3 => Some(0xF9),
        Frame::C2 => Some(0xFB),
        Frame::C1 => None,
    };
    if id.is_some() && rest.byte() != id {
        return None;
    }
    route.station = rest.byte().filter(|station| *station <= STATION_MAX)?;
    match head.frame {
        Frame::C4 => {
            (route.network, route.pc) = (rest.byte()?, rest.byte()?);
            let (first, second) = (rest.byte()?, rest.byte()?);
            route.io = match rest.code {
                Code::Binary => u16::from_le_bytes([first, second]),
                Code::Ascii => u16::from_be_bytes([first, second]),
            };
            (route.module_station, route.self_station) = (rest.byte()?, rest.byte()?);
        }
        Frame::C3 => {
            (route.network, route.pc, route.self_station) =
                (rest.byte()?, rest.byte()?, rest.byte()?);
        }
        Frame::C2 => route.self_station = rest.byte()?,
        Frame::C1 => route.pc = rest.byte()?,
    }
    Some((route, block))
}

/// Bytes, each of them two digits in ASCII.
struct Taken<'a> {
    code: Code,
    bytes: &'a [u8],
}

impl Taken<'_> {
    fn byte(&mut self) -> Option<u8> {
        let length = match self.code {
            Code::Binary => 1,
            Code::Ascii => 2,
        };
        let (own, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        match self.code {
            Code::Binary => own.first().copied(),
            Code::Ascii => u8::try_from(hex_number(own).ok()?).ok(),
        }
    }
}
