//! Owns: the proof of what finishes an event over a broker, and what does not.
//! May call: waiting.
//! Never: reach a broker.

use super::*;

fn two(receiver_answers: bool) -> Waiting {
    let events = [("a/1/1", "sha256:01"), ("a/1/2", "sha256:02")];
    Waiting::new(
        events.map(|(key, digest)| (key.to_owned(), digest.to_owned())),
        receiver_answers,
    )
}

fn ack(key: &str, digest: Option<&str>, status: &str) -> Vec<u8> {
    let message = AckMessage {
        key: key.into(),
        digest: digest.map(str::to_owned),
        status: status.into(),
        ..AckMessage::default()
    };
    serde_json::to_vec(&message).unwrap()
}

fn is_retry(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Retry { .. })
}

// covers: FWD-02
#[test]
fn a_receipt_alone_finishes_nothing_where_a_receiver_is_to_answer() {
    let mut waiting = two(true);
    waiting.receipt(0, PubAckReason::Success, None);
    waiting.receipt(1, PubAckReason::Success, None);
    assert!(!waiting.is_decided() && !waiting.is_held());
    let heard = waiting.heard(
        Some(b"a/1/2 sha256:02"),
        &ack("a/1/2", None, "duplicate"),
        false,
    );
    assert_eq!(heard, Heard::Decided);
    let verdicts = waiting.verdicts(None, 10_000);
    assert!(is_retry(&verdicts[0]), "{verdicts:?}");
    assert_eq!(verdicts[1], Verdict::Duplicate);
}

#[test]
fn without_a_receiver_the_receipt_finishes_it_and_says_when_nobody_listened() {
    let mut waiting = two(false);
    waiting.receipt(0, PubAckReason::Success, None);
    assert!(!waiting.is_decided());
    waiting.receipt(1, PubAckReason::NoMatchingSubscribers, None);
    assert!(waiting.is_decided());
    assert_eq!(waiting.unheard, 1);
    assert_eq!(
        waiting.verdicts(None, 1),
        [Verdict::Accepted, Verdict::Accepted]
    );
}

// covers: FWD-02, F117
#[test]
fn an_answer_for_another_key_or_content_or_of_no_sense_decides_nothing() {
    let mut waiting = two(true);
    let right = b"a/1/1 sha256:01".as_slice();
    for (correlation, payload, retained) in [
        (Some(right), ack("a/1/2", None, "accepted"), false),
        (
            Some(right),
            ack("a/1/1", Some("sha256:02"), "accepted"),
            false,
        ),
        (Some(right), ack("a/1/1", None, "ok"), false),
        (Some(right), ack("", None, "accepted"), false),
        (Some(right), ack("a/1/1", None, "accepted"), true),
        (Some(right), b"accepted".to_vec(), false),
        (Some(right), vec![b' '; ACK_BYTES_MAX + 1], false),
        (
            Some(b"a/1/1 sha256:ff".as_slice()),
            ack("a/1/1", None, "accepted"),
            false,
        ),
        (
            Some(b"\xff\xfe".as_slice()),
            ack("a/1/1", None, "accepted"),
            false,
        ),
        (None, ack("a/1/1", None, "accepted"), false),
        (None, ack("a/1/1", Some("sha256:02"), "accepted"), false),
        (None, ack("b/9/9", Some("sha256:01"), "accepted"), false),
    ] {
        let heard = waiting.heard(correlation, &payload, retained);
        let shown = String::from_utf8_lossy(&payload[..payload.len().min(100)]);
        assert!(matches!(heard, Heard::Nothing(_)), "{shown}");
    }
    assert_eq!(waiting.strangers, 12);
    waiting.receipt(0, PubAckReason::Success, None);
    let verdicts = waiting.verdicts(None, 10_000);
    assert!(verdicts.iter().all(is_retry));
    let Verdict::Retry { reason, .. } = &verdicts[0] else {
        unreachable!()
    };
    assert!(reason.contains("12 other message(s)"), "{reason}");
}

// covers: FWD-02
#[test]
fn the_first_answer_stands_unless_it_was_not_now() {
    let mut waiting = two(true);
    let first = b"a/1/1 sha256:01".as_slice();
    let say = |waiting: &mut Waiting, status| {
        waiting.heard(Some(first), &ack("a/1/1", None, status), false)
    };
    assert_eq!(say(&mut waiting, "retry"), Heard::Decided);
    assert_eq!(say(&mut waiting, "retry"), Heard::Again);
    assert_eq!(say(&mut waiting, "accepted"), Heard::Decided);
    assert_eq!(say(&mut waiting, "conflict"), Heard::Again);
    assert_eq!(say(&mut waiting, "retry"), Heard::Again);
    let by_digest = ack("a/1/2", Some("sha256:02"), "accepted");
    assert_eq!(waiting.heard(None, &by_digest, false), Heard::Decided);
    assert_eq!(
        waiting.verdicts(None, 1),
        [Verdict::Accepted, Verdict::Accepted]
    );
}

#[test]
fn a_message_that_the_receiver_could_not_read_is_malformed_by_its_correlation() {
    let mut waiting = two(true);
    let heard = waiting.heard(Some(b"a/1/1 sha256:01"), &ack("", None, "malformed"), false);
    assert_eq!(heard, Heard::Decided);
    assert!(matches!(
        waiting.verdicts(Some("gone"), 1)[0],
        Verdict::Malformed { .. }
    ));
}

#[test]
fn the_brokers_refusals_are_told_apart() {
    let judge = |reason, answers| {
        let mut waiting = two(answers);
        waiting.receipt(0, reason, Some("said"));
        waiting.verdicts(None, 1).swap_remove(0)
    };
    for answers in [true, false] {
        assert!(matches!(
            judge(PubAckReason::NotAuthorized, answers),
            Verdict::Stop { .. }
        ));
        assert!(matches!(
            judge(PubAckReason::TopicNameInvalid, answers),
            Verdict::Stop { .. }
        ));
        assert!(matches!(
            judge(PubAckReason::PayloadFormatInvalid, answers),
            Verdict::Malformed { .. }
        ));
        assert!(is_retry(&judge(PubAckReason::QuotaExceeded, answers)));
        assert!(is_retry(&judge(PubAckReason::UnspecifiedError, answers)));
    }
    let Verdict::Retry { reason, .. } = judge(PubAckReason::NoMatchingSubscribers, true) else {
        panic!("a receiver that is not there is waited for");
    };
    assert!(reason.contains("no receiver is there"), "{reason}");
}

// covers: F060
#[test]
fn what_may_still_be_sent_and_is_reported_as_not_sent_is_known() {
    let mut waiting = two(true);
    waiting.receipt(0, PubAckReason::Success, None);
    waiting.heard(
        Some(b"a/1/2 sha256:02"),
        &ack("a/1/2", None, "accepted"),
        false,
    );
    assert!(
        !waiting.is_held(),
        "the second is taken, whatever the client still does with it"
    );
    let mut waiting = two(true);
    waiting.receipt(0, PubAckReason::Success, None);
    assert!(waiting.is_held());
    waiting.decide(
        1,
        Verdict::Malformed {
            reason: "too large".into(),
        },
    );
    assert!(!waiting.is_held());
}
