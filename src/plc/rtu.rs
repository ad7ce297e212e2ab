//! Owns: Modbus RTU (MODBUS over Serial Line V1.02): its frames, where a reply ends, what on the line is none.
//! May call: echo, exchange, metered, modbus (the requests and what exception codes prove) of this room; core serial.
//! Never: end a reply by silence; take bytes for a reply that differ from it in unit, function, length, echo or
//! check sum.
//!
//! The frames are not tokio-modbus's: as tried, its RTU codec takes the reply to an abandoned request for the
//! next one's, compares neither byte count nor echo, knows no local echo, and has a broadcast wait for ever.

use super::echo::{self, Asked};
use super::exchange::{Ask, Codec, End};
use super::matching::hex;
use super::metered::{Fit, Framing, Skip};
use super::modbus::{coded, request};
use crate::core::serial::{ModbusRtu, Way};
use std::time::Duration;
use tokio_modbus::Request;

/// Longest frame (V1.02, 2.5.1).
pub(super) const FRAME_BYTES_MAX: usize = 256;
/// Unit, function, code, check sum.
const EXCEPTION_BYTES: usize = 5;
/// Unit, function, two words, check sum.
const ECHO_BYTES: usize = 8;

const CRC_TABLE: [u16; 256] = crc_table();

const fn crc_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xA001
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// The check sum of V1.02, 2.5.1.2; it goes over the line low byte first.
pub(super) fn crc(bytes: &[u8]) -> u16 {
    let step = |crc: u16, byte: &u8| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8;
    bytes.iter().fold(0xFFFF, step)
}

fn is_sound(frame: &[u8]) -> bool {
    frame
        .split_last_chunk::<2>()
        .is_some_and(|(body, sum)| crc(body).to_le_bytes() == *sum)
}

/// The frame of a request: unit, PDU, check sum.
fn frame(unit: u8, request: &Request<'_>) -> Result<Vec<u8>, String> {
    let mut out = vec![unit];
    let mut head = |function: u8, first: u16, second: u16| {
        out.push(function);
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&second.to_be_bytes());
    };
    match request {
        Request::ReadCoils(at, count) => head(1, *at, *count),
        Request::ReadDiscreteInputs(at, count) => head(2, *at, *count),
        Request::ReadHoldingRegisters(at, count) => head(3, *at, *count),
        Request::ReadInputRegisters(at, count) => head(4, *at, *count),
        Request::WriteSingleCoil(at, on) => head(5, *at, if *on { 0xFF00 } else { 0 }),
        Request::WriteSingleRegister(at, word) => head(6, *at, *word),
        Request::WriteMultipleCoils(at, bits) => {
            head(15, *at, bits.len() as u16);
            let mut packed = vec![0; bits.len().div_ceil(8)];
            for (n, bit) in bits.iter().enumerate() {
                packed[n / 8] |= u8::from(*bit) << (n % 8);
            }
            out.push(packed.len() as u8);
            out.extend_from_slice(&packed);
        }
        Request::WriteMultipleRegisters(at, words) => {
            head(16, *at, words.len() as u16);
            out.push((words.len() * 2) as u8);
            out.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        }
        other => return Err(format!("{other:?} is never asked for")),
    }
    let sum = crc(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// Length of the reply to a whole request, an exception apart.
fn reply_bytes(request: &[u8]) -> usize {
    let quantity = usize::from(u16::from_be_bytes([request[4], request[5]]));
    match request[1] {
        1 | 2 => 5 + quantity.div_ceil(8),
        3 | 4 => 5 + quantity * 2,
        _ => ECHO_BYTES,
    }
}

/// What a run of bytes is to the request that is under way.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    /// It begins with the reply, of this length.
    Reply(usize),
    /// It may; more bytes will tell.
    Perhaps,
    /// It looked like the reply, and its check sum is another.
    Unsound,
    Nothing,
}

fn sight(request: &[u8], bytes: &[u8]) -> Sight {
    let whole = |length: usize| match bytes.get(..length) {
        None => Sight::Perhaps,
        Some(frame) if is_sound(frame) => Sight::Reply(length),
        Some(_) => Sight::Unsound,
    };
    match bytes {
        [] => Sight::Nothing,
        [unit, ..] if *unit != request[0] => Sight::Nothing,
        [_] => Sight::Perhaps,
        [_, function, ..] if *function == request[1] | 0x80 => whole(EXCEPTION_BYTES),
        [_, function, ..] if *function != request[1] => Sight::Nothing,
        [_, function, rest @ ..] => {
            let length = reply_bytes(request);
            // A read's reply states its length, a write's repeats the request.
            let begins = match function {
                1..=4 => rest.first().is_none_or(|b| usize::from(*b) == length - 5),
                _ => rest.iter().zip(&request[2..6]).all(|(a, b)| a == b),
            };
            match begins {
                true => whole(length),
                false => Sight::Nothing,
            }
        }
    }
}

/// The unit whose reply, whole and sound, is among `bytes`; for people who look for whom they hear.
pub(super) fn unit_of_sound_frame(bytes: &[u8]) -> Option<u8> {
    (0..bytes.len()).find_map(|at| {
        let rest = &bytes[at..];
        let counted = rest.get(2).map_or(0, |count| usize::from(*count) + 5);
        let sound = |length: &usize| rest.get(..*length).is_some_and(is_sound);
        let lengths = [EXCEPTION_BYTES, counted, ECHO_BYTES];
        lengths
            .iter()
            .filter(|l| **l >= EXCEPTION_BYTES)
            .any(sound)
            .then(|| rest[0])
    })
}

/// The frames of Modbus RTU, as one unit's requests see them.
pub(super) struct RtuFraming {
    asked: Asked,
}

impl RtuFraming {
    pub(super) fn new(echo: bool) -> Self {
        Self {
            asked: Asked::new(echo, FRAME_BYTES_MAX),
        }
    }
}

impl Framing for RtuFraming {
    fn begin(&mut self, _: u16) {
        self.asked.nothing();
    }
    fn outgoing(&mut self, request: &mut [u8]) -> Result<(), String> {
        if request.len() < ECHO_BYTES {
            return Err("no whole frame".to_owned());
        }
        self.asked.set(request);
        Ok(())
    }
    fn skip(&mut self, bytes: &[u8]) -> Result<Skip, String> {
        let request = match self.asked.expects(bytes) {
            Ok(request) => request,
            Err(skip) => return Ok(skip),
        };
        let echoes = matches!(request[1], 5 | 6);
        let mut unsound = false;
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match sight(request, rest) {
                Sight::Reply(_) | Sight::Perhaps => break,
                // A single write's reply is its request over again: then there is nothing to tell by.
                _ if !echoes && rest.starts_with(request) => return Err(echo::unexpected()),
                _ if !echoes && request.starts_with(rest) => break,
                Sight::Unsound => unsound = true,
                Sight::Nothing => {}
            }
            at += 1;
        }
        let what = match unsound {
            true => "a reply with a wrong check sum came",
            false => "bytes came that are no reply to this request",
        };
        Ok(match at {
            0 => Skip::Nothing,
            noise => Skip::Noise(noise, what.into()),
        })
    }
    fn frame_bytes(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let seen = self.asked.replied().map(|request| sight(request, bytes));
        Ok(match seen {
            Some(Sight::Reply(length)) => Some(length),
            _ => None,
        })
    }
    fn fit(&self, request: &[u8], frame: &[u8]) -> Fit {
        match sight(request, frame) {
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
        matches!(request.get(1), Some(5 | 6 | 15 | 16))
    }
}

/// Requests and replies of one unit.
pub(super) struct RtuCodec {
    link: ModbusRtu,
}

impl RtuCodec {
    pub(super) fn new(link: &ModbusRtu) -> Self {
        Self { link: link.clone() }
    }
}

impl Codec for RtuCodec {
    fn encode(&self, ask: &Ask, _: u16) -> Result<Vec<u8>, String> {
        if self.link.is_broadcast() && !matches!(ask, Ask::Write { .. }) {
            return Err("nothing answers a broadcast: unit 0 cannot be read".into());
        }
        frame(self.link.unit, &request(ask)?)
    }

    fn decode(&self, ask: &Ask, reply: &[u8]) -> Result<End, String> {
        let pdu = reply.get(1..reply.len().saturating_sub(2));
        match (pdu.unwrap_or_default(), ask) {
            ([function, code], _) if function & 0x80 != 0 => Ok(End::Code(coded(*code))),
            ([1 | 2, _, bytes @ ..], Ask::Read(span)) => {
                let bit = |n: usize| Some(u16::from(bytes.get(n / 8)? >> (n % 8) & 1));
                let bits: Option<Vec<u16>> = (0..usize::from(span.count)).map(bit).collect();
                bits.map(End::Words)
                    .ok_or_else(|| "fewer bits than asked for".into())
            }
            ([3 | 4, _, bytes @ ..], Ask::Read(span)) => {
                let words: Vec<u16> = bytes
                    .chunks_exact(2)
                    .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
                    .collect();
                match words.len() == usize::from(span.count) {
                    true => Ok(End::Words(words)),
                    false => Err("not as many registers as asked for".into()),
                }
            }
            ([5 | 6 | 15 | 16, ..], Ask::Write { .. }) => Ok(End::Echo),
            _ => Err("a reply that was not asked for".into()),
        }
    }

    fn ident(&self, _: u16) -> String {
        format!("unit={}", self.link.unit)
    }

    fn silence(&self) -> String {
        match &self.link.way {
            Way::Serial(line) => format!(
                "nothing has answered on this line yet: is unit {} there, is it set to {} baud, {} data bits, {:?} \
                 parity and {} stop bits, and are A and B the right way round?",
                self.link.unit, line.baud, line.data_bits, line.parity, line.stop_bits
            ),
            Way::Tcp { .. } => format!(
                "nothing has answered through this server yet: is unit {} there, do the server's serial settings fit, \
                 and does it pass RTU frames through (or does it speak Modbus TCP)?",
                self.link.unit
            ),
        }
    }

    fn is_answered(&self) -> bool {
        !self.link.is_broadcast()
    }

    fn line_time(&self, _: &Ask, request: &[u8]) -> Duration {
        let Way::Serial(line) = &self.link.way else {
            return Duration::ZERO;
        };
        let echo = if self.link.echo { request.len() } else { 0 };
        Duration::from_micros(line.time_us(request.len() + echo + reply_bytes(request)))
    }
}

#[cfg(test)]
#[path = "rtu_tests.rs"]
pub(super) mod tests;
