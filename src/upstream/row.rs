//! Owns: one delivery as the books take it.
//! May call: core types.
//! Never: re-encode a body; drop what it cannot read (it goes to the books as a dead letter, as it came).

use crate::core::event::{digest, quality_name, rfc3339, sha256_text, to_json};
use crate::core::record::EventRecord;

/// Most bytes kept of an item that cannot be read.
pub const ITEM_BYTES_MAX: usize = 1 << 20;

/// One delivery: an event, or something that was to be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The machine's or the gateway's name; empty if none came.
    pub source: String,
    /// `None`: none came.
    pub epoch: Option<i64>,
    /// `None`: none came.
    pub sequence: Option<i64>,
    /// Such as `piece.good`.
    pub event_type: String,
    /// Version of the body's shape.
    pub schema: i32,
    /// Of the fact, microseconds since 1970.
    pub time_us: i64,
    /// `good`, `uncertain`, `bad`, `stale`.
    pub quality: String,
    /// How many.
    pub qty: i64,
    /// JSON, byte for byte.
    pub body: String,
    /// See `core::event::digest`.
    pub digest: [u8; 32],
    /// JSON; there if the wall clock was not to be trusted.
    pub clock: Option<String>,
    /// Why it can never be taken, if that is known before the books see it.
    pub defect: Option<Defect>,
}

/// Why an item can never be taken, and the item as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Such as `bad_epoch`; stable.
    pub code: String,
    /// What was found, and what was expected.
    pub detail: String,
    /// As it came, at most [`ITEM_BYTES_MAX`] of it.
    pub item: Vec<u8>,
}

impl Row {
    /// The row of a recorded event.
    #[must_use]
    pub fn from_event(event: &EventRecord) -> Self {
        let mut row = Self {
            source: event.key.source.clone(),
            epoch: i64::try_from(event.key.epoch.0).ok(),
            sequence: i64::try_from(event.key.sequence.0).ok(),
            event_type: event.event_type.clone(),
            schema: i32::from(event.schema),
            time_us: event.wall_us,
            quality: quality_name(event.quality).to_owned(),
            qty: event.qty,
            body: if event.body.is_empty() {
                "null".to_owned()
            } else {
                event.body.clone()
            },
            digest: digest(event),
            clock: event.unsynchronised.map(|boot| {
                format!(
                    "{{\"synchronised\":false,\"boot_id\":\"{boot}\",\"boottime_ns\":\"{}\"}}",
                    event.boottime_ns
                )
            }),
            defect: None,
        };
        let defect = if row.epoch.is_none() {
            Some(("large_epoch", "epoch", event.key.epoch.0))
        } else if row.sequence.is_none() {
            Some(("large_sequence", "sequence", event.key.sequence.0))
        } else {
            None
        };
        if let Some((code, part, found)) = defect {
            let detail = format!("{part} is {found}; expected at most {}", i64::MAX);
            row.defect = Some(Defect::new(code, &detail, to_json(event).into_bytes()));
        } else if row.holds_nul() {
            let detail = "a text holds the character U+0000, which PostgreSQL cannot store";
            row.defect = Some(Defect::new("nul_character", detail, to_json(event).into()));
        }
        row
    }

    /// Something that was to be an event and cannot be read as one. It becomes a dead letter, and its verdict is
    /// `Malformed`.
    #[must_use]
    pub fn malformed(code: &str, detail: &str, item: impl Into<Vec<u8>>) -> Self {
        Self {
            source: String::new(),
            epoch: None,
            sequence: None,
            event_type: String::new(),
            schema: 0,
            time_us: 0,
            quality: String::new(),
            qty: 0,
            body: String::new(),
            digest: [0; 32],
            clock: None,
            defect: Some(Defect::new(code, detail, item.into())),
        }
    }

    /// The name of the row for a message: `source/epoch/sequence`, `?` for what is missing.
    #[must_use]
    pub fn name(&self) -> String {
        let number = |n: Option<i64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        let source = if self.source.is_empty() {
            "?"
        } else {
            &self.source
        };
        format!("{source}/{}/{}", number(self.epoch), number(self.sequence))
    }

    /// As JSON, its body byte for byte: for a dead letter that PostgreSQL refused as a value.
    pub(super) fn to_item(&self) -> Vec<u8> {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let number = |n: Option<i64>| n.map_or_else(|| "null".to_owned(), |n| format!("\"{n}\""));
        let clock = self.clock.as_ref();
        format!(
            "{{\"source\":{},\"epoch\":{},\"sequence\":{},\"type\":{},\"schema\":{},\"time\":\"{}\",\"quality\":{},\"qty\":{},\"body\":{},\"digest\":\"{}\"{}}}",
            text(&self.source),
            number(self.epoch),
            number(self.sequence),
            text(&self.event_type),
            self.schema,
            rfc3339(self.time_us),
            text(&self.quality),
            self.qty,
            self.body,
            sha256_text(&self.digest),
            clock.map_or_else(String::new, |clock| format!(",\"clock\":{clock}")),
        )
        .into_bytes()
    }

    fn holds_nul(&self) -> bool {
        let texts = [&self.source, &self.event_type, &self.quality, &self.body];
        texts.into_iter().any(|text| text.contains('\0'))
            || self.clock.as_ref().is_some_and(|text| text.contains('\0'))
    }
}

impl Defect {
    fn new(code: &str, detail: &str, mut item: Vec<u8>) -> Self {
        item.truncate(ITEM_BYTES_MAX);
        Self {
            code: without_nul(code),
            detail: without_nul(detail),
            item,
        }
    }
}

/// A detail may quote what came.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
