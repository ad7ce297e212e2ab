//! Owns: the `mqtt` sink: events to a topic of a broker, finished by the receiver's acknowledgement.
//! May call: core types, `core::event` for the payload; this room's interface; the forms in `upstream`.
//! Never: take the broker's receipt for a commit; let the client send by itself what was reported as not sent.
//!
//! # Acknowledgement
//! With `ack_topic` an event is finished by the receiver's message on that topic alone, matched by key and
//! digest. A PUBACK is the broker's receipt: a broker that is killed loses messages it has acknowledged.
//! Without `ack_topic` the receipt must do, and the sink says so: its acknowledgement is `broker`.
//!
//! # A connection is all or nothing
//! Session expiry 0, clean start, and a new client for every connection: what to send is decided by the
//! outbox alone. A batch whose messages may still be in the client when it is given up takes its connection
//! with it. What the broker took by then arrives besides the next try, under the same key, and is a duplicate.

#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod link;
mod waiting;

use super::{AckLevel, Delivery, Lane, Sink};
use crate::core::event::{digest, sha256_text, to_json};
use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};
use crate::upstream::ack::correlation;
use crate::upstream::broker::Broker;
use crate::upstream::topic::TopicTemplate;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use link::{End, Link};
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Publish, PublishProperties};
use rumqttc::{PublishNotice, PublishOptions, PublishResult};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use waiting::Waiting;

/// Silence of the receiver after which a batch is given up, in milliseconds.
pub const ACK_MS_DEFAULT: u64 = 10_000;
/// Longest time for a batch, however steadily answers come, in milliseconds.
pub const BATCH_MS_MAX: u64 = 60_000;
/// Connections lost to another client of the same name, within [`TAKEOVER_MS`], after which a person is
/// asked: two gateways would throw each other out for ever.
pub const TAKEOVERS_MAX: usize = 3;
/// See [`TAKEOVERS_MAX`], in milliseconds.
pub const TAKEOVER_MS: u64 = 60 * 60 * 1000;
/// Bytes of a PUBLISH that its size does not tell before it has a packet id.
const PACKET_ID_BYTES: usize = 2;

/// What is configured of an `mqtt` sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttSinkConfig {
    /// `mqtt://[user@]host[:port]` or `mqtts://…`.
    pub url: String,
    /// The user's password.
    pub password_file: Option<PathBuf>,
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Its own at the broker; by convention the gateway's name, `-`, the sink's name.
    pub client_id: String,
    /// This gateway's name.
    pub gateway: String,
    /// Where events go; a template.
    pub topic: String,
    /// Where the receiver answers, one topic for this gateway; `None`: nobody does.
    pub ack_topic: Option<String>,
    /// Silence of the receiver after which a batch is given up, in milliseconds.
    pub ack_ms: u64,
}

impl MqttSinkConfig {
    fn ack_topic(&self) -> Option<String> {
        let template = self.ack_topic.as_ref()?;
        Some(TopicTemplate::new(template).fill(&self.gateway, "", ""))
    }

    fn broker(&self) -> Broker {
        Broker {
            url: self.url.clone(),
            password_file: self.password_file.clone(),
            ca_file: self.ca_file.clone(),
        }
    }
}

/// The sink of `config`. It connects when the first batch is due.
#[must_use]
pub fn sink(config: MqttSinkConfig) -> Sink {
    let ack_level = match config.ack_topic {
        Some(_) => AckLevel::Committed,
        None => AckLevel::Broker,
    };
    let lane = MqttLane {
        topic: TopicTemplate::new(&config.topic),
        config,
        link: None,
        takeovers: VecDeque::new(),
        one_by_one: false,
        unheard: false,
    };
    Sink {
        kind: "mqtt",
        ack_level,
        lanes: vec![Box::new(lane)],
    }
}

struct MqttLane {
    config: MqttSinkConfig,
    topic: TopicTemplate,
    link: Option<Link>,
    /// When connections were lost to another client of our name.
    takeovers: VecDeque<Instant>,
    /// Something in the batch was too large for the broker, which says so by ending the connection: sent one
    /// by one, the next such end names it.
    one_by_one: bool,
    /// Nobody was subscribed the last time.
    unheard: bool,
}

impl Lane for MqttLane {
    fn deliver<'a>(&'a mut self, batch: &'a [(Position, EventRecord)]) -> Delivery<'a> {
        Box::pin(async move {
            let step = if self.one_by_one {
                1
            } else {
                batch.len().max(1)
            };
            let mut verdicts = Vec::with_capacity(batch.len());
            for part in batch.chunks(step) {
                match self.attempt(part).await {
                    Ok(some) => verdicts.extend(some),
                    Err(verdict) => {
                        verdicts.resize(batch.len(), verdict);
                        return verdicts;
                    }
                }
                if self.link.is_none() {
                    break;
                }
            }
            // All of it went: what was too large is not among these.
            self.one_by_one &= self.link.is_none();
            let rest = Verdict::retry("not sent: the connection to the broker ended before");
            verdicts.resize(batch.len(), rest);
            verdicts
        })
    }
}

impl MqttLane {
    /// Sends `part`. An error is for the whole of it: there was no connection to send it on.
    async fn attempt(&mut self, part: &[(Position, EventRecord)]) -> Result<Vec<Verdict>, Verdict> {
        if let Some(end) = self.link.as_ref().and_then(Link::ended) {
            self.link = None;
            self.note(&end)?;
        }
        let link = match self.link.take() {
            Some(link) => link,
            None => match Link::open(&self.config).await {
                Ok(link) => link,
                Err(end) => {
                    self.note(&end)?;
                    return Err(end.verdict());
                }
            },
        };
        let (waiting, ended) = self.send(&link, part).await;
        self.say_if_unheard(waiting.unheard > 0);
        let lost = ended.as_ref().map(End::reason);
        let is_held = waiting.is_held();
        let mut verdicts = waiting.verdicts(lost.as_deref(), self.config.ack_ms);
        match ended {
            None if !is_held => self.link = Some(link),
            None => {}
            Some(End::TooLarge(reason)) => self.too_large(&reason, &mut verdicts),
            Some(end) => {
                if let Err(stop) = self.note(&end) {
                    retries_become(&stop, &mut verdicts);
                }
                if matches!(end, End::Refused(_)) {
                    retries_become(&end.verdict(), &mut verdicts);
                }
            }
        }
        Ok(verdicts)
    }

    /// Publishes `part` and waits for its verdicts.
    async fn send(&self, link: &Link, part: &[(Position, EventRecord)]) -> (Waiting, Option<End>) {
        let answers = self.config.ack_topic();
        let messages: Vec<Message> = part
            .iter()
            .map(|(_, event)| self.message(event, answers.as_ref()))
            .collect();
        let names = messages.iter().map(|m| (m.key.clone(), m.digest.clone()));
        link.begin(Waiting::new(names, answers.is_some()));
        let mut receipts = FuturesUnordered::new();
        for (index, message) in messages.into_iter().enumerate() {
            let bytes = message.publish.size() + PACKET_ID_BYTES;
            if let Some(max) = link.packet_bytes_max.filter(|max| bytes > *max as usize) {
                let reason =
                    format!("its message has {bytes} bytes; the broker takes at most {max}");
                link.with(|waiting| waiting.decide(index, Verdict::Malformed { reason }));
                continue;
            }
            let options = PublishOptions::new(QoS::AtLeastOnce)
                .properties(message.publish.properties.unwrap_or_default());
            // The queue of a client holds a whole batch, so this never waits while the connection stands.
            match link
                .client
                .publish_tracked(message.topic, message.publish.payload, options)
                .await
            {
                Ok(notice) => receipts.push(receipt(index, notice)),
                Err(_) => break,
            }
        }
        let mut deadline = self.deadline();
        let last = Instant::now() + Duration::from_millis(BATCH_MS_MAX.max(self.config.ack_ms));
        let mut heard = link.heard();
        loop {
            let ended = link.ended();
            if ended.is_some() || link.with(|waiting| waiting.is_decided()) {
                return (
                    link.finish().unwrap_or_else(|| Waiting::new([], true)),
                    ended,
                );
            }
            if link.heard() > heard {
                heard = link.heard();
                deadline = self.deadline();
            }
            tokio::select! {
                Some((index, result)) = receipts.next() => {
                    if let Ok(PublishResult::Qos1(puback)) = result {
                        let said = puback.properties.and_then(|properties| properties.reason_string);
                        link.with(|waiting| waiting.receipt(index, puback.reason, said.as_deref()));
                    }
                }
                () = link.changed() => {}
                () = sleep_until(deadline.min(last)) => {
                    return (link.finish().unwrap_or_else(|| Waiting::new([], true)), None);
                }
            }
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.config.ack_ms)
    }

    fn message(&self, event: &EventRecord, answers: Option<&String>) -> Message {
        let topic = self
            .topic
            .fill(&self.config.gateway, &event.key.source, &event.event_type);
        let digest = sha256_text(&digest(event));
        let key = event.key.to_string();
        let properties = PublishProperties {
            payload_format_indicator: Some(1),
            content_type: Some("application/json".into()),
            response_topic: answers.cloned(),
            correlation_data: answers.map(|_| correlation(&event.key, &digest).into()),
            user_properties: vec![
                ("key".into(), key.clone()),
                ("digest".into(), digest.clone()),
                ("schema".into(), event.schema.to_string()),
            ],
            ..PublishProperties::default()
        };
        let publish = Publish::new(
            topic.clone(),
            QoS::AtLeastOnce,
            to_json(event),
            Some(properties),
        );
        Message {
            topic,
            key,
            digest,
            publish,
        }
    }

    /// Takes note of how a connection ended; an error once a person must be asked.
    fn note(&mut self, end: &End) -> Result<(), Verdict> {
        if *end != End::TakenOver {
            return Ok(());
        }
        let now = Instant::now();
        let within = Duration::from_millis(TAKEOVER_MS);
        self.takeovers.retain(|at| now.duration_since(*at) < within);
        self.takeovers.push_back(now);
        let client_id = &self.config.client_id;
        log::warn!(
            "mqtt: another client connected to the broker as {client_id:?}; this connection was closed"
        );
        if self.takeovers.len() < TAKEOVERS_MAX {
            return Ok(());
        }
        self.takeovers.clear();
        Err(Verdict::Stop {
            reason: format!(
                "client identifier {client_id:?} is used by another client too: {TAKEOVERS_MAX} connections were \
                 taken over (0x8E); is a second gateway of the same name there, or a copy of this one? Give \
                 each its own name or client_id"
            ),
        })
    }

    /// The connection ended because of a packet's size.
    fn too_large(&mut self, reason: &str, verdicts: &mut [Verdict]) {
        let alone = verdicts.len() == 1;
        self.one_by_one = !alone;
        if alone {
            retries_become(
                &Verdict::Malformed {
                    reason: reason.to_owned(),
                },
                verdicts,
            );
        }
    }

    fn say_if_unheard(&mut self, unheard: bool) {
        if unheard && !self.unheard {
            let lost = match self.config.ack_topic {
                Some(_) => "they are sent again",
                None => "they are lost unless the broker keeps them: this sink is broker-acked",
            };
            log::warn!(
                "mqtt: nobody is subscribed to {:?}: {lost}",
                self.config.topic
            );
        }
        self.unheard = unheard;
    }
}

struct Message {
    topic: String,
    key: String,
    digest: String,
    publish: Publish,
}

type Receipt = (usize, Result<PublishResult, rumqttc::PublishNoticeError>);

async fn receipt(index: usize, notice: PublishNotice) -> Receipt {
    (index, notice.wait_async().await)
}

/// What was to be sent again by itself is not.
fn retries_become(verdict: &Verdict, verdicts: &mut [Verdict]) {
    for each in verdicts {
        if matches!(each, Verdict::Retry { .. }) {
            *each = verdict.clone();
        }
    }
}
