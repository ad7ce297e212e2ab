//! Owns: how numbers, devices and bits stand in a frame, in binary and in ASCII (SH-080008, 3.1 and 8).
//! May call: core melsec.
//! Never: panic at bytes that came from outside; read past what came.

use crate::core::melsec::{Code, Device, Family, Kind, Radix};

/// The codes of the devices in binary (SH-080008, 8.1, device code list).
const CODES: [(Kind, u8); 27] = [
    (Kind::X, 0x9C),
    (Kind::Y, 0x9D),
    (Kind::M, 0x90),
    (Kind::L, 0x92),
    (Kind::F, 0x93),
    (Kind::V, 0x94),
    (Kind::B, 0xA0),
    (Kind::D, 0xA8),
    (Kind::W, 0xB4),
    (Kind::R, 0xAF),
    (Kind::Zr, 0xB0),
    (Kind::Sm, 0x91),
    (Kind::Sd, 0xA9),
    (Kind::Sb, 0xA1),
    (Kind::Sw, 0xB5),
    (Kind::Ts, 0xC1),
    (Kind::Tc, 0xC0),
    (Kind::Tn, 0xC2),
    (Kind::Ss, 0xC7),
    (Kind::Sc, 0xC6),
    (Kind::Sn, 0xC8),
    (Kind::Cs, 0xC4),
    (Kind::Cc, 0xC3),
    (Kind::Cn, 0xC5),
    (Kind::Z, 0xCC),
    (Kind::Dx, 0xA2),
    (Kind::Dy, 0xA3),
];

/// Digits of a device number in ASCII.
const NUMBER_DIGITS: usize = 6;

/// Something in a device: which, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) device: Device,
    pub(super) number: u32,
}

/// Appends `value` as a field of so many bytes.
pub(super) fn put(out: &mut Vec<u8>, code: Code, value: u32, bytes: usize) {
    match code {
        Code::Binary => out.extend_from_slice(&value.to_le_bytes()[..bytes]),
        Code::Ascii => {
            let text = format!("{value:0width$X}", width = 2 * bytes);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// Appends a place.
///
/// # Errors
/// In plain words: the code has no agreed form for it.
pub(super) fn put_place(out: &mut Vec<u8>, code: Code, place: Place) -> Result<(), String> {
    let Place { device, number } = place;
    if code == Code::Binary {
        put(out, code, number, 3);
        out.push(device_code(device.kind));
        return Ok(());
    }
    let digits = match device.radix {
        _ if device.kind == Kind::Zr => None,
        Radix::Decimal => Some(format!("{number:06}")),
        Radix::Hex => Some(format!("{number:06X}")),
        Radix::Octal => None,
    };
    let text = device.place(number);
    let digits = digits.ok_or_else(|| format!("{text} has no agreed form in ASCII"))?;
    if digits.len() > NUMBER_DIGITS {
        return Err(format!("{text} has more than {NUMBER_DIGITS} digits"));
    }
    out.extend_from_slice(format!("{:*<2}{digits}", device.kind.name()).as_bytes());
    Ok(())
}

fn device_code(kind: Kind) -> u8 {
    let coded = CODES.iter().find(|(own, _)| *own == kind);
    coded.map_or(0, |(_, code)| *code)
}

/// Appends single bits: two to a byte, the first in the high half (F061); in ASCII one character each.
pub(super) fn put_bits(out: &mut Vec<u8>, code: Code, bits: &[bool]) {
    match code {
        Code::Binary => out.extend(bits.chunks(2).map(|pair| {
            let low = pair.get(1).copied().unwrap_or_default();
            u8::from(pair[0]) << 4 | u8::from(low)
        })),
        Code::Ascii => out.extend(bits.iter().map(|bit| b'0' + u8::from(*bit))),
    }
}

/// Reads fields off the front of what came.
pub(super) struct Fields<'a> {
    pub(super) rest: &'a [u8],
    pub(super) code: Code,
}

impl<'a> Fields<'a> {
    pub(super) fn new(rest: &'a [u8], code: Code) -> Self {
        Self { rest, code }
    }

    /// So many bytes as they came.
    pub(super) fn raw(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self.rest.split_at_checked(bytes).ok_or_else(|| {
            let found = self.rest.len();
            format!("{found} bytes where {bytes} were expected")
        })?;
        self.rest = tail;
        Ok(head)
    }

    /// A field of so many bytes, at most four.
    pub(super) fn number(&mut self, bytes: usize) -> Result<u32, String> {
        match self.code {
            Code::Binary => {
                let raw = self.raw(bytes)?;
                Ok(raw
                    .iter()
                    .rev()
                    .fold(0, |n, byte| n << 8 | u32::from(*byte)))
            }
            Code::Ascii => hex_number(self.raw(2 * bytes)?),
        }
    }

    /// A field of two bytes.
    pub(super) fn word(&mut self) -> Result<u16, String> {
        self.number(2).map(|word| word as u16)
    }

    /// So many single bits.
    pub(super) fn bits(&mut self, count: usize) -> Result<Vec<bool>, String> {
        let bit = |value: u8, at: usize| match value {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("{other:X} for bit {at}, expected 0 or 1")),
        };
        match self.code {
            Code::Binary => {
                let raw = self.raw(count.div_ceil(2))?;
                let half = |at: usize| match at % 2 {
                    0 => raw[at / 2] >> 4,
                    _ => raw[at / 2] & 0xF,
                };
                (0..count).map(|at| bit(half(at), at)).collect()
            }
            Code::Ascii => {
                let raw = self.raw(count)?.iter().enumerate();
                raw.map(|(at, digit)| bit(digit.wrapping_sub(b'0'), at))
                    .collect()
            }
        }
    }

    /// A place, in the family's way of writing.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "requests are read back by tests")
    )]
    pub(super) fn place(&mut self, family: Family) -> Result<Place, String> {
        if self.code == Code::Binary {
            let number = self.number(3)?;
            let code = self.number(1)? as u8;
            let found = CODES.iter().find(|(_, own)| *own == code);
            let (kind, _) = found.ok_or_else(|| format!("no device has the code {code:02X}"))?;
            let device = Device::of(*kind, family);
            return Ok(Place { device, number });
        }
        let name = text(self.raw(2)?)?.trim_end_matches('*');
        let found = Kind::NAMES.iter().find(|(own, _)| *own == name);
        let (_, kind) = found.ok_or_else(|| format!("no device is called {name:?}"))?;
        let device = Device::of(*kind, family);
        let digits = self.raw(NUMBER_DIGITS)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(format!(
                "{:?} for a device number",
                String::from_utf8_lossy(digits)
            ));
        }
        let number = u32::from_str_radix(text(digits)?, device.radix.base());
        let number = number.map_err(|e| e.to_string())?;
        Ok(Place { device, number })
    }

    /// Nothing more may follow.
    pub(super) fn end(&self) -> Result<(), String> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes more than were asked for")),
        }
    }
}

/// A number of at most eight upper- or lower-case digits.
pub(super) fn hex_number(digits: &[u8]) -> Result<u32, String> {
    let fits = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let number = fits.then(|| u32::from_str_radix(text(digits)?, 16).map_err(|e| e.to_string()));
    number.unwrap_or_else(|| {
        let shown = String::from_utf8_lossy(digits).into_owned();
        Err(format!("{shown:?} where hexadecimal digits were expected"))
    })
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| e.to_string())
}
