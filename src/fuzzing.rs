//! Owns: one function for each family of decoders: bytes in, and what must hold of them whatever they are.
//! May call: the doors that other rooms have for this; core, and the public readers of every room.
//! Never: be part of a release; reach a file, a socket or a clock.
//!
//! The first byte of an input chooses within the family. An input that breaks something panics.

mod wires;

use crate::api::request::parse_request;
use crate::api::types::{parse_duration_ms, parse_time, show_duration_ms};
use crate::core::event::{digest, to_json};
use crate::core::intent::parse_number;
use crate::core::melsec::{Device, Family};
use crate::core::place::parse_place;
use crate::core::wire::{Notation, from_json};
use crate::simulator::SimulatorSpec;
use crate::upstream::ack::AckMessage;
use crate::upstream::broker::BrokerUrl;
use crate::upstream::topic::TopicTemplate;
use crate::{config, journal, receiver, sink};

pub use wires::{c24, melsec, modbus, not_understood, requests};

/// A target by its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus.
pub const TARGETS: [Target; 7] = [
    ("journal", journal),
    ("modbus", modbus),
    ("melsec", melsec),
    ("c24", c24),
    ("requests", requests),
    ("config", config),
    ("bodies", bodies),
];

/// Frames, records, manifest and high-water mark of the journal.
pub fn journal(data: &[u8]) {
    let [choice, rest @ ..] = data else { return };
    match choice % 8 {
        0 => journal::fuzz::raw_frame(rest),
        1 => {
            if let [kind, body @ ..] = rest {
                journal::fuzz::framed(kind % 13, body);
            }
        }
        2 => journal::fuzz::manifest(rest),
        3 => journal::fuzz::high_water(rest),
        _ => journal::fuzz::records(rest),
    }
}

/// Files that people write, and places as they type them.
pub fn config(data: &[u8]) {
    let [choice, rest @ ..] = data else { return };
    let text = String::from_utf8_lossy(rest);
    match choice % 8 {
        0 => config::fuzz::gateway(rest),
        1 | 2 => config::fuzz::machine(rest),
        3 => config::fuzz::receiver(rest),
        4 => config::fuzz::board(rest),
        5 => drop(SimulatorSpec::from_toml(&text)),
        6 => places(&text),
        _ => scalars(&text),
    }
}

/// A place is shown as it is typed, and one that is typed lies within its table.
fn places(text: &str) {
    for link in wires::links() {
        let Ok(found) = parse_place(&link, text) else {
            continue;
        };
        let last = found
            .address
            .plus(u32::from(found.data_type.registers()) - 1);
        assert!(last.is_some(), "{text:?} goes past the last place");
        let shown = found.address.to_string();
        let again = parse_place(&link, &shown).map(|again| again.address);
        assert_eq!(again, Ok(found.address), "{text:?} is shown as {shown:?}");
    }
    for family in [Family::Q, Family::L, Family::IqR, Family::Fx5] {
        if let Ok((device, number)) = Device::parse(text, family) {
            let shown = device.place(number);
            assert_eq!(
                Device::parse(&shown, family),
                Ok((device, number)),
                "{text:?}"
            );
        }
    }
}

/// Numbers, durations, times, URLs, topics.
fn scalars(text: &str) {
    if let Some(number) = parse_number(text) {
        assert_eq!(parse_number(&number.to_string()), Some(number), "{text:?}");
    }
    if let Some(ms) = parse_duration_ms(text) {
        assert_eq!(
            parse_duration_ms(&show_duration_ms(ms)),
            Some(ms),
            "{text:?}"
        );
    }
    let _ = parse_time(text);
    config::fuzz::url(text);
    let _ = BrokerUrl::parse(text);
    let topic = TopicTemplate::new(text);
    if topic.check().is_ok() && topic.names_gateway() {
        let filled = topic.fill("gw", "press-1", "piece.good");
        assert_eq!(
            topic.gateway_of(&filled),
            Some("gw"),
            "{text:?} is {filled:?}"
        );
    }
}

/// What comes over HTTP and from a broker.
pub fn bodies(data: &[u8]) {
    let [choice, rest @ ..] = data else { return };
    match choice % 8 {
        0 | 1 => drop(parse_request(rest)),
        2 => receiver::fuzz::ingest(rest, Notation::Native),
        3 => receiver::fuzz::ingest(rest, Notation::CloudEvents),
        4 if *choice < 0x80 => events(&String::from_utf8_lossy(rest)),
        // A digest that fits is not found by chance.
        4 => {
            if let Ok(event) = postcard::from_bytes(rest) {
                events(&to_json(&event));
            }
        }
        5 => answers(rest),
        6 => {
            if let [correlation, payload @ ..] = rest {
                sink::mqtt::fuzz::acknowledgement(*correlation, payload);
            }
        }
        _ => acknowledgement(rest),
    }
}

/// An event that was read is written and read again as the same.
fn events(text: &str) {
    for notation in [Notation::Native, Notation::CloudEvents] {
        if let Ok(event) = from_json(text, notation) {
            let again = from_json(&to_json(&event), Notation::Native);
            let again = again.expect("what is written can be read");
            assert_eq!((&again.key, digest(&again)), (&event.key, digest(&event)));
        }
    }
}

fn answers(data: &[u8]) {
    const STATUS: [u16; 8] = [200, 200, 409, 413, 422, 429, 503, 204];
    let [choice, rest @ ..] = data else { return };
    let status = STATUS[usize::from(choice % 8)];
    let (head, body) = match choice & 0x40 {
        0 => (None, rest),
        _ => {
            let at = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
            let head = String::from_utf8_lossy(&rest[..at]).into_owned();
            (Some(head), rest.get(at + 1..).unwrap_or_default())
        }
    };
    sink::http::fuzz::answer(status, head, choice & 0x80 != 0, body);
}

/// An acknowledgement keeps its verdict on the way.
fn acknowledgement(bytes: &[u8]) {
    let Ok(message) = serde_json::from_slice::<AckMessage>(bytes) else {
        return;
    };
    let (key, digest) = (message.key.clone(), message.digest.clone());
    let Some(verdict) = message.verdict() else {
        return;
    };
    let sent = AckMessage::of(&key, digest, &verdict);
    let text = serde_json::to_string(&sent).expect("it is text and numbers");
    let again: AckMessage = serde_json::from_str(&text).expect("what is written can be read");
    assert_eq!(again, sent);
    assert_eq!(again.verdict(), Some(verdict));
}
