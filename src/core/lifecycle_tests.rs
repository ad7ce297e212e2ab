//! Owns: the words of the lifecycle: what people and the API are told of every reason, state and proof.
//! May call: lifecycle, ids, spec.
//! Never: decide what a state may become; that table is beside it.

use super::contract::{DeviceCode, MailboxEcho, Reply};
use super::ids::{BootId, OperationId};
use super::lifecycle::*;
use super::spec::Value;
use super::time::Now;

fn now() -> Now {
    Now {
        boot_id: BootId([1; 16]),
        boottime_ns: 1,
        wall_us: 1,
        wall_trusted: true,
    }
}

fn code() -> DeviceCode {
    DeviceCode {
        family: "modbus".into(),
        code: 2,
        meaning: "illegal data address".into(),
    }
}

// covers: CMD-07
#[test]
fn who_did_it_is_said_by_kind_and_name() {
    let uid = Actor::Uid {
        uid: 1000,
        gids: vec![4],
    };
    for (actor, says) in [
        (uid, "uid:1000"),
        (Actor::Token("mes".into()), "token:mes"),
        (Actor::Certificate("hmi".into()), "cert:hmi"),
        (Actor::Gateway, "gateway"),
    ] {
        assert_eq!(actor.to_string(), says);
    }
}

// covers: POL-04, POL-05, POL-06, POL-07
#[test]
fn every_reason_has_a_code_and_names_what_was_found_and_expected() {
    let held = |reason: HeldReason| (RejectReason::Gate(reason.clone()), reason);
    let (mode, of_mode) = held(HeldReason::ModeNotAllowed { found: 3 });
    let (version, of_version) = held(HeldReason::VersionConflict {
        expected: 7,
        found: 8,
    });
    let (identity, of_identity) = held(HeldReason::IdentityMismatch {
        expected: "4711".into(),
        found: "4712".into(),
    });
    for (reason, code, says) in [
        (RejectReason::Disconnected, "disconnected", "never waits"),
        (
            RejectReason::QueueFull { limit: 5 },
            "queue_full",
            "5 of this command",
        ),
        (RejectReason::NotQueueable, "not_queueable", "may not wait"),
        (
            RejectReason::NotDelivered,
            "not_delivered",
            "could not be delivered",
        ),
        (
            RejectReason::OutsideReplayWindow,
            "outside_replay_window",
            "replay window",
        ),
        (
            RejectReason::ReplaceRefused { why: "gone".into() },
            "replace_refused",
            "gone",
        ),
        (
            RejectReason::MachineReadOnly,
            "machine_read_only",
            "read_only",
        ),
        (mode, "mode_not_allowed", "mode 3"),
        (
            version,
            "version_conflict",
            "version 8, this was meant for version 7",
        ),
        (identity, "identity_mismatch", "is 4712, configured is 4711"),
    ] {
        assert_eq!(reason.code(), code);
        assert!(reason.to_string().contains(says), "{reason}");
    }
    assert_eq!(of_mode.code(), "mode_not_allowed");
    assert_eq!(of_version.code(), "version_conflict");
    assert_eq!(of_identity.code(), "identity_mismatch");
    for (reason, code, says) in [
        (
            HeldReason::Quality { why: "torn".into() },
            "bad_quality",
            "torn",
        ),
        (
            HeldReason::Interlock {
                name: "door".into(),
            },
            "interlock_open",
            "door",
        ),
        (
            HeldReason::PermissionLost,
            "permission_lost",
            "may no longer",
        ),
        (
            HeldReason::ValidityUnprovable,
            "validity_unprovable",
            "no trusted clock",
        ),
        (
            HeldReason::ConfigurationChanged {
                why: "no such row".into(),
            },
            "configuration_changed",
            "no such row",
        ),
    ] {
        assert_eq!(reason.code(), code);
        assert!(reason.to_string().contains(says), "{reason}");
    }
}

// covers: ST-04, SEND-03, SEND-04, REC-02
#[test]
fn every_doubt_says_what_it_rests_on() {
    for (reason, says) in [
        (UnknownReason::Restart, "the gateway stopped"),
        (
            UnknownReason::PartlySent { sent: 3, total: 12 },
            "after 3 of 12 bytes",
        ),
        (
            UnknownReason::NoReply {
                why: "400 ms".into(),
            },
            "no matching reply: 400 ms",
        ),
        (
            UnknownReason::UnclearCode(code()),
            "modbus 0x02 (illegal data address)",
        ),
        (
            UnknownReason::CompletionTimeout,
            "did not report completion in time",
        ),
        (UnknownReason::Unconfirmable, "broadcast"),
        (UnknownReason::DeviceRestart, "restarted before it reported"),
    ] {
        assert!(reason.to_string().contains(says), "{reason}");
        assert_eq!(
            State::OutcomeUnknown(reason.clone()).reason(),
            reason.to_string()
        );
        assert_eq!(State::OutcomeUnknown(reason).evidence(), None);
    }
}

// covers: ST-01, CMD-07
#[test]
fn every_state_says_why_and_what_proves_it() {
    let evidence = Evidence::from_operator(&Actor::Gateway, "seen", now());
    let id = OperationId::parse("OP8").unwrap();
    let values = vec![("speed".to_owned(), Value::Int(5))];
    let done = Completion::new(evidence.clone(), values.clone());
    assert_eq!(done.values(), values);
    let held = HeldReason::PermissionLost;
    let unproven = [
        (State::Queued, String::new()),
        (State::Held(held.clone()), held.to_string()),
        (
            State::Rejected(RejectReason::NotQueueable),
            RejectReason::NotQueueable.to_string(),
        ),
        (
            State::Expired,
            "its validity ended before it could be sent".into(),
        ),
        (
            State::Cancelled { by: Actor::Gateway },
            "cancelled by gateway".into(),
        ),
        (
            State::Superseded { by: id.clone() },
            "OP8 took its place".into(),
        ),
    ];
    for (state, says) in unproven {
        assert_eq!((state.reason(), state.evidence()), (says, None));
        assert_eq!(state.family().name(), "not_sent");
    }
    let accepted = State::Accepted { since: now() };
    assert!(accepted.reason().contains("completion is not reported"));
    assert_eq!(
        (accepted.evidence(), accepted.family().name()),
        (None, "in_doubt")
    );
    let failed = State::Failed {
        code: code(),
        evidence: evidence.clone(),
    };
    assert_eq!(
        failed.reason(),
        "the device refused it: modbus 0x02 (illegal data address)"
    );
    let compensated = State::Compensated {
        by_operation: Some(id),
        evidence: evidence.clone(),
    };
    let denied = State::NotExecuted {
        evidence: evidence.clone(),
    };
    for state in [State::Completed(done), denied, compensated] {
        assert_eq!(state.reason(), "gateway: seen");
        assert_eq!(state.evidence(), Some(&evidence));
        assert_eq!(state.family().name(), "known");
    }
    assert_eq!(failed.evidence(), Some(&evidence));
}

// covers: VER-03, SEND-05
#[test]
fn every_proof_names_its_method_and_what_the_device_said() {
    let echo = MailboxEcho {
        request_id: 41,
        result: 5,
        effect_counter: 17,
    };
    let reply = |reply: Reply, late| Evidence::from_reply(&reply, now(), late);
    let read = Reply::Values(vec![("a".into(), Value::Int(1))]);
    for (proof, method, says) in [
        (reply(Reply::WriteEcho, false), "reply", "echoed the write"),
        (
            reply(Reply::WriteEcho, true),
            "late_reply",
            "echoed the write",
        ),
        (
            reply(Reply::Confirmed { by: "STOP".into() }, false),
            "reply",
            "STOP",
        ),
        (reply(read, false), "reply", "1 value(s) read"),
        (
            reply(Reply::Mailbox(echo), true),
            "mailbox",
            "request 41, result 5, effect counter 17",
        ),
        (
            Evidence::never_taken(41, 42, now()),
            "mailbox",
            "never took request 41, and has since done 42",
        ),
        (
            Evidence::from_done(41, 5, false, now()),
            "query",
            "request 41 finished with result 5",
        ),
        (
            Evidence::from_done(41, 5, true, now()),
            "event",
            "request 41 finished with result 5",
        ),
        (
            Evidence::from_operator(&Actor::Gateway, "seen", now()),
            "operator",
            "gateway: seen",
        ),
        (
            Evidence::of_refusal(&code(), Method::Reply, now()),
            "reply",
            "the device refused: modbus 0x02 (illegal data address)",
        ),
    ] {
        assert_eq!(proof.method().name(), method);
        assert!(proof.detail().contains(says), "{}", proof.detail());
        assert_eq!(proof.at(), &now());
    }
}
