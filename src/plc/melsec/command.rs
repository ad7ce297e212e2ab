//! Owns: the commands of MC protocol: what each asks, its limits, and what its reply carries (SH-080008, 8).
//! May call: field of this room; core melsec, spread.
//! Never: make a request that its limits forbid; take a reply of another length for an answer.

use super::field::{Fields, Place, put, put_bits, put_place};
use crate::core::melsec::{Code, Remote};
use crate::core::spread;

/// Most words in one contiguous read or write.
pub(super) const WORDS_MAX: usize = 960;
/// Most single bits in one contiguous read or write.
pub(super) fn bits_max(code: Code) -> usize {
    match code {
        Code::Binary => 7168,
        Code::Ascii => 3584,
    }
}
/// Most places in one random read, words and double words together.
pub(super) const RANDOM_READ_MAX: usize = 192;
/// Most blocks in one block read.
pub(super) const BLOCKS_MAX: usize = 120;
/// Most bytes that a loopback test carries.
const LOOPBACK_BYTES_MAX: usize = 960;
/// Characters of a CPU's model name.
const MODEL_CHARS: usize = 16;

/// Words or double words at scattered places.
pub(super) type Values<T> = Vec<(Place, T)>;

/// One request, apart from the frame that carries it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    /// 0401, sub 0000.
    ReadWords { first: Place, count: u16 },
    /// 0401, sub 0001.
    ReadBits { first: Place, count: u16 },
    /// 1401, sub 0000.
    WriteWords { first: Place, words: Vec<u16> },
    /// 1401, sub 0001.
    WriteBits { first: Place, bits: Vec<bool> },
    /// 0403.
    ReadRandom {
        words: Vec<Place>,
        doubles: Vec<Place>,
    },
    /// 1402, sub 0000.
    WriteRandom {
        words: Values<u16>,
        doubles: Values<u32>,
    },
    /// 1402, sub 0001.
    WriteRandomBits(Values<bool>),
    /// 0406: first place and points; a point of a bit block is sixteen bits.
    ReadBlocks {
        words: Values<u16>,
        bits: Values<u16>,
    },
    /// 1406.
    WriteBlocks {
        words: Values<Vec<u16>>,
        bits: Values<Vec<u16>>,
    },
    /// 0101.
    CpuModel,
    /// 1001, 1002, 1003.
    Remote { order: Remote, force: bool },
    /// 0619: digits that come back as they went.
    Loopback(Vec<u8>),
    /// 1615: resynchronises a serial line (format 5).
    Resync,
}

/// What a reply without an error carries.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// Nothing: it was done.
    Done,
    Words(Vec<u16>),
    Bits(Vec<bool>),
    Random {
        words: Vec<u16>,
        doubles: Vec<u32>,
    },
    Model {
        name: String,
        code: u16,
    },
    /// What a loopback test brought back.
    Loopback(Vec<u8>),
}

impl Command {
    /// Command and subcommand.
    pub(super) fn numbers(&self) -> (u16, u16) {
        match self {
            Self::ReadWords { .. } => (0x0401, 0),
            Self::ReadBits { .. } => (0x0401, 1),
            Self::WriteWords { .. } => (0x1401, 0),
            Self::WriteBits { .. } => (0x1401, 1),
            Self::ReadRandom { .. } => (0x0403, 0),
            Self::WriteRandom { .. } => (0x1402, 0),
            Self::WriteRandomBits(_) => (0x1402, 1),
            Self::ReadBlocks { .. } => (0x0406, 0),
            Self::WriteBlocks { .. } => (0x1406, 0),
            Self::CpuModel => (0x0101, 0),
            Self::Remote { order, .. } => match order {
                Remote::Run => (0x1001, 0),
                Remote::Stop => (0x1002, 0),
                Remote::Pause => (0x1003, 0),
            },
            Self::Loopback(_) => (0x0619, 0),
            Self::Resync => (0x1615, 0),
        }
    }

    /// Whether the limits of the protocol let one request do it.
    ///
    /// # Errors
    /// In plain words.
    pub(super) fn check(&self, code: Code) -> Result<(), String> {
        let most = |what: &str, found: usize, most: usize| match found {
            0 => Err(format!("no {what} for one request")),
            _ if found > most => Err(format!("{found} {what} for one request, at most {most}")),
            _ => Ok(()),
        };
        match self {
            Self::ReadWords { count, .. } => most("words", usize::from(*count), WORDS_MAX),
            Self::WriteWords { words, .. } => most("words", words.len(), WORDS_MAX),
            Self::ReadBits { count, .. } => most("bits", usize::from(*count), bits_max(code)),
            Self::WriteBits { bits, .. } => most("bits", bits.len(), bits_max(code)),
            Self::ReadRandom { words, doubles } => {
                most("places", words.len() + doubles.len(), RANDOM_READ_MAX)
            }
            Self::WriteRandom { words, doubles } => {
                let cost = spread::WORD_COST * words.len() + spread::DOUBLE_COST * doubles.len();
                most(
                    "units (12 a word, 14 a double word)",
                    cost,
                    spread::RANDOM_COST_MAX,
                )
            }
            Self::WriteRandomBits(bits) => most("bits", bits.len(), spread::RANDOM_BITS_MAX),
            Self::ReadBlocks { words, bits } => {
                let points = words.iter().chain(bits).map(|(_, n)| usize::from(*n)).sum();
                most("blocks", words.len() + bits.len(), BLOCKS_MAX)?;
                most("points", points, WORDS_MAX)
            }
            Self::WriteBlocks { words, bits } => {
                let blocks = words.len() + bits.len();
                let points: usize = words.iter().chain(bits).map(|(_, data)| data.len()).sum();
                most("blocks", blocks, spread::BLOCKS_MAX)?;
                most(
                    "points (4 more for each block)",
                    spread::BLOCK_COST * blocks + points,
                    spread::BLOCK_POINTS_MAX,
                )
            }
            Self::Loopback(data) => {
                let hex = |byte: &u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte);
                most("characters", data.len(), LOOPBACK_BYTES_MAX)?;
                let fits = data.iter().all(hex);
                fits.then_some(())
                    .ok_or_else(|| "a loopback test carries only 0-9 and A-F".into())
            }
            Self::CpuModel | Self::Remote { .. } | Self::Resync => Ok(()),
        }
    }

    /// Command, subcommand and data.
    ///
    /// # Errors
    /// In plain words: no one request can do it.
    pub(super) fn encode(&self, code: Code) -> Result<Vec<u8>, String> {
        self.check(code)?;
        let mut out = Vec::new();
        let (command, sub) = self.numbers();
        put(&mut out, code, command.into(), 2);
        put(&mut out, code, sub.into(), 2);
        self.encode_data(&mut out, code)?;
        Ok(out)
    }

    fn encode_data(&self, out: &mut Vec<u8>, code: Code) -> Result<(), String> {
        // The limits hold already, so every count fits its field.
        let count = |out: &mut Vec<u8>, n: usize, bytes| put(out, code, n as u32, bytes);
        match self {
            Self::ReadWords { first, count: n } | Self::ReadBits { first, count: n } => {
                put_place(out, code, *first)?;
                put(out, code, (*n).into(), 2);
            }
            Self::WriteWords { first, words } => {
                put_place(out, code, *first)?;
                count(out, words.len(), 2);
                words
                    .iter()
                    .for_each(|word| put(out, code, (*word).into(), 2));
            }
            Self::WriteBits { first, bits } => {
                put_place(out, code, *first)?;
                count(out, bits.len(), 2);
                put_bits(out, code, bits);
            }
            Self::ReadRandom { words, doubles } => {
                count(out, words.len(), 1);
                count(out, doubles.len(), 1);
                for place in words.iter().chain(doubles) {
                    put_place(out, code, *place)?;
                }
            }
            Self::WriteRandom { words, doubles } => {
                count(out, words.len(), 1);
                count(out, doubles.len(), 1);
                for (place, word) in words {
                    put_place(out, code, *place)?;
                    put(out, code, (*word).into(), 2);
                }
                for (place, double) in doubles {
                    put_place(out, code, *place)?;
                    put(out, code, *double, 4);
                }
            }
            Self::WriteRandomBits(bits) => {
                count(out, bits.len(), 1);
                for (place, bit) in bits {
                    put_place(out, code, *place)?;
                    put(out, code, (*bit).into(), 1);
                }
            }
            Self::ReadBlocks { words, bits } => {
                count(out, words.len(), 1);
                count(out, bits.len(), 1);
                for (place, points) in words.iter().chain(bits) {
                    put_place(out, code, *place)?;
                    put(out, code, (*points).into(), 2);
                }
            }
            Self::WriteBlocks { words, bits } => {
                count(out, words.len(), 1);
                count(out, bits.len(), 1);
                for (place, data) in words.iter().chain(bits) {
                    put_place(out, code, *place)?;
                    count(out, data.len(), 2);
                    data.iter()
                        .for_each(|word| put(out, code, (*word).into(), 2));
                }
            }
            Self::CpuModel | Self::Resync => {}
            Self::Remote { order, force } => {
                let mode = match (order, force) {
                    (Remote::Stop, _) | (_, false) => 1,
                    (_, true) => 3,
                };
                put(out, code, mode, 2);
                if *order == Remote::Run {
                    // Clear mode 0: no device is cleared.
                    put(out, code, 0, 2);
                }
            }
            Self::Loopback(data) => {
                count(out, data.len(), 2);
                out.extend_from_slice(data);
            }
        }
        Ok(())
    }

    /// What the data of a reply without an error says.
    ///
    /// # Errors
    /// In plain words: this is no reply to this request.
    pub(super) fn answer(&self, data: &[u8], code: Code) -> Result<Answer, String> {
        let mut fields = Fields::new(data, code);
        let answer = match self {
            Self::ReadWords { count, .. } => {
                let words = (0..*count).map(|_| fields.word());
                Answer::Words(words.collect::<Result<_, _>>()?)
            }
            Self::ReadBits { count, .. } => Answer::Bits(fields.bits(usize::from(*count))?),
            Self::ReadRandom { words, doubles } => {
                let words = words.iter().map(|_| fields.word());
                let words = words.collect::<Result<_, _>>()?;
                let doubles = doubles.iter().map(|_| fields.number(4));
                let doubles = doubles.collect::<Result<_, _>>()?;
                Answer::Random { words, doubles }
            }
            Self::ReadBlocks { words, bits } => {
                let points = words.iter().chain(bits).map(|(_, n)| usize::from(*n)).sum();
                let words = (0..points).map(|_: usize| fields.word());
                Answer::Words(words.collect::<Result<_, _>>()?)
            }
            Self::CpuModel => {
                let name = String::from_utf8_lossy(fields.raw(MODEL_CHARS)?);
                let name = name.trim_end_matches([' ', '\0']).to_owned();
                let code = fields.word()?;
                Answer::Model { name, code }
            }
            Self::Loopback(sent) => {
                let length = usize::from(fields.word()?);
                let found = fields.raw(length)?;
                if found != sent {
                    let found = String::from_utf8_lossy(found).into_owned();
                    return Err(format!("the loopback test brought back {found:?}"));
                }
                Answer::Loopback(found.to_vec())
            }
            Self::WriteWords { .. }
            | Self::WriteBits { .. }
            | Self::WriteRandom { .. }
            | Self::WriteRandomBits(_)
            | Self::WriteBlocks { .. }
            | Self::Remote { .. }
            | Self::Resync => Answer::Done,
        };
        fields.end()?;
        Ok(answer)
    }
}
