//! Owns: the frames of the serial modules (C24): 4C, 3C, 2C and 1C, their sums, and how a line is resynchronised.
//! May call: field of this room; core melsec.
//! Never: take a reply for ours that names another station; wait for a byte that its format does not carry.
//!
//! 4C and 3C are checked against frames that others made; 2C and 1C follow the manual's layout only and were
//! never tried on hardware. A serial reply carries no identity of the request.

use super::command::Command;
use super::field::{Fields, hex_number, put};
use crate::core::c24::C24Link;
pub(crate) use crate::core::c24::{
    C24Format as Format, C24Frame as Frame, C24Route as SerialRoute,
};
use crate::core::melsec::Code;
use crate::seeded::{self, Fault};

/// Longest frame: 960 words in ASCII and what stands around them, in bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 4_096;

const STX: u8 = 0x02;
const ETX: u8 = 0x03;
const EOT: u8 = 0x04;
const ENQ: u8 = 0x05;
const ACK: u8 = 0x06;
const DLE: u8 = 0x10;
const NAK: u8 = 0x15;
const CR_LF: [u8; 2] = [0x0D, 0x0A];

/// What every frame of a link has in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SerialHead {
    pub(crate) frame: Frame,
    pub(crate) format: Format,
    pub(crate) sum_check: bool,
    pub(crate) route: SerialRoute,
    /// Of format 2.
    pub(crate) block: u8,
}

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SerialReply {
    /// Done, with the data that were asked for, if any.
    Data(Vec<u8>),
    /// Refused with this code.
    Refused(u16),
}

impl SerialHead {
    pub(crate) fn of(link: &C24Link) -> Self {
        Self {
            frame: link.frame,
            format: link.format,
            sum_check: link.sum_check,
            route: link.route,
            block: 0,
        }
    }

    /// How bodies are coded.
    pub(crate) fn code(&self) -> Code {
        self.format.code()
    }

    /// Whether what came so far may be the beginning of a reply from our station.
    pub(crate) fn begins(&self, bytes: &[u8]) -> bool {
        let own = self.identification();
        let came = match self.format {
            // Only as much as is compared, each byte doubled at the most: a line of noise is looked at byte by byte.
            Format::F5 => {
                let rest = bytes.get(2..).unwrap_or_default();
                let inner = undouble(&rest[..rest.len().min(2 * (2 + own.len()))]);
                let inner = inner.map_or(Vec::new(), |(inner, _)| inner);
                inner.get(2..).unwrap_or_default().to_vec()
            }
            _ => bytes.get(1..).unwrap_or_default().to_vec(),
        };
        came.iter().zip(&own).all(|(a, b)| a == b)
    }

    /// Command, subcommand and data of a whole request; in format 5 as they are once doubled bytes are taken once.
    #[cfg(feature = "test-hooks")]
    pub(crate) fn body(&self, request: &[u8]) -> Vec<u8> {
        let inner = match self.format {
            Format::F5 => undouble(request.get(2..).unwrap_or_default())
                .map_or(Vec::new(), |(inner, _)| inner.into_iter().skip(1).collect()),
            _ => request.to_vec(),
        };
        let at = 1 + self.identification().len();
        inner.get(at..).unwrap_or_default().to_vec()
    }

    /// A request around command, subcommand and data.
    ///
    /// # Errors
    /// In plain words: there is no such frame.
    pub(crate) fn request(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        if self.format == Format::F5 {
            return self.binary_request(body);
        }
        let (start, end): (u8, &[u8]) = match self.format {
            Format::F3 => (STX, &[ETX]),
            _ => (ENQ, &[]),
        };
        let mut out = vec![start];
        out.extend_from_slice(&self.identification());
        out.extend_from_slice(body);
        out.extend_from_slice(end);
        self.put_sum(&mut out);
        self.put_tail(&mut out);
        Ok(out)
    }

    fn binary_request(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        if self.frame != Frame::C4 {
            return Err("format 5 exists only for 4C".into());
        }
        let mut inner = self.identification();
        inner.extend_from_slice(body);
        let length = u16::try_from(inner.len()).map_err(|_| "a body that is too long")?;
        let mut counted = length.to_le_bytes().to_vec();
        counted.extend_from_slice(&inner);
        let mut out = vec![DLE, STX];
        for byte in &counted {
            out.push(*byte);
            if *byte == DLE {
                out.push(DLE);
            }
        }
        out.extend_from_slice(&[DLE, ETX]);
        if self.sum_check {
            out.extend_from_slice(&sum(&counted));
        }
        Ok(out)
    }

    /// What makes the module drop whatever it was doing. What it had applied stays applied, and the earlier
    /// request is never answered: an uncertain write stays uncertain.
    pub(crate) fn resync(&self) -> Vec<u8> {
        match self.format {
            Format::F4 => [&[EOT][..], &CR_LF].concat(),
            Format::F5 => {
                let body = Command::Resync.encode(self.code());
                body.and_then(|body| self.request(&body))
                    .unwrap_or_default()
            }
            _ => vec![EOT],
        }
    }

    /// Block number, frame identification and route, as every frame repeats them.
    fn identification(&self) -> Vec<u8> {
        let code = self.code();
        let mut out = Vec::new();
        let SerialRoute {
            station,
            network,
            pc,
            io,
            module_station,
            self_station,
        } = self.route;
        let bytes = |out: &mut Vec<u8>, all: &[u8]| {
            all.iter()
                .for_each(|byte| put(out, code, (*byte).into(), 1));
        };
        if self.format == Format::F2 {
            bytes(&mut out, &[self.block]);
        }
        match self.frame {
            Frame::C4 => {
                bytes(&mut out, &[0xF8, station, network, pc]);
                put(&mut out, code, io.into(), 2);
                bytes(&mut out, &[module_station, self_station]);
            }
            Frame::C3 => bytes(&mut out, &[0xF9, station, network, pc, self_station]),
            Frame::C2 => bytes(&mut out, &[0xFB, station, self_station]),
            Frame::C1 => bytes(&mut out, &[station, pc]),
        }
        out
    }

    fn put_sum(&self, out: &mut Vec<u8>) {
        if self.sum_check {
            let digits = sum(&out[1..]);
            out.extend_from_slice(&digits);
        }
    }

    fn put_tail(&self, out: &mut Vec<u8>) {
        if self.format == Format::F4 {
            out.extend_from_slice(&CR_LF);
        }
    }

    /// Length of the reply that `bytes` begin with; `None`: not known yet.
    ///
    /// # Errors
    /// In plain words: no reply begins so.
    pub(crate) fn reply_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let known = match self.format {
            Format::F5 => self.binary_reply_bytes(bytes),
            Format::F3 => self.reply_bytes_3(bytes),
            _ => self.reply_bytes_1(bytes),
        }?;
        match known {
            None if bytes.len() > FRAME_BYTES_MAX => {
                Err(format!("{} bytes and no end of the reply", bytes.len()))
            }
            known => Ok(known),
        }
    }

    fn sum_bytes(&self) -> usize {
        if self.sum_check { 2 } else { 0 }
    }

    fn tail_bytes(&self) -> usize {
        if self.format == Format::F4 { 2 } else { 0 }
    }

    fn error_digits(&self) -> usize {
        if self.frame == Frame::C1 { 2 } else { 4 }
    }

    fn reply_bytes_1(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let fixed = 1 + self.identification().len();
        Ok(match bytes.first() {
            None => None,
            Some(&STX) => etx(bytes).map(|at| at + 1 + self.sum_bytes() + self.tail_bytes()),
            Some(&ACK) => Some(fixed + self.tail_bytes()),
            Some(&NAK) => Some(fixed + self.error_digits() + self.tail_bytes()),
            Some(other) => return Err(no_reply(*other)),
        })
    }

    fn reply_bytes_3(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        match bytes.first() {
            None => return Ok(None),
            Some(&STX) => {}
            Some(other) => return Err(no_reply(*other)),
        }
        Ok(etx(bytes).map(|at| {
            let head = 1 + self.identification().len();
            let (yes, _) = self.words_3();
            let bare = head + yes.len();
            let with_data = at > bare && bytes.get(head..bare) == Some(yes);
            let sum = if with_data { self.sum_bytes() } else { 0 };
            at + 1 + sum
        }))
    }

    /// By which words format 3 says yes and no.
    fn words_3(&self) -> (&'static [u8], &'static [u8]) {
        match self.frame {
            Frame::C1 => (b"GG", b"NN"),
            _ => (b"QACK", b"QNAK"),
        }
    }

    fn binary_reply_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        match bytes {
            [] | [DLE] | [DLE, STX] => return Ok(None),
            [DLE, STX, ..] => {}
            [other, ..] => return Err(no_reply(*other)),
        }
        let (counted, end) = match undouble(&bytes[2..])? {
            (counted, Some(end)) => (counted, 2 + end),
            (_, None) => return Ok(None),
        };
        let stated = counted.first_chunk().map(|two| u16::from_le_bytes(*two));
        if stated.map(usize::from) != counted.len().checked_sub(2) {
            let found = counted.len();
            return Err(format!(
                "{found} bytes in a frame that states another length"
            ));
        }
        Ok(Some(end + self.sum_bytes()))
    }

    /// What a whole reply says: station, sum and layout compared.
    ///
    /// # Errors
    /// In plain words: it is no reply to a request of this link.
    pub(crate) fn open(&self, reply: &[u8]) -> Result<SerialReply, String> {
        match self.format {
            Format::F5 => self.open_binary(reply),
            Format::F3 => self.open_3(reply),
            _ => self.open_1(reply),
        }
    }

    fn open_1(&self, reply: &[u8]) -> Result<SerialReply, String> {
        let reply = match self.format {
            Format::F4 => reply.strip_suffix(&CR_LF).ok_or("no CR LF at the end")?,
            _ => reply,
        };
        let (control, rest) = reply.split_first().ok_or("nothing")?;
        match *control {
            ACK => {
                let rest = self.after_identification(rest)?;
                let empty = rest.is_empty();
                empty
                    .then_some(SerialReply::Data(Vec::new()))
                    .ok_or_else(|| more(rest))
            }
            NAK => self.refused(self.after_identification(rest)?),
            STX => {
                let body = self.check_sum(rest)?;
                let body = body.strip_suffix(&[ETX]).ok_or("no ETX")?;
                let data = self.after_identification(body)?;
                Ok(SerialReply::Data(data.to_vec()))
            }
            other => Err(no_reply(other)),
        }
    }

    fn open_3(&self, reply: &[u8]) -> Result<SerialReply, String> {
        let rest = reply.strip_prefix(&[STX]).ok_or("no STX")?;
        let (yes, no) = self.words_3();
        if let Some(bare) = rest.strip_suffix(&[ETX]) {
            let bare = self.after_identification(bare)?;
            if bare == yes {
                return Ok(SerialReply::Data(Vec::new()));
            }
            if let Some(error) = bare.strip_prefix(no) {
                return self.refused(error);
            }
        }
        let body = self.check_sum(rest)?;
        let body = body.strip_suffix(&[ETX]).ok_or("no ETX")?;
        let body = self.after_identification(body)?;
        let data = body.strip_prefix(yes);
        let data = data.ok_or("neither yes nor no in the reply")?;
        Ok(SerialReply::Data(data.to_vec()))
    }

    fn open_binary(&self, reply: &[u8]) -> Result<SerialReply, String> {
        let rest = reply.strip_prefix(&[DLE, STX]).ok_or("no DLE STX")?;
        let (counted, end) = undouble(rest)?;
        let given = &rest[end.ok_or("no DLE ETX")?..];
        if given.len() != self.sum_bytes() {
            return Err(more(given));
        }
        if self.sum_check && given != sum(&counted) {
            return Err(wrong_sum(given, &counted));
        }
        let body = self.after_identification(counted.get(2..).unwrap_or_default())?;
        let body = body.strip_prefix(&[0xFF, 0xFF]);
        let body = body.ok_or("no response identification FFFF")?;
        let mut fields = Fields::new(body, Code::Binary);
        match fields.word()? {
            0 => Ok(SerialReply::Data(fields.rest.to_vec())),
            code => Ok(SerialReply::Refused(code)),
        }
    }

    fn after_identification<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let own = self.identification();
        bytes.strip_prefix(own.as_slice()).ok_or_else(|| {
            let found = &bytes[..bytes.len().min(own.len())];
            format!(
                "a reply from {}, expected {}",
                String::from_utf8_lossy(found),
                String::from_utf8_lossy(&own)
            )
        })
    }

    fn refused(&self, digits: &[u8]) -> Result<SerialReply, String> {
        if digits.len() != self.error_digits() {
            return Err(more(digits));
        }
        let code = hex_number(digits)?;
        Ok(SerialReply::Refused(code as u16))
    }

    /// What stands before a sum that is right.
    fn check_sum<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        if !self.sum_check {
            return Ok(bytes);
        }
        let at = bytes.len().checked_sub(2).ok_or("no sum")?;
        let (body, given) = bytes.split_at(at);
        let right = given == sum(body) || seeded::is_on(Fault::SumUnchecked);
        right.then_some(body).ok_or_else(|| wrong_sum(given, body))
    }
}

/// The low byte of the sum, as two digits.
fn sum(bytes: &[u8]) -> [u8; 2] {
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let digit = |half: u8| b"0123456789ABCDEF"[usize::from(half)];
    [digit(sum >> 4), digit(sum & 0xF)]
}

fn wrong_sum(given: &[u8], bytes: &[u8]) -> String {
    format!(
        "the sum is {}, over these bytes it is {}: is the sum check set alike on both sides?",
        String::from_utf8_lossy(given),
        String::from_utf8_lossy(&sum(bytes))
    )
}

fn etx(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == ETX)
}

fn more(bytes: &[u8]) -> String {
    format!("{} bytes where others were expected", bytes.len())
}

fn no_reply(byte: u8) -> String {
    format!("{byte:02X} begins no reply of this format")
}

/// The bytes before DLE ETX with each doubled DLE taken once, and where they end; `None`: not yet.
pub(super) fn undouble(bytes: &[u8]) -> Result<(Vec<u8>, Option<usize>), String> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        if *byte != DLE {
            out.push(*byte);
            at += 1;
            continue;
        }
        match bytes.get(at + 1) {
            Some(&DLE) => out.push(DLE),
            Some(&ETX) => return Ok((out, Some(at + 2))),
            Some(other) => return Err(format!("10 {other:02X} within a frame")),
            None => break,
        }
        at += 2;
    }
    Ok((out, None))
}
