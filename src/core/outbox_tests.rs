//! Owns: the proofs of the outbox: examples, and any order of answers, crashes and drops.
//! May call: the outbox and the types it uses.
//! Never: read a clock; time is a number here.

use super::*;
use crate::core::ids::{BootId, CommitNo, Epoch, EventKey, Sequence};
use crate::core::spec::{EventClass, Quality};
use proptest::prelude::*;

fn at(ms: u64) -> Now {
    Now {
        boot_id: BootId([1; 16]),
        boottime_ns: ms * NS_PER_MS,
        wall_us: 0,
        wall_trusted: false,
    }
}

fn place(n: u64) -> Position {
    // Commits hold other records too, so places are not dense.
    Position {
        no: CommitNo(n / 3 + 1),
        index: (n % 3) as u32 * 2,
    }
}

fn event(n: u64) -> (Position, EventRecord) {
    let record = EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(n),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 0,
        boottime_ns: 0,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: "{}".into(),
        unsynchronised: None,
    };
    (place(n), record)
}

fn log_of(range: std::ops::RangeInclusive<u64>) -> Vec<(Position, EventRecord)> {
    range.map(event).collect()
}

fn outbox(config: OutboxConfig) -> Outbox {
    let cursor = CursorRecord {
        sink: "mes".into(),
        ..CursorRecord::default()
    };
    Outbox::new(cursor, config, 1)
}

/// What a journal would offer.
fn behind<'a>(
    outbox: &Outbox,
    log: &'a [(Position, EventRecord)],
) -> &'a [(Position, EventRecord)] {
    let start = log.partition_point(|(position, _)| *position <= outbox.through());
    let end = log.len().min(start + outbox.window());
    &log[start..end]
}

fn conflict() -> Verdict {
    Verdict::Conflict {
        reason: "other quantity".into(),
        kept: Some("{\"qty\":2}".into()),
    }
}

fn malformed() -> Verdict {
    Verdict::Malformed {
        reason: "no qty".into(),
    }
}

// covers: FWD-02, FWD-03, FWD-05, F109
#[test]
fn a_batch_taken_in_part_is_settled_event_by_event() {
    let log = log_of(1..=10);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = outbox.next_batch(&at(0), &log).unwrap();
    assert_eq!(batch.events.len(), 10);
    // Six were stored, then the sink failed.
    let answers = batch.pair(vec![Verdict::Accepted; 6]);
    let progress = outbox.answered(&at(1), batch, answers);
    assert_eq!(progress.cursor.through, place(6));
    assert_eq!((progress.cursor.accepted, progress.cursor.retries), (6, 4));
    let retry_at = progress.retry_at_ns.unwrap();
    assert_eq!(
        outbox.next_batch(&at(1), behind(&outbox.clone(), &log)),
        None
    );
    // On the resend it calls two of them duplicates: they are delivered.
    let again = behind(&outbox, &log).to_vec();
    let later = at(retry_at.div_ceil(NS_PER_MS));
    let batch = outbox.next_batch(&later, &again).unwrap();
    let keys: Vec<u64> = batch.events.iter().map(|e| e.1.key.sequence.0).collect();
    assert_eq!(keys, [7, 8, 9, 10]);
    let answers = batch.pair(vec![
        Verdict::Duplicate,
        Verdict::Duplicate,
        Verdict::Accepted,
        Verdict::Accepted,
    ]);
    let progress = outbox.answered(&later, batch, answers);
    assert_eq!(progress.cursor.through, place(10));
    assert_eq!(progress.retry_at_ns, None);
    assert!(progress.cursor.sparse.is_empty());
    assert_eq!(
        (progress.cursor.accepted, progress.cursor.duplicates),
        (8, 2)
    );
    assert_eq!(outbox.attempts(), 14);
    assert_eq!(outbox.circuit(), &Circuit::Ok);
}

// covers: FWD-02, F111
#[test]
fn what_a_sink_never_takes_becomes_a_dead_letter_and_holds_up_nobody() {
    let log = log_of(1..=4);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = outbox.next_batch(&at(0), &log).unwrap();
    let answers = batch.pair(vec![
        Verdict::Accepted,
        conflict(),
        malformed(),
        Verdict::Accepted,
    ]);
    let progress = outbox.answered(&at(1), batch, answers);
    assert_eq!(progress.cursor.through, place(4));
    assert_eq!(progress.retry_at_ns, None);
    let letters: Vec<_> = progress
        .dead_letters
        .iter()
        .map(|l| {
            (
                l.event.key.sequence.0,
                &*l.status,
                &*l.reason,
                l.kept.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        letters,
        [
            (2, "conflict", "other quantity", Some("{\"qty\":2}")),
            (3, "malformed", "no qty", None)
        ]
    );
    let c = &progress.cursor;
    assert_eq!(
        (
            c.accepted,
            c.duplicates,
            c.conflicts,
            c.malformed,
            c.retries
        ),
        (2, 0, 1, 1, 0)
    );
}

// covers: F103
#[test]
fn a_sink_that_answers_nothing_moves_nothing() {
    let log = log_of(1..=3);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = outbox.next_batch(&at(0), &log).unwrap();
    let progress = outbox.answered(&at(1), batch, Vec::new());
    assert_eq!(progress.cursor.through, Position::default());
    assert_eq!(progress.cursor.retries, 3);
    assert!(progress.retry_at_ns.is_some());
}

// covers: F099
#[test]
fn after_a_clean_stop_nothing_is_sent_again() {
    let log = log_of(1..=3);
    let mut first = outbox(OutboxConfig::default());
    let batch = first.next_batch(&at(0), &log).unwrap();
    let answers = batch.pair(vec![Verdict::Accepted; 3]);
    let cursor = first.answered(&at(1), batch, answers).cursor;
    let mut second = Outbox::new(cursor, OutboxConfig::default(), 1);
    assert_eq!(
        second.next_batch(&at(2), behind(&second.clone(), &log)),
        None
    );
    assert_eq!(second.next_batch(&at(2), &log), None);
}

// covers: FWD-01, F119
#[test]
fn a_failing_sink_is_asked_ever_more_rarely_with_full_jitter_and_in_small() {
    let log = log_of(1..=50);
    let config = OutboxConfig {
        backoff_ms_min: 100,
        backoff_ms_max: 1_600,
        ..OutboxConfig::default()
    };
    let waits_of = |seed| {
        let mut outbox = Outbox::new(CursorRecord::default(), config, seed);
        let mut now_ns = 0;
        let mut waits = Vec::new();
        for try_no in 0..200 {
            let now = Now {
                boottime_ns: now_ns,
                ..at(0)
            };
            let batch = outbox.next_batch(&now, &log).unwrap();
            assert_eq!(
                batch.events.len(),
                if try_no < 2 { 50 } else { PROBE_EVENTS_MAX }
            );
            let next = outbox
                .answered(&now, batch, Vec::new())
                .retry_at_ns
                .unwrap();
            let early = Now {
                boottime_ns: next - 1,
                ..at(0)
            };
            assert_eq!(outbox.next_batch(&early, &log), None);
            waits.push((next - now_ns) / NS_PER_MS);
            now_ns = next;
        }
        assert_eq!(outbox.circuit().name(), "retrying");
        // The first success ends it: whole batches, at once.
        let now = Now {
            boottime_ns: now_ns,
            ..at(0)
        };
        let batch = outbox.next_batch(&now, &log).unwrap();
        let answers = batch.pair(vec![Verdict::Accepted]);
        assert_eq!(outbox.answered(&now, batch, answers).retry_at_ns, None);
        assert_eq!(outbox.next_batch(&now, &log).unwrap().events.len(), 49);
        waits
    };
    let waits = waits_of(1);
    for (n, wait) in waits.iter().enumerate() {
        let bound = (100 << n.min(10)).min(1_600);
        assert!((1..=bound).contains(wait), "wait {n} is {wait} ms");
    }
    let late = &waits[4..];
    assert!(late.iter().any(|w| *w < 400) && late.iter().any(|w| *w > 1_200));
    assert_eq!(waits, waits_of(1));
    assert_ne!(waits, waits_of(2));
}

#[test]
fn a_wish_of_the_sink_is_honoured_within_bounds() {
    let log = log_of(1..=1);
    for (asked, at_least) in [(5_000, 5_000), (u64::MAX, BACKOFF_MS_MAX)] {
        let mut outbox = outbox(OutboxConfig::default());
        let batch = outbox.next_batch(&at(0), &log).unwrap();
        let answers = batch.pair(vec![Verdict::Retry {
            reason: "503".into(),
            after_ms: Some(asked),
        }]);
        let next = outbox.answered(&at(0), batch, answers).retry_at_ns.unwrap();
        assert_eq!(next, at_least * NS_PER_MS);
    }
}

#[test]
fn a_success_of_what_was_sent_before_a_failure_does_not_end_the_wait() {
    let log = log_of(1..=2);
    let config = OutboxConfig {
        batch_events_max: 1,
        batches_in_flight_max: 2,
        ..OutboxConfig::default()
    };
    let mut outbox = outbox(config);
    let first = outbox.next_batch(&at(0), &log).unwrap();
    let second = outbox.next_batch(&at(0), &log).unwrap();
    assert_eq!(outbox.next_batch(&at(0), &log), None);
    let failed = outbox.answered(&at(5), second, Vec::new());
    let answers = first.pair(vec![Verdict::Accepted]);
    let progress = outbox.answered(&at(6), first, answers);
    assert_eq!(progress.retry_at_ns, failed.retry_at_ns);
    assert_eq!(progress.cursor.through, place(1));
}

#[test]
fn a_stopped_sink_is_left_alone_until_somebody_resumes_it() {
    let log = log_of(1..=2);
    let mut outbox = outbox(OutboxConfig::default());
    outbox.stop(&at(0), "permission denied for function ingest");
    assert_eq!(outbox.next_batch(&at(1_000_000), &log), None);
    assert!(
        outbox
            .circuit()
            .describe(&at(60_000))
            .contains("60 s ago: permission")
    );
    outbox.resume();
    assert!(outbox.next_batch(&at(1_000_000), &log).is_some());
}

#[test]
fn texts_from_outside_are_bounded_and_cut_between_characters() {
    let verdict = Verdict::Conflict {
        reason: "語".repeat(1_000),
        kept: Some("語".repeat(100_000)),
    };
    let letter = dead_letter("mes", event(9).1, verdict).unwrap();
    assert_eq!(letter.reason.len(), TEXT_BYTES_MAX / 3 * 3);
    assert_eq!(letter.kept.unwrap().len(), KEPT_BYTES_MAX / 3 * 3);
}

// covers: FWD-06
#[test]
fn a_dead_letter_sent_again_is_settled_only_if_the_sink_holds_the_event() {
    let mut outbox = outbox(OutboxConfig::default());
    let letter = dead_letter("mes", event(9).1, malformed()).unwrap();
    let again = outbox.resent(&letter, conflict());
    assert!(!again.settled);
    assert_eq!(again.letter.unwrap().status, "conflict");
    let later = outbox.resent(&letter, Verdict::retry("away"));
    assert_eq!((later.settled, later.letter), (false, None));
    let taken = outbox.resent(&letter, Verdict::Accepted);
    assert_eq!((taken.settled, taken.letter), (true, None));
    assert_eq!(taken.cursor.through, Position::default());
    assert_eq!(outbox.attempts(), 3);
}

#[test]
fn batches_are_bounded_by_bytes_and_one_larger_event_goes_alone() {
    let mut log = log_of(1..=4);
    log[1].1.body = "x".repeat(2_000);
    let config = OutboxConfig {
        batch_bytes_max: 1_000,
        batches_in_flight_max: 9,
        ..OutboxConfig::default()
    };
    let mut outbox = outbox(config);
    let sizes: Vec<usize> =
        std::iter::from_fn(|| outbox.next_batch(&at(0), &log).map(|b| b.events.len())).collect();
    assert_eq!(sizes, [1, 1, 2]);
}

#[test]
fn a_smaller_window_after_a_restart_cannot_starve_what_is_open() {
    let log = log_of(1..=20);
    let cursor = CursorRecord {
        sparse: (5..=20).map(place).collect(),
        ..CursorRecord::default()
    };
    let config = OutboxConfig {
        window_events_max: 2,
        ..OutboxConfig::default()
    };
    let mut outbox = Outbox::new(cursor, config, 1);
    let mut sent = Vec::new();
    while let Some(batch) = outbox.next_batch(&at(0), behind(&outbox.clone(), &log)) {
        sent.extend(batch.events.iter().map(|e| e.1.key.sequence.0));
        let answers = batch.pair(vec![Verdict::Accepted; batch.events.len()]);
        outbox.answered(&at(0), batch, answers);
    }
    assert_eq!(sent, [1, 2, 3, 4]);
    outbox.next_batch(&at(0), behind(&outbox.clone(), &log));
    for _ in 0..20 {
        outbox.next_batch(&at(0), behind(&outbox.clone(), &log));
    }
    assert_eq!(outbox.through(), place(20));
    assert!(outbox.cursor().sparse.is_empty());
}

#[test]
fn finished_events_that_the_journal_dropped_still_count_after_a_restart() {
    let mut log = log_of(1..=9);
    let cursor = CursorRecord {
        sparse: vec![place(2), place(3)],
        ..CursorRecord::default()
    };
    log.retain(|(position, _)| ![place(2), place(3)].contains(position));
    let config = OutboxConfig {
        window_events_max: 3,
        ..OutboxConfig::default()
    };
    let mut outbox = Outbox::new(cursor, config, 1);
    let batch = outbox.next_batch(&at(0), &log).unwrap();
    assert_eq!(positions(&batch), [place(1)]);
    let answers = batch.pair(vec![Verdict::Accepted]);
    outbox.answered(&at(0), batch, answers);
    assert_eq!(outbox.through(), place(3));
    let batch = outbox.next_batch(&at(0), &log).unwrap();
    assert_eq!(positions(&batch), [place(4), place(5), place(6)]);
}

// covers: F111
#[test]
fn foreign_second_and_late_answers_change_nothing() {
    let log = log_of(1..=2);
    let mut outbox = outbox(OutboxConfig::default());
    let batch = outbox.next_batch(&at(0), &log[..1]).unwrap();
    let answers = vec![
        (place(2), Verdict::Accepted),
        (place(1), Verdict::retry("busy")),
        (place(1), Verdict::Accepted),
    ];
    let progress = outbox.answered(&at(1), batch.clone(), answers);
    assert_eq!(progress.cursor.through, Position::default());
    assert_eq!(outbox.attempts(), 1);
    let late = vec![(place(1), Verdict::Accepted)];
    assert_eq!(outbox.answered(&at(2), batch, late).cursor, progress.cursor);
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    /// Which batch under way, and what is said of its events in turn; `None`: nothing.
    Answer(usize, Vec<Option<Verdict>>),
    /// The last progress was, or was not, durable.
    Crash(bool),
    Wait(u64),
    /// The journal drops its oldest telemetry.
    Drop(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        5 => Just(Some(Verdict::Accepted)),
        2 => Just(Some(Verdict::Duplicate)),
        1 => Just(Some(conflict())),
        1 => Just(Some(malformed())),
        2 => Just(Some(Verdict::retry("busy"))),
        1 => Just(None),
    ];
    let step = prop_oneof![
        6 => Just(Step::Send),
        6 => (0..4_usize, proptest::collection::vec(verdict, 1..12))
            .prop_map(|(which, said)| Step::Answer(which, said)),
        1 => any::<bool>().prop_map(Step::Crash),
        3 => (0..2_000_u64).prop_map(Step::Wait),
        1 => (1..4_u64).prop_map(Step::Drop),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The outbox beside a plain account of what was said.
struct Run {
    outbox: Outbox,
    config: OutboxConfig,
    durable: CursorRecord,
    under_way: Vec<Batch>,
    log: Vec<(Position, EventRecord)>,
    now_ms: u64,
    /// How often an answer finished each event since the last crash, and what was durable at it.
    finished: BTreeMap<Position, u32>,
    said: u64,
    letters: u64,
}

impl Run {
    fn new(config: OutboxConfig) -> Self {
        let outbox = outbox(config);
        Self {
            durable: outbox.cursor(),
            outbox,
            config,
            under_way: Vec::new(),
            log: log_of(1..=60),
            now_ms: 0,
            finished: BTreeMap::new(),
            said: 0,
            letters: 0,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send => {
                let available = behind(&self.outbox, &self.log).to_vec();
                let sent = self.outbox.next_batch(&at(self.now_ms), &available);
                self.under_way.extend(sent);
            }
            Step::Answer(which, said) => {
                if !self.under_way.is_empty() {
                    let batch = self.under_way.remove(which % self.under_way.len());
                    self.answer(batch, &said);
                }
            }
            Step::Crash(durable) => {
                if durable {
                    self.durable = self.outbox.cursor();
                }
                self.crash();
            }
            Step::Wait(ms) => self.now_ms += ms,
            Step::Drop(count) => {
                let through = self.outbox.through();
                let open: Vec<Position> = self.under_way.iter().flat_map(positions).collect();
                let mut left = count;
                self.log.retain(|(position, _)| {
                    let keep = *position <= through || left == 0 || open.contains(position);
                    left -= u64::from(!keep);
                    keep
                });
            }
        }
        self.check();
    }

    fn answer(&mut self, batch: Batch, said: &[Option<Verdict>]) {
        let places = positions(&batch);
        let mut answers: Vec<(Position, Verdict)> = Vec::new();
        for (index, position) in places.iter().enumerate() {
            self.said += 1;
            let Some(verdict) = said[index % said.len()].clone() else {
                continue;
            };
            if !matches!(verdict, Verdict::Retry { .. }) {
                *self.finished.entry(*position).or_default() += 1;
            }
            if matches!(
                verdict,
                Verdict::Conflict { .. } | Verdict::Malformed { .. }
            ) {
                self.letters += 1;
            }
            answers.push((*position, verdict));
        }
        answers.reverse();
        let before = self.outbox.cursor();
        let progress = self.outbox.answered(&at(self.now_ms), batch, answers);
        let refused = progress.cursor.conflicts + progress.cursor.malformed;
        let refused_before = before.conflicts + before.malformed;
        assert_eq!(progress.dead_letters.len() as u64, refused - refused_before);
    }

    /// All but the durable cursor is lost, and so is what was said of events behind it.
    fn crash(&mut self) {
        self.under_way.clear();
        self.outbox = Outbox::new(self.durable.clone(), self.config, 2);
        let cursor = self.durable.clone();
        self.said = self.outbox.attempts();
        self.letters = cursor.conflicts + cursor.malformed;
        self.finished
            .retain(|p, _| *p <= cursor.through || cursor.sparse.contains(p));
    }

    fn check(&self) {
        let cursor = self.outbox.cursor();
        // Every event finishes exactly once ...
        assert!(
            self.finished.values().all(|times| *times == 1),
            "{:?}",
            self.finished
        );
        // ... and the watermark and what is behind it are exactly those, never one more.
        for (position, _) in &self.log {
            let by_cursor = *position <= cursor.through || cursor.sparse.contains(position);
            assert_eq!(
                by_cursor,
                self.finished.contains_key(position),
                "{position:?}"
            );
        }
        assert!(cursor.sparse.iter().all(|p| *p > cursor.through));
        assert!(cursor.sparse.len() <= self.config.window_events_max);
        // Counters exclude each other and add up.
        assert_eq!(self.outbox.attempts(), self.said);
        assert_eq!(cursor.conflicts + cursor.malformed, self.letters);
        let finished = self.finished.len() as u64;
        let counted = cursor.accepted + cursor.duplicates + cursor.conflicts + cursor.malformed;
        assert_eq!(counted, finished);
        let under_way: usize = self.under_way.iter().map(|b| b.events.len()).sum();
        assert!(under_way <= self.config.window_events_max);
        assert!(self.under_way.len() <= self.config.batches_in_flight_max);
    }

    /// Everything healed: all that is left goes out.
    fn finish(&mut self) {
        for _ in 0..200 {
            self.now_ms += BACKOFF_MS_MAX;
            self.step(Step::Send);
            self.step(Step::Answer(0, vec![Some(Verdict::Accepted)]));
        }
        for (position, _) in &self.log {
            assert!(
                self.finished.contains_key(position),
                "{position:?} was never sent"
            );
        }
    }
}

fn positions(batch: &Batch) -> Vec<Position> {
    batch.events.iter().map(|(position, _)| *position).collect()
}

proptest! {
    // covers: FWD-01, FWD-02, FWD-03, FWD-05, F103, F109, F111
    #[test]
    fn no_order_of_answers_crashes_and_drops_loses_or_repeats_an_event(
        steps in steps(),
        batch_events_max in 1..8_usize,
        window_events_max in 1..20_usize,
        batches_in_flight_max in 1..4_usize,
    ) {
        let mut run = Run::new(OutboxConfig {
            batch_events_max,
            window_events_max,
            batches_in_flight_max,
            ..OutboxConfig::default()
        });
        for step in steps {
            run.step(step);
        }
        run.finish();
    }
}
