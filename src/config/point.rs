//! Owns: reading names, addresses, data types and values of a device from configuration.
//! May call: reader; core types.
//! Never: accept an address, type or value that the protocol cannot carry.

use super::problem::{Dialect, Doc};
use super::reader::{Node, Table};
use crate::core::intent::{parse_number, type_range};
use crate::core::melsec::{Device, Kind};
use crate::core::place::{AREAS, Notation, TYPES, Unfit};
use crate::core::spec::{Address, Area, DataType, ModbusArea, Scalar, Value, WordOrder};
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use std::ops::Range;
use unicode_normalization::UnicodeNormalization;

/// Longest name of a machine, tag, command, argument, group or sink, in characters.
pub const NAME_CHARS_MAX: usize = 64;
/// Longest text value: what one read request carries, in bytes.
const TEXT_BYTES_MAX: u16 = 250;

/// A name that goes into URLs and event keys: ASCII.
pub(super) fn plain_name(node: &Node<'_>) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name_of(node, allowed, "A-Z a-z 0-9 . _ -")
}

/// A name within a machine, in any script.
pub(super) fn local_name(node: &Node<'_>) -> Option<String> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | ':');
    name_of(node, allowed, "letters, digits and . _ - :")
}

fn name_of(node: &Node<'_>, allowed: impl Fn(char) -> bool, set: &str) -> Option<String> {
    let name: String = node.text()?.nfc().collect();
    let fits = !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX;
    if fits && name.chars().all(allowed) {
        Some(name)
    } else {
        node.wrong(
            format!("a name of 1 to {NAME_CHARS_MAX} characters out of {set}"),
            None,
        )
    }
}

/// Free text for people, one line.
pub(super) fn label(node: &Node<'_>, chars_max: usize) -> Option<String> {
    let text = node.text()?;
    let fits = !text.trim().is_empty() && text.chars().count() <= chars_max;
    if fits && !text.chars().any(char::is_control) {
        Some(text.nfc().collect())
    } else {
        node.wrong(format!("one line of 1 to {chars_max} characters"), None)
    }
}

/// An address as the document's protocol writes them.
pub(super) fn address(node: &Node<'_>) -> Option<Address> {
    let text = node.text()?;
    match node.doc.dialect.get() {
        Dialect::Modbus => modbus_address(node, text),
        Dialect::Melsec(notation) => melsec_address(node, text, notation),
    }
}

/// The place of a word within something that is read whole.
pub(super) fn within(doc: &Doc, word: u16) -> Address {
    match doc.dialect.get() {
        Dialect::Modbus => Address::Modbus {
            area: ModbusArea::Holding,
            offset: word,
        },
        Dialect::Melsec(notation) => Address::Melsec {
            device: Device::of(Kind::D, notation.family),
            number: word.into(),
        },
    }
}

/// Such an address, for people.
pub(super) fn example(doc: &Doc) -> &'static str {
    match doc.dialect.get() {
        Dialect::Modbus => "an address such as \"holding:100\"",
        Dialect::Melsec(_) => "an address such as \"D100\"",
    }
}

fn modbus_address(node: &Node<'_>, text: &str) -> Option<Address> {
    let expected =
        "an address such as \"holding:100\" (coil, discrete, input or holding; zero-based)";
    let Some((area_name, offset)) = text.split_once(':') else {
        let mend = text.parse::<u32>().ok().map(modicon_hint);
        return node.wrong(expected, mend);
    };
    let Some(area) = AREAS.iter().find(|area| area.name() == area_name.trim()) else {
        let near = crate::core::intent::nearest(area_name, AREAS.iter().map(|a| a.name()));
        return node.wrong(
            expected,
            near.map(|n| format!("did you mean \"{n}:{offset}\"?")),
        );
    };
    match offset.trim().parse::<u16>() {
        Ok(offset) => Some(Address::Modbus {
            area: *area,
            offset,
        }),
        Err(_) => node.wrong("an offset from 0 to 65535", None),
    }
}

fn melsec_address(node: &Node<'_>, text: &str, notation: Notation) -> Option<Address> {
    let (device, number) = match Device::parse(text, notation.family) {
        Ok(found) => found,
        Err(expected) => return node.wrong(expected, None),
    };
    match notation.fits(device, number) {
        Ok(()) => Some(Address::Melsec { device, number }),
        Err(Unfit::Disputed) => {
            node.problem(
                format!("{} in ASCII", device.place(number)),
                format!(
                    "another device: the sources disagree on how {} is numbered in ASCII on family {}",
                    device.kind.name(),
                    notation.family.name()
                ),
                Some("set the port and code to binary".into()),
            );
            None
        }
        Err(Unfit::TooLong) => node.wrong(
            "a number of at most six digits, all that ASCII carries",
            None,
        ),
        Err(Unfit::NotIn1C) => node.wrong(
            "a place of five characters at most, of a device that 1C knows, such as D9999",
            Some("use a 3C or 4C frame if the module can".into()),
        ),
    }
}

/// A reference number of a manual, such as 40101, as an address.
fn modicon_hint(number: u32) -> String {
    let (base, area) = match number {
        1..=9_999 => (1, "coil"),
        10_001..=19_999 => (10_001, "discrete"),
        30_001..=39_999 => (30_001, "input"),
        40_001..=49_999 => (40_001, "holding"),
        _ => return "write the table's name and the zero-based offset".to_owned(),
    };
    let offset = number - base;
    format!("the manual's {number} is \"{area}:{offset}\" here")
}

/// The type named by a node: `u16`, `string(20)` …
pub(super) fn data_type(node: &Node<'_>) -> Option<DataType> {
    let mut simple = TYPES.to_vec();
    simple.push(("string(n)", DataType::Text(0)));
    let inner = node
        .as_text()
        .and_then(|text| text.strip_prefix("string(")?.strip_suffix(')'));
    if let Some(length) = inner {
        return match length.parse::<u16>() {
            Ok(bytes) if (1..=TEXT_BYTES_MAX).contains(&bytes) => Some(DataType::Text(bytes)),
            _ => node.wrong(format!("string(1) to string({TEXT_BYTES_MAX})"), None),
        };
    }
    match node.choice(&simple)? {
        DataType::Text(_) => node.wrong(format!("string(1) to string({TEXT_BYTES_MAX})"), None),
        found => Some(found),
    }
}

pub(super) fn word_order(table: &Table<'_>) -> WordOrder {
    let choices = [
        ("high_first", WordOrder::HighFirst),
        ("low_first", WordOrder::LowFirst),
    ];
    let node = table.get("word_order");
    node.and_then(|node| node.choice(&choices))
        .unwrap_or_else(|| default_order(table.doc))
}

/// MELSEC stores the low word first.
fn default_order(doc: &Doc) -> WordOrder {
    match doc.dialect.get() {
        Dialect::Modbus => WordOrder::HighFirst,
        Dialect::Melsec(_) => WordOrder::LowFirst,
    }
}

/// A scalar read from `read`, `word_order` and the key that holds the type.
pub(super) fn scalar(table: &Table<'_>, type_key: &'static str) -> Option<Scalar> {
    scalar_like(table, type_key, |_| None)
}

/// As [`scalar`]; type and word order that are not stated are those of the scalar that `known` has there.
pub(super) fn scalar_like(
    table: &Table<'_>,
    type_key: &'static str,
    known: impl Fn(Address) -> Option<Scalar>,
) -> Option<Scalar> {
    let node = table.need("read", example(table.doc));
    let type_node = table.get(type_key);
    let given = type_node.as_ref().map(data_type);
    let stated_order = word_order(table);
    let node = node?;
    let at = address(&node)?;
    let known = known(at).filter(|_| given.is_none());
    let order = match known {
        Some(known) if !table.has("word_order") => known.word_order,
        _ => stated_order,
    };
    let data_type = match given {
        Some(found) => found?,
        None => known.map_or_else(|| default_type(at.area()), |known| known.data_type),
    };
    place(&node, type_node.as_ref(), at, data_type, order)
}

/// A scalar given as `"holding:120"`, or as `{ read = …, type = …, word_order = … }`.
pub(super) fn short_scalar(node: &Node<'_>, default: DataType) -> Option<Scalar> {
    if node.is_table() {
        let table = node.table()?;
        let found = scalar(&table, "type");
        table.finish();
        return found;
    }
    let at = address(node)?;
    let data_type = if at.area().is_bits() {
        DataType::Bool
    } else {
        default
    };
    place(node, None, at, data_type, default_order(node.doc))
}

fn default_type(area: Area) -> DataType {
    if area.is_bits() {
        DataType::Bool
    } else {
        DataType::U16
    }
}

/// Checks that a value of `data_type` can stand at `at`.
pub(super) fn place(
    node: &Node<'_>,
    type_node: Option<&Node<'_>>,
    address: Address,
    data_type: DataType,
    word_order: WordOrder,
) -> Option<Scalar> {
    let area = address.area();
    if area.is_bits() && data_type != DataType::Bool {
        let mend = Some("use type = \"bool\", or a table of registers".to_owned());
        return type_node.unwrap_or(node).wrong(
            format!("type \"bool\": {} holds single bits", area.name()),
            mend,
        );
    }
    let width = u32::from(data_type.registers());
    if address.plus(width - 1).is_none() {
        let last = area.last();
        return node.wrong(
            format!(
                "an offset of at most {}: {} takes {width} registers, the last is {last}",
                last + 1 - width,
                data_type.name()
            ),
            None,
        );
    }
    Some(Scalar {
        address,
        data_type,
        word_order,
    })
}

/// A raw value of exactly this type.
pub(super) fn value(node: &Node<'_>, data_type: DataType) -> Option<Value> {
    match data_type {
        DataType::Bool => {
            let mend = node.as_integer().map(|n| format!("write {}", n != 0));
            match node.as_bool() {
                Some(bit) => Some(Value::Bool(bit)),
                None => node.wrong("true or false, as the type is bool", mend),
            }
        }
        DataType::F32 | DataType::F64 => node.decimal()?.to_f64().map(Value::Float),
        DataType::Text(bytes) => {
            let text: String = node.text()?.nfc().collect();
            if text.len() <= usize::from(bytes) {
                Some(Value::Text(text))
            } else {
                node.wrong(format!("text of at most {bytes} bytes"), None)
            }
        }
        _ => {
            let (min, max) = type_range(data_type).unwrap_or_default();
            let whole = |d: Decimal| d.to_i128().unwrap_or(0);
            let number = node.as_integer();
            match number.filter(|n| (whole(min)..=whole(max)).contains(n)) {
                Some(number) => Some(Value::Int(number)),
                None => {
                    let digits = node.as_text().and_then(parse_number);
                    let mend = match (number, digits) {
                        (Some(_), _) => {
                            Some("give a type that holds it: type = \"u32\", \"i32\" …".into())
                        }
                        (None, Some(n)) => Some(format!("write {n}, without quotes")),
                        (None, None) => None,
                    };
                    node.wrong(format!("a {} from {min} to {max}", data_type.name()), mend)
                }
            }
        }
    }
}

/// A stretch of one table that something stands on.
#[derive(Clone)]
pub(super) struct Claim<'a> {
    /// What stands there, for people.
    pub(super) what: String,
    /// Where it is configured.
    pub(super) node: Node<'a>,
    /// How it is read or written.
    pub(super) scalar: Scalar,
}

impl Claim<'_> {
    /// The table and the places in it.
    pub(super) fn extent(&self) -> (Area, Range<u32>) {
        extent(&self.scalar)
    }
}

/// The table of a scalar and the places that it takes.
pub(super) fn extent(scalar: &Scalar) -> (Area, Range<u32>) {
    let start = scalar.address.number();
    let end = start + u32::from(scalar.data_type.registers());
    (scalar.address.area(), start..end)
}

pub(super) fn overlap(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}
