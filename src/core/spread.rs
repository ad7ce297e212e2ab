//! Owns: which places that stand apart one write frame takes, by which command (SH-080008, 8), and how many.
//! May call: c24, melsec, spec.
//! Never: let bits and words into one frame: a block write takes bits sixteen at a time, and would write fifteen
//! that nobody has named.

use super::c24::C24Frame;
use super::melsec::{Code, Kind};
use super::spec::{Address, Area, LinkSpec};

/// Most of [`WORD_COST`] for each word and [`DOUBLE_COST`] for each double word in one random write (1402).
pub const RANDOM_COST_MAX: usize = 1_920;
/// What a word takes of it.
pub const WORD_COST: usize = 12;
/// What a double word takes of it.
pub const DOUBLE_COST: usize = 14;
/// Most single bits in one random write (1402).
pub const RANDOM_BITS_MAX: usize = 188;
/// Most blocks in one block write (1406).
pub const BLOCKS_MAX: usize = 120;
/// Most of one for each word and [`BLOCK_COST`] for each block in one block write.
pub const BLOCK_POINTS_MAX: usize = 960;
/// What a block takes of it beside its words.
pub const BLOCK_COST: usize = 4;
/// In ASCII an iQ-F takes one part in so many of each (JY997D56001, 4.2); others are not asked for more.
const ASCII_PART: usize = 2;

/// How many words go into one point of a random access at most. In ASCII only one: the manual
/// writes a double word's digits high word first, others have written it down low word first, and words leave no doubt.
#[must_use]
pub fn point_words(code: Code) -> usize {
    match code {
        Code::Binary => 2,
        Code::Ascii => 1,
    }
}

/// A place, and what is written from there on; a bit is a word of 0 or 1.
pub type Part = (Address, Vec<u16>);

/// By which command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Random write in words and double words.
    Words,
    /// Random write in bits.
    Bits,
    /// Block write: words only.
    Blocks,
}

impl By {
    /// The command's number.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            Self::Words | Self::Bits => "1402",
            Self::Blocks => "1406",
        }
    }
}

/// Why no one frame takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Some hold bits, some words.
    Mixed,
    /// A contact or coil of a timer or counter, which a random access cannot name.
    Contact(Kind),
    /// More bits than this.
    Bits(usize),
    /// More words than either command takes.
    Words,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mixed => f.write_str("bits and words in one frame"),
            Self::Contact(kind) => write!(f, "{} at random: no frame names it so", kind.name()),
            Self::Bits(most) => write!(f, "more than {most} bits in one frame"),
            Self::Words => f.write_str("more words than one frame takes"),
        }
    }
}

/// How the frames of a link are coded that write places apart; `None`: it has none. Of 2C nobody has shown it, and
/// 1C and Modbus know no such request.
#[must_use]
pub fn code(link: &LinkSpec) -> Option<Code> {
    match link {
        LinkSpec::Mc(link) => Some(link.code),
        LinkSpec::C24(link) => {
            matches!(link.frame, C24Frame::C4 | C24Frame::C3).then(|| link.format.code())
        }
        LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => None,
    }
}

/// The command that writes these, each so many words (or one bit) wide.
///
/// # Errors
/// [`Unfit`]
pub fn by(parts: &[(Area, usize)], code: Code) -> Result<By, Unfit> {
    let most = |most: usize| match code {
        Code::Binary => most,
        Code::Ascii => most / ASCII_PART,
    };
    if let Some(kind) = parts.iter().find_map(|(area, _)| contact(*area)) {
        return Err(Unfit::Contact(kind));
    }
    let bits = parts.iter().filter(|(area, _)| area.is_bits()).count();
    if bits > 0 {
        let mixed = bits < parts.len();
        let fits = bits <= most(RANDOM_BITS_MAX);
        return match (mixed, fits) {
            (true, _) => Err(Unfit::Mixed),
            (_, false) => Err(Unfit::Bits(most(RANDOM_BITS_MAX))),
            _ => Ok(By::Bits),
        };
    }
    let cost = |words: usize| match point_words(code) {
        2 => words / 2 * DOUBLE_COST + words % 2 * WORD_COST,
        _ => words * WORD_COST,
    };
    let costs: usize = parts.iter().map(|(_, words)| cost(*words)).sum();
    let points: usize = parts.iter().map(|(_, words)| BLOCK_COST + words).sum();
    // Known to more ports than blocks are.
    if costs <= most(RANDOM_COST_MAX) {
        Ok(By::Words)
    } else if points <= most(BLOCK_POINTS_MAX) && parts.len() <= most(BLOCKS_MAX) {
        Ok(By::Blocks)
    } else {
        Err(Unfit::Words)
    }
}

fn contact(area: Area) -> Option<Kind> {
    use Kind::{Cc, Cs, Sc, Ss, Tc, Ts};
    match area {
        Area::Melsec(device) => [Ts, Tc, Ss, Sc, Cs, Cc]
            .into_iter()
            .find(|kind| *kind == device.kind),
        Area::Modbus(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::melsec::{Device, Family};

    fn area(kind: Kind) -> Area {
        Area::Melsec(Device::of(kind, Family::Q))
    }
    fn words(count: usize, wide: usize) -> Vec<(Area, usize)> {
        vec![(area(Kind::D), wide); count]
    }
    fn bits(count: usize) -> Vec<(Area, usize)> {
        vec![(area(Kind::M), 1); count]
    }

    // covers: POL-11
    #[test]
    fn what_one_frame_takes_and_by_which_command() {
        use Code::{Ascii, Binary};
        for (parts, code, expected) in [
            (words(2, 1), Binary, Ok(By::Words)),
            (words(160, 1), Binary, Ok(By::Words)),
            (words(161, 1), Binary, Err(Unfit::Words)),
            (words(137, 2), Binary, Ok(By::Words)),
            (words(138, 2), Binary, Err(Unfit::Words)),
            (words(80, 1), Ascii, Ok(By::Words)),
            (words(81, 1), Ascii, Err(Unfit::Words)),
            // Long texts cost fewer points in blocks.
            (words(3, 125), Binary, Ok(By::Blocks)),
            (words(3, 125), Ascii, Ok(By::Blocks)),
            (words(4, 125), Ascii, Err(Unfit::Words)),
            (words(8, 125), Binary, Err(Unfit::Words)),
            (bits(188), Binary, Ok(By::Bits)),
            (bits(189), Binary, Err(Unfit::Bits(188))),
            (bits(94), Ascii, Ok(By::Bits)),
            (bits(95), Ascii, Err(Unfit::Bits(94))),
            ([words(1, 1), bits(1)].concat(), Binary, Err(Unfit::Mixed)),
            (
                vec![(area(Kind::Tc), 1)],
                Binary,
                Err(Unfit::Contact(Kind::Tc)),
            ),
        ] {
            let said = format!("{} parts in {code:?}", parts.len());
            assert_eq!(by(&parts, code), expected, "{said}");
        }
    }
}
