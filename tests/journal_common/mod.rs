//! What the journal's tests and its benchmark share: making blocks and opening journals.
#![allow(dead_code)]

use holdfast::core::ids::{BootId, CommitNo, Epoch, EventKey, OperationId, Sequence};
use holdfast::core::intent::{Digest, Intent};
use holdfast::core::lifecycle::{Actor, RejectReason, Source, State};
use holdfast::core::record::{Block, EventRecord, Links, Operation, Record, Transition};
use holdfast::core::spec::{Class, EventClass, Quality};
use holdfast::core::time::Now;
use holdfast::journal::{Journal, Opened, Options, Recovered, open};
use std::path::Path;
use std::time::Duration;

pub(crate) const HOUR_US: i64 = 3_600_000_000;
pub(crate) const BASE_US: i64 = 1_790_000_000_000_000;

pub(crate) fn now_at(wall_us: i64) -> Now {
    Now {
        boot_id: BootId([7; 16]),
        boottime_ns: 5_000_000_000,
        wall_us,
        wall_trusted: true,
    }
}

pub(crate) fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        budget_bytes: 1 << 30,
        gateway: "gw".into(),
        now: now_at(BASE_US),
        build_wall_us: BASE_US - HOUR_US,
        machine_id: "m1".into(),
        open_timeout: Duration::from_millis(4_000),
    }
}

pub(crate) fn normal(dir: &Path) -> (Journal, Recovered) {
    match open(options(dir)).unwrap() {
        Opened::Normal(journal, recovered) => (*journal, recovered),
        Opened::Recovery(_, recovered) => panic!("damaged: {:?}", recovered.findings),
    }
}

pub(crate) fn event(epoch: Epoch, sequence: u64, body_bytes: usize) -> Record {
    Record::Event(EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch,
            sequence: Sequence(sequence),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: BASE_US,
        boottime_ns: 1,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: body(sequence, body_bytes),
        unsynchronised: None,
    })
}

/// The number, padded on the left.
pub(crate) fn body(sequence: u64, bytes: usize) -> String {
    let digits = sequence.to_string();
    "0".repeat(bytes.saturating_sub(digits.len())) + &digits
}

pub(crate) fn operation(id: &str, no: u64, state: State, wall_us: i64) -> Operation {
    let at = now_at(wall_us);
    Operation {
        id: OperationId::parse(id).unwrap(),
        intent: Intent {
            machine: "press-1".into(),
            command: "start".into(),
            args: Vec::new(),
            expected_config_version: None,
            ttl_ms: 1000,
            issued_at_us: None,
            replaces: None,
        },
        digest: Digest {
            encoding: 1,
            length: 9,
            sha256: [3; 32],
        },
        class: Class::RelativeAction,
        history_dropped: 0,
        history: vec![Transition {
            from: None,
            to: state.name().into(),
            at,
            source: Source::Api,
            actor: Actor::Gateway,
            attempt: None,
            detail: String::new(),
        }],
        state,
        actor: Actor::Gateway,
        created: at,
        submitted: CommitNo(no),
        deadline: None,
        replay_until_us: wall_us,
        disconnected_at: None,
        version_found: None,
        result_id: None,
        superseded_count: 0,
        links: Links::default(),
        request_id: None,
        device_boot: None,
        waived: None,
        busy_count: 0,
        attempts: Vec::new(),
        findings: Vec::new(),
    }
}

pub(crate) fn waiting(id: &str, no: u64) -> Record {
    Record::Operation(Box::new(operation(id, no, State::Queued, BASE_US)))
}
pub(crate) fn ended(id: &str, no: u64) -> Record {
    let state = State::Rejected(RejectReason::Disconnected);
    Record::Operation(Box::new(operation(id, no, state, BASE_US)))
}

pub(crate) fn block(epoch: Epoch, no: u64, records: Vec<Record>) -> Block {
    Block {
        no: CommitNo(no),
        epoch,
        at: now_at(BASE_US),
        records,
    }
}

/// One block of `n` events of `bytes` bytes, numbered from `first`.
pub(crate) fn events(epoch: Epoch, no: u64, first: u64, n: u64, bytes: usize) -> Block {
    let records = (first..first + n).map(|s| event(epoch, s, bytes)).collect();
    block(epoch, no, records)
}
