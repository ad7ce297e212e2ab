//! Owns: what the end codes and error codes of MC protocol prove (SEND-04), in one table.
//! May call: exchange of this room; core contract.
//! Never: call a code proof of no effect that the manuals do not describe as a refused request.

use super::super::exchange::{Coded, Proof};
use crate::core::contract::DeviceCode;

/// The family under which codes are kept.
pub(super) const FAMILY: &str = "mc";

/// First and last code, what it proves, what it says, and which manual says so.
type Row = (u16, u16, Proof, &'static str, &'static str);

/// QJ71E71-100 basic manual, SH(NA)-080009, 11.3, end codes; built-in port: SH(NA)-080811, error codes.
const ETHERNET: &str = "SH-080009 11.3";
/// Q CPU: error codes returned to the source of a request, 4000 to 4FFF.
const CPU: &str = "SH-080483, codes returned to the request source";
/// QJ71C24N basic manual, 10.2, error code list.
const SERIAL: &str = "SH-080006 10.2";

/// A code that is not listed proves nothing. None of them says "busy, not executed".
const TABLE: &[Row] = &[
    (
        0x0055,
        0x0055,
        Proof::Refused,
        "writing is not permitted while the CPU runs",
        ETHERNET,
    ),
    (0x4030, 0x4030, Proof::RefusedPlace, "no such device", CPU),
    (
        0x4031,
        0x4031,
        Proof::RefusedPlace,
        "device number out of range",
        CPU,
    ),
    (
        0x7167,
        0x7167,
        Proof::Refused,
        "not possible while the CPU runs",
        SERIAL,
    ),
    (
        0x7168,
        0x7168,
        Proof::Refused,
        "not possible in this state of the CPU",
        SERIAL,
    ),
    (
        0x7E40,
        0x7E40,
        Proof::RefusedCommand,
        "no such command or subcommand",
        SERIAL,
    ),
    (
        0x7E41,
        0x7E41,
        Proof::RefusedLength,
        "data length out of range",
        SERIAL,
    ),
    (
        0x7E42,
        0x7E42,
        Proof::RefusedLength,
        "number of points out of range",
        SERIAL,
    ),
    (
        0x7E43,
        0x7E43,
        Proof::RefusedPlace,
        "no such device, or number out of range",
        SERIAL,
    ),
    (
        0x7E4F,
        0x7E4F,
        Proof::RefusedLength,
        "points of the devices do not fit",
        SERIAL,
    ),
    (
        0x7E70,
        0x7E70,
        Proof::Unclear,
        "the CPU did not answer the module",
        SERIAL,
    ),
    (
        0x7F01,
        0x7F01,
        Proof::Refused,
        "buffer full: sent before the last reply was complete",
        SERIAL,
    ),
    (
        0x7F21,
        0x7F21,
        Proof::Refused,
        "header of the request in error",
        SERIAL,
    ),
    (
        0x7F22,
        0x7F22,
        Proof::RefusedPart,
        "command or device in error",
        SERIAL,
    ),
    (
        0x7F23,
        0x7F23,
        Proof::Refused,
        "end of the request in error",
        SERIAL,
    ),
    (0x7F24, 0x7F24, Proof::Refused, "sum check in error", SERIAL),
    (
        0xC050,
        0xC050,
        Proof::Refused,
        "ASCII that is no number",
        ETHERNET,
    ),
    (
        0xC051,
        0xC054,
        Proof::RefusedLength,
        "number of points out of range",
        ETHERNET,
    ),
    (
        0xC056,
        0xC056,
        Proof::RefusedPlace,
        "request past the last address",
        ETHERNET,
    ),
    (
        0xC057,
        0xC057,
        Proof::Refused,
        "request length field does not fit its data",
        ETHERNET,
    ),
    (
        0xC058,
        0xC058,
        Proof::Refused,
        "request length does not fit after conversion from ASCII",
        ETHERNET,
    ),
    (
        0xC059,
        0xC059,
        Proof::RefusedCommand,
        "no such command or subcommand here",
        ETHERNET,
    ),
    (
        0xC05A,
        0xC05B,
        Proof::RefusedPlace,
        "the device cannot be read or written",
        ETHERNET,
    ),
    (
        0xC05C,
        0xC05C,
        Proof::RefusedPlace,
        "request in error, such as bits of a word device",
        ETHERNET,
    ),
    (
        0xC05D,
        0xC05D,
        Proof::Refused,
        "nothing was registered to be monitored",
        ETHERNET,
    ),
    (
        0xC05E,
        0xC05E,
        Proof::Unclear,
        "the monitoring timer ended before the CPU answered",
        ETHERNET,
    ),
    (
        0xC05F,
        0xC05F,
        Proof::RefusedCommand,
        "the addressed CPU cannot do it",
        ETHERNET,
    ),
    (
        0xC060,
        0xC060,
        Proof::RefusedPart,
        "request in error, such as a bit that is neither 0 nor 1",
        ETHERNET,
    ),
    (
        0xC061,
        0xC061,
        Proof::Refused,
        "request length does not fit its number of points",
        ETHERNET,
    ),
    (
        0xC200,
        0xC204,
        Proof::Refused,
        "remote password: unlock the port first",
        ETHERNET,
    ),
];

/// What `code` says and proves.
pub(super) fn coded(code: u16) -> Coded {
    let row = TABLE.iter().find(|row| (row.0..=row.1).contains(&code));
    let (proof, meaning) = match row {
        Some((_, _, proof, meaning, manual)) => (*proof, format!("{meaning}; {manual}")),
        None => (Proof::Unclear, "not in the table: it proves nothing".into()),
    };
    Coded {
        code: DeviceCode {
            family: FAMILY.into(),
            code: code.into(),
            meaning,
        },
        proof,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::contract::Outcome;

    /// As the manuals were read, apart from the table.
    const NO_EFFECT: [u16; 36] = [
        0x0055, 0xC050, 0xC051, 0xC052, 0xC053, 0xC054, 0xC056, 0xC057, 0xC058, 0xC059, 0xC05A,
        0xC05B, 0xC05C, 0xC05D, 0xC05F, 0xC060, 0xC061, 0xC200, 0xC201, 0xC202, 0xC203, 0xC204,
        0x4030, 0x4031, 0x7E40, 0x7E41, 0x7E42, 0x7E43, 0x7E4F, 0x7F01, 0x7F21, 0x7F22, 0x7F23,
        0x7F24, 0x7167, 0x7168,
    ];

    // covers: SEND-04, F065
    #[test]
    fn only_listed_refusals_prove_that_a_write_had_no_effect() {
        for code in 1..=u16::MAX {
            match coded(code).of_write() {
                Outcome::DeviceRefused(found) => {
                    assert!(NO_EFFECT.contains(&code), "{code:04X}");
                    assert_eq!(found.code, u32::from(code));
                }
                Outcome::DeviceUnclear(_) => assert!(!NO_EFFECT.contains(&code), "{code:04X}"),
                other => panic!("{code:04X}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_table_is_in_order_and_every_row_names_its_manual() {
        for pair in TABLE.windows(2) {
            assert!(pair[0].1 < pair[1].0, "{:04X}", pair[1].0);
        }
        assert!(
            TABLE
                .iter()
                .all(|row| row.0 <= row.1 && row.4.starts_with("SH-"))
        );
    }
}
