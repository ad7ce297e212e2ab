//! Owns: what people ask of sinks: settling dead letters, trying again, going back.
//! May call: the gate, the engine's inbox, the sink tasks, the journal's reader.
//! Never: drop, mend or send again without a record of who and why.

use super::backend::Gate;
use super::engine::Message;
use super::sink_task::{Resend, SinkErrand};
use crate::api::backend::{RewindTo, Settlement, SinkAct};
use crate::core::gateway::{CORRECTION, Correction, Refusal};
use crate::core::ids::EventKey;
use crate::core::intent::InvalidArgument;
use crate::core::lifecycle::Actor;
use crate::core::record::{DeadLetter, Position, Record};
use crate::journal::{ReadError, Reader};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Longest wait for a sink's answer to what a person asks, in milliseconds.
const ERRAND_MS_MAX: u64 = 20_000;
/// Events looked at in one step, and their bytes.
const LOOK_EVENTS_MAX: usize = 1_000;
const LOOK_BYTES_MAX: usize = 1 << 20;

fn invalid(field: &str, found: impl Into<String>, expected: &str) -> Refusal {
    Refusal::InvalidArgument(InvalidArgument {
        field: field.into(),
        found: found.into(),
        expected: expected.into(),
    })
}

impl Gate {
    fn errands(&self, sink: &str) -> Result<&mpsc::Sender<SinkErrand>, Refusal> {
        let mut sinks = self.inner().sinks.iter();
        let found = sinks.find(|(shared, _)| shared.name == sink);
        let found = found.map(|(_, errands)| errands);
        found.ok_or_else(|| invalid("sink", format!("{sink:?}"), "the name of a configured sink"))
    }

    async fn run_errand<T>(
        &self,
        sink: &str,
        errand: impl FnOnce(oneshot::Sender<T>) -> SinkErrand,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            self.errands(sink)?
                .send(errand(reply))
                .await
                .map_err(|_| Refusal::Stopping)?;
            answer.await.map_err(|_| Refusal::Stopping)
        };
        let limit = Duration::from_millis(ERRAND_MS_MAX);
        tokio::time::timeout(limit, asked)
            .await
            .unwrap_or_else(|_| {
                let found = format!("{sink:?} has not answered yet");
                let expected = "an answer in time; what comes of it is not known yet, and may still be done: \
                                look again";
                Err(invalid("sink", found, expected))
            })
    }

    pub(super) async fn keep_record(&self, record: Record) -> Result<(), Refusal> {
        let kept = self.ask(|reply| Message::Keep(Box::new(record), reply));
        kept.await.ok_or(Refusal::Stopping)
    }

    /// In recovery mode nothing can be written down, so nothing is settled or sent again.
    fn may_record(&self) -> Result<(), Refusal> {
        if self.inner().recovery {
            return Err(Refusal::RecoveryMode);
        }
        Ok(())
    }

    pub(super) async fn settle(
        &self,
        sink: String,
        key: EventKey,
        how: Settlement,
        reason: String,
        actor: Actor,
    ) -> Result<Option<EventKey>, Refusal> {
        self.errands(&sink)?;
        self.may_record()?;
        let wanted = (sink.clone(), key.clone());
        let letter = self
            .read(move |reader| reader.dead_letter(&wanted.0, &wanted.1))
            .await
            .map_err(|error| Refusal::StoreUnavailable(error.to_string()))?;
        let expected = "the key of a dead letter of this sink";
        let letter = letter.ok_or_else(|| invalid("key", key.to_string(), expected))?;
        if reason.trim().is_empty() && how != Settlement::Resend {
            return Err(invalid(
                "reason",
                "nothing",
                "why, for those who read it later",
            ));
        }
        match how {
            Settlement::Resend => {
                let letter = Box::new(letter);
                let asked = Resend {
                    letter,
                    actor,
                    reason,
                };
                let taken = self.run_errand(&sink, |reply| SinkErrand::Resend(asked, reply));
                taken
                    .await?
                    .map_err(|why| invalid("key", why, "an event that the sink takes"))?;
            }
            Settlement::Drop => {
                let how = "dropped".to_owned();
                let record = Record::DeadLetterSettled {
                    sink,
                    key,
                    how,
                    actor,
                    reason,
                };
                self.keep_record(record).await?;
            }
            Settlement::Mend { body, qty } => {
                return self.mend(letter, body, qty, reason, actor).await.map(Some);
            }
        }
        Ok(None)
    }

    async fn mend(
        &self,
        letter: DeadLetter,
        body: serde_json::Value,
        qty: Option<i64>,
        reason: String,
        actor: Actor,
    ) -> Result<EventKey, Refusal> {
        // What a malformed event had is in no books; a conflict's key already counts with something there.
        let qty = match (qty, letter.status.as_str()) {
            (Some(qty), _) => qty,
            (None, "malformed") => letter.event.qty,
            (None, _) => {
                let expected = "how many are to be counted beside what the sink already holds under this key; 0 for none";
                return Err(invalid("qty", "nothing", expected));
            }
        };
        let letter_key = letter.event.key.to_string();
        let correction = Box::new(Correction {
            letter,
            body,
            qty,
            reason,
            actor,
        });
        let key = self.ask(|reply| Message::Correct(correction, reply)).await;
        key.ok_or(Refusal::Stopping)?.ok_or_else(|| {
            let expected = "a dead letter that still stands: this one was settled meanwhile";
            invalid("key", letter_key, expected)
        })
    }

    pub(super) async fn act_on(
        &self,
        sink: String,
        act: SinkAct,
        reason: String,
        actor: Actor,
    ) -> Result<String, Refusal> {
        self.errands(&sink)?;
        self.may_record()?;
        let audit = |action: String, result: String| Record::Audit {
            actor: actor.clone(),
            action,
            result,
        };
        match act {
            SinkAct::Resume => {
                let record = audit(
                    format!("resume sink {sink}: {reason}"),
                    "tried again".into(),
                );
                self.keep_record(record).await?;
                let was = self.run_errand(&sink, SinkErrand::Resume).await?;
                Ok(format!("tried again now; it was: {was}"))
            }
            SinkAct::Rewind(to) => {
                let place = self.place_of(&to).await?;
                self.nothing_mended_behind(&sink, place).await?;
                let words = match &to {
                    RewindTo::Key(key) => key.to_string(),
                    RewindTo::Time(us) => crate::core::event::rfc3339(*us),
                };
                // On record first: a rewind that is not done harms nobody, one without a record does.
                let action = format!("rewind sink {sink} to {words}: {reason}");
                self.keep_record(audit(action, "asked for".into())).await?;
                let went = self.run_errand(&sink, |reply| SinkErrand::Rewind(place, reply));
                let events = went
                    .await?
                    .map_err(|why| invalid("to", why, "an event that this sink has finished"))?;
                // The journal takes messages in their order: once this is durable the cursor is, too.
                let result = match events {
                    1 => "1 event is sent again".to_owned(),
                    _ => format!("{events} events are sent again"),
                };
                self.keep_record(audit(format!("rewind sink {sink}"), result.clone()))
                    .await?;
                Ok(result)
            }
        }
    }

    /// An event whose content was mended has its correction in the books: sent again and taken this time, it would
    /// count beside it.
    async fn nothing_mended_behind(&self, sink: &str, place: Position) -> Result<(), Refusal> {
        let sink = sink.to_owned();
        let mended = self.read(move |reader| mended_behind(reader, &sink, place));
        let mended = mended
            .await
            .map_err(|error| Refusal::StoreUnavailable(error.to_string()))?;
        let Some((event, correction)) = mended else {
            return Ok(());
        };
        let expected = format!(
            "a place behind {event}: correction {correction} stands for it, and it would count beside that"
        );
        Err(invalid("to", "a place before a mended event", &expected))
    }

    /// The place before the first event that is to be sent again.
    async fn place_of(&self, to: &RewindTo) -> Result<Position, Refusal> {
        let wanted = to.clone();
        let found = self.read(move |reader| match wanted {
            RewindTo::Key(key) => reader.position_of(&key),
            RewindTo::Time(wall_us) => reader.place_before(wall_us).map(Some),
        });
        let found = found
            .await
            .map_err(|error| Refusal::StoreUnavailable(error.to_string()))?;
        let expected =
            "an event that the journal still keeps ([journal] keep_events says for how long)";
        match (to, found) {
            (RewindTo::Key(key), None) => Err(invalid("to", key.to_string(), expected)),
            (RewindTo::Key(_), Some(at)) => Ok(before(at)),
            (RewindTo::Time(_), found) => Ok(found.unwrap_or_default()),
        }
    }
}

/// The last event behind `place` that was mended for `sink`, and the correction's key.
fn mended_behind(
    reader: &Reader,
    sink: &str,
    place: Position,
) -> Result<Option<(String, String)>, ReadError> {
    let (mut at, mut last) = (place, None);
    loop {
        let page = reader.events(at, LOOK_EVENTS_MAX, LOOK_BYTES_MAX)?;
        let Some((end, _, _)) = page.last() else {
            return Ok(last);
        };
        at = *end;
        for (_, event, _) in &page {
            if event.event_type != CORRECTION {
                continue;
            }
            let said: serde_json::Value = serde_json::from_str(&event.body).unwrap_or_default();
            let Some(corrects) = said["corrects"].as_str().filter(|_| said["sink"] == sink) else {
                continue;
            };
            let mended = EventKey::parse(corrects).map(|key| reader.position_of(&key));
            if let Some(Some(mended)) = mended.transpose()?
                && mended > place
            {
                last = Some((corrects.to_owned(), event.key.to_string()));
            }
        }
    }
}

/// The place before `at`.
fn before(at: Position) -> Position {
    match at.index.checked_sub(1) {
        Some(index) => Position { no: at.no, index },
        None => Position {
            no: crate::core::ids::CommitNo(at.no.0.saturating_sub(1)),
            index: u32::MAX,
        },
    }
}
