//! Owns: 3E and 4E frames on a line: their boundaries, which reply fits which request, what it says.
//! May call: field, command, end_code; metered and exchange of this room.
//! Never: call a reply ours that carries another serial number or route; a 3E reply carries no serial number,
//! so one that comes unasked leaves the line in doubt.

use super::super::exchange::{Ask, Codec, End};
use super::super::metered::{Fit, Framing};
use super::super::plan::Span;
use super::super::scatter::{How, Scattered};
use super::command::{Answer, Command};
use super::end_code;
use super::field::{Fields, Place, put};
use crate::core::melsec::{Code, Frame, McLink, Route};
use crate::core::spec::{Address, Area};
use crate::core::spread::{self, By, Part};

/// Longest data of a reply: 7168 bits in binary take 3584 bytes, 960 words in ASCII 3840.
const DATA_BYTES_MAX: usize = 3_840;
/// Unit of the monitoring timer, in milliseconds.
const TIMER_MS: u64 = 250;

/// Bytes from the subheader to the length field.
fn header_bytes(frame: Frame, code: Code) -> usize {
    let bytes = match frame {
        Frame::E3 => 9,
        Frame::E4 => 13,
    };
    width(code) * bytes
}

/// Characters or bytes that one byte of a field takes.
fn width(code: Code) -> usize {
    match code {
        Code::Binary => 1,
        Code::Ascii => 2,
    }
}

/// Subheader, serial number, route: as far as the length field.
fn put_head(out: &mut Vec<u8>, kind: u16, serial: u16, link: &Head) {
    let Head { frame, code, route } = *link;
    // Alone among the fields it stands high byte first.
    match code {
        Code::Binary => out.extend_from_slice(&kind.to_be_bytes()),
        Code::Ascii => put(out, code, kind.into(), 2),
    }
    if frame == Frame::E4 {
        put(out, code, serial.into(), 2);
        put(out, code, 0, 2);
    }
    put(out, code, route.network.into(), 1);
    put(out, code, route.pc.into(), 1);
    put(out, code, route.io.into(), 2);
    put(out, code, route.station.into(), 1);
}

/// What every frame of a link has in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) frame: Frame,
    pub(super) code: Code,
    pub(super) route: Route,
}

impl Head {
    pub(super) fn of(link: &McLink) -> Self {
        Self {
            frame: link.frame,
            code: link.code,
            route: link.route,
        }
    }

    /// A request around command, subcommand and data. `timer` is in units of 250 ms; 0: no limit.
    pub(super) fn request(&self, serial: u16, timer: u16, body: &[u8]) -> Vec<u8> {
        let kind = match self.frame {
            Frame::E3 => 0x5000,
            Frame::E4 => 0x5400,
        };
        let mut out = Vec::new();
        put_head(&mut out, kind, serial, self);
        let length = 2 * width(self.code) + body.len();
        put(&mut out, self.code, length as u32, 2);
        put(&mut out, self.code, timer.into(), 2);
        out.extend_from_slice(body);
        out
    }

    /// Length of the reply that `bytes` begin with; `None`: not known yet.
    ///
    /// # Errors
    /// In plain words: no reply begins so, and why that may be.
    pub(super) fn reply_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        self.check_subheader(bytes)?;
        let header = header_bytes(self.frame, self.code);
        let Some(head) = bytes.get(..header) else {
            return Ok(None);
        };
        let mut length = Fields::new(&head[header - 2 * width(self.code)..], self.code);
        let length = length.number(2)? as usize;
        let most = 2 * width(self.code) + DATA_BYTES_MAX;
        if !(2 * width(self.code)..=most).contains(&length) {
            return Err(format!(
                "length {length} in the reply's header, expected at most {most}"
            ));
        }
        Ok(Some(header + length))
    }

    fn check_subheader(&self, bytes: &[u8]) -> Result<(), String> {
        let kind = match self.frame {
            Frame::E3 => 0xD000,
            Frame::E4 => 0xD400_u16,
        };
        let expected = match self.code {
            Code::Binary => kind.to_be_bytes().to_vec(),
            Code::Ascii => format!("{kind:04X}").into_bytes(),
        };
        let fits = bytes.iter().zip(&expected).all(|(a, b)| a == b);
        if fits {
            return Ok(());
        }
        Err(match (self.code, bytes) {
            (Code::Binary, [b'D', ..]) => {
                "the reply looks like ASCII, and code = \"binary\" is configured: one of the two must change, the \
                 port's communication data code or code in this file".into()
            }
            (Code::Ascii, [0xD0 | 0xD4, ..]) => {
                "the reply looks like binary, and code = \"ascii\" is configured: one of the two must change, the \
                 port's communication data code or code in this file".into()
            }
            (_, [0xD0, ..] | [b'D', b'0', ..]) => {
                "a 3E reply, and protocol = \"mc-4e\" is configured: the port may not know 4E".into()
            }
            (_, [0xD4, ..] | [b'D', b'4', ..]) => {
                "a 4E reply, and protocol = \"mc-3e\" is configured".to_owned()
            }
            _ => "bytes that begin no MC reply: is this the port's MC protocol (SLMP) port?".into(),
        })
    }

    /// Compares a whole reply with the whole request: serial number and route.
    pub(super) fn fit(&self, request: &[u8], reply: &[u8]) -> Fit {
        let sub = 2 * width(self.code);
        if self.frame == Frame::E4 {
            let of =
                |frame: &[u8]| Fields::new(frame.get(sub..).unwrap_or_default(), self.code).word();
            match (of(request), of(reply)) {
                (Ok(asked), Ok(found)) if asked == found => {}
                (_, Ok(found)) => {
                    return Fit::Stale(format!("a reply to serial number {found:#06x}"));
                }
                (_, Err(why)) => return Fit::Misfit(why),
            }
        }
        let end = header_bytes(self.frame, self.code) - 2 * width(self.code);
        let route = |frame: &[u8]| {
            let route = frame.get(end - 5 * width(self.code)..end);
            route_of(route.unwrap_or_default(), self.code)
        };
        match (route(request), route(reply)) {
            (Ok(asked), Ok(found)) if asked == found => Fit::Reply,
            (Ok(asked), Ok(found)) => {
                Fit::WrongUnit(format!("reply from {found}, expected {asked}"))
            }
            (Err(why), _) | (_, Err(why)) => Fit::Misfit(why),
        }
    }

    /// End code and data of a whole reply.
    pub(super) fn open<'a>(&self, reply: &'a [u8]) -> Result<(u16, &'a [u8]), String> {
        let body = reply.get(header_bytes(self.frame, self.code)..);
        let mut fields = Fields::new(body.unwrap_or_default(), self.code);
        let end = fields.word()?;
        Ok((end, fields.rest))
    }
}

fn route_of(bytes: &[u8], code: Code) -> Result<Route, String> {
    let mut fields = Fields::new(bytes, code);
    Ok(Route {
        network: fields.number(1)? as u8,
        pc: fields.number(1)? as u8,
        io: fields.word()?,
        station: fields.number(1)? as u8,
    })
}

/// What a whole reply to `command` says.
///
/// # Errors
/// In plain words: it is no reply to this request.
pub(super) fn judge(
    head: &Head,
    command: &Command,
    reply: &[u8],
) -> Result<Result<Answer, u16>, String> {
    let (end, data) = head.open(reply)?;
    if end == 0 {
        return command.answer(data, head.code).map(Ok);
    }
    if data.is_empty() {
        return Ok(Err(end));
    }
    // Error information: the route of who refused, and what was refused. Not every device sends it.
    let mut fields = Fields::new(data, head.code);
    fields.raw(5 * width(head.code))?;
    let refused = (fields.word()?, fields.word()?);
    fields.end()?;
    let asked = command.numbers();
    if refused != asked {
        return Err(format!(
            "an error reply about command {:04X} {:04X}, asked was {:04X} {:04X}",
            refused.0, refused.1, asked.0, asked.1
        ));
    }
    Ok(Err(end))
}

impl Framing for Head {
    fn begin(&mut self, _ident: u16) {}
    fn outgoing(&mut self, _request: &mut [u8]) -> Result<(), String> {
        Ok(())
    }
    fn frame_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        self.reply_bytes(bytes)
    }
    fn fit(&self, request: &[u8], frame: &[u8]) -> Fit {
        Head::fit(self, request, frame)
    }
    fn incoming(&self, _frame: &mut [u8]) {}
    fn frame_bytes_max(&self) -> usize {
        header_bytes(self.frame, self.code) + 2 * width(self.code) + DATA_BYTES_MAX
    }
    fn has_identity(&self) -> bool {
        self.frame == Frame::E4
    }
    #[cfg(feature = "test-hooks")]
    fn is_write(&self, request: &[u8]) -> bool {
        let at = header_bytes(self.frame, self.code) + 2 * width(self.code);
        let mut fields = Fields::new(request.get(at..).unwrap_or_default(), self.code);
        fields.word().is_ok_and(|command| command >> 8 == 0x14)
    }
}

/// The command that does what the link asks.
pub(super) fn command(ask: &Ask, code: Code) -> Result<Command, String> {
    match ask {
        Ask::Read(span) => {
            let Area::Melsec(device) = span.area else {
                return Err(format!("{span} is no place of a MELSEC device"));
            };
            let number = span.start;
            let (first, count) = (Place { device, number }, span.count);
            Ok(match span.area.is_bits() {
                true => Command::ReadBits { first, count },
                false => Command::ReadWords { first, count },
            })
        }
        Ask::Write { start, words } => {
            let first = place(start)?;
            let last = start.plus(
                u32::try_from(words.len())
                    .unwrap_or(u32::MAX)
                    .saturating_sub(1),
            );
            if last.is_none() {
                return Err(format!(
                    "{} values from {start} go past the last place",
                    words.len()
                ));
            }
            if !start.area().is_bits() {
                let words = words.clone();
                return Ok(Command::WriteWords { first, words });
            }
            if words.iter().any(|word| *word > 1) {
                return Err(format!("a bit is 0 or 1: {words:?}"));
            }
            let bits = words.iter().map(|word| *word != 0).collect();
            Ok(Command::WriteBits { first, bits })
        }
        Ask::Scatter(parts) => scatter(parts, code),
        Ask::Remote(order) => Ok(Command::Remote {
            order: *order,
            force: false,
        }),
        Ask::Scattered(read) => scattered(read),
        Ask::Model => Ok(Command::CpuModel),
        Ask::Loopback(digits) => Ok(Command::Loopback(digits.clone())),
    }
}

fn place(address: &Address) -> Result<Place, String> {
    match *address {
        Address::Melsec { device, number } => Ok(Place { device, number }),
        Address::Modbus { .. } => Err(format!("{address} is no place of a MELSEC device")),
    }
}

/// One frame for places that stand apart.
fn scatter(parts: &[Part], code: Code) -> Result<Command, String> {
    let widths: Vec<_> = parts
        .iter()
        .map(|(at, words)| (at.area(), words.len()))
        .collect();
    let (mut single, mut double) = (Vec::new(), Vec::new());
    let (mut bits, mut blocks) = (Vec::new(), Vec::new());
    let by = spread::by(&widths, code).map_err(|unfit| unfit.to_string())?;
    for (start, words) in parts {
        let first = place(start)?;
        let fits = u32::try_from(words.len())
            .ok()
            .and_then(|n| start.plus(n.saturating_sub(1)));
        if words.is_empty() || fits.is_none() {
            return Err(format!("{} values from {start} on", words.len()));
        }
        match (by, words.as_slice()) {
            (By::Bits, [bit @ (0 | 1)]) => bits.push((first, *bit == 1)),
            (By::Bits, _) => return Err(format!("a bit is 0 or 1: {start} is one")),
            (By::Blocks, _) => blocks.push((first, words.clone())),
            (By::Words, _) => {
                let step = spread::point_words(code);
                for (at, pair) in (first.number..).step_by(step).zip(words.chunks(step)) {
                    let place = Place {
                        number: at,
                        ..first
                    };
                    match *pair {
                        [low, high] => double.push((place, u32::from(high) << 16 | u32::from(low))),
                        _ => single.extend(pair.iter().map(|word| (place, *word))),
                    }
                }
            }
        }
    }
    Ok(match by {
        By::Bits => Command::WriteRandomBits(bits),
        By::Blocks => Command::WriteBlocks {
            words: blocks,
            bits: Vec::new(),
        },
        By::Words => Command::WriteRandom {
            words: single,
            doubles: double,
        },
    })
}

fn scattered(read: &Scattered) -> Result<Command, String> {
    let words = |span: &Span| match (span.area, span.area.is_bits()) {
        (Area::Melsec(device), false) => Ok(device),
        _ => Err(format!("{span} holds no words of a MELSEC device")),
    };
    let (mut single, mut double, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for span in &read.spans {
        let device = words(span)?;
        let place = |offset: u16| Place {
            device,
            number: span.start + u32::from(offset),
        };
        match read.how {
            How::Blocks => blocks.push((place(0), span.count)),
            How::Random => {
                double.extend((0..span.count / 2).map(|n| place(2 * n)));
                single.extend((span.count % 2 == 1).then(|| place(span.count - 1)));
            }
        }
    }
    Ok(match read.how {
        How::Blocks => Command::ReadBlocks {
            words: blocks,
            bits: Vec::new(),
        },
        How::Random => Command::ReadRandom {
            words: single,
            doubles: double,
        },
    })
}

/// Words and double words in the order of the spans that they were asked for.
fn gathered(spans: &[Span], words: Vec<u16>, doubles: Vec<u32>) -> Option<Vec<u16>> {
    let (mut words, mut doubles) = (words.into_iter(), doubles.into_iter());
    let mut all = Vec::new();
    for span in spans {
        for _ in 0..span.count / 2 {
            let double = doubles.next()?;
            all.extend([double as u16, (double >> 16) as u16]);
        }
        if span.count % 2 == 1 {
            all.push(words.next()?);
        }
    }
    Some(all)
}

/// What an answer without an error comes to.
///
/// # Errors
/// In plain words: it is none to `ask`.
pub(super) fn ended(ask: &Ask, answer: Answer) -> Result<End, String> {
    match (answer, ask) {
        (Answer::Words(words), _) => Ok(End::Words(words)),
        (Answer::Bits(bits), _) => Ok(End::Words(bits.into_iter().map(u16::from).collect())),
        (Answer::Random { words, doubles }, Ask::Scattered(read)) => {
            let words = gathered(&read.spans, words, doubles);
            words.map(End::Words).ok_or_else(|| "too few words".into())
        }
        (Answer::Model { name, code }, _) => Ok(End::Model(name, code)),
        (Answer::Done | Answer::Loopback(_), _) => Ok(End::Echo),
        (other, _) => Err(format!("{other:?} was not asked for")),
    }
}

/// MC protocol for a link.
pub(super) struct McCodec {
    head: Head,
    timer: u16,
    silence: String,
}

impl McCodec {
    pub(super) fn new(link: &McLink) -> Self {
        let timer = link.timeout_ms.div_ceil(TIMER_MS).clamp(1, 0xFFFF);
        let (own, other) = match link.code {
            Code::Binary => ("binary", "ASCII"),
            Code::Ascii => ("ASCII", "binary"),
        };
        Self {
            head: Head::of(link),
            timer: timer as u16,
            silence: format!(
                "nothing came at all: a port that is set to {other} does not answer {own}, one for another frame or \
                 protocol may not answer either; check code, frame and port against the PLC's parameters"
            ),
        }
    }
}

impl Codec for McCodec {
    fn encode(&self, ask: &Ask, ident: u16) -> Result<Vec<u8>, String> {
        let body = command(ask, self.head.code)?.encode(self.head.code)?;
        Ok(self.head.request(ident, self.timer, &body))
    }

    fn decode(&self, ask: &Ask, reply: &[u8]) -> Result<End, String> {
        Ok(
            match judge(&self.head, &command(ask, self.head.code)?, reply)? {
                Ok(answer) => ended(ask, answer)?,
                Err(code) => End::Code(end_code::coded(code)),
            },
        )
    }

    fn ident(&self, ident: u16) -> String {
        let route = self.head.route;
        match self.head.frame {
            Frame::E4 => format!("serial={ident:#06x} {route}"),
            Frame::E3 => format!("3E without serial number, {route}"),
        }
    }

    fn silence(&self) -> String {
        self.silence.clone()
    }
}
