//! Owns: how registers make a value, and how an argument makes registers.
//! May call: spec, mailbox (word order of 32-bit values).
//! Never: guess: what does not fit, or is no value, is an error in plain words.
//!
//! It stands in this room, not in the adapter's, because the core itself decides the words of a
//! [`super::contract::Job::Write`].

use super::spec::{Area, ArgValue, DataType, Scalar, Value, WordOrder};
use rust_decimal::{Decimal, prelude::ToPrimitive};

/// The value that `words` hold. For a coil or discrete input: one word, 0 or 1.
///
/// # Errors
/// In plain words: too few words, text that is not UTF-8, a float that is no number.
pub fn decode(words: &[u16], at: &Scalar) -> Result<Value, String> {
    let expected = usize::from(at.data_type.registers());
    if words.len() != expected {
        return Err(format!(
            "{} registers for a {}, expected {expected}",
            words.len(),
            at.data_type.name()
        ));
    }
    let bits = || join(words, at.word_order);
    Ok(match at.data_type {
        DataType::Bool => Value::Bool(words[0] != 0),
        DataType::U16 | DataType::U32 | DataType::U64 => Value::Int(bits().into()),
        DataType::I16 => Value::Int((bits() as u16).cast_signed().into()),
        DataType::I32 => Value::Int((bits() as u32).cast_signed().into()),
        DataType::I64 => Value::Int(bits().cast_signed().into()),
        DataType::F32 => finite(f32::from_bits(bits() as u32).into())?,
        DataType::F64 => finite(f64::from_bits(bits()))?,
        DataType::Text(bytes) => {
            let words = text_order(words.to_vec(), at.address.area());
            text(&words, usize::from(bytes))?
        }
    })
}

/// Turns the words of a text between its first character in the high byte, as here and over Modbus, and in the
/// low byte, as MELSEC stores it.
fn text_order(words: Vec<u16>, area: Area) -> Vec<u16> {
    match area {
        Area::Modbus(_) => words,
        Area::Melsec(_) => words.into_iter().map(u16::swap_bytes).collect(),
    }
}

fn finite(number: f64) -> Result<Value, String> {
    if number.is_finite() {
        Ok(Value::Float(number))
    } else {
        Err(format!("the device's floating-point value is {number}"))
    }
}

fn text(words: &[u16], bytes_max: usize) -> Result<Value, String> {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .take(bytes_max)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8(bytes)
        .map(Value::Text)
        .map_err(|e| format!("the device's text is not UTF-8: {e}"))
}

fn join(words: &[u16], order: WordOrder) -> u64 {
    let shift = |all: u64, word: &u16| all << 16 | u64::from(*word);
    match order {
        WordOrder::HighFirst => words.iter().fold(0, shift),
        WordOrder::LowFirst => words.iter().rev().fold(0, shift),
    }
}

fn split(bits: u64, registers: u16, order: WordOrder) -> Vec<u16> {
    let low_first = (0..registers).map(|n| (bits >> (16 * n)) as u16);
    match order {
        WordOrder::LowFirst => low_first.collect(),
        WordOrder::HighFirst => low_first.rev().collect(),
    }
}

/// Whether the device says "no value" by `value` (F045). Nothing is taken for one that is not listed.
#[must_use]
pub fn is_no_value(value: &Value, no_value: &[Value]) -> bool {
    no_value.iter().any(|listed| match (listed, value) {
        (Value::Int(a), Value::Float(b)) => *a as f64 == *b,
        (a, b) => a == b,
    })
}

/// As [`encode`], for a place in `area`.
///
/// # Errors
/// As [`encode`].
pub fn encode_in(
    arg: &ArgValue,
    data_type: DataType,
    order: WordOrder,
    area: Area,
) -> Result<Vec<u16>, String> {
    let words = encode(arg, data_type, order)?;
    Ok(match data_type {
        DataType::Text(_) => text_order(words, area),
        _ => words,
    })
}

/// The registers of `arg` as a `data_type`; for a coil: one word, 0 or 1.
///
/// # Errors
/// In plain words: it does not fit the type, or is not of its kind.
pub fn encode(arg: &ArgValue, data_type: DataType, order: WordOrder) -> Result<Vec<u16>, String> {
    let bits = match (arg, data_type) {
        (ArgValue::Bool(bit), DataType::Bool) => u64::from(*bit),
        (ArgValue::Number(number), DataType::F32) => {
            let narrow = number.to_f32().filter(|n| n.is_finite());
            narrow
                .ok_or_else(|| misfit(arg, data_type))?
                .to_bits()
                .into()
        }
        (ArgValue::Number(number), DataType::F64) => number
            .to_f64()
            .filter(|n| n.is_finite())
            .ok_or_else(|| misfit(arg, data_type))?
            .to_bits(),
        (ArgValue::Number(number), _) if number.fract().is_zero() => {
            integer_bits(number.to_i128(), data_type).ok_or_else(|| misfit(arg, data_type))?
        }
        (ArgValue::Text(text), DataType::Text(bytes)) => {
            return text_words(text, bytes).ok_or_else(|| misfit(arg, data_type));
        }
        _ => return Err(misfit(arg, data_type)),
    };
    Ok(split(bits, data_type.registers(), order))
}

fn integer_bits(number: Option<i128>, data_type: DataType) -> Option<u64> {
    let number = number?;
    Some(match data_type {
        DataType::U16 => u16::try_from(number).ok()?.into(),
        DataType::U32 => u32::try_from(number).ok()?.into(),
        DataType::U64 => u64::try_from(number).ok()?,
        DataType::I16 => i16::try_from(number).ok()?.cast_unsigned().into(),
        DataType::I32 => i32::try_from(number).ok()?.cast_unsigned().into(),
        DataType::I64 => i64::try_from(number).ok()?.cast_unsigned(),
        DataType::Bool | DataType::F32 | DataType::F64 | DataType::Text(_) => return None,
    })
}

fn text_words(text: &str, bytes_max: u16) -> Option<Vec<u16>> {
    let fits = text.len() <= usize::from(bytes_max) && !text.contains('\0');
    fits.then(|| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(usize::from(bytes_max.div_ceil(2)) * 2, 0);
        bytes
            .chunks_exact(2)
            .map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
            .collect()
    })
}

/// The value itself is left out: it may be a secret.
fn misfit(arg: &ArgValue, data_type: DataType) -> String {
    let kind = match arg {
        ArgValue::Bool(_) => "bit",
        ArgValue::Number(_) => "number",
        ArgValue::Text(_) => "text",
        ArgValue::Redacted(_) => "redacted secret",
    };
    format!("the {kind} does not fit a {}", data_type.name())
}

/// Whether what was read is what was sent.
#[must_use]
pub fn equals(sent: &ArgValue, read: &Value) -> bool {
    match (sent, read) {
        (ArgValue::Bool(a), Value::Bool(b)) => a == b,
        (ArgValue::Number(a), Value::Int(b)) => {
            Decimal::try_from_i128_with_scale(*b, 0).is_ok_and(|b| *a == b)
        }
        (ArgValue::Number(a), Value::Float(b)) => a
            .to_f64()
            .is_some_and(|a| a == *b || (a as f32) == (*b as f32)),
        (ArgValue::Text(a), Value::Text(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::melsec::{Device, Family, Kind};
    use crate::core::spec::{Address, ModbusArea};
    use proptest::prelude::*;
    use rust_decimal::Decimal;

    fn scalar(data_type: DataType, word_order: WordOrder) -> Scalar {
        let address = Address::Modbus {
            area: ModbusArea::Holding,
            offset: 0,
        };
        Scalar {
            address,
            data_type,
            word_order,
        }
    }
    fn read(words: &[u16], data_type: DataType) -> Result<Value, String> {
        decode(words, &scalar(data_type, WordOrder::HighFirst))
    }

    // covers: F045
    #[test]
    fn a_listed_sentinel_is_no_value_and_an_unlisted_one_is_passed_through() {
        let cases = [
            (DataType::I32, vec![0x8000, 0], i128::from(i32::MIN)),
            (DataType::U16, vec![0xFFFF], 65535),
            (DataType::I16, vec![0x8000], -32768),
            (DataType::U32, vec![0xFFFF, 0xFFFF], 0xFFFF_FFFF),
        ];
        for (data_type, words, number) in cases {
            let value = read(&words, data_type).unwrap();
            assert_eq!(value, Value::Int(number));
            assert!(is_no_value(&value, &[Value::Int(1), Value::Int(number)]));
            assert!(!is_no_value(&value, &[]));
        }
    }

    #[test]
    fn what_is_no_value_is_an_error_and_never_a_zero() {
        assert!(read(&[], DataType::U16).is_err());
        assert!(read(&[1], DataType::U32).is_err());
        assert!(read(&[0x7FC0, 0], DataType::F32).is_err());
        assert!(read(&[0xFF80, 0], DataType::F32).is_err());
        assert!(read(&[0xFFFE], DataType::Text(2)).is_err());
        assert_eq!(
            read(&[0x4142, 0x4300, 0x4445], DataType::Text(6)),
            Ok(Value::Text("ABC".into()))
        );
        assert_eq!(read(&[0x3FC0, 0], DataType::F32), Ok(Value::Float(1.5)));
    }

    #[test]
    fn an_argument_out_of_range_makes_no_words() {
        let number = |text: &str| ArgValue::Number(Decimal::from_str_exact(text).unwrap());
        fn encode(arg: &ArgValue, data_type: DataType) -> Result<Vec<u16>, String> {
            super::encode(arg, data_type, WordOrder::HighFirst)
        }
        assert_eq!(encode(&number("65535"), DataType::U16), Ok(vec![0xFFFF]));
        assert_eq!(encode(&number("-1"), DataType::I32), Ok(vec![0xFFFF; 2]));
        for (text, data_type) in [
            ("65536", DataType::U16),
            ("-1", DataType::U64),
            ("32768", DataType::I16),
            ("1.5", DataType::I64),
            ("1", DataType::Bool),
            ("1", DataType::Text(4)),
        ] {
            assert!(encode(&number(text), data_type).is_err(), "{text}");
        }
        let text = |t: &str| ArgValue::Text(t.into());
        assert_eq!(
            encode(&text("ABC"), DataType::Text(5)),
            Ok(vec![0x4142, 0x4300, 0])
        );
        assert!(encode(&text("ABCDEF"), DataType::Text(5)).is_err());
        assert!(encode(&text("A\0B"), DataType::Text(5)).is_err());
        let secret = ArgValue::Redacted([0; 32]);
        assert!(encode(&secret, DataType::U16).is_err());
    }

    #[test]
    fn a_melsec_text_begins_in_the_low_byte() {
        let device = Device::of(Kind::D, Family::Q);
        let address = Address::Melsec { device, number: 0 };
        let text = DataType::Text(3);
        let arg = ArgValue::Text("ABC".into());
        let words = encode_in(&arg, text, WordOrder::LowFirst, address.area());
        assert_eq!(words, Ok(vec![0x4241, 0x0043]));
        let at = Scalar {
            address,
            data_type: text,
            word_order: WordOrder::LowFirst,
        };
        assert_eq!(
            decode(&[0x4241, 0x0043], &at),
            Ok(Value::Text("ABC".into()))
        );
    }

    proptest! {
        #[test]
        fn integers_survive_both_word_orders(n: i64, low_first: bool) {
            let order = if low_first { WordOrder::LowFirst } else { WordOrder::HighFirst };
            let arg = ArgValue::Number(Decimal::from(n));
            for data_type in [DataType::I64, DataType::I32, DataType::U16, DataType::U64] {
                if let Ok(words) = encode(&arg, data_type, order) {
                    prop_assert_eq!(decode(&words, &scalar(data_type, order)), Ok(Value::Int(n.into())));
                } else {
                    prop_assert!(data_type != DataType::I64);
                }
            }
        }
    }
}
