//! Owns: C24 frames on a line: where a reply begins, which bytes are nobody's, what it says.
//! May call: serial, command, one_c, end_code, ethernet (asks as commands); metered, exchange, echo; core c24.
//! Never: end a reply by silence; take a reply for ours that names another station or, in format 2, another block.
//!
//! Beside format 2's block number a reply carries no identity of its request: what came late is kept from the
//! next request by the line's silences, not by anything here.

use super::super::echo::{self, Asked};
use super::super::exchange::{Ask, Codec, Coded, End, Proof};
use super::super::matching::hex;
use super::super::metered::{Fit, Framing, Skip};
use super::command::{Answer, Command};
use super::serial::{FRAME_BYTES_MAX, Format, Frame, SerialHead, SerialReply};
use super::{end_code, ethernet, one_c};
use crate::core::c24::C24Link;
use crate::core::serial::Way;
use std::time::Duration;

/// Characters around the data of a reply, the longest route and an error code included.
const FRAME_CHARS: usize = 48;
/// Characters of a CPU's name and code.
const MODEL_CHARS: usize = 20;
const DLE: u8 = 0x10;

/// What a run of bytes is to the request that is under way.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    /// It begins with a reply from our station, of this length.
    Reply(usize),
    /// It may; more bytes will tell.
    Perhaps,
    /// It looked like one, and this is wrong with it.
    Unsound(String),
    Nothing,
}

fn sight(head: &SerialHead, bytes: &[u8]) -> Sight {
    if bytes.is_empty() || !head.begins(bytes) {
        return Sight::Nothing;
    }
    match head.reply_bytes(bytes) {
        Err(_) => Sight::Nothing,
        Ok(Some(length)) if bytes.len() >= length => match head.open(&bytes[..length]) {
            Ok(_) => Sight::Reply(length),
            Err(why) => Sight::Unsound(why),
        },
        Ok(_) => Sight::Perhaps,
    }
}

/// The frames of a serial module, as one machine's requests see them.
pub(super) struct C24Framing {
    head: SerialHead,
    asked: Asked,
}

impl C24Framing {
    pub(super) fn new(link: &C24Link) -> Self {
        Self {
            head: SerialHead::of(link),
            asked: Asked::new(link.echo, FRAME_BYTES_MAX),
        }
    }
}

impl Framing for C24Framing {
    fn begin(&mut self, ident: u16) {
        self.asked.nothing();
        self.head.block = block(ident);
    }
    fn outgoing(&mut self, request: &mut [u8]) -> Result<(), String> {
        self.asked.set(request);
        Ok(())
    }
    fn skip(&mut self, bytes: &[u8]) -> Result<Skip, String> {
        let request = match self.asked.expects(bytes) {
            Ok(request) => request,
            Err(skip) => return Ok(skip),
        };
        let mut what = "bytes came that are no reply to this request".to_owned();
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if rest.starts_with(request) {
                return Err(echo::unexpected());
            }
            if request.starts_with(rest) {
                break;
            }
            match sight(&self.head, rest) {
                Sight::Reply(_) | Sight::Perhaps => break,
                Sight::Unsound(why) => what = why,
                Sight::Nothing => {}
            }
            // Within a frame a doubled byte begins none.
            let doubled = self.head.format == Format::F5 && rest.starts_with(&[DLE, DLE]);
            at += if doubled { 2 } else { 1 };
        }
        Ok(match at {
            0 => Skip::Nothing,
            noise => Skip::Noise(noise, what),
        })
    }
    fn frame_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        Ok(match sight(&self.head, bytes) {
            Sight::Reply(length) if self.asked.replied().is_some() => Some(length),
            _ => None,
        })
    }
    fn fit(&self, _: &[u8], frame: &[u8]) -> Fit {
        match sight(&self.head, frame) {
            Sight::Reply(length) if length == frame.len() => Fit::Reply,
            _ => Fit::Misfit(format!("{} is no reply to this request", hex(frame))),
        }
    }
    fn incoming(&self, _: &mut [u8]) {}
    fn frame_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }
    fn has_identity(&self) -> bool {
        false
    }
    #[cfg(feature = "test-hooks")]
    fn is_write(&self, request: &[u8]) -> bool {
        use crate::core::melsec::Code;
        let body = self.head.body(request);
        match (self.head.frame, self.head.code()) {
            (Frame::C1, _) => body.get(1) == Some(&b'W'),
            (_, Code::Ascii) => body.starts_with(b"14"),
            (_, Code::Binary) => body.get(1) == Some(&0x14),
        }
    }
}

/// The block number of a request in format 2.
fn block(ident: u16) -> u8 {
    ident.to_le_bytes()[0]
}

/// Requests and replies of one station.
pub(super) struct C24Codec {
    head: SerialHead,
    link: C24Link,
}

impl C24Codec {
    pub(super) fn new(link: &C24Link) -> Self {
        Self {
            head: SerialHead::of(link),
            link: link.clone(),
        }
    }

    fn answer(&self, command: &Command, data: &[u8]) -> Result<Answer, String> {
        match self.head.frame {
            Frame::C1 => one_c::answer(command, data),
            _ => command.answer(data, self.head.code()),
        }
    }

    /// 1C has error codes of its own, of two digits, and no agreed list of what each proves.
    fn coded(&self, code: u16) -> Coded {
        let coded = end_code::coded(code);
        if self.head.frame != Frame::C1 {
            return coded;
        }
        let mut unclear = Coded {
            proof: Proof::Unclear,
            ..coded
        };
        unclear.code.meaning = "error code of 1C: it proves nothing".into();
        unclear
    }
}

impl Codec for C24Codec {
    fn encode(&self, ask: &Ask, ident: u16) -> Result<Vec<u8>, String> {
        let command = ethernet::command(ask, self.head.code())?;
        let body = match self.head.frame {
            Frame::C1 => one_c::body(&command)?,
            _ => command.encode(self.head.code())?,
        };
        let head = SerialHead {
            block: block(ident),
            ..self.head
        };
        head.request(&body)
    }

    fn decode(&self, ask: &Ask, reply: &[u8]) -> Result<End, String> {
        // The framing has compared the block number with the request's.
        let mut head = self.head;
        if let (Format::F2, Some(digits)) = (head.format, reply.get(1..3)) {
            head.block = super::field::hex_number(digits)? as u8;
        }
        let data = match head.open(reply)? {
            SerialReply::Refused(code) => return Ok(End::Code(self.coded(code))),
            SerialReply::Data(data) => data,
        };
        ethernet::ended(
            ask,
            self.answer(&ethernet::command(ask, self.head.code())?, &data)?,
        )
    }

    fn ident(&self, ident: u16) -> String {
        let (frame, route) = (self.link.frame.name(), self.link.route);
        let format = self.link.format.number();
        match self.link.format {
            Format::F2 => format!(
                "{frame} format {format} block {:02X}, {route}",
                block(ident)
            ),
            _ => format!("{frame} format {format}, {route}"),
        }
    }

    fn silence(&self) -> String {
        let sum = match self.link.sum_check {
            true => "on",
            false => "off",
        };
        let (station, frame) = (self.link.route.station, self.link.frame.name());
        let format = self.link.format.number();
        let line = match &self.link.way {
            Way::Serial(line) => format!(
                "{} baud, {} data bits, {:?} parity and {} stop bits",
                line.baud, line.data_bits, line.parity, line.stop_bits
            ),
            Way::Tcp { .. } => "the same speed as the server".into(),
        };
        format!(
            "nothing has answered on this line yet: is the module's station number {station}, is its port set to MC \
             protocol in format {format} ({frame}), to sum check {sum} and to {line}, and are the wires the right way \
             round?"
        )
    }

    fn line_time(&self, ask: &Ask, request: &[u8]) -> Duration {
        let Way::Serial(line) = &self.link.way else {
            return Duration::ZERO;
        };
        let data = match ask {
            // Four digits a word, or two bytes that may both be doubled.
            Ask::Read(span) => 4 * usize::from(span.count),
            Ask::Scattered(read) => 4 * read.words(),
            Ask::Loopback(digits) => 4 + digits.len(),
            Ask::Model => MODEL_CHARS,
            Ask::Write { .. } | Ask::Scatter(_) | Ask::Remote(_) => 0,
        };
        let echo = if self.link.echo { request.len() } else { 0 };
        Duration::from_micros(line.time_us(request.len() + echo + FRAME_CHARS + data))
    }
}

#[cfg(test)]
#[path = "c24_tests.rs"]
mod tests;
