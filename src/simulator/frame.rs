//! Owns: Modbus TCP as a server sees it, and what every PDU asks (MODBUS Messaging on TCP/IP V1.0b, Application Protocol V1.1b3).
//! May call: core's names of the tables.
//! Never: share code with the gateway's client, so that each is proof against the other.

use crate::core::spec::ModbusArea;

/// MBAP header: transaction, protocol, length, unit.
pub(super) const HEADER_BYTES: usize = 7;
/// Largest value of the length field: unit and PDU.
const LENGTH_MAX: usize = 254;

pub(super) const ILLEGAL_FUNCTION: u8 = 1;
pub(super) const ILLEGAL_ADDRESS: u8 = 2;
pub(super) const ILLEGAL_VALUE: u8 = 3;
pub(super) const ACKNOWLEDGE: u8 = 5;
pub(super) const TARGET_FAILED: u8 = 0x0B;

/// One request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) transaction: [u8; 2],
    pub(super) unit: u8,
    pub(super) pdu: Vec<u8>,
    /// With a check sum in place of a header.
    pub(super) rtu: bool,
}

impl Frame {
    /// The reply with `pdu` to this request.
    pub(super) fn reply(&self, pdu: &[u8]) -> Vec<u8> {
        if self.rtu {
            return super::rtu::frame(self.unit, pdu);
        }
        let [high, low] = u16::try_from(pdu.len() + 1)
            .unwrap_or(u16::MAX)
            .to_be_bytes();
        let mut bytes = vec![
            self.transaction[0],
            self.transaction[1],
            0,
            0,
            high,
            low,
            self.unit,
        ];
        bytes.extend_from_slice(pdu);
        bytes
    }
    /// The exception reply.
    pub(super) fn exception(&self, code: u8) -> Vec<u8> {
        self.reply(&[self.pdu[0] | 0x80, code])
    }
}

/// This is not Modbus TCP; the frame's end cannot be known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotModbus;

/// Takes one whole frame off the front of `buffer`; `None`: more bytes are needed.
pub(super) fn take(buffer: &mut Vec<u8>) -> Result<Option<Frame>, NotModbus> {
    if buffer.len() < HEADER_BYTES {
        return Ok(None);
    }
    let length = usize::from(word(buffer, 4));
    if word(buffer, 2) != 0 || !(2..=LENGTH_MAX).contains(&length) {
        return Err(NotModbus);
    }
    let end = HEADER_BYTES - 1 + length;
    if buffer.len() < end {
        return Ok(None);
    }
    let frame = Frame {
        transaction: [buffer[0], buffer[1]],
        unit: buffer[6],
        pdu: buffer[HEADER_BYTES..end].to_vec(),
        rtu: false,
    };
    buffer.drain(..end);
    Ok(Some(frame))
}

/// What a PDU asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read {
        area: ModbusArea,
        start: u16,
        count: u16,
    },
    WriteBits {
        start: u16,
        bits: Vec<bool>,
    },
    WriteWords {
        start: u16,
        words: Vec<u16>,
    },
}

impl Request {
    /// The addresses it touches.
    pub(super) fn range(&self) -> (ModbusArea, u16, u16) {
        let count = |items: usize| u16::try_from(items).unwrap_or(u16::MAX);
        match self {
            Self::Read { area, start, count } => (*area, *start, *count),
            Self::WriteBits { start, bits } => (ModbusArea::Coil, *start, count(bits.len())),
            Self::WriteWords { start, words } => (ModbusArea::Holding, *start, count(words.len())),
        }
    }
}

/// Reads a PDU, or says with which exception it is refused.
pub(super) fn parse(pdu: &[u8]) -> Result<Request, u8> {
    let function = pdu[0];
    if !matches!(function, 1..=6 | 15 | 16) {
        return Err(ILLEGAL_FUNCTION);
    }
    if pdu.len() < 5 {
        return Err(ILLEGAL_VALUE);
    }
    let (start, second) = (word(pdu, 1), word(pdu, 3));
    let request = match function {
        1..=4 => read(function, start, second, pdu.len())?,
        5 => Request::WriteBits {
            start,
            bits: vec![single_bit(second, pdu.len())?],
        },
        6 if pdu.len() == 5 => Request::WriteWords {
            start,
            words: vec![second],
        },
        15 => Request::WriteBits {
            start,
            bits: unpack(many(pdu, 1968, second.div_ceil(8))?, second),
        },
        16 => {
            let bytes = many(pdu, 123, second.wrapping_mul(2))?;
            Request::WriteWords {
                start,
                words: bytes.chunks(2).map(|pair| word(pair, 0)).collect(),
            }
        }
        _ => return Err(ILLEGAL_VALUE),
    };
    let (_, start, count) = request.range();
    if u32::from(start) + u32::from(count) > 65_536 {
        return Err(ILLEGAL_ADDRESS);
    }
    Ok(request)
}

fn read(function: u8, start: u16, count: u16, length: usize) -> Result<Request, u8> {
    let (area, most) = match function {
        1 => (ModbusArea::Coil, 2000),
        2 => (ModbusArea::Discrete, 2000),
        3 => (ModbusArea::Holding, 125),
        _ => (ModbusArea::Input, 125),
    };
    if length != 5 || !(1..=most).contains(&count) {
        return Err(ILLEGAL_VALUE);
    }
    Ok(Request::Read { area, start, count })
}

fn single_bit(value: u16, length: usize) -> Result<bool, u8> {
    match (value, length) {
        (0xFF00, 5) => Ok(true),
        (0, 5) => Ok(false),
        _ => Err(ILLEGAL_VALUE),
    }
}

/// The data bytes of a multiple write, if quantity, byte count and length agree.
fn many(pdu: &[u8], most: u16, bytes: u16) -> Result<&[u8], u8> {
    let quantity = word(pdu, 3);
    let agrees = (1..=most).contains(&quantity)
        && pdu.get(5).map(|byte| u16::from(*byte)) == Some(bytes)
        && pdu.len() == 6 + usize::from(bytes);
    if agrees {
        Ok(&pdu[6..])
    } else {
        Err(ILLEGAL_VALUE)
    }
}

fn unpack(bytes: &[u8], count: u16) -> Vec<bool> {
    (0..usize::from(count))
        .map(|n| bytes[n / 8] >> (n % 8) & 1 == 1)
        .collect()
}

/// A read's reply PDU for bits.
pub(super) fn bits_reply(function: u8, bits: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; bits.len().div_ceil(8)];
    for (n, bit) in bits.iter().enumerate() {
        bytes[n / 8] |= u8::from(*bit) << (n % 8);
    }
    counted(function, &bytes)
}

/// A read's reply PDU for registers.
pub(super) fn words_reply(function: u8, words: &[u16]) -> Vec<u8> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    counted(function, &bytes)
}

fn counted(function: u8, bytes: &[u8]) -> Vec<u8> {
    let mut pdu = vec![function, u8::try_from(bytes.len()).unwrap_or(u8::MAX)];
    pdu.extend_from_slice(bytes);
    pdu
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
