//! Owns: a place of a device as a person types it, beside those that the configuration names.
//! May call: spec, melsec.
//! Never: guess a table or a device that was not named.

use super::c24::C24Frame;
use super::melsec::{Code, Device, Family, Kind};
use super::spec::{Address, DataType, LinkSpec, ModbusArea, Scalar};

/// Characters of a place in a 1C frame.
const ONE_C_CHARS_MAX: usize = 5;
/// Digits of a device's number in ASCII.
const ASCII_DIGITS_MAX: usize = 6;

/// The tables of Modbus.
pub const AREAS: [ModbusArea; 4] = [
    ModbusArea::Coil,
    ModbusArea::Discrete,
    ModbusArea::Input,
    ModbusArea::Holding,
];

/// The types that one name stands for.
pub const TYPES: [(&str, DataType); 9] = [
    ("bool", DataType::Bool),
    ("i16", DataType::I16),
    ("u16", DataType::U16),
    ("i32", DataType::I32),
    ("u32", DataType::U32),
    ("i64", DataType::I64),
    ("u64", DataType::U64),
    ("f32", DataType::F32),
    ("f64", DataType::F64),
];

/// How a link writes a MELSEC device and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notation {
    /// Decides the number's radix.
    pub family: Family,
    /// In ASCII some devices have no agreed form.
    pub code: Code,
    /// 1C has fewer devices, and five characters for a place.
    pub one_c: bool,
}

/// Why a place cannot be asked for over a link, though the device has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The sources disagree on how the device is numbered in ASCII.
    Disputed,
    /// More digits than ASCII carries.
    TooLong,
    /// A 1C frame has no form for it.
    NotIn1C,
}

impl Notation {
    /// That of `link`; `None` over Modbus.
    #[must_use]
    pub fn of(link: &LinkSpec) -> Option<Self> {
        match link {
            LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => None,
            LinkSpec::Mc(link) => Some(Self {
                family: link.family,
                code: link.code,
                one_c: false,
            }),
            LinkSpec::C24(link) => Some(Self {
                family: link.family,
                code: link.format.code(),
                one_c: link.frame == C24Frame::C1,
            }),
        }
    }

    /// Whether the link can ask for this place.
    ///
    /// # Errors
    /// [`Unfit`]
    pub fn fits(self, device: Device, number: u32) -> Result<(), Unfit> {
        use Kind::{B, Cc, Cn, Cs, D, F, L, M, R, Tc, Tn, Ts, W, X, Y};
        let place = device.place(number);
        let in_octal = matches!(device.kind, X | Y | Kind::Dx | Kind::Dy);
        let is_disputed = device.kind == Kind::Zr || (in_octal && self.family == Family::Fx5);
        if self.code == Code::Ascii && is_disputed {
            return Err(Unfit::Disputed);
        }
        if self.code == Code::Ascii && place.len() > device.kind.name().len() + ASCII_DIGITS_MAX {
            return Err(Unfit::TooLong);
        }
        // Five characters, and no device that the A series did not have.
        let of_a_series =
            [X, Y, M, L, B, F, Ts, Tc, Tn, Cs, Cc, Cn, D, W, R].contains(&device.kind);
        if self.one_c && !(of_a_series && place.len() <= ONE_C_CHARS_MAX) {
            return Err(Unfit::NotIn1C);
        }
        Ok(())
    }
}

/// Why a text is no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// It does not begin as one: somebody means a name.
    Other,
    /// It begins as one, and this is expected.
    Malformed(String),
}

/// `holding:100`, `D100`, or with a type: `holding:100/f32`. Without one a word is a `u16`, a bit a `bool`.
///
/// # Errors
/// [`NoPlace`]
pub fn parse_place(link: &LinkSpec, text: &str) -> Result<Scalar, NoPlace> {
    let (place, name) = match text.split_once('/') {
        Some((place, name)) => (place, Some(name)),
        None => (text, None),
    };
    let address = match Notation::of(link) {
        None => modbus(place),
        Some(notation) => melsec(place, notation),
    }?;
    let data_type = name.map(data_type).transpose()?;
    let area = address.area();
    let usual = match area.is_bits() {
        true => DataType::Bool,
        false => DataType::U16,
    };
    let data_type = data_type.unwrap_or(usual);
    if area.is_bits() && data_type != DataType::Bool {
        return Err(malformed("bool, or no type: that place is a bit"));
    }
    let last = address.plus(u32::from(data_type.registers()) - 1);
    last.ok_or_else(|| malformed("a place whose last word is there too"))?;
    Ok(Scalar {
        address,
        data_type,
        word_order: area.word_order(),
    })
}

fn malformed(expected: impl Into<String>) -> NoPlace {
    NoPlace::Malformed(expected.into())
}

fn data_type(name: &str) -> Result<DataType, NoPlace> {
    let found = TYPES.iter().find(|(known, _)| *known == name);
    found.map(|(_, data_type)| *data_type).ok_or_else(|| {
        let names: Vec<&str> = TYPES.iter().map(|(known, _)| *known).collect();
        malformed(format!("a type behind the slash: {}", names.join(", ")))
    })
}

fn modbus(text: &str) -> Result<Address, NoPlace> {
    let (name, offset) = text.split_once(':').ok_or(NoPlace::Other)?;
    let area = AREAS.iter().find(|area| area.name() == name);
    let names = AREAS.map(ModbusArea::name).join(", ");
    let area =
        area.ok_or_else(|| malformed(format!("one of the tables {names} before the colon")))?;
    let offset = offset.parse();
    Ok(Address::Modbus {
        area: *area,
        offset: offset
            .map_err(|_| malformed("a zero-based offset of 0 to 65535 behind the colon"))?,
    })
}

fn melsec(text: &str, notation: Notation) -> Result<Address, NoPlace> {
    let (device, number) = Device::parse(text, notation.family).map_err(|expected| {
        match begins_with_device(text) {
            true => NoPlace::Malformed(expected),
            false => NoPlace::Other,
        }
    })?;
    notation.fits(device, number).map_err(|unfit| {
        malformed(match unfit {
            Unfit::Disputed => "a device that has one way to be numbered in ASCII",
            Unfit::TooLong => "a number of at most six digits in ASCII",
            Unfit::NotIn1C => "a device that 1C knows, in five characters with its number",
        })
    })?;
    Ok(Address::Melsec { device, number })
}

/// The letters of a device, and then a digit: whoever names a tag so means a device all the same.
fn begins_with_device(text: &str) -> bool {
    let upper = text.trim().to_ascii_uppercase();
    let letters = upper.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let name = &upper[..upper.len() - letters.len()];
    let known = Kind::NAMES.iter().any(|(known, _)| *known == name);
    known && letters.starts_with(|digit: char| digit.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q() -> Notation {
        Notation {
            family: Family::Q,
            code: Code::Ascii,
            one_c: false,
        }
    }

    #[test]
    fn a_place_that_is_mistyped_is_told_from_a_name() {
        for (text, expected) in [
            ("D1O0", "D with a decimal number"),
            ("X1G", "X with a hexadecimal number"),
            ("d12x", "D with a decimal number"),
            ("ZR100", "one way to be numbered"),
            ("D1000000", "six digits"),
        ] {
            let found = melsec(text, q()).unwrap_err();
            assert!(
                matches!(&found, NoPlace::Malformed(said) if said.contains(expected)),
                "{text}: {found:?}"
            );
        }
        for text in ["speed", "D", "Door", "D_1", "data1", ""] {
            assert_eq!(melsec(text, q()), Err(NoPlace::Other), "{text}");
        }
        for (text, expected) in [
            ("houlding:1", "coil"),
            ("holding:70000", "65535"),
            ("holding:-1", "zero-based"),
        ] {
            let found = modbus(text).unwrap_err();
            assert!(
                matches!(&found, NoPlace::Malformed(said) if said.contains(expected)),
                "{text}: {found:?}"
            );
        }
        assert_eq!(modbus("speed"), Err(NoPlace::Other));
        assert!(data_type("u61").is_err());
    }

    #[test]
    fn what_a_frame_cannot_name_is_asked_for_over_no_link_that_uses_it() {
        let notation = |code, one_c| Notation {
            family: Family::Q,
            code,
            one_c,
        };
        let (binary, ascii, one_c) = (
            notation(Code::Binary, false),
            notation(Code::Ascii, false),
            notation(Code::Ascii, true),
        );
        let fits = |notation: Notation, text: &str| {
            let (device, number) = Device::parse(text, Family::Q).unwrap();
            notation.fits(device, number)
        };
        for (text, in_binary, in_ascii, in_1c) in [
            ("D100", Ok(()), Ok(()), Ok(())),
            ("D10000", Ok(()), Ok(()), Err(Unfit::NotIn1C)),
            ("ZR100", Ok(()), Err(Unfit::Disputed), Err(Unfit::Disputed)),
            ("D1000000", Ok(()), Err(Unfit::TooLong), Err(Unfit::TooLong)),
            ("SM400", Ok(()), Ok(()), Err(Unfit::NotIn1C)),
        ] {
            let found = (fits(binary, text), fits(ascii, text), fits(one_c, text));
            assert_eq!(found, (in_binary, in_ascii, in_1c), "{text}");
        }
    }
}
