//! Owns: which units are of one kind, and exact conversion between them (CMD-04).
//! May call: nothing.
//! Never: round. A value that has no finite decimal form in the other unit is refused.

use rust_decimal::Decimal;

/// Most digits after the point that a [`Decimal`] holds.
const SCALE_MAX: u32 = 28;

/// What a unit measures; only units of one kind can be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Turns in a time. Not [`Kind::Frequency`]: a drive's output hertz are not its shaft's turns.
    Rotation,
    /// Distance.
    Length,
    /// Distance in a time.
    Velocity,
    /// Duration.
    Time,
    /// Mass.
    Mass,
    /// Temperature as a point on a scale, not as a difference.
    Temperature,
    /// Pressure.
    Pressure,
    /// Part of a whole.
    Ratio,
    /// Electric tension.
    Voltage,
    /// Electric current.
    Current,
    /// Cycles in a time.
    Frequency,
    /// Volume.
    Volume,
    /// Volume in a time.
    Flow,
    /// Force.
    Force,
    /// Torque.
    Torque,
    /// Power.
    Power,
    /// Energy.
    Energy,
}

/// A unit: `base = (value + offset_hundredths / 100) * numerator / denominator`.
struct Unit {
    names: &'static [&'static str],
    kind: Kind,
    offset_hundredths: i64,
    numerator: i64,
    denominator: i64,
}

const fn unit(names: &'static [&'static str], kind: Kind, numerator: i64) -> Unit {
    Unit {
        names,
        kind,
        offset_hundredths: 0,
        numerator,
        denominator: 1,
    }
}

/// Every known unit. All factors are exact by definition of the unit; those that are not (rad/s
/// against rpm) are left out, so they compare by name alone.
const UNITS: &[Unit] = &[
    unit(&["rpm", "1/min", "r/min", "min-1"], Kind::Rotation, 1),
    unit(&["1/s", "rps", "r/s"], Kind::Rotation, 60),
    unit(&["um", "\u{b5}m", "\u{3bc}m"], Kind::Length, 1),
    unit(&["mm"], Kind::Length, 1_000),
    unit(&["cm"], Kind::Length, 10_000),
    unit(&["m"], Kind::Length, 1_000_000),
    unit(&["km"], Kind::Length, 1_000_000_000),
    unit(&["in"], Kind::Length, 25_400),
    unit(&["mm/min"], Kind::Velocity, 1),
    unit(&["mm/s"], Kind::Velocity, 60),
    unit(&["m/min"], Kind::Velocity, 1_000),
    unit(&["m/s"], Kind::Velocity, 60_000),
    Unit {
        names: &["km/h"],
        kind: Kind::Velocity,
        offset_hundredths: 0,
        numerator: 50_000,
        denominator: 3,
    },
    unit(&["us", "\u{b5}s", "\u{3bc}s"], Kind::Time, 1),
    unit(&["ms"], Kind::Time, 1_000),
    unit(&["s"], Kind::Time, 1_000_000),
    unit(&["min"], Kind::Time, 60_000_000),
    unit(&["h"], Kind::Time, 3_600_000_000),
    unit(&["mg"], Kind::Mass, 1),
    unit(&["g"], Kind::Mass, 1_000),
    unit(&["kg"], Kind::Mass, 1_000_000),
    unit(&["t"], Kind::Mass, 1_000_000_000),
    unit(&["K"], Kind::Temperature, 1),
    Unit {
        names: &["degC", "\u{b0}C", "\u{2103}"],
        kind: Kind::Temperature,
        offset_hundredths: 27_315,
        numerator: 1,
        denominator: 1,
    },
    Unit {
        names: &["degF", "\u{b0}F", "\u{2109}"],
        kind: Kind::Temperature,
        offset_hundredths: 45_967,
        numerator: 5,
        denominator: 9,
    },
    unit(&["Pa"], Kind::Pressure, 1),
    unit(&["mbar", "hPa"], Kind::Pressure, 100),
    unit(&["kPa"], Kind::Pressure, 1_000),
    unit(&["bar"], Kind::Pressure, 100_000),
    unit(&["MPa"], Kind::Pressure, 1_000_000),
    unit(&["ppm"], Kind::Ratio, 1),
    unit(&["\u{2030}"], Kind::Ratio, 1_000),
    unit(&["%", "percent"], Kind::Ratio, 10_000),
    unit(&["1", "ratio"], Kind::Ratio, 1_000_000),
    unit(&["mV"], Kind::Voltage, 1),
    unit(&["V"], Kind::Voltage, 1_000),
    unit(&["kV"], Kind::Voltage, 1_000_000),
    unit(&["uA", "\u{b5}A", "\u{3bc}A"], Kind::Current, 1),
    unit(&["mA"], Kind::Current, 1_000),
    unit(&["A"], Kind::Current, 1_000_000),
    unit(&["Hz"], Kind::Frequency, 1),
    unit(&["kHz"], Kind::Frequency, 1_000),
    unit(&["MHz"], Kind::Frequency, 1_000_000),
    unit(&["ml", "mL", "cm3", "cm\u{b3}"], Kind::Volume, 1),
    unit(&["l", "L"], Kind::Volume, 1_000),
    unit(&["m3", "m\u{b3}"], Kind::Volume, 1_000_000),
    unit(&["ml/min", "mL/min"], Kind::Flow, 60),
    unit(&["l/h", "L/h"], Kind::Flow, 1_000),
    unit(&["l/min", "L/min"], Kind::Flow, 60_000),
    unit(&["l/s", "L/s"], Kind::Flow, 3_600_000),
    unit(&["m3/h", "m\u{b3}/h"], Kind::Flow, 1_000_000),
    unit(&["N"], Kind::Force, 1),
    unit(&["kN"], Kind::Force, 1_000),
    unit(&["MN"], Kind::Force, 1_000_000),
    unit(&["Nmm", "mNm"], Kind::Torque, 1),
    unit(&["Ncm"], Kind::Torque, 10),
    unit(&["Nm", "N\u{b7}m", "N.m"], Kind::Torque, 1_000),
    unit(&["kNm"], Kind::Torque, 1_000_000),
    unit(&["W"], Kind::Power, 1),
    unit(&["kW"], Kind::Power, 1_000),
    unit(&["MW"], Kind::Power, 1_000_000),
    unit(&["J", "Ws"], Kind::Energy, 1),
    unit(&["kJ"], Kind::Energy, 1_000),
    unit(&["Wh"], Kind::Energy, 3_600),
    unit(&["MJ"], Kind::Energy, 1_000_000),
    unit(&["kWh"], Kind::Energy, 3_600_000),
];

/// Why a value was not converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Different kinds, or a unit that is not known and not the same name.
    #[error("is not comparable")]
    NotComparable,
    /// No finite decimal form, or too many digits.
    #[error("has no exact value in that unit")]
    Inexact,
}

fn find(name: &str) -> Option<&'static Unit> {
    UNITS.iter().find(|unit| unit.names.contains(&name))
}

/// What `name` measures; `None` for a unit that is not known.
#[must_use]
pub fn kind(name: &str) -> Option<Kind> {
    find(name).map(|unit| unit.kind)
}

/// The units that can be converted to `name`, itself first.
#[must_use]
pub fn comparable(name: &str) -> Vec<&str> {
    let mut names = vec![name];
    if let Some(kind) = kind(name) {
        let of_kind = UNITS.iter().filter(|unit| unit.kind == kind);
        names.extend(of_kind.map(|unit| unit.names[0]).filter(|n| *n != name));
    }
    names
}

/// `value`, given in `from`, in the unit `to`: exact, or an error.
///
/// # Errors
/// See [`UnitError`].
pub fn convert(value: Decimal, from: &str, to: &str) -> Result<Decimal, UnitError> {
    if from == to {
        return Ok(value);
    }
    let (Some(from), Some(to)) = (find(from), find(to)) else {
        return Err(UnitError::NotComparable);
    };
    if from.kind != to.kind {
        return Err(UnitError::NotComparable);
    }
    let numerator = i128::from(from.numerator) * i128::from(to.denominator);
    let denominator = i128::from(from.denominator) * i128::from(to.numerator);
    let shifted = shift(value, from.offset_hundredths)?;
    let scaled = scale(shifted, numerator, denominator)?;
    shift(scaled, -to.offset_hundredths).map(|result| result.normalize())
}

/// `value + hundredths / 100`, exact.
fn shift(value: Decimal, hundredths: i64) -> Result<Decimal, UnitError> {
    if hundredths == 0 {
        return Ok(value);
    }
    let offset = Decimal::new(hundredths, 2);
    let sum = value.checked_add(offset).ok_or(UnitError::Inexact)?;
    // The sum of two decimals rounds only where it does not fit; then undoing it shows.
    if sum.checked_sub(offset) == Some(value) {
        Ok(sum)
    } else {
        Err(UnitError::Inexact)
    }
}

/// `value * numerator / denominator`, exact.
fn scale(value: Decimal, numerator: i128, denominator: i128) -> Result<Decimal, UnitError> {
    let value = value.normalize();
    let common = gcd(numerator, denominator);
    let (numerator, mut denominator) = (numerator / common, denominator / common);
    let mut mantissa = value.mantissa();
    let reduced = gcd(mantissa.abs(), denominator);
    mantissa /= reduced;
    denominator /= reduced;
    mantissa = mantissa.checked_mul(numerator).ok_or(UnitError::Inexact)?;
    let mut digits = value.scale();
    while mantissa % denominator != 0 {
        digits += 1;
        mantissa = mantissa.checked_mul(10).ok_or(UnitError::Inexact)?;
        if digits > SCALE_MAX {
            return Err(UnitError::Inexact);
        }
    }
    Decimal::try_from_i128_with_scale(mantissa / denominator, digits)
        .map(|result| result.normalize())
        .map_err(|_| UnitError::Inexact)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;

    fn d(text: &str) -> Decimal {
        Decimal::from_str(text).unwrap()
    }

    // covers: CMD-04
    #[test]
    fn values_of_one_kind_convert_exactly() {
        for (value, from, to, expected) in [
            ("50", "rpm", "1/min", "50"),
            ("1.5", "1/s", "rpm", "90"),
            ("90", "rpm", "1/s", "1.5"),
            ("1", "in", "mm", "25.4"),
            ("25.4", "mm", "in", "1"),
            ("20", "degC", "K", "293.15"),
            ("50", "degF", "degC", "10"),
            ("-40", "degC", "degF", "-40"),
            ("2.5", "bar", "kPa", "250"),
            ("36", "km/h", "m/s", "10"),
            ("0.5", "1", "%", "50"),
            ("1", "kWh", "MJ", "3.6"),
        ] {
            assert_eq!(
                convert(d(value), from, to),
                Ok(d(expected)),
                "{value} {from}"
            );
        }
    }

    // covers: CMD-04
    #[test]
    fn nothing_is_rounded_and_kinds_do_not_mix() {
        assert_eq!(convert(d("1"), "rpm", "1/s"), Err(UnitError::Inexact));
        assert_eq!(convert(d("51"), "degF", "degC"), Err(UnitError::Inexact));
        assert_eq!(
            convert(d("7922816251426433759354395033"), "km", "um"),
            Err(UnitError::Inexact)
        );
        assert_eq!(
            convert(d("0.0000000000000000000000000001"), "degC", "K"),
            Err(UnitError::Inexact)
        );
        assert_eq!(convert(d("1"), "Hz", "rpm"), Err(UnitError::NotComparable));
        assert_eq!(
            convert(d("1"), "furlong", "m"),
            Err(UnitError::NotComparable)
        );
        assert_eq!(convert(d("1"), "furlong", "furlong"), Ok(d("1")));
    }

    #[test]
    fn every_name_is_of_one_unit() {
        let mut names: Vec<_> = UNITS.iter().flat_map(|unit| unit.names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    proptest::proptest! {
        // covers: CMD-04
        #[test]
        fn an_exact_conversion_can_be_undone(mantissa in -1_000_000_i64..1_000_000, scale in 0_u32..6,
                                             a in 0..UNITS.len(), b in 0..UNITS.len()) {
            let (a, b) = (&UNITS[a], &UNITS[b]);
            let value = Decimal::new(mantissa, scale);
            match convert(value, a.names[0], b.names[0]) {
                Ok(there) => proptest::prop_assert_eq!(convert(there, b.names[0], a.names[0]), Ok(value)),
                Err(UnitError::NotComparable) => proptest::prop_assert_ne!(a.kind, b.kind),
                Err(UnitError::Inexact) => proptest::prop_assert_eq!(a.kind, b.kind),
            }
        }
    }
}
