//! Owns: what bytes from a serial module (C24) that are no reply most likely mean, in plain words.
//! May call: diagnose of this room; core c24.
//! Never: send anything; call a guess a finding: each text says what was seen.

use super::diagnose::{Diagnosis, found};
use super::matching::hex;
use crate::core::c24::{C24Format, C24Frame, C24Link};

const STX: u8 = 0x02;
const ETX: u8 = 0x03;
const ENQ: u8 = 0x05;
const ACK: u8 = 0x06;
const DLE: u8 = 0x10;
const NAK: u8 = 0x15;
const CR_LF: [u8; 2] = *b"\r\n";
/// Most bytes shown in a text.
const SHOWN_BYTES_MAX: usize = 24;

/// Frame identifications, as digits.
const FRAMES: [(&[u8], C24Frame); 3] = [
    (b"F8", C24Frame::C4),
    (b"F9", C24Frame::C3),
    (b"FB", C24Frame::C2),
];

pub(super) const LOOK_AT: &[&str] = &[
    "baud rate, parity, data and stop bits must be those of the module's switches or parameters",
    "protocol of that channel: MC protocol in just this format, with the sum check as configured",
    "the station number, and on RS-485 whether A and B are the right way round",
    "a module whose channel is in another mode (nonprocedural, bidirectional) answers nothing",
];

/// What came in place of a reply.
pub(super) fn diagnose(link: &C24Link, bytes: &[u8], why: &str) -> Diagnosis {
    let frame = link.frame.name();
    let format = link.format.number();
    let came = format!("{} bytes came, {}", bytes.len(), named(bytes));
    if let Some(other) = other_format(link.format, bytes) {
        return found(
            "wrong_format",
            format!("{came}: that is {other}, and format {format} is configured"),
            &[
                "set format in [link] as the module's channel is set, or the channel as configured",
                "format 5 is binary and goes with frame 4C only; formats 1 to 4 are ASCII",
            ],
        );
    }
    let digits = after_control(link.format, bytes);
    if let Some(other) = digits.and_then(|digits| other_frame(link.frame, digits)) {
        return found(
            "wrong_frame",
            format!("{came}: a reply in frame {other}, and frame {frame} is configured"),
            &["set protocol in [link] to the frame that the device answers in"],
        );
    }
    let station = digits.and_then(|digits| station(link.frame, digits));
    if let Some(other) = station.filter(|other| *other != link.route.station) {
        return found(
            "wrong_unit",
            format!(
                "{came}: a reply from station {other}, and station {} was asked",
                link.route.station
            ),
            &[
                "set station in [link] as the module's station number switch is set",
                "on a line with several stations each number is there once only",
            ],
        );
    }
    if why.contains("the sum is") {
        return found(
            "check_sum",
            format!("{came}: a whole reply, and {why}"),
            &[
                "set sum_check in [link] as the module's channel is set (sum check code: yes or no)",
                "if both sides agree, bytes are falsified on the way: cable, shield, termination, baud rate",
            ],
        );
    }
    found(
        "garbage",
        format!("{came}: no reply in frame {frame} format {format}: {why}"),
        LOOK_AT,
    )
}

/// The format of which the control codes are, if it is not the configured one.
fn other_format(format: C24Format, bytes: &[u8]) -> Option<&'static str> {
    let binary = bytes.starts_with(&[DLE, STX]);
    let control = matches!(bytes.first(), Some(&(STX | ACK | NAK)));
    let ends = bytes.ends_with(&CR_LF);
    match format {
        C24Format::F5 if control => Some("a control code of the ASCII formats 1 to 4"),
        C24Format::F5 => None,
        _ if binary => Some("DLE STX, with which format 5 (binary) begins"),
        C24Format::F4 if control && !ends && bytes.last() != Some(&b'\r') => {
            Some("a reply without CR LF at its end, as in formats 1 to 3")
        }
        C24Format::F1 | C24Format::F2 | C24Format::F3 if control && ends => {
            Some("a reply with CR LF at its end, as in format 4")
        }
        C24Format::F3 if matches!(bytes.first(), Some(&(ACK | NAK))) => {
            Some("ACK or NAK, which format 3 does not know")
        }
        _ => None,
    }
}

/// The digits behind the control code, and in format 2 behind the block number.
fn after_control(format: C24Format, bytes: &[u8]) -> Option<&[u8]> {
    let control = matches!(bytes.first(), Some(&(STX | ACK | NAK)));
    match format {
        C24Format::F5 => None,
        C24Format::F2 if control => bytes.get(3..),
        _ if control => bytes.get(1..),
        _ => None,
    }
}

fn other_frame(own: C24Frame, digits: &[u8]) -> Option<&'static str> {
    let named = FRAMES.iter().find(|(id, _)| digits.starts_with(id))?.1;
    (named != own && own != C24Frame::C1).then(|| named.name())
}

fn station(own: C24Frame, digits: &[u8]) -> Option<u8> {
    let at = if own == C24Frame::C1 { 0 } else { 2 };
    let text = std::str::from_utf8(digits.get(at..at + 2)?).ok()?;
    u8::from_str_radix(text, 16).ok()
}

/// Bytes with control codes by their names, such as `NAK "F80000" 15`.
fn named(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    let names: Vec<&str> = shown.iter().filter_map(|byte| name(*byte)).collect();
    match names.is_empty() {
        true => format!(
            "[{}], no control code of MC protocol among them",
            hex(shown)
        ),
        false => format!("[{}], control codes {}", hex(shown), names.join(" ")),
    }
}

fn name(byte: u8) -> Option<&'static str> {
    Some(match byte {
        STX => "STX",
        ETX => "ETX",
        0x04 => "EOT",
        ENQ => "ENQ",
        ACK => "ACK",
        b'\n' => "LF",
        0x0C => "CL",
        b'\r' => "CR",
        DLE => "DLE",
        NAK => "NAK",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::c24::C24Route;
    use crate::core::melsec::Family;
    use crate::core::serial::Way;

    fn code(frame: C24Frame, format: C24Format, bytes: &[u8], why: &str) -> (&'static str, String) {
        let link = C24Link {
            way: Way::Tcp {
                host: "server".into(),
                port: 4001,
            },
            frame,
            format,
            sum_check: true,
            family: Family::Q,
            route: C24Route::default(),
            timeout_ms: 1_000,
            settle_ms: 10,
            turnaround_ms: 0,
            echo: false,
            read_words_max: 64,
            reconnect_ms_min: 1,
            reconnect_ms_max: 1,
            heartbeat_ms: 1_000,
        };
        let found = diagnose(&link, bytes, why);
        (found.code, found.text)
    }

    #[test]
    fn what_came_names_the_setting_that_differs() {
        use C24Format::{F1, F3, F4, F5};
        use C24Frame::{C3, C4};
        let other = "no reply";
        let (wrong, text) = code(C4, F5, b"\x02F80000FF03FF00001234\x03", other);
        assert!(wrong == "wrong_format" && text.contains("STX"), "{text}");
        let (wrong, text) = code(C4, F1, b"\x10\x02\x12\x00\xF8", other);
        assert!(
            wrong == "wrong_format" && text.contains("format 5"),
            "{text}"
        );
        assert_eq!(
            code(C4, F1, b"\x06F80000FF03FF0000\r\n", other).0,
            "wrong_format"
        );
        assert_eq!(
            code(C4, F4, b"\x06F80000FF03FF0000", other).0,
            "wrong_format"
        );
        assert_eq!(code(C3, F3, b"\x15F90000FF007E40", other).0, "wrong_format");
        assert_eq!(
            code(C4, F1, b"\x02F90000FF001234\x03", other).0,
            "wrong_frame"
        );
        let (wrong, text) = code(C4, F1, b"\x15F80500FF03FF00007F24", other);
        assert!(
            wrong == "wrong_unit" && text.contains("station 5"),
            "{text}"
        );
        let sum = "the sum is 12, over these bytes it is 34";
        assert_eq!(
            code(C4, F1, b"\x02F80000FF03FF00001234\x0312", sum).0,
            "check_sum"
        );
        let (noise, text) = code(C4, F5, &[0xFF, 0x7F, 0xFE], other);
        assert!(
            noise == "garbage" && text.contains("no control code"),
            "{text}"
        );
    }
}
