//! Owns: C frames (SH-080008) as a serial module sees them: what wraps a request, what wraps its reply.
//! May call: mc (what a body asks), spec.
//! Never: share code with the gateway's client, so that each is proof against the other.

use super::mc::{self, McFrame, McRequest, Reader, Unit};
use super::spec::{C24FrameKind, C24Program, McCode};

/// Longest request.
const REQUEST_BYTES_MAX: usize = 8_192;
const STX: u8 = 0x02;
const ETX: u8 = 0x03;
const EOT: u8 = 0x04;
const ENQ: u8 = 0x05;
const ACK: u8 = 0x06;
const CL: u8 = 0x0C;
const DLE: u8 = 0x10;
const NAK: u8 = 0x15;

/// What wraps a request's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrap {
    frame: C24FrameKind,
    format: u8,
    sum_check: bool,
    /// Block number, frame identification and route, as they came.
    head: Vec<u8>,
}

fn sum(bytes: &[u8]) -> Vec<u8> {
    let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
    format!("{:02X}", sum & 0xFF).into_bytes()
}

/// Bytes of identification and route in format 5, half as many as characters in the others.
fn head_bytes(frame: C24FrameKind) -> usize {
    match frame {
        C24FrameKind::C4 => 8,
        C24FrameKind::C3 => 5,
        C24FrameKind::C2 => 3,
        C24FrameKind::C1 => 2,
    }
}

fn identification(frame: C24FrameKind) -> &'static [u8] {
    match frame {
        C24FrameKind::C4 => b"F8",
        C24FrameKind::C3 => b"F9",
        C24FrameKind::C2 => b"FB",
        C24FrameKind::C1 => b"",
    }
}

/// What stands at the front of the buffer.
enum Front {
    /// More bytes are needed.
    Part,
    /// So many bytes are none of a request.
    Junk(usize),
    /// A request of so many bytes, or one that is answered by nothing.
    Whole(usize, Option<Box<McFrame>>),
}

/// Takes one whole request off the front of `buffer`; what begins none is dropped.
pub(super) fn take(buffer: &mut Vec<u8>, port: &C24Program) -> Option<McFrame> {
    loop {
        if buffer.len() > REQUEST_BYTES_MAX {
            buffer.clear();
        }
        let front = match port.format {
            5 => front_5(buffer, port),
            _ => front_ascii(buffer, port),
        };
        match front {
            Front::Part => return None,
            Front::Junk(bytes) => drop(buffer.drain(..bytes)),
            Front::Whole(bytes, found) => {
                buffer.drain(..bytes);
                if let Some(found) = found {
                    return Some(*found);
                }
            }
        }
    }
}

fn front_ascii(buffer: &[u8], port: &C24Program) -> Front {
    // Whoever resynchronises wants all before it forgotten.
    if let Some(at) = buffer.iter().rposition(|b| matches!(*b, EOT | CL)) {
        return Front::Junk(at + 1);
    }
    let start = if port.format == 3 { STX } else { ENQ };
    match buffer.iter().position(|byte| *byte == start) {
        Some(0) => {}
        Some(junk) => return Front::Junk(junk),
        None if buffer.is_empty() => return Front::Part,
        None => return Front::Junk(buffer.len()),
    }
    let block = if port.format == 2 { 2 } else { 0 };
    let head = 1 + block + 2 * head_bytes(port.frame);
    let again = buffer[1..].iter().position(|byte| *byte == start);
    let part = again.map_or(Front::Part, |at| Front::Junk(at + 1));
    if buffer.len() < head {
        return part;
    }
    if !buffer[1 + block..].starts_with(identification(port.frame)) {
        return Front::Junk(1);
    }
    let end = match port.format {
        3 => buffer
            .iter()
            .position(|byte| *byte == ETX)
            .map(|at| (at, 1)),
        4 => buffer.windows(2).position(|two| two == b"\r\n").map(|at| {
            let sum = if port.sum_check { 2 } else { 0 };
            (at.saturating_sub(sum), 0)
        }),
        // Only what is asked says where it ends.
        _ => body_end(&buffer[head..], port).map(|length| (head + length, 0)),
    };
    let Some((end, after)) = end else {
        return part;
    };
    let sum_at = end + after;
    let total = sum_at + if port.sum_check { 2 } else { 0 };
    let tail = if port.format == 4 { 2 } else { 0 };
    if buffer.len() < total + tail || end < head {
        return part;
    }
    let wrong = port.sum_check && buffer[sum_at..total] != *sum(&buffer[1..sum_at]);
    let found = request(port, &buffer[1..head], &buffer[head..end], wrong);
    Front::Whole(total + tail, Some(Box::new(found)))
}

/// Length of a body that nothing ends; `None`: more is to come.
fn body_end(body: &[u8], port: &C24Program) -> Option<usize> {
    let mut reader = Reader::new(McCode::Ascii, body);
    match parse(&mut reader, port.frame).1 {
        Ok(_) => Some(reader.at),
        Err(mc::BAD_LENGTH) => None,
        // The module finds what is wrong when the line has fallen silent.
        Err(_) => Some(
            body.len()
                .saturating_sub(if port.sum_check { 2 } else { 0 }),
        ),
    }
}

fn front_5(buffer: &[u8], port: &C24Program) -> Front {
    match buffer.windows(2).position(|two| two == [DLE, STX]) {
        Some(0) => {}
        Some(junk) => return Front::Junk(junk),
        None if buffer.last() == Some(&DLE) && buffer.len() == 1 => return Front::Part,
        None if buffer.last() == Some(&DLE) => return Front::Junk(buffer.len() - 1),
        None if buffer.is_empty() => return Front::Part,
        None => return Front::Junk(buffer.len()),
    }
    let (mut inner, mut at) = (Vec::new(), 2);
    loop {
        match buffer[at..] {
            [] | [DLE] => return Front::Part,
            [DLE, DLE, ..] => inner.push(DLE),
            [DLE, ETX, ..] => break,
            [DLE, ..] => return Front::Junk(at),
            [byte, ..] => inner.push(byte),
        }
        at += if buffer[at] == DLE { 2 } else { 1 };
    }
    let sum_at = at + 2;
    let total = sum_at + if port.sum_check { 2 } else { 0 };
    if buffer.len() < total {
        return Front::Part;
    }
    let stated = inner.first_chunk().map(|two| u16::from_le_bytes(*two));
    let whole = inner.len() >= 14 && stated.map(usize::from) == Some(inner.len() - 2);
    if !whole || inner[2] != 0xF8 {
        return Front::Whole(total, None);
    }
    // What resynchronises is answered by nothing.
    if inner[10..12] == [0x15, 0x16] {
        return Front::Whole(total, None);
    }
    let wrong = port.sum_check && buffer[sum_at..total] != *sum(&inner);
    let found = request(port, &inner[2..10], &inner[10..], wrong);
    Front::Whole(total, Some(Box::new(found)))
}

fn request(port: &C24Program, head: &[u8], body: &[u8], wrong_sum: bool) -> McFrame {
    let code = match port.format {
        5 => McCode::Binary,
        _ => McCode::Ascii,
    };
    let mut reader = Reader::new(code, body);
    let ((command, sub), asked) = parse(&mut reader, port.frame);
    let asked = asked.and_then(|asked| reader.finish(asked));
    let block = if port.format == 2 { 2 } else { 0 };
    let digits = |at: usize| {
        let text = head
            .get(at..at + 2)
            .and_then(|two| std::str::from_utf8(two).ok());
        text.and_then(|text| u8::from_str_radix(text, 16).ok())
    };
    let station = match port.format {
        5 => Some(head[1]),
        _ => digits(block + identification(port.frame).len()),
    };
    McFrame {
        code,
        head: Vec::new(),
        serial: if block > 0 {
            digits(0).unwrap_or(0).into()
        } else {
            0
        },
        station: station.unwrap_or(0xFF),
        command,
        sub,
        request: match wrong_sum {
            true => Err(0x7F24),
            false => asked,
        },
        wrap: Some(Wrap {
            frame: port.frame,
            format: port.format,
            sum_check: port.sum_check,
            head: head.to_vec(),
        }),
    }
}

/// Command and subcommand, and what they ask.
fn parse(reader: &mut Reader<'_>, frame: C24FrameKind) -> ((u16, u16), Result<McRequest, u16>) {
    if frame == C24FrameKind::C1 {
        return ((0x0401, 0), parse_1c(reader));
    }
    let numbers = reader
        .word()
        .and_then(|command| Ok((command, reader.word()?)));
    match numbers {
        Ok((command, sub)) => ((command, sub), mc::parse_open(reader, command, sub)),
        Err(code) => ((0, 0), Err(code)),
    }
}

/// Command, message wait, device in five characters, number of places, values.
fn parse_1c(reader: &mut Reader<'_>) -> Result<McRequest, u16> {
    let name = reader.raw(2)?.to_vec();
    reader.raw(1)?;
    if name == b"TT" {
        let count = reader.number(1)? as usize;
        return Ok(McRequest::Loopback(reader.raw(count)?.to_vec()));
    }
    let place = reader.raw(5)?.to_vec();
    let letters = if matches!(place[0], b'T' | b'C') {
        2
    } else {
        1
    };
    let (row, start) = mc::device_named(&place[..letters], &place[letters..])?;
    let count = match reader.number(1)? {
        0 => 256,
        count => count,
    };
    let bits = name[0] == b'B';
    let limit = if bits { 256 } else { 64 };
    if bits != mc::is_bits(row) || count > limit {
        return Err(mc::TOO_MANY);
    }
    let run = mc::run(row, start, count);
    match name.as_slice() {
        b"WR" | b"BR" => Ok(McRequest::Read {
            runs: vec![run],
            unit: if bits { Unit::Bits } else { Unit::Words },
        }),
        b"WW" => {
            let words = (0..count).map(|_| reader.word());
            let words = words.collect::<Result<_, _>>()?;
            Ok(McRequest::Write {
                runs: vec![(run, words)],
            })
        }
        b"BW" => Ok(McRequest::Write {
            runs: vec![(run, reader.bits(count as usize)?)],
        }),
        _ => Err(mc::NOT_POSSIBLE),
    }
}

/// A serial module says it by codes of its own.
pub(super) fn own_code(code: u16) -> u16 {
    match code {
        mc::NOT_POSSIBLE => 0x7E40,
        mc::BAD_LENGTH => 0x7E41,
        0xC051..=0xC054 => 0x7E42,
        mc::OUT_OF_RANGE | mc::BAD_DEVICE => 0x7E43,
        0xC050..=0xC06F => 0x7F22,
        other => other,
    }
}

impl Wrap {
    /// The reply to a request that was carried out, or refused with `code`.
    pub(super) fn reply(&self, code: u16, data: &[u8]) -> Vec<u8> {
        if self.format == 5 {
            let end = code.to_le_bytes();
            return self.binary(&[&self.head[..], &[0xFF, 0xFF], &end, data].concat());
        }
        let error = match self.frame {
            C24FrameKind::C1 => format!("{:02X}", code & 0xFF),
            _ => format!("{code:04X}"),
        };
        let (yes, no): (&[u8], &[u8]) = match self.frame {
            C24FrameKind::C1 => (b"GG", b"NN"),
            _ => (b"QACK", b"QNAK"),
        };
        let tail: &[u8] = if self.format == 4 { b"\r\n" } else { b"" };
        match (self.format, code, data.is_empty()) {
            (3, 0, true) => [&[STX][..], &self.head, yes, &[ETX]].concat(),
            (3, 0, false) => self.summed(&[&self.head[..], yes, data, &[ETX]].concat()),
            (3, ..) => [&[STX][..], &self.head, no, error.as_bytes(), &[ETX]].concat(),
            (_, 0, true) => [&[ACK][..], &self.head, tail].concat(),
            (_, 0, false) => {
                let text = self.summed(&[&self.head[..], data, &[ETX]].concat());
                [&text[..], tail].concat()
            }
            _ => [&[NAK][..], &self.head, error.as_bytes(), tail].concat(),
        }
    }

    fn summed(&self, text: &[u8]) -> Vec<u8> {
        let sum = if self.sum_check {
            sum(text)
        } else {
            Vec::new()
        };
        [&[STX][..], text, &sum].concat()
    }

    fn binary(&self, text: &[u8]) -> Vec<u8> {
        let mut inner = (text.len() as u16).to_le_bytes().to_vec();
        inner.extend_from_slice(text);
        let mut out = vec![DLE, STX];
        for byte in &inner {
            out.push(*byte);
            if *byte == DLE {
                out.push(DLE);
            }
        }
        out.extend_from_slice(&[DLE, ETX]);
        if self.sum_check {
            out.extend_from_slice(&sum(&inner));
        }
        out
    }

    /// The reply as if from another station, under a sum that holds.
    pub(super) fn other_station(&self, reply: &[u8], station: u8) -> Vec<u8> {
        if self.format == 5 {
            let mut inner = Vec::new();
            let mut at = 2;
            while at < reply.len() && reply[at..].first_chunk() != Some(&[DLE, ETX]) {
                inner.push(reply[at]);
                at += if reply[at] == DLE { 2 } else { 1 };
            }
            inner[3] = station;
            return self.binary(&inner[2..]);
        }
        let block = if self.format == 2 { 2 } else { 0 };
        self.with_digits(reply, 1 + block + identification(self.frame).len(), station)
    }

    /// The reply as if to another block; only format 2 says to which.
    pub(super) fn other_block(&self, reply: &[u8], block: u8) -> Vec<u8> {
        match self.format {
            2 => self.with_digits(reply, 1, block),
            _ => reply.to_vec(),
        }
    }

    fn with_digits(&self, reply: &[u8], at: usize, value: u8) -> Vec<u8> {
        let mut out = reply.to_vec();
        out[at..at + 2].copy_from_slice(format!("{value:02X}").as_bytes());
        if let Some(etx) = out.iter().position(|byte| *byte == ETX) {
            let digits = sum(&out[1..=etx]);
            if self.sum_check && out.len() >= etx + 3 {
                out[etx + 1..etx + 3].copy_from_slice(&digits);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(frame: C24FrameKind, format: u8) -> C24Program {
        C24Program {
            frame,
            format,
            ..C24Program::default()
        }
    }

    /// As a module hears it: byte by byte, behind noise.
    fn heard(port: &C24Program, request: &[u8]) -> McFrame {
        let mut buffer = vec![0x55];
        let mut found = None;
        for (n, byte) in request.iter().enumerate() {
            assert!(found.is_none(), "whole at {n} of {}", request.len());
            buffer.push(*byte);
            found = take(&mut buffer, port);
        }
        assert!(buffer.is_empty(), "{buffer:02X?}");
        found.expect("a whole request")
    }

    #[test]
    fn requests_that_others_made_are_understood() {
        use C24FrameKind::{C1, C3, C4};
        let bytes = [
            0x10, 0x02, 0x12, 0x00, 0xF8, 0x00, 0x00, 0xFF, 0xFF, 0x03, 0x00, 0x00, 0x01, 0x04,
            0x00, 0x00, 0x64, 0x00, 0x00, 0x90, 0x02, 0x00, 0x10, 0x03,
        ];
        let bytes = [&bytes[..], &sum(&bytes[2..22])].concat();
        let text = "F90000FF0004010000D*0001000002";
        let with_sum = |control: u8, text: &str, tail: &str| {
            let text = [text.as_bytes(), tail.as_bytes()].concat();
            [&[control][..], &text, &sum(&text)].concat()
        };
        let f1 = with_sum(ENQ, text, "");
        let f3 = with_sum(STX, text, "\u{3}");
        let f4 = [&f1[..], b"\r\n"].concat();
        let one = with_sum(ENQ, "05FFWR0D023201", "");
        for (port, request, station) in [
            (port(C4, 5), &bytes, 0),
            (port(C3, 1), &f1, 0),
            (port(C3, 3), &f3, 0),
            (port(C3, 4), &f4, 0),
            (port(C1, 1), &one, 5),
        ] {
            let found = heard(&port, request);
            assert_eq!(found.station, station);
            assert!(
                matches!(found.request, Ok(McRequest::Read { .. })),
                "{found:?}"
            );
        }
    }

    #[test]
    fn what_resynchronises_drops_the_request_that_stopped_halfway() {
        let port = port(C24FrameKind::C3, 1);
        let mut buffer = b"\x05F90000FF00040100".to_vec();
        assert_eq!(take(&mut buffer, &port), None);
        buffer.push(EOT);
        assert_eq!(take(&mut buffer, &port), None);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_wrong_sum_is_refused_by_its_code() {
        let port = port(C24FrameKind::C3, 1);
        let found = heard(&port, b"\x05F90000FF0004010000D*000100000200");
        assert_eq!(found.request, Err(0x7F24));
        assert_eq!(found.error(0x7F24), b"\x15F90000FF007F24");
    }
}
