//! Owns: the commands of the 1C frame: WR, WW, BR, BW, TT (SH-080008, A compatible 1C frame).
//! May call: command, field of this room.
//! Never: claim more than the manual's layout: never tried on hardware.

use super::command::{Answer, Command};
use super::field::{Fields, Place, put, put_bits};
use crate::core::melsec::{Code, Radix};

/// Most words in one request.
pub(crate) const WORDS_MAX: usize = 64;
/// Most bits in one read; stated as 00.
pub(crate) const READ_BITS_MAX: usize = 256;
/// Most bits in one write.
pub(crate) const WRITE_BITS_MAX: usize = 160;
/// Most characters that TT carries.
const LOOPBACK_CHARS_MAX: usize = 254;
/// Characters of a device and its number.
const PLACE_CHARS: usize = 5;

/// Command, message wait and data.
///
/// # Errors
/// In plain words: 1C cannot do it.
pub(crate) fn body(command: &Command) -> Result<Vec<u8>, String> {
    if let Command::Loopback(digits) = command {
        return loopback(digits);
    }
    let (name, first, count, most) = match command {
        Command::ReadWords { first, count } => ("WR", first, usize::from(*count), WORDS_MAX),
        Command::ReadBits { first, count } => ("BR", first, usize::from(*count), READ_BITS_MAX),
        Command::WriteWords { first, words } => ("WW", first, words.len(), WORDS_MAX),
        Command::WriteBits { first, bits } => ("BW", first, bits.len(), WRITE_BITS_MAX),
        _ => return Err("1C reads and writes neighbouring words or bits, nothing else".into()),
    };
    if count == 0 || count > most {
        return Err(format!("{count} places for one {name}, at most {most}"));
    }
    // No message wait.
    let mut out = format!("{name}0").into_bytes();
    out.extend_from_slice(place(first)?.as_bytes());
    // 256 is stated as 00.
    put(&mut out, Code::Ascii, count as u32 & 0xFF, 1);
    match command {
        Command::WriteWords { words, .. } => {
            words
                .iter()
                .for_each(|word| put(&mut out, Code::Ascii, (*word).into(), 2));
        }
        Command::WriteBits { bits, .. } => put_bits(&mut out, Code::Ascii, bits),
        _ => {}
    }
    Ok(out)
}

/// TT: count and characters, both given back.
fn loopback(digits: &[u8]) -> Result<Vec<u8>, String> {
    if digits.is_empty() || digits.len() > LOOPBACK_CHARS_MAX {
        let found = digits.len();
        return Err(format!(
            "{found} characters for one TT, at most {LOOPBACK_CHARS_MAX}"
        ));
    }
    let mut out = b"TT0".to_vec();
    put(&mut out, Code::Ascii, digits.len() as u32, 1);
    out.extend_from_slice(digits);
    Ok(out)
}

fn place(place: &Place) -> Result<String, String> {
    let name = place.device.kind.name();
    let width = PLACE_CHARS - name.len();
    let number = place.number;
    let text = match place.device.radix {
        Radix::Decimal => format!("{name}{number:0width$}"),
        Radix::Hex => format!("{name}{number:0width$X}"),
        Radix::Octal => format!("{name}{number:0width$o}"),
    };
    let fits = text.len() == PLACE_CHARS;
    fits.then_some(text)
        .ok_or_else(|| format!("1C has no room for {}", place.device.place(number)))
}

/// What the data of a reply say.
///
/// # Errors
/// In plain words: they are no reply to this request.
pub(crate) fn answer(command: &Command, data: &[u8]) -> Result<Answer, String> {
    let mut fields = Fields::new(data, Code::Ascii);
    match command {
        Command::ReadWords { .. } | Command::ReadBits { .. } => command.answer(data, Code::Ascii),
        Command::Loopback(sent) => {
            let found = fields.number(1)? as usize;
            let found = fields.raw(found)?.to_vec();
            fields.end()?;
            let same = found == *sent;
            same.then_some(Answer::Loopback(found))
                .ok_or_else(|| "the loopback test brought back something else".into())
        }
        _ => fields.end().map(|()| Answer::Done),
    }
}
