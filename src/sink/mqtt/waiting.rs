//! Owns: what is known of each event of a batch under way: the broker's receipt, the receiver's verdict.
//! May call: core types, the acknowledgement's form in `upstream`.
//! Never: take a receipt for a verdict where a receiver is to answer; believe an answer that names another
//! key or another content.

use crate::core::outbox::Verdict;
use crate::upstream::ack::{ACK_BYTES_MAX, AckMessage};
use rumqttc::mqttbytes::v5::PubAckReason;
use std::collections::HashMap;

/// What came of a message on the acknowledgement topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It decided on an event.
    Decided,
    /// It is about an event that is decided; the first answer stands.
    Again,
    /// It decides on nothing here, and why.
    Nothing(&'static str),
}

struct Slot {
    key: String,
    digest: String,
    /// The broker has acknowledged its message: the client holds it no more.
    released: bool,
    verdict: Option<Verdict>,
}

/// A batch under way.
pub(super) struct Waiting {
    by_correlation: HashMap<String, usize>,
    slots: Vec<Slot>,
    /// Only a receiver's answer finishes an event; otherwise the broker's receipt does.
    receiver_answers: bool,
    /// Messages that decided on nothing, and why the last of them did not.
    pub(super) strangers: u64,
    pub(super) last_stranger: &'static str,
    /// Publishes that nobody is subscribed to, by the broker's receipt.
    pub(super) unheard: u64,
}

impl Waiting {
    /// For events of these keys and digests.
    pub(super) fn new(
        events: impl IntoIterator<Item = (String, String)>,
        receiver_answers: bool,
    ) -> Self {
        let slots: Vec<Slot> = events
            .into_iter()
            .map(|(key, digest)| Slot {
                key,
                digest,
                released: false,
                verdict: None,
            })
            .collect();
        let by_correlation = slots.iter().enumerate();
        Self {
            by_correlation: by_correlation
                .map(|(index, slot)| (format!("{} {}", slot.key, slot.digest), index))
                .collect(),
            slots,
            receiver_answers,
            strangers: 0,
            last_stranger: "",
            unheard: 0,
        }
    }

    /// Decides on an event that is not, or not yet, sent.
    pub(super) fn decide(&mut self, index: usize, verdict: Verdict) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.verdict = Some(verdict);
        slot.released = true;
    }

    /// Takes a message from the acknowledgement topic.
    pub(super) fn heard(
        &mut self,
        correlation: Option<&[u8]>,
        payload: &[u8],
        retained: bool,
    ) -> Heard {
        let heard = self.judge(correlation, payload, retained);
        if let Heard::Nothing(why) = heard {
            self.strangers += 1;
            self.last_stranger = why;
        }
        heard
    }

    fn judge(&mut self, correlation: Option<&[u8]>, payload: &[u8], retained: bool) -> Heard {
        if retained {
            return Heard::Nothing("a retained message is no answer to what was just sent");
        }
        if payload.len() > ACK_BYTES_MAX {
            return Heard::Nothing("it is too long");
        }
        let Ok(message) = serde_json::from_slice::<AckMessage>(payload) else {
            return Heard::Nothing("it is no acknowledgement in JSON");
        };
        let found = match correlation {
            Some(bytes) => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| self.by_correlation.get(text)),
            None => message.digest.as_ref().and_then(|digest| {
                self.by_correlation
                    .get(&format!("{} {digest}", message.key))
            }),
        };
        let Some(slot) = found.and_then(|index| self.slots.get_mut(*index)) else {
            return Heard::Nothing(
                "its correlation data, or its key and digest, name no event under way",
            );
        };
        // A receiver that could not read the message cannot tell the key; what it answers to is proven by the
        // correlation data.
        let unread =
            message.key.is_empty() && correlation.is_some() && message.status == "malformed";
        if message.key != slot.key && !unread {
            return Heard::Nothing("its key is not the one of its correlation data");
        }
        if message
            .digest
            .as_ref()
            .is_some_and(|digest| *digest != slot.digest)
        {
            return Heard::Nothing("its digest is of other content");
        }
        let Some(verdict) = message.verdict() else {
            return Heard::Nothing("its status is none that there is");
        };
        match (&slot.verdict, &verdict) {
            (None, _) => {}
            (Some(Verdict::Retry { .. }), Verdict::Retry { .. }) => return Heard::Again,
            // "Not now" said of one copy, and settled of another: settled is settled.
            (Some(Verdict::Retry { .. }), _) => {}
            (Some(_), _) => return Heard::Again,
        }
        slot.verdict = Some(verdict);
        Heard::Decided
    }

    /// Takes the broker's receipt for the event at `index`.
    pub(super) fn receipt(&mut self, index: usize, reason: PubAckReason, said: Option<&str>) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.released = true;
        let refused = |what: &str| {
            let said = said.map(|said| format!(" ({said})")).unwrap_or_default();
            format!("the broker refuses it: {what}{said}")
        };
        let verdict = match reason {
            PubAckReason::Success => (!self.receiver_answers).then_some(Verdict::Accepted),
            PubAckReason::NoMatchingSubscribers => {
                self.unheard += 1;
                Some(if self.receiver_answers {
                    Verdict::retry("no receiver is there: nobody is subscribed to the topic")
                } else {
                    Verdict::Accepted
                })
            }
            PubAckReason::NotAuthorized => Some(Verdict::Stop {
                reason: refused("not authorised (0x87); let this client publish to the topic"),
            }),
            PubAckReason::TopicNameInvalid => Some(Verdict::Stop {
                reason: refused("topic name invalid (0x90); configure another topic"),
            }),
            PubAckReason::PayloadFormatInvalid => Some(Verdict::Malformed {
                reason: refused("payload format invalid (0x99)"),
            }),
            PubAckReason::QuotaExceeded => Some(Verdict::retry(refused("quota exceeded (0x97)"))),
            other => Some(Verdict::retry(refused(&format!("{other:?}")))),
        };
        if slot.verdict.is_none() {
            slot.verdict = verdict;
        }
    }

    /// Whether every event is decided on.
    pub(super) fn is_decided(&self) -> bool {
        self.slots.iter().all(|slot| slot.verdict.is_some())
    }

    /// Whether the client may still send something that is to be reported as not delivered.
    pub(super) fn is_held(&self) -> bool {
        self.slots.iter().any(|slot| {
            !slot.released && matches!(slot.verdict, None | Some(Verdict::Retry { .. }))
        })
    }

    /// One verdict an event; those not decided on are to be sent again: `lost` says why, or else that nobody
    /// answered within `patience_ms`.
    pub(super) fn verdicts(self, lost: Option<&str>, patience_ms: u64) -> Vec<Verdict> {
        let strangers = match self.strangers {
            0 => String::new(),
            n => format!(
                "; {n} other message(s) came there, the last is none of ours: {}",
                self.last_stranger
            ),
        };
        let silent = |slot: &Slot| match lost {
            Some(lost) => lost.to_owned(),
            None if !slot.released => format!("the broker did not take it within {patience_ms} ms"),
            None => format!(
                "the broker took it, but no receiver acknowledged it within {patience_ms} ms{strangers}"
            ),
        };
        self.slots
            .into_iter()
            .map(|slot| match &slot.verdict {
                Some(verdict) => verdict.clone(),
                None => Verdict::retry(silent(&slot)),
            })
            .collect()
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
