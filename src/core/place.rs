//! Owns: a place of a device as a person types it, beside those that the configuration names.
//! May call: spec, melsec.
//! Never: guess a table or a device that was not named.

use super::melsec::{Code, Device, Family, Kind};
use super::spec::{Address, DataType, LinkSpec, ModbusArea, Scalar};

const AREAS: [ModbusArea; 4] = [
    ModbusArea::Coil,
    ModbusArea::Discrete,
    ModbusArea::Input,
    ModbusArea::Holding,
];

const TYPES: [(&str, DataType); 9] = [
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

/// `holding:100`, `D100`, or with a type: `holding:100/f32`. Without one a word is a `u16`, a bit a `bool`.
#[must_use]
pub fn parse_place(link: &LinkSpec, text: &str) -> Option<Scalar> {
    let (place, data_type) = match text.split_once('/') {
        Some((place, name)) => (place, Some(TYPES.iter().find(|(n, _)| *n == name)?.1)),
        None => (text, None),
    };
    let address = match link {
        LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => modbus(place)?,
        LinkSpec::Mc(link) => melsec(place, link.family, link.code)?,
        LinkSpec::C24(link) => melsec(place, link.family, link.format.code())?,
    };
    let area = address.area();
    let usual = match area.is_bits() {
        true => DataType::Bool,
        false => DataType::U16,
    };
    let data_type = data_type.unwrap_or(usual);
    if area.is_bits() && data_type != DataType::Bool {
        return None;
    }
    address.plus(u32::from(data_type.registers()) - 1)?;
    Some(Scalar {
        address,
        data_type,
        word_order: area.word_order(),
    })
}

fn modbus(text: &str) -> Option<Address> {
    let (name, offset) = text.split_once(':')?;
    Some(Address::Modbus {
        area: *AREAS.iter().find(|area| area.name() == name)?,
        offset: offset.parse().ok()?,
    })
}

/// In ASCII the sources disagree on how some devices are numbered, so that those are refused here as in a file.
fn melsec(text: &str, family: Family, code: Code) -> Option<Address> {
    let (device, number) = Device::parse(text, family).ok()?;
    let octal = matches!(device.kind, Kind::X | Kind::Y | Kind::Dx | Kind::Dy);
    let unsure = device.kind == Kind::Zr || (octal && family == Family::Fx5);
    (code == Code::Binary || !unsure).then_some(Address::Melsec { device, number })
}
