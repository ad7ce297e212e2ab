//! Owns: the sinks' tasks as the shell runs them, and the places upstream with what they took.
//! May call: core's outbox, the books.
//! Never: hand out what is not durable, or move a cursor before the sink has answered.

use super::books::{Books, print_of};
use super::chance::{Chance, Kind};
use holdfast::core::gateway::Input;
use holdfast::core::ids::{CommitNo, EventKey};
use holdfast::core::lifecycle::Actor;
use holdfast::core::outbox::{Batch, Circuit, Outbox, OutboxConfig, Verdict};
use holdfast::core::record::{CursorRecord, DeadLetter, Position, Record, SinkRecord};
use holdfast::core::time::Now;
use std::collections::HashMap;

/// A cursor that moved is saved at the latest after so long, in nanoseconds.
const CURSOR_NS: u64 = 1_000_000_000;
/// A key is malformed for the sink, as long as it is, one in so many.
const MALFORMED_ONE_IN: u64 = 23;

/// One sink's task; a crash takes it.
pub(crate) struct SinkTask {
    name: String,
    outbox: Outbox,
    saved: SinkRecord,
    under_way: Vec<Batch>,
    unsaved_ns: Option<u64>,
}

/// What one place upstream has, by key; nothing takes it.
#[derive(Default)]
pub(crate) struct Upstream {
    pub(crate) taken: HashMap<EventKey, u64>,
}

impl SinkTask {
    pub(crate) fn new(name: &str, lanes: usize, books: &Books, seed: u64) -> Self {
        let cursor = books
            .cursors
            .get(name)
            .cloned()
            .unwrap_or_else(|| CursorRecord {
                sink: name.to_owned(),
                ..CursorRecord::default()
            });
        let saved = books.sinks.get(name).cloned().unwrap_or_default();
        let config = OutboxConfig {
            batch_events_max: 8,
            window_events_max: 48,
            lanes,
            live: lanes > 1,
            ..OutboxConfig::default()
        };
        Self {
            name: name.to_owned(),
            outbox: Outbox::new(cursor, saved.clone(), config, seed),
            saved,
            under_way: Vec::new(),
            unsaved_ns: None,
        }
    }

    /// Reads what there is room for, and hands out what may go.
    pub(crate) fn send(&mut self, books: &Books, now: &Now) {
        let head = books.log.last().map_or(CommitNo(0), |block| block.no);
        self.outbox.split_if_old(now, head);
        while let Some(want) = self.outbox.want(head) {
            let (events, whole) = books.scan(want.after, want.events_max);
            self.outbox.offer(&want, events, whole.then_some(head));
        }
        self.outbox.split_if_old(now, head);
        while let Some(batch) = self.outbox.next_batch(now) {
            self.under_way.push(batch);
        }
    }

    pub(crate) fn is_split(&self) -> bool {
        self.outbox.is_split()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.under_way.len()
    }

    /// One batch that was under way is answered.
    pub(crate) fn answer(
        &mut self,
        upstream: &mut Upstream,
        books: &Books,
        chance: &mut Chance,
        now: &Now,
    ) -> Option<Input> {
        if self.under_way.is_empty() {
            return None;
        }
        let at = chance.below("sink", self.under_way.len() as u64) as usize;
        let batch = self.under_way.swap_remove(at);
        let verdicts = upstream.deliver(&batch, books, chance);
        let settled = self.settled(&batch, &verdicts, books);
        let letters = self.outbox.answered(now, batch, verdicts);
        self.unsaved_ns.get_or_insert(now.boottime_ns);
        (!letters.is_empty() || !settled.is_empty()).then(|| self.progress(letters, settled))
    }

    /// The gateway dies: what was under way arrives, or not.
    pub(crate) fn abandon(&mut self, upstream: &mut Upstream, books: &Books, chance: &mut Chance) {
        for batch in std::mem::take(&mut self.under_way) {
            if chance.one_in("sink", 2) {
                let _ = upstream.deliver(&batch, books, chance);
            }
        }
    }

    fn settled(&self, batch: &Batch, verdicts: &[Verdict], books: &Books) -> Vec<Record> {
        let events = batch.events.iter().zip(verdicts);
        let taken =
            events.filter(|(_, verdict)| matches!(verdict, Verdict::Accepted | Verdict::Duplicate));
        let keys = taken.map(|((_, event), _)| &event.key);
        keys.filter(|key| {
            books
                .letters
                .contains_key(&(self.name.clone(), (*key).clone()))
        })
        .map(|key| self.settlement(key))
        .collect()
    }

    fn settlement(&self, key: &EventKey) -> Record {
        Record::DeadLetterSettled {
            sink: self.name.clone(),
            key: key.clone(),
            how: "resent".into(),
            actor: Actor::Gateway,
            reason: "taken when it was sent again".into(),
        }
    }

    /// A dead letter is sent again.
    pub(crate) fn resend(
        &mut self,
        upstream: &mut Upstream,
        letter: &DeadLetter,
        books: &Books,
        chance: &mut Chance,
    ) -> Input {
        let batch = Batch {
            id: 0,
            lane: 0,
            sent_ns: 0,
            events: vec![(Position::default(), letter.event.clone())],
        };
        let mut verdicts = upstream.deliver(&batch, books, chance);
        let verdict = verdicts
            .pop()
            .unwrap_or_else(|| Verdict::retry("no answer"));
        let taken = matches!(verdict, Verdict::Accepted | Verdict::Duplicate);
        let again = self.outbox.resent(letter, verdict);
        let settled = taken.then(|| self.settlement(&letter.event.key));
        self.progress(again.into_iter().collect(), settled.into_iter().collect())
    }

    pub(crate) fn save_if_due(&mut self, now: &Now, at_once: bool) -> Option<Input> {
        let since = self.unsaved_ns?;
        let due = at_once || now.boottime_ns.saturating_sub(since) >= CURSOR_NS;
        due.then(|| self.progress(Vec::new(), Vec::new()))
    }

    /// A person has the sink go on, or go back.
    pub(crate) fn tend(&mut self, books: &Books, chance: &mut Chance) -> Option<Input> {
        if matches!(self.outbox.circuit(), Circuit::Stopped { .. }) {
            self.outbox.resume();
        }
        let through = self.outbox.through();
        if through.no.0 > 2 && chance.strikes(Kind::SinkRewound) {
            let no = CommitNo(chance.below("sink", through.no.0));
            let to = Position {
                no,
                index: u32::MAX,
            };
            let (behind, _) = books.scan(to, usize::MAX);
            let passed = behind.iter().filter(|(at, _)| *at <= through).count() as u64;
            self.outbox
                .rewind(to, passed + self.outbox.finished_ahead());
            return Some(self.progress(Vec::new(), Vec::new()));
        }
        None
    }

    pub(crate) fn resume(&mut self) {
        self.outbox.resume();
    }

    fn progress(&mut self, dead_letters: Vec<DeadLetter>, settled: Vec<Record>) -> Input {
        self.unsaved_ns = None;
        let (cursor, more) = self.outbox.record();
        let changed = more != self.saved;
        self.saved.clone_from(&more);
        Input::SinkProgress {
            cursor,
            more: changed.then_some(more),
            dead_letters,
            settled,
        }
    }
}

impl Upstream {
    /// What the place does with a batch, and what of its answer comes back.
    fn deliver(&mut self, batch: &Batch, books: &Books, chance: &mut Chance) -> Vec<Verdict> {
        if chance.strikes(Kind::SinkAway) {
            return Vec::new();
        }
        let stops = chance.strikes(Kind::SinkStops);
        let in_part = chance.strikes(Kind::SinkInPart);
        let some = chance.below("sink", batch.events.len() as u64 + 1) as usize;
        let most = if in_part || stops {
            some
        } else {
            batch.events.len()
        };
        let malformed = chance.strikes(Kind::SinkMalformed);
        let mut verdicts = Vec::new();
        for (_, event) in batch.events.iter().take(most) {
            let print = print_of(event);
            assert_eq!(
                books.keys.get(&event.key),
                Some(&print),
                "{} was forwarded and is not durable",
                event.key
            );
            if malformed
                && print.is_multiple_of(MALFORMED_ONE_IN)
                && !self.taken.contains_key(&event.key)
            {
                verdicts.push(Verdict::Malformed {
                    reason: "no".into(),
                });
                continue;
            }
            verdicts.push(match self.taken.insert(event.key.clone(), print) {
                None => Verdict::Accepted,
                Some(before) => {
                    assert_eq!(before, print, "key {} names two things upstream", event.key);
                    Verdict::Duplicate
                }
            });
        }
        if stops {
            verdicts.push(Verdict::Stop {
                reason: "no table".into(),
            });
        }
        if chance.strikes(Kind::SinkReplyLost) {
            return Vec::new();
        }
        verdicts
    }

    /// What it has must be durable at the gateway, whatever crashed.
    pub(crate) fn check_durable(&self, books: &Books) {
        let lost = self
            .taken
            .iter()
            .find(|(key, print)| books.keys.get(key) != Some(*print));
        assert!(
            lost.is_none(),
            "upstream has {lost:?}, and the journal has not"
        );
    }
}
