//! Owns: MC protocol (3E, 4E; SH-080008) as a CPU's port sees it: frames in, requests out, replies.
//! May call: core's names of the tables; c24 (how else a request may be wrapped).
//! Never: share code with the gateway's client, so that each is proof against the other.

use super::c24::{self, Wrap};
use super::spec::{McCode, McFrameKind, McProgram};
use crate::core::spec::ModbusArea;

/// Longest text of a request that is waited for.
const REQUEST_BYTES_MAX: usize = 8_192;

pub(super) const NOT_POSSIBLE: u16 = 0xC059;
pub(super) const OUT_OF_RANGE: u16 = 0xC056;
pub(super) const TOO_MANY: u16 = 0xC051;
pub(super) const BAD_LENGTH: u16 = 0xC061;
pub(super) const BAD_DEVICE: u16 = 0xC05B;
const BAD_REQUEST: u16 = 0xC05C;
const BAD_DIGIT: u16 = 0xC050;

/// Where a device's values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Store {
    /// In the image that Modbus shows too: D holding, M coil, W input, X discrete.
    Table(ModbusArea),
    /// Beside it, under its binary code.
    Extra(u8),
}

/// Letters in ASCII, code in binary, store, single bits, hexadecimal number.
pub(super) type DeviceRow = (&'static str, u8, Store, bool, bool);

const fn extra(name: &'static str, code: u8, bits: bool, hex: bool) -> DeviceRow {
    (name, code, Store::Extra(code), bits, hex)
}

const DEVICES: [DeviceRow; 26] = [
    ("D*", 0xA8, Store::Table(ModbusArea::Holding), false, false),
    ("M*", 0x90, Store::Table(ModbusArea::Coil), true, false),
    ("W*", 0xB4, Store::Table(ModbusArea::Input), false, true),
    ("X*", 0x9C, Store::Table(ModbusArea::Discrete), true, true),
    extra("Y*", 0x9D, true, true),
    extra("B*", 0xA0, true, true),
    extra("L*", 0x92, true, false),
    extra("F*", 0x93, true, false),
    extra("V*", 0x94, true, false),
    extra("R*", 0xAF, false, false),
    extra("SM", 0x91, true, false),
    extra("SD", 0xA9, false, false),
    extra("SB", 0xA1, true, true),
    extra("SW", 0xB5, false, true),
    extra("TS", 0xC1, true, false),
    extra("TC", 0xC0, true, false),
    extra("TN", 0xC2, false, false),
    extra("SS", 0xC7, true, false),
    extra("SC", 0xC6, true, false),
    extra("SN", 0xC8, false, false),
    extra("CS", 0xC4, true, false),
    extra("CC", 0xC3, true, false),
    extra("CN", 0xC5, false, false),
    extra("Z*", 0xCC, false, false),
    extra("DX", 0xA2, true, true),
    // ZR in ASCII has no agreed form; a name that no request carries keeps it binary.
    extra("", 0xB0, false, false),
];

/// The binary code of SD, where the operating state stands.
pub(super) const SD: u8 = 0xA9;
/// The number of the operating state within it.
pub(super) const OPERATING_STATE: u32 = 203;

/// Neighbouring places of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) store: Store,
    pub(super) bits: bool,
    pub(super) start: u32,
    pub(super) count: u32,
}

impl Run {
    /// Whether this holding register is one of its places.
    pub(super) fn holds(&self, register: usize) -> bool {
        let at = u32::try_from(register).unwrap_or(u32::MAX);
        self.store == Store::Table(ModbusArea::Holding)
            && (self.start..self.start.saturating_add(self.count)).contains(&at)
    }
}

/// What a request asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum McRequest {
    /// One after another; every place is read before the reply is made.
    Read {
        runs: Vec<Run>,
        unit: Unit,
    },
    /// Values by place; a bit is 0 or 1.
    Write {
        runs: Vec<(Run, Vec<u16>)>,
    },
    Model,
    /// 1001 run, 1002 stop, 1003 pause.
    Remote(u16),
    Loopback(Vec<u8>),
}

/// How a read's values stand in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bits,
    Words,
}

/// One request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct McFrame {
    pub(super) code: McCode,
    /// From the subheader to the route, as a reply repeats it.
    pub(super) head: Vec<u8>,
    pub(super) serial: u16,
    pub(super) station: u8,
    pub(super) command: u16,
    pub(super) sub: u16,
    pub(super) request: Result<McRequest, u16>,
    /// A C frame is wrapped in another way.
    pub(super) wrap: Option<Wrap>,
}

/// No request of this port: a real one does not answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotMc;

pub(super) struct Reader<'a> {
    code: McCode,
    bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(code: McCode, bytes: &'a [u8]) -> Self {
        Self { code, bytes, at: 0 }
    }
    pub(super) fn raw(&mut self, bytes: usize) -> Result<&[u8], u16> {
        let found = self.bytes.get(self.at..self.at + bytes).ok_or(BAD_LENGTH)?;
        self.at += bytes;
        Ok(found)
    }
    pub(super) fn number(&mut self, bytes: usize) -> Result<u32, u16> {
        if self.code == McCode::Binary {
            let raw = self.raw(bytes)?;
            let digit = |(n, byte): (usize, &u8)| u32::from(*byte) << (8 * n);
            return Ok(raw.iter().enumerate().map(digit).sum());
        }
        digits(self.raw(2 * bytes)?, 16)
    }
    pub(super) fn word(&mut self) -> Result<u16, u16> {
        Ok(self.number(2)? as u16)
    }
    /// A device and the number of its first place.
    fn device(&mut self) -> Result<(DeviceRow, u32), u16> {
        if self.code == McCode::Binary {
            let start = self.number(3)?;
            let code = self.number(1)?;
            let row = DEVICES.iter().find(|row| u32::from(row.1) == code);
            return Ok((*row.ok_or(BAD_DEVICE)?, start));
        }
        let name = self.raw(2)?.to_vec();
        device_named(&name, self.raw(6)?)
    }
    pub(super) fn bits(&mut self, count: usize) -> Result<Vec<u16>, u16> {
        let halves: Vec<u8> = match self.code {
            McCode::Binary => {
                let raw = self.raw(count.div_ceil(2))?;
                raw.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect()
            }
            McCode::Ascii => self
                .raw(count)?
                .iter()
                .map(|c| c.wrapping_sub(b'0'))
                .collect(),
        };
        let valid = halves.iter().take(count).all(|bit| *bit <= 1);
        let words = halves.into_iter().take(count).map(u16::from).collect();
        if valid { Ok(words) } else { Err(0xC060) }
    }
    pub(super) fn finish<T>(&self, value: T) -> Result<T, u16> {
        if self.at == self.bytes.len() {
            Ok(value)
        } else {
            Err(BAD_LENGTH)
        }
    }
}

/// A device by its letters, and a number in its own way of writing.
pub(super) fn device_named(letters: &[u8], number: &[u8]) -> Result<(DeviceRow, u32), u16> {
    let padded = [letters, b"*"].concat();
    let row = DEVICES.iter().find(|row| row.0.as_bytes() == &padded[..2]);
    let row = *row.ok_or(BAD_DEVICE)?;
    Ok((row, digits(number, if row.4 { 16 } else { 10 })?))
}

/// Whether its places are single bits.
pub(super) fn is_bits(row: DeviceRow) -> bool {
    row.3
}

fn digits(text: &[u8], radix: u32) -> Result<u32, u16> {
    let text = std::str::from_utf8(text).map_err(|_| BAD_DIGIT)?;
    if text.starts_with('+') {
        return Err(BAD_DIGIT);
    }
    u32::from_str_radix(text, radix).map_err(|_| BAD_DIGIT)
}

/// Takes one whole request off the front of `buffer`; `None`: more bytes are needed.
pub(super) fn take(buffer: &mut Vec<u8>, port: &McProgram) -> Result<Option<McFrame>, NotMc> {
    let wide = if port.code == McCode::Ascii { 2 } else { 1 };
    let subheader: [u8; 2] = match port.frame {
        McFrameKind::E3 => [0x50, 0],
        McFrameKind::E4 => [0x54, 0],
    };
    let expected = match port.code {
        McCode::Binary => subheader.to_vec(),
        McCode::Ascii => format!("{:02X}00", subheader[0]).into_bytes(),
    };
    if buffer.iter().zip(&expected).any(|(a, b)| a != b) || buffer.len() > REQUEST_BYTES_MAX {
        return Err(NotMc);
    }
    let before_route = match port.frame {
        McFrameKind::E3 => 2,
        McFrameKind::E4 => 6,
    };
    let (route_end, data) = ((before_route + 5) * wide, (before_route + 7) * wide);
    if buffer.len() < data {
        return Ok(None);
    }
    let mut reader = Reader {
        code: port.code,
        bytes: buffer,
        at: 2 * wide,
    };
    let serial = match port.frame {
        McFrameKind::E3 => 0,
        McFrameKind::E4 => reader.word().map_err(|_| NotMc)?,
    };
    reader.at = route_end - wide;
    let station = reader.number(1).map_err(|_| NotMc)? as u8;
    let length = reader.number(2).map_err(|_| NotMc)? as usize;
    let end = data + length;
    if length < 6 * wide || end > REQUEST_BYTES_MAX {
        return Err(NotMc);
    }
    if buffer.len() < end {
        return Ok(None);
    }
    let whole: Vec<u8> = buffer.drain(..end).collect();
    let mut body = Reader {
        code: port.code,
        bytes: &whole[data..],
        at: 0,
    };
    body.number(2).map_err(|_| NotMc)?;
    let (command, sub) = (
        body.word().map_err(|_| NotMc)?,
        body.word().map_err(|_| NotMc)?,
    );
    Ok(Some(McFrame {
        code: port.code,
        head: whole[..route_end].to_vec(),
        serial,
        station,
        command,
        sub,
        request: parse(&mut body, command, sub),
        wrap: None,
    }))
}

pub(super) fn run(row: DeviceRow, start: u32, count: u32) -> Run {
    let (_, _, store, bits, _) = row;
    Run {
        store,
        bits,
        start,
        count,
    }
}

fn parse(reader: &mut Reader<'_>, command: u16, sub: u16) -> Result<McRequest, u16> {
    let request = parse_open(reader, command, sub)?;
    reader.finish(request)
}

/// The same, whatever follows.
pub(super) fn parse_open(
    reader: &mut Reader<'_>,
    command: u16,
    sub: u16,
) -> Result<McRequest, u16> {
    Ok(match (command, sub) {
        (0x0401 | 0x1401, 0 | 1) => contiguous(reader, command, sub == 1)?,
        (0x0403, 0) => random_read(reader)?,
        (0x1402, 0) => random_write(reader)?,
        (0x1402, 1) => random_bits(reader)?,
        (0x0406, 0) => blocks(reader, false)?,
        (0x1406, 0) => blocks(reader, true)?,
        (0x0101, 0) => McRequest::Model,
        (0x1001, 0) => {
            reader.word()?;
            reader.word()?;
            McRequest::Remote(command)
        }
        (0x1002 | 0x1003, 0) => {
            reader.word()?;
            McRequest::Remote(command)
        }
        (0x0619, 0) => {
            let count = usize::from(reader.word()?);
            McRequest::Loopback(reader.raw(count)?.to_vec())
        }
        _ => return Err(NOT_POSSIBLE),
    })
}

fn contiguous(reader: &mut Reader<'_>, command: u16, single: bool) -> Result<McRequest, u16> {
    let (row, start) = reader.device()?;
    let points = u32::from(reader.word()?);
    let bits_max = if reader.code == McCode::Binary {
        7168
    } else {
        3584
    };
    let most = if single { bits_max } else { 960 };
    if points == 0 || points > most {
        return Err(TOO_MANY + u16::from(command == 0x1401));
    }
    if single && !row.3 {
        return Err(BAD_REQUEST);
    }
    // Word access to a bit device: sixteen to a word.
    let by_word = row.3 && !single;
    let whole = run(row, start, if by_word { 16 * points } else { points });
    if command == 0x0401 {
        let unit = if single { Unit::Bits } else { Unit::Words };
        return Ok(McRequest::Read {
            runs: vec![whole],
            unit,
        });
    }
    let values = if single {
        reader.bits(points as usize)?
    } else {
        (0..points)
            .map(|_| reader.word())
            .collect::<Result<_, _>>()?
    };
    let values = if by_word {
        values.iter().flat_map(|word| spread(*word)).collect()
    } else {
        values
    };
    Ok(McRequest::Write {
        runs: vec![(whole, values)],
    })
}

/// The sixteen bits of a word, the lowest first.
fn spread(word: u16) -> [u16; 16] {
    std::array::from_fn(|n| word >> n & 1)
}

/// `words` words at a place, whatever it is.
fn wide(row: DeviceRow, start: u32, words: u32) -> Run {
    run(row, start, if row.3 { 16 * words } else { words })
}

fn random_read(reader: &mut Reader<'_>) -> Result<McRequest, u16> {
    let (words, doubles) = (reader.number(1)?, reader.number(1)?);
    if words + doubles == 0 || words + doubles > 192 {
        return Err(0xC054);
    }
    let mut runs = Vec::new();
    for n in 0..words + doubles {
        let (row, start) = reader.device()?;
        runs.push(wide(row, start, if n < words { 1 } else { 2 }));
    }
    Ok(McRequest::Read {
        runs,
        unit: Unit::Words,
    })
}

fn values_of(run: Run, words: &[u16]) -> (Run, Vec<u16>) {
    let values = match run.bits {
        true => words.iter().flat_map(|word| spread(*word)).collect(),
        false => words.to_vec(),
    };
    (run, values)
}

fn random_write(reader: &mut Reader<'_>) -> Result<McRequest, u16> {
    let (words, doubles) = (reader.number(1)?, reader.number(1)?);
    if words + doubles == 0 || 12 * words + 14 * doubles > 1920 {
        return Err(0xC054);
    }
    let mut runs = Vec::new();
    for n in 0..words + doubles {
        let (row, start) = reader.device()?;
        let count = if n < words { 1 } else { 2 };
        let words: Vec<u16> = (0..count)
            .map(|_| reader.word())
            .collect::<Result<_, _>>()?;
        // Digits stand high word first, bytes low word first.
        let words = match (reader.code, words.as_slice()) {
            (McCode::Ascii, [high, low]) => vec![*low, *high],
            _ => words,
        };
        runs.push(values_of(wide(row, start, count), &words));
    }
    Ok(McRequest::Write { runs })
}

fn random_bits(reader: &mut Reader<'_>) -> Result<McRequest, u16> {
    let count = reader.number(1)?;
    if count == 0 || count > 188 {
        return Err(0xC053);
    }
    let mut runs = Vec::new();
    for _ in 0..count {
        let (row, start) = reader.device()?;
        let bit = reader.number(1)?;
        if !row.3 || bit > 1 {
            return Err(BAD_REQUEST);
        }
        runs.push((run(row, start, 1), vec![bit as u16]));
    }
    Ok(McRequest::Write { runs })
}

fn blocks(reader: &mut Reader<'_>, write: bool) -> Result<McRequest, u16> {
    let count = reader.number(1)? + reader.number(1)?;
    let (mut reads, mut writes, mut total) = (Vec::new(), Vec::new(), 0);
    for _ in 0..count {
        let (row, start) = reader.device()?;
        let points = u32::from(reader.word()?);
        total += points;
        if write {
            let words: Vec<u16> = (0..points)
                .map(|_| reader.word())
                .collect::<Result<_, _>>()?;
            writes.push(values_of(wide(row, start, points), &words));
        } else {
            reads.push(wide(row, start, points));
        }
    }
    let most = if write {
        960_u32.saturating_sub(4 * count)
    } else {
        960
    };
    if count == 0 || count > 120 || total == 0 || total > most {
        return Err(TOO_MANY);
    }
    Ok(match write {
        true => McRequest::Write { runs: writes },
        false => McRequest::Read {
            runs: reads,
            unit: Unit::Words,
        },
    })
}

impl McFrame {
    fn put(&self, out: &mut Vec<u8>, value: u32, bytes: usize) {
        match self.code {
            McCode::Binary => (0..bytes).for_each(|n| out.push((value >> (8 * n)) as u8)),
            McCode::Ascii => {
                let text = format!("{value:0width$X}", width = 2 * bytes);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }

    fn frame(&self, end_code: u16, data: &[u8]) -> Vec<u8> {
        if let Some(wrap) = &self.wrap {
            return wrap.reply(end_code, data);
        }
        let wide = if self.code == McCode::Ascii { 2 } else { 1 };
        let mut out = self.head.clone();
        // 50 and 54 are answered by D0 and D4.
        match self.code {
            McCode::Binary => out[0] |= 0x80,
            McCode::Ascii => out[0] = b'D',
        }
        self.put(&mut out, (2 * wide + data.len()) as u32, 2);
        self.put(&mut out, end_code.into(), 2);
        out.extend_from_slice(data);
        out
    }

    /// The refusal, by the code that such a port has for it.
    pub(super) fn error(&self, end_code: u16) -> Vec<u8> {
        match self.wrap {
            Some(_) => self.refused(c24::own_code(end_code)),
            None => self.refused(end_code),
        }
    }

    /// The refusal with this code; over Ethernet with the route and what was refused.
    pub(super) fn refused(&self, end_code: u16) -> Vec<u8> {
        if let Some(wrap) = &self.wrap {
            return wrap.reply(end_code, &[]);
        }
        let wide = if self.code == McCode::Ascii { 2 } else { 1 };
        let mut data = self.head[self.head.len() - 5 * wide..].to_vec();
        self.put(&mut data, self.command.into(), 2);
        self.put(&mut data, self.sub.into(), 2);
        self.frame(end_code, &data)
    }

    /// The reply to a write or an order.
    pub(super) fn done(&self) -> Vec<u8> {
        self.frame(0, &[])
    }

    /// The reply to a read: the values of each run, a bit as 0 or 1.
    pub(super) fn values(&self, unit: Unit, runs: &[(Run, Vec<u16>)]) -> Vec<u8> {
        let mut data = Vec::new();
        if unit == Unit::Bits {
            let bits: Vec<u16> = runs.iter().flat_map(|(_, values)| values.clone()).collect();
            match self.code {
                McCode::Ascii => data.extend(bits.iter().map(|bit| b'0' + *bit as u8)),
                McCode::Binary => data.extend(
                    bits.chunks(2)
                        .map(|two| (two[0] << 4 | two.get(1).copied().unwrap_or(0)) as u8),
                ),
            }
            return self.frame(0, &data);
        }
        for (run, values) in runs {
            let words: Vec<u16> = match run.bits {
                true => values.chunks(16).map(gather).collect(),
                false => values.clone(),
            };
            // A double word of a random read: as digits its high word comes first.
            let double = self.command == 0x0403 && words.len() == 2 && self.code == McCode::Ascii;
            let order: Vec<u16> = match double {
                true => words.into_iter().rev().collect(),
                false => words,
            };
            order
                .iter()
                .for_each(|word| self.put(&mut data, (*word).into(), 2));
        }
        self.frame(0, &data)
    }

    /// The reply to 0101.
    pub(super) fn model(&self, name: &str, code: u16) -> Vec<u8> {
        let mut data = format!("{name:<16.16}").into_bytes();
        self.put(&mut data, code.into(), 2);
        self.frame(0, &data)
    }

    /// The reply to 0619.
    pub(super) fn loopback(&self, sent: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        self.put(&mut data, sent.len() as u32, 2);
        data.extend_from_slice(sent);
        self.frame(0, &data)
    }

    /// The request as a Modbus PDU would say it, for what looks at requests of either protocol: function,
    /// first place, number of places.
    pub(super) fn as_pdu(&self) -> Vec<u8> {
        let (function, run) = match &self.request {
            Ok(McRequest::Read { runs, .. }) => {
                (if first_is_bits(runs) { 1 } else { 3 }, runs.first())
            }
            Ok(McRequest::Write { runs }) => {
                let run = runs.first().map(|(run, _)| run);
                (
                    if run.is_some_and(|run| run.bits) {
                        15
                    } else {
                        16
                    },
                    run,
                )
            }
            Ok(McRequest::Remote(_)) => (16, None),
            _ => (0x2B, None),
        };
        let start = run.map_or(0, |run| run.start as u16);
        let count = run.map_or(0, |run| run.count as u16);
        let mut pdu = vec![function];
        pdu.extend_from_slice(&start.to_be_bytes());
        pdu.extend_from_slice(&count.to_be_bytes());
        pdu
    }
}

fn first_is_bits(runs: &[Run]) -> bool {
    runs.first().is_some_and(|run| run.bits)
}

fn gather(bits: &[u16]) -> u16 {
    bits.iter()
        .enumerate()
        .fold(0, |word, (n, bit)| word | (bit & 1) << n)
}

/// Another serial number in a 4E reply; a 3E reply carries none.
pub(super) fn other_serial(reply: &mut [u8], port: &McProgram) {
    if port.frame == McFrameKind::E4 {
        match port.code {
            McCode::Binary => reply[2] = reply[2].wrapping_add(0x40),
            McCode::Ascii => reply[7] = if reply[7] == b'0' { b'1' } else { b'0' },
        }
    }
}

/// A reply from another station.
pub(super) fn other_station(reply: &mut [u8], port: &McProgram, station: u8) {
    let before = match port.frame {
        McFrameKind::E3 => 2,
        McFrameKind::E4 => 6,
    };
    match port.code {
        McCode::Binary => reply[before + 4] = station,
        McCode::Ascii => {
            let text = format!("{station:02X}").into_bytes();
            reply[2 * (before + 4)..][..2].copy_from_slice(&text);
        }
    }
}
