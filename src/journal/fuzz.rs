//! Owns: what must hold of the journal's decoders, whatever bytes they are given, for proofs.
//! May call: frame, files of this room; core's records.
//! Never: be part of a release; touch a file.

use super::files::{self, HighWater};
use super::frame::{self, Facts, HEAD_BYTES};
use crate::core::record::{
    Block, CursorRecord, DeadLetter, MachineRecord, Operation, ShedRecord, SinkRecord,
    SourceRecord, Tombstone,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of a frame, as they came.
pub(crate) fn raw_frame(bytes: &[u8]) {
    let Ok((head, body)) = frame::decode(bytes) else {
        return;
    };
    assert!(HEAD_BYTES + body.len() <= bytes.len() && head.len as usize == body.len());
    framed(head.kind as u8, body);
}

/// A body in a frame: it comes back as it went, and no part of it alone is a frame.
pub(crate) fn framed(kind: u8, body: &[u8]) {
    let Some(kind) = frame::Kind::from_byte(kind) else {
        return;
    };
    let facts = Facts {
        kind,
        no: body.len() as u64,
        wall_us: -1,
        events: 3,
        chain: frame::chain(7, body),
    };
    let frames = frame::encode(facts, body).expect("no input is so long");
    let mut joined = Vec::new();
    for one in &frames {
        let (head, part) = frame::decode(one).expect("what was encoded can be decoded");
        assert_eq!((head.kind, head.no, head.wall_us), (kind, facts.no, -1));
        assert_eq!((head.events, head.chain), (3, facts.chain));
        assert!(
            frame::decode(&one[..one.len() - 1]).is_err(),
            "a cut frame is taken"
        );
        joined.extend_from_slice(part);
    }
    assert_eq!(joined, body);
}

/// A body as each of the records that it could be.
pub(crate) fn records(body: &[u8]) {
    record::<Block>(body);
    record::<Operation>(body);
    record::<Tombstone>(body);
    record::<MachineRecord>(body);
    record::<CursorRecord>(body);
    record::<DeadLetter>(body);
    record::<SourceRecord>(body);
    record::<SinkRecord>(body);
    record::<ShedRecord>(body);
}

/// What can be read is written and read again as the same.
fn record<T: Serialize + DeserializeOwned>(body: &[u8]) {
    let Ok(value) = postcard::from_bytes::<T>(body) else {
        return;
    };
    let written = postcard::to_stdvec(&value).expect("what was read can be written");
    let again: T = postcard::from_bytes(&written).expect("what was written can be read");
    let twice = postcard::to_stdvec(&again).expect("what was read can be written");
    assert_eq!(written, twice);
}

/// The text of a manifest, as it came.
pub(crate) fn manifest(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let read = files::parse_manifest(&text);
    let crc = crc32fast::hash(text.as_bytes());
    let sound = files::parse_manifest(&format!("{text}crc {crc:08x}\n"));
    for found in [read, sound] {
        assert_ne!(found, Some(files::Manifest::Missing));
    }
    let generation = bytes.iter().fold(0_u64, |all, b| all << 8 | u64::from(*b));
    let written = files::manifest_text(generation);
    let expected = files::Manifest::Generation(generation);
    assert_eq!(files::parse_manifest(&written), Some(expected));
}

/// The high-water file, as it came.
pub(crate) fn high_water(bytes: &[u8]) {
    assert!(files::slots(bytes).count() <= 2);
    let number = |at: usize| {
        let eight = bytes.get(at..).and_then(|rest| rest.first_chunk());
        u64::from_le_bytes(eight.copied().unwrap_or_default())
    };
    let mark = HighWater {
        no: number(0),
        epoch: number(8),
        chain: number(16) as u32,
    };
    let slot = files::slot(number(24), mark);
    let found: Vec<_> = files::slots(&slot).collect();
    assert_eq!(found, [(number(24), mark)]);
    for at in 0..slot.len() {
        let mut bad = slot.clone();
        bad[at] ^= 1;
        assert_eq!(files::slots(&bad).count(), 0, "byte {at} altered unseen");
    }
}
