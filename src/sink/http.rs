//! Owns: the `http` sink: batches to `holdfast receiver`, or to what speaks its contract.
//! May call: core types, `core::event` for the JSON; secret; this room's interface; link, reply.
//! Never: finish an event that no answer named with its key; give an event up for what may be the place's fault.
//!
//! # A request that is refused as a whole
//! 413, 400, 422 and a bare 409 do not say which event is at fault, so it is sought by halving, down to one.
//! That one is a dead letter only if the place takes others: another event of this delivery, or else the last
//! one it took before, sent again as a control (a duplicate changes nothing there). A place that refuses
//! everything is not refusing an event, and a person must look.

#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod link;
mod reply;

use super::{AckLevel, Delivery, Lane, Sink};
use crate::core::event::to_json;
use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};
use link::{Link, LinkError};
use reply::{Outcome, judge};
use sha2::{Digest as _, Sha256};
use std::ops::Range;
use std::path::PathBuf;
use std::time::SystemTime;

/// Most bytes of events in one request; one event larger than this goes alone.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Least bytes that requests shrink to because they were too large.
const BODY_BYTES_MIN: usize = 4 * 1024;
/// Most events in one request.
pub const BATCH_EVENTS_MAX: usize = 1_000;
/// Most requests for one delivery; what is not sent then waits for the next.
const POSTS_COUNT_MAX: usize = 256;
/// So many events refused one by one and none taken: then one from the other end of the delivery is tried, and if
/// that is refused too, it is not the events.
const SUSPECTS_COUNT_MAX: usize = 3;
/// Longest time until a connection stands, in milliseconds.
pub const CONNECT_MS_MAX: u64 = 10_000;
/// Longest time for a request and the whole of its answer, in milliseconds: more than the receiver allows itself.
pub const REPLY_MS_MAX: u64 = 45_000;

/// What is configured of an `http` sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSinkConfig {
    /// Under whose name events are sent.
    pub gateway: String,
    /// `http://` or `https://`; `/v1/events:batch` follows it.
    pub url: String,
    /// Says who this gateway is.
    pub token_file: Option<PathBuf>,
    /// Authorities to trust instead of this computer's.
    pub ca_file: Option<PathBuf>,
    /// See [`CONNECT_MS_MAX`].
    pub connect_ms_max: u64,
    /// See [`REPLY_MS_MAX`].
    pub reply_ms_max: u64,
}

impl HttpSinkConfig {
    /// Default times, no secrets.
    #[must_use]
    pub fn new(gateway: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            gateway: gateway.into(),
            url: url.into(),
            token_file: None,
            ca_file: None,
            connect_ms_max: CONNECT_MS_MAX,
            reply_ms_max: REPLY_MS_MAX,
        }
    }
}

/// The sink of `config`. It connects when the first batch is due.
#[must_use]
pub fn sink(config: HttpSinkConfig) -> Sink {
    Sink {
        kind: "http",
        ack_level: AckLevel::Committed,
        lanes: vec![Box::new(HttpLane::new(config))],
    }
}

/// An event as it is sent.
struct Item {
    key: String,
    json: String,
}

struct HttpLane {
    gateway: String,
    link: Link,
    /// See [`BODY_BYTES_MAX`]; less while the place refuses more.
    body_bytes_max: usize,
    /// The last event that was taken.
    control: Option<Item>,
    batches: u64,
    seed: [u8; 32],
}

impl HttpLane {
    fn new(config: HttpSinkConfig) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seed = format!("{} {:?} {}", config.gateway, now, std::process::id());
        Self {
            gateway: serde_json::Value::from(config.gateway.as_str()).to_string(),
            link: Link::new(config),
            body_bytes_max: BODY_BYTES_MAX,
            control: None,
            batches: 0,
            seed: Sha256::digest(seed).into(),
        }
    }

    /// For tracing only: a batch has no identity but that of its events. In the form of a UUID.
    fn batch_id(&mut self) -> String {
        self.batches += 1;
        let mut hash = Sha256::new();
        hash.update(self.seed);
        hash.update(self.batches.to_be_bytes());
        let mut bytes: [u8; 32] = hash.finalize().into();
        bytes[6] = 0x80 | (bytes[6] & 0x0F);
        bytes[8] = 0x80 | (bytes[8] & 0x3F);
        let hex: String = bytes[..16].iter().map(|b| format!("{b:02x}")).collect();
        format!(
            "{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    async fn post(&mut self, items: &[Item]) -> Outcome {
        let batch_id = self.batch_id();
        let bytes: usize = items.iter().map(|item| item.json.len() + 1).sum();
        let mut body = String::with_capacity(bytes + 128 + self.gateway.len());
        body.push_str("{\"gateway\":");
        body.push_str(&self.gateway);
        body.push_str(",\"batch_id\":\"");
        body.push_str(&batch_id);
        body.push_str("\",\"events\":[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            body.push_str(&item.json);
        }
        body.push_str("]}");
        match self.link.post(body).await {
            Ok(reply) => {
                let keys: Vec<&str> = items.iter().map(|item| item.key.as_str()).collect();
                judge(&reply, &batch_id, &keys)
            }
            Err(LinkError::Passing(reason)) => Outcome::All(Verdict::retry(reason)),
            Err(LinkError::Mend(reason)) => Outcome::All(Verdict::Stop { reason }),
        }
    }

    /// Parts of `items` that each fit into one request, the last first.
    fn parts(&self, items: &[Item]) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        let mut bytes = 0;
        for (index, item) in items.iter().enumerate() {
            bytes += item.json.len() + 1;
            match parts.last_mut() {
                Some(part) if bytes <= self.body_bytes_max && part.len() < BATCH_EVENTS_MAX => {
                    part.end = index + 1;
                }
                _ => {
                    bytes = item.json.len() + 1;
                    parts.push(index..index + 1);
                }
            }
        }
        parts.reverse();
        parts
    }

    async fn deliver_all(&mut self, items: Vec<Item>) -> Vec<Verdict> {
        let mut round = Round {
            verdicts: vec![None; items.len()],
            suspects: Vec::new(),
            taken: None,
        };
        let mut parts = self.parts(&items);
        let mut posts = 0;
        let mut tried_other_end = false;
        while let Some(part) = parts.pop() {
            if posts == POSTS_COUNT_MAX {
                break;
            }
            posts += 1;
            let outcome = self.post(&items[part.clone()]).await;
            if matches!(outcome, Outcome::TooLarge(_)) && part.len() > 1 {
                let bytes: usize = items[part.clone()].iter().map(|item| item.json.len()).sum();
                self.body_bytes_max = (bytes / 2).clamp(BODY_BYTES_MIN, BODY_BYTES_MAX);
            } else if matches!(outcome, Outcome::Each(_)) {
                // What refused it may be mended by now: it is found out little by little.
                self.body_bytes_max = (self.body_bytes_max + BODY_BYTES_MIN).min(BODY_BYTES_MAX);
            }
            match round.take(part, outcome) {
                Next::Go => {}
                Next::Halve(first, second) => parts.extend([second, first]),
                Next::Doubt if !tried_other_end => {
                    tried_other_end = true;
                    let Some(last) = split_last(&mut parts) else {
                        break;
                    };
                    parts.push(last..last + 1);
                }
                Next::Doubt | Next::End => break,
            }
        }
        self.settle(round, items).await
    }

    /// Decides about the events that were refused alone.
    async fn settle(&mut self, mut round: Round, mut items: Vec<Item>) -> Vec<Verdict> {
        if !round.suspects.is_empty() {
            let takes_others = match round.taken {
                Some(_) => Control::Taken,
                None => self.control().await,
            };
            if let Control::Unknown(wait) = takes_others {
                // Nothing is known of the place just now, and so nothing of the events.
                round.suspects.clear();
                round.fill(&wait);
                return round.verdicts.into_iter().flatten().collect();
            }
            let takes_others = matches!(takes_others, Control::Taken);
            let first = round.suspects[0].1.clone();
            for (index, reason) in std::mem::take(&mut round.suspects) {
                round.verdicts[index] = Some(if takes_others {
                    Verdict::Malformed { reason }
                } else {
                    Verdict::Stop { reason }
                });
            }
            if !takes_others {
                let reason = format!(
                    "{first}; nothing else was taken either: it may not be the events' fault"
                );
                round.fill(&Verdict::Stop { reason });
            }
        }
        if let Some(taken) = round.taken {
            self.control = Some(items.swap_remove(taken));
        }
        round.fill(&Verdict::retry(
            "not sent yet: the delivery took too many requests",
        ));
        round.verdicts.into_iter().flatten().collect()
    }

    /// Whether the place takes an event again that it took before.
    async fn control(&mut self) -> Control {
        let Some(control) = self.control.take() else {
            return Control::Refused;
        };
        let outcome = self.post(std::slice::from_ref(&control)).await;
        self.control = Some(control);
        match outcome {
            Outcome::Each(verdicts) if verdicts.iter().all(is_taken) => Control::Taken,
            Outcome::AlreadyThere => Control::Taken,
            Outcome::All(wait @ Verdict::Retry { .. }) => Control::Unknown(wait),
            _ => Control::Refused,
        }
    }
}

/// What the place says to an event that it took before.
enum Control {
    Taken,
    Refused,
    /// It has no time, or cannot be reached: it says nothing about the event.
    Unknown(Verdict),
}

/// The last event that was not sent yet, taken out of its part.
fn split_last(parts: &mut Vec<Range<usize>>) -> Option<usize> {
    let rest = parts.first_mut()?;
    rest.end -= 1;
    let last = rest.end;
    if rest.start == rest.end {
        parts.remove(0);
    }
    Some(last)
}

fn is_taken(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Accepted | Verdict::Duplicate)
}

/// What is known so far of one delivery.
struct Round {
    verdicts: Vec<Option<Verdict>>,
    /// Refused alone, and why.
    suspects: Vec<(usize, String)>,
    /// One that was taken.
    taken: Option<usize>,
}

enum Next {
    Go,
    Halve(Range<usize>, Range<usize>),
    /// Several were refused alone, and none was taken.
    Doubt,
    End,
}

impl Round {
    fn take(&mut self, part: Range<usize>, outcome: Outcome) -> Next {
        let alone = part.len() == 1;
        match outcome {
            Outcome::Each(verdicts) => {
                for (index, verdict) in part.zip(verdicts) {
                    self.set(index, verdict);
                }
                Next::Go
            }
            Outcome::All(verdict) => {
                self.fill_suspects(&verdict);
                self.fill(&verdict);
                Next::End
            }
            Outcome::AlreadyThere if alone => {
                self.set(part.start, Verdict::Duplicate);
                Next::Go
            }
            Outcome::TooLarge(reason) | Outcome::Refused(reason) if alone => {
                self.suspects.push((part.start, reason));
                if self.taken.is_none() && self.suspects.len() >= SUSPECTS_COUNT_MAX {
                    return Next::Doubt;
                }
                Next::Go
            }
            Outcome::AlreadyThere | Outcome::TooLarge(_) | Outcome::Refused(_) => {
                let middle = part.start + part.len() / 2;
                Next::Halve(part.start..middle, middle..part.end)
            }
        }
    }

    fn set(&mut self, index: usize, verdict: Verdict) {
        if is_taken(&verdict) {
            self.taken = Some(index);
        }
        self.verdicts[index] = Some(verdict);
    }

    /// The place went away before it was clear whose fault the refusals were: not decided this time.
    fn fill_suspects(&mut self, verdict: &Verdict) {
        if self.taken.is_none() {
            for (index, _) in std::mem::take(&mut self.suspects) {
                self.verdicts[index] = Some(verdict.clone());
            }
        }
    }

    fn fill(&mut self, verdict: &Verdict) {
        let suspects: Vec<usize> = self.suspects.iter().map(|(index, _)| *index).collect();
        for (index, place) in self.verdicts.iter_mut().enumerate() {
            if place.is_none() && !suspects.contains(&index) {
                *place = Some(verdict.clone());
            }
        }
    }
}

impl Lane for HttpLane {
    fn deliver<'a>(&'a mut self, batch: &'a [(Position, EventRecord)]) -> Delivery<'a> {
        let items = batch.iter().map(|(_, event)| Item {
            key: event.key.to_string(),
            json: to_json(event),
        });
        let items = items.collect();
        Box::pin(self.deliver_all(items))
    }
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
