//! Owns: the receiver's side of a broker: events from their topics into the books, answers back.
//! May call: core types, upstream.
//! Never: answer, or acknowledge to the broker, before the commit; let a message decide where it is answered.
//!
//! # Trouble with the books
//! Whoever waits for an answer is told `retry`: its own outbox keeps the event. A message that nobody waits
//! for is the only copy: it is kept unacknowledged, tried again, and comes again from the broker if this process
//! dies (with `session`).

mod intake;
mod session;

use super::metrics::{Labels, status};
use super::pool::{Connect, Ledger};
use crate::core::jitter::Jitter;
use crate::core::outbox::Verdict;
use crate::failpoint;
use crate::upstream::Row;
use crate::upstream::broker::Broker;
use crate::upstream::topic::TopicTemplate;
use intake::Item;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use rumqttc::PublishOptions;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Publish, PublishProperties};
use session::Session;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Most events in one call to the books, unless configured.
pub const BATCH_EVENTS_DEFAULT: usize = 500;
/// Events are gathered for so long after the first, in milliseconds, unless configured.
pub const GATHER_MS_DEFAULT: u64 = 5;
/// Longest first wait before the broker, or the books for messages that nobody answers for, are tried again, in
/// milliseconds; doubles with every failure.
const BACKOFF_MS_MIN: u64 = 500;
/// Longest wait of that kind, in milliseconds.
const BACKOFF_MS_MAX: u64 = 30_000;
/// Longest time for the last answers to go out at the end, in milliseconds.
const FAREWELL_MS_MAX: u64 = 2_000;

/// What is configured of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttReceiverConfig {
    /// The broker.
    pub broker: Broker,
    /// Its own at the broker.
    pub client_id: String,
    /// Where events come, with `{gateway}` as one of its levels: the broker's permissions say who may publish
    /// under whose name.
    pub topic: TopicTemplate,
    /// Where a gateway is answered, and nowhere else.
    pub ack_topic: TopicTemplate,
    /// Receivers of one group share the events.
    pub group: Option<String>,
    /// The broker keeps messages for so long while this receiver is away, in seconds; 0: not at all.
    pub session_s: u32,
    /// Most events in one call to the books.
    pub batch_events_max: usize,
    /// Events are gathered for so long after the first, in milliseconds.
    pub gather_ms: u64,
}

impl MqttReceiverConfig {
    /// Whether it can work.
    ///
    /// # Errors
    /// What must be mended.
    pub fn check(&self) -> Result<(), String> {
        let named = |name: &str, wrong: String| format!("{name}: {wrong}");
        self.topic.check().map_err(|wrong| named("topic", wrong))?;
        self.ack_topic
            .check()
            .map_err(|wrong| named("ack_topic", wrong))?;
        if !self.topic.names_gateway() {
            return Err(
                "topic: one of its levels must be {gateway}, which tells whose events they are"
                    .into(),
            );
        }
        if self.ack_topic.text().contains("{source}") || self.ack_topic.text().contains("{type}") {
            return Err("ack_topic: one topic for a gateway; in braces only {gateway}".into());
        }
        if self.topic == self.ack_topic {
            return Err("ack_topic: a topic apart from the events'".into());
        }
        match &self.group {
            Some(group) if group.is_empty() || group.contains(['/', '+', '#', '\0']) => {
                Err("group: a name without /, + and #".into())
            }
            _ => Ok(()),
        }
    }

    fn filter(&self) -> String {
        match &self.group {
            Some(group) => format!("$share/{group}/{}", self.topic.filter()),
            None => self.topic.filter(),
        }
    }
}

/// What became of messages since the start: those with a status add up to `received`, but for those under way.
#[derive(Debug, Default)]
pub struct MqttStats {
    pub(super) received: Counter,
    pub(super) messages: Family<Labels, Counter>,
    pub(super) connections: Counter,
    state: Mutex<String>,
}

impl MqttStats {
    /// Messages that came.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Messages of a status, such as `accepted`.
    #[must_use]
    pub fn of_status(&self, status: &str) -> u64 {
        self.messages.get_or_create(&labels(status)).get()
    }

    /// Times that the subscription stood.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.get()
    }

    /// `ok`, or what is wrong, in words.
    #[must_use]
    pub fn state(&self) -> String {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_state(&self, state: &str) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state.to_owned();
    }

    fn count(&self, verdict: &Verdict) {
        self.messages.get_or_create(&labels(status(verdict))).inc();
    }
}

fn labels(status: &str) -> Labels {
    vec![("status", status.to_owned())]
}

/// Receives until told to stop.
pub async fn run(
    config: MqttReceiverConfig,
    connect: Connect,
    stats: Arc<MqttStats>,
    mut stop: watch::Receiver<bool>,
) {
    let seed = u64::from(std::process::id());
    let mut receiver = Receiver {
        books: None,
        connect,
        stats,
        config,
        backoff: Backoff {
            jitter: Jitter::new(seed),
            failures: 0,
        },
        batches: 0,
    };
    let mut broker_backoff = Backoff {
        jitter: Jitter::new(!seed),
        failures: 0,
    };
    while !*stop.borrow() {
        let reason = match Session::open(&receiver.config).await {
            Ok(session) => {
                broker_backoff.failures = 0;
                receiver.stats.connections.inc();
                receiver.stats.set_state("ok");
                log::info!("mqtt: subscribed to {:?}", receiver.config.filter());
                match receiver.serve(session, &mut stop).await {
                    Some(reason) => reason,
                    None => return,
                }
            }
            Err(reason) => reason,
        };
        log::warn!("mqtt: {reason}");
        receiver.stats.set_state(&reason);
        tokio::select! {
            () = sleep_until(broker_backoff.next()) => {}
            _ = stop.changed() => {}
        }
    }
}

struct Backoff {
    jitter: Jitter,
    failures: u32,
}

impl Backoff {
    fn next(&mut self) -> Instant {
        let bound = BACKOFF_MS_MIN
            .saturating_mul(1 << self.failures.min(16))
            .min(BACKOFF_MS_MAX);
        self.failures = self.failures.saturating_add(1);
        Instant::now() + Duration::from_millis(1 + self.jitter.below(bound))
    }
}

struct Receiver {
    config: MqttReceiverConfig,
    connect: Connect,
    stats: Arc<MqttStats>,
    books: Option<Box<dyn Ledger>>,
    /// For messages that nobody answers for.
    backoff: Backoff,
    batches: u64,
}

impl Receiver {
    /// Until the connection ends, which is said why, or until told to stop. Messages held at the end are the
    /// broker's to bring again.
    async fn serve(
        &mut self,
        mut session: Session,
        stop: &mut watch::Receiver<bool>,
    ) -> Option<String> {
        let mut held: Vec<Item> = Vec::new();
        let mut retry_at = Instant::now();
        loop {
            let mut items = Vec::new();
            tokio::select! {
                came = session.messages.recv() => match came {
                    Some(first) => self.gather(first, &mut session.messages, &mut items).await,
                    None => return Some(session.why_ended().await),
                },
                () = sleep_until(retry_at), if !held.is_empty() => {}
                _ = stop.changed() => {
                    let within = Duration::from_millis(FAREWELL_MS_MAX);
                    let _ = session.client.disconnect_with_timeout(within).await;
                    let _ = tokio::time::timeout(within, session.why_ended()).await;
                    return None;
                }
            }
            if Instant::now() >= retry_at {
                items.extend(std::mem::take(&mut held));
            }
            let verdicts = self.enter(&items).await;
            failpoint!("receiver.after-commit");
            let kept = self.answer(&session, items, verdicts).await;
            if !kept.is_empty() {
                retry_at = self.backoff.next();
                held.extend(kept);
            } else if held.is_empty() {
                self.backoff.failures = 0;
            }
        }
    }

    async fn gather(
        &mut self,
        first: Publish,
        messages: &mut mpsc::Receiver<Publish>,
        items: &mut Vec<Item>,
    ) {
        let until = Instant::now() + Duration::from_millis(self.config.gather_ms);
        let mut next = Some(first);
        while let Some(publish) = next {
            self.stats.received.inc();
            items.push(Item::new(
                publish,
                &self.config.topic,
                &self.config.ack_topic,
            ));
            if items.len() >= self.config.batch_events_max.max(1) {
                return;
            }
            next = timeout_at(until, messages.recv()).await.ok().flatten();
        }
    }

    /// Enters them; one verdict each.
    async fn enter(&mut self, items: &[Item]) -> Vec<Verdict> {
        let mut by_gateway: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            by_gateway.entry(&item.gateway).or_default().push(index);
        }
        let mut verdicts = vec![Verdict::retry("the books did not answer"); items.len()];
        for (gateway, indices) in by_gateway {
            let rows: Vec<Row> = indices
                .iter()
                .map(|index| items[*index].row.clone())
                .collect();
            for (index, verdict) in indices.into_iter().zip(self.ingest(gateway, &rows).await) {
                verdicts[index] = verdict;
            }
        }
        verdicts
    }

    async fn ingest(&mut self, gateway: &str, rows: &[Row]) -> Vec<Verdict> {
        let mut books = match self.books.take().filter(|books| !books.broken()) {
            Some(books) => books,
            None => match (self.connect)().await {
                Ok(books) => books,
                Err(error) => {
                    log::warn!("mqtt: the books: {error}");
                    return vec![Verdict::retry(error.to_string()); rows.len()];
                }
            },
        };
        self.batches += 1;
        let batch_id = format!("mqtt-{}-{}", std::process::id(), self.batches);
        let verdicts = books.ingest(gateway, &batch_id, rows).await;
        if !books.broken() {
            self.books = Some(books);
        }
        verdicts
    }

    /// Answers, and acknowledges to the broker; gives back what is neither, because nobody else has it.
    async fn answer(
        &mut self,
        session: &Session,
        items: Vec<Item>,
        verdicts: Vec<Verdict>,
    ) -> Vec<Item> {
        let mut kept = Vec::new();
        for (item, verdict) in items.into_iter().zip(verdicts) {
            let is_open = matches!(verdict, Verdict::Retry { .. } | Verdict::Stop { .. });
            if is_open && item.reply.is_none() && item.publish.qos != QoS::AtMostOnce {
                kept.push(item);
                continue;
            }
            self.stats.count(&verdict);
            // A connection that has ended takes nothing more; the sender, or the broker, sends again.
            if let Some(reply) = &item.reply {
                let ack = serde_json::to_vec(&item.ack(&verdict)).unwrap_or_default();
                let options = PublishOptions::new(QoS::AtLeastOnce).properties(PublishProperties {
                    payload_format_indicator: Some(1),
                    content_type: Some("application/json".into()),
                    correlation_data: reply.correlation.clone().map(Into::into),
                    ..PublishProperties::default()
                });
                let _ = session
                    .client
                    .publish(reply.topic.clone(), ack, options)
                    .await;
            }
            if item.publish.qos != QoS::AtMostOnce {
                let _ = session.client.ack(&item.publish).await;
            }
        }
        kept
    }
}
