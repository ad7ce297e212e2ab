//! Owns: what bytes from a serial module (C24) that are no reply most likely mean, in plain words.
//! May call: diagnose of this room; core c24.
//! Never: send anything; call a guess a finding: each text says what was seen.

use super::diagnose::{Diagnosis, Facts, found};
use super::diagnose_line;
use super::matching::hex;
use super::melsec::{Told, told};
use crate::core::c24::{C24Format, C24Frame, C24Link, C24Route};
use crate::core::serial::Way;
use crate::sys::LineErrors;

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

/// What to compare with the module, by the settings that were asked with.
fn look_at(link: &C24Link) -> Vec<String> {
    let settings = diagnose_line::settings(&link.way);
    vec![
        match link.way {
            Way::Serial(_) => {
                format!("is the module's channel set to {settings} (switches or parameters)?")
            }
            Way::Tcp { .. } => "do the server's serial settings fit the module's channel?".into(),
        },
        format!(
            "is the protocol of that channel MC protocol in format {}, and its sum check {}?",
            link.format.number(),
            on_off(link.sum_check)
        ),
        format!(
            "is {} the module's station number, and are A and B of RS-485 the right way round?",
            link.route.station
        ),
        "a module whose channel is in another mode (nonprocedural, bidirectional) answers nothing"
            .into(),
    ]
}

fn on_off(on: bool) -> &'static str {
    match on {
        true => "on",
        false => "off",
    }
}

/// Frame, format and sum check that were asked with.
fn asked(link: &C24Link) -> String {
    let (frame, format) = (link.frame.name(), link.format.number());
    format!(
        "frame {frame} format {format} with sum check {}",
        on_off(link.sum_check)
    )
}

/// Nothing came at all, or nothing but an echo that is expected.
pub(super) fn silent(link: &C24Link, errors: Option<LineErrors>) -> Diagnosis {
    if let Some(found) = diagnose_line::errors(&link.way, errors) {
        return found;
    }
    let text = format!(
        "{}: station {} was asked in {} at {}, and no byte came back{}{}",
        link.way.address(),
        link.route.station,
        asked(link),
        diagnose_line::settings(&link.way),
        diagnose_line::beside_echo(link.echo),
        diagnose_line::none_counted(errors)
    );
    Diagnosis {
        code: "no_bytes",
        text,
        mend: look_at(link),
    }
}

/// What came in place of a reply.
pub(super) fn diagnose(facts: &Facts<'_>, link: &C24Link, bytes: &[u8], why: &str) -> Diagnosis {
    if let Some(found) = diagnose_line::unexpected_echo(facts) {
        return found;
    }
    let came = format!("{} bytes came, {}", bytes.len(), named(bytes));
    let reply = told(link, bytes);
    if let Some(found) = reply.and_then(|reply| differs(link, &reply, &came)) {
        return found;
    }
    // Here the line's own bytes are gone already, if they came.
    let all = bytes.len() == facts.received.len();
    let late = why.contains("echo did not come");
    if link.echo && all && (reply.is_some() || late) {
        return diagnose_line::no_echo(facts.link, Some(bytes));
    }
    if reply.is_some() {
        return found(
            "no_valid_reply",
            format!(
                "{came}: a whole reply by the configured settings, and not to what was asked: {why}"
            ),
            &[
                "a reply that came late looks like this: settle must be longer than the module may take",
                "another master on the line has its replies come here too",
            ],
        );
    }
    diagnose_line::errors(&link.way, facts.line_errors)
        .or_else(|| looks_like(link, bytes, &came))
        .unwrap_or_else(|| unsound(link, why, &came))
}

/// A whole reply, and not by the configured settings: each one that differs is named.
fn differs(link: &C24Link, reply: &Told, came: &str) -> Option<Diagnosis> {
    let mut all: Vec<(&'static str, String, String)> = Vec::new();
    let mut add = |code, set: String, but: String| all.push((code, set, but));
    if reply.format != link.format {
        let (theirs, own) = (reply.format.number(), link.format.number());
        add(
            "wrong_format",
            format!("format = {theirs}"),
            format!("format {own} is configured"),
        );
    }
    if reply.frame != link.frame {
        let (theirs, own) = (reply.frame.name(), link.frame.name());
        let set = format!("protocol = \"mc-{}\"", theirs.to_lowercase());
        add("wrong_frame", set, format!("frame {own} is configured"));
    }
    if reply.route.station != link.route.station {
        let (theirs, own) = (reply.route.station, link.route.station);
        add(
            "wrong_unit",
            format!("station = {theirs}"),
            format!("station {own} was asked"),
        );
    } else if reply.route != link.route {
        let (theirs, own) = route(&reply.route, &link.route);
        add("wrong_unit", theirs, format!("{own} was asked"));
    }
    if let Some(theirs) = reply.sum_check.filter(|sum| *sum != link.sum_check) {
        let but = match theirs {
            true => "a sum stands behind it, and none is configured",
            false => "no sum of two digits stands behind its ETX, and one is configured",
        };
        add("check_sum", format!("sum_check = {theirs}"), but.into());
    }
    let code = all.first()?.0;
    let but: Vec<&str> = all.iter().map(|(_, _, but)| but.as_str()).collect();
    let set: Vec<&str> = all.iter().map(|(_, set, _)| set.as_str()).collect();
    let what = format!(
        "frame {} format {}, station {}",
        reply.frame.name(),
        reply.format.number(),
        reply.route.station
    );
    let mend = match code {
        "wrong_unit" => "on a line with several stations each number is there once only",
        _ => "format 5 is binary and goes with frame 4C only; formats 1 to 4 are ASCII",
    };
    Some(Diagnosis {
        code,
        text: format!("{came}: a whole reply in {what}: {}", but.join("; ")),
        mend: vec![
            format!(
                "set {} in [link], if that is the module you mean, or the module's channel as configured",
                set.join(", ")
            ),
            mend.into(),
        ],
    })
}

/// The first field beside the station in which two routes differ: theirs as a setting, ours in words.
fn route(theirs: &C24Route, own: &C24Route) -> (String, String) {
    let fields = [
        ("network", u16::from(theirs.network), u16::from(own.network)),
        ("pc", theirs.pc.into(), own.pc.into()),
        ("io", theirs.io, own.io),
        (
            "module_station",
            theirs.module_station.into(),
            own.module_station.into(),
        ),
        (
            "self_station",
            theirs.self_station.into(),
            own.self_station.into(),
        ),
    ];
    let other = fields.iter().find(|(_, theirs, own)| theirs != own);
    let (name, theirs, own) = other.copied().unwrap_or(("station", 0, 0));
    (format!("{name} = {theirs}"), format!("{name} {own}"))
}

/// No whole reply, and its beginning or end is not as configured.
fn looks_like(link: &C24Link, bytes: &[u8], came: &str) -> Option<Diagnosis> {
    let (frame, format) = (link.frame.name(), link.format.number());
    if let Some(other) = other_format(link.format, bytes) {
        return Some(found(
            "wrong_format",
            format!("{came}: that is {other}, and format {format} is configured"),
            &[
                "set format in [link] as the module's channel is set, or the channel as configured",
                "format 5 is binary and goes with frame 4C only; formats 1 to 4 are ASCII",
            ],
        ));
    }
    let digits = after_control(link.format, bytes)?;
    if let Some(other) = other_frame(link.frame, digits) {
        return Some(found(
            "wrong_frame",
            format!("{came}: a reply in frame {other}, and frame {frame} is configured"),
            &["set protocol in [link] to the frame that the device answers in"],
        ));
    }
    let other = station(link.frame, digits).filter(|other| *other != link.route.station)?;
    let own = link.route.station;
    Some(found(
        "wrong_unit",
        format!("{came}: a reply from station {other}, and station {own} was asked"),
        &[
            "set station in [link] as the module's station number switch is set",
            "on a line with several stations each number is there once only",
        ],
    ))
}

fn unsound(link: &C24Link, why: &str, came: &str) -> Diagnosis {
    if why.contains("the sum is") {
        return found(
            "check_sum",
            format!("{came}: a whole reply, and {why}"),
            &[
                "the module sends a sum as well: bytes are falsified on the way: cable, shield, termination, baud rate",
                "two masters that talk at the same time disturb like that",
            ],
        );
    }
    Diagnosis {
        code: "garbage",
        text: format!(
            "{}: {came}: no reply in {} at {}: {why}",
            link.way.address(),
            asked(link),
            diagnose_line::settings(&link.way)
        ),
        mend: look_at(link),
    }
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
#[path = "diagnose_c24_tests.rs"]
mod tests;
