//! Owns: one connection to the broker, from CONNECT to its end, and the client's task that drives it.
//! May call: waiting, the broker's address in `upstream`.
//! Never: connect a second time: what a client holds goes with its connection, so that nothing is sent
//! later that was reported as not sent (F117: packet ids and sessions are no memory of ours).

use super::super::tls;
use super::MqttSinkConfig;
use super::waiting::{Heard, Waiting};
use crate::core::outbox::{BATCH_EVENTS_MAX, Verdict};
use rumqttc::mqttbytes::v5::{
    ConnAck, ConnectReturnCode, DisconnectReasonCode, Packet, Publish, RetainForwardRule,
    SubscribeFilter, SubscribeReasonCode,
};
use rumqttc::mqttbytes::{Error as WireError, QoS};
use rumqttc::{AsyncClient, ConnectionError, Event, EventLoop, StateError, TlsError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Longest time from CONNECT to the answered subscription, in milliseconds.
const OPEN_MS_MAX: u64 = 15_000;
/// A PUBACK reason that MQTT 5 does not have, and mosquitto sends: packet too large.
const PUBACK_TOO_LARGE: u8 = 0x95;

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Another client came with our client identifier.
    TakenOver,
    /// Something that was sent is too large for the broker.
    TooLarge(String),
    /// A person must mend something.
    Refused(String),
    /// Anything else: it may come back by itself.
    Lost(String),
}

impl End {
    /// Of the events that were under way.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::TakenOver => {
                "another client connected to the broker with this sink's client identifier".into()
            }
            Self::TooLarge(what) | Self::Refused(what) | Self::Lost(what) => what.clone(),
        }
    }
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Refused(reason) => Verdict::Stop {
                reason: reason.clone(),
            },
            _ => Verdict::retry(self.reason()),
        }
    }
}

#[derive(Default)]
struct Shared {
    connected: Option<Box<ConnAck>>,
    ended: Option<End>,
    waiting: Option<Waiting>,
    /// Acknowledgements that decided on an event.
    heard: u64,
}

struct Wire {
    shared: Mutex<Shared>,
    changed: Notify,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is up. Its end closes it, with all that its client holds.
pub(super) struct Link {
    pub(super) client: AsyncClient,
    wire: Arc<Wire>,
    task: JoinHandle<()>,
    /// Largest packet that the broker takes.
    pub(super) packet_bytes_max: Option<u32>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Connects, and subscribes to the acknowledgements before anything can be published.
    pub(super) async fn open(config: &MqttSinkConfig) -> Result<Self, End> {
        let mut options = config
            .broker()
            .options(&config.client_id)
            .map_err(End::Refused)?;
        options.set_clean_start(true);
        options.set_session_expiry_interval(Some(0));
        let (client, events) = AsyncClient::builder(options)
            .capacity(BATCH_EVENTS_MAX)
            .build();
        let wire = Arc::new(Wire {
            shared: Mutex::default(),
            changed: Notify::new(),
        });
        let task = tokio::spawn(drive(events, Arc::clone(&wire)));
        let mut link = Self {
            client,
            wire,
            task,
            packet_bytes_max: None,
        };
        let deadline = Instant::now() + Duration::from_millis(OPEN_MS_MAX);
        let connack = link.connected(&config.url, deadline).await?;
        link.packet_bytes_max = connack
            .properties
            .and_then(|properties| properties.max_packet_size);
        if let Some(topic) = config.ack_topic() {
            link.subscribe(&topic, deadline).await?;
        }
        Ok(link)
    }

    async fn connected(&self, url: &str, deadline: Instant) -> Result<ConnAck, End> {
        loop {
            {
                let mut shared = self.wire.lock();
                if let Some(end) = &shared.ended {
                    return Err(end.clone());
                }
                if let Some(connack) = shared.connected.take() {
                    return Ok(*connack);
                }
            }
            if timeout_at(deadline, self.wire.changed.notified())
                .await
                .is_err()
            {
                return Err(End::Lost(format!("the broker at {url} does not answer")));
            }
        }
    }

    async fn subscribe(&self, topic: &str, deadline: Instant) -> Result<(), End> {
        let filter = SubscribeFilter {
            path: topic.to_owned(),
            qos: QoS::AtLeastOnce,
            nolocal: true,
            preserve_retain: false,
            retain_forward_rule: RetainForwardRule::Never,
        };
        let asked = async {
            let notice = self.client.subscribe_many_tracked([filter]).await.ok()?;
            notice.wait_async().await.ok()
        };
        let answer = timeout_at(deadline, asked).await.ok().flatten();
        let answer = answer.and_then(|suback| suback.return_codes.first().copied());
        match answer {
            Some(SubscribeReasonCode::Success(QoS::AtLeastOnce | QoS::ExactlyOnce)) => Ok(()),
            Some(SubscribeReasonCode::NotAuthorized) => Err(End::Refused(format!(
                "the broker does not let this client subscribe to its ack_topic {topic:?}; permit it"
            ))),
            Some(code) => Err(End::Lost(format!(
                "the broker refuses the subscription to ack_topic {topic:?}: {code:?}"
            ))),
            None => Err(self.ended().unwrap_or_else(|| {
                End::Lost(format!(
                    "the broker did not answer the subscription to {topic:?}"
                ))
            })),
        }
    }

    /// How it ended, if it did.
    pub(super) fn ended(&self) -> Option<End> {
        self.wire.lock().ended.clone()
    }

    /// From now on acknowledgements decide on `waiting`.
    pub(super) fn begin(&self, waiting: Waiting) {
        self.wire.lock().waiting = Some(waiting);
    }

    /// The batch as it stands; nothing decides on it any more.
    pub(super) fn finish(&self) -> Option<Waiting> {
        self.wire.lock().waiting.take()
    }

    /// The batch under way, to look at or to decide on.
    pub(super) fn with<T: Default>(&self, f: impl FnOnce(&mut Waiting) -> T) -> T {
        self.wire.lock().waiting.as_mut().map(f).unwrap_or_default()
    }

    /// How many acknowledgements decided on an event so far: progress.
    pub(super) fn heard(&self) -> u64 {
        self.wire.lock().heard
    }

    /// Waits for anything to happen.
    pub(super) async fn changed(&self) {
        self.wire.changed.notified().await;
    }
}

async fn drive(mut events: EventLoop, wire: Arc<Wire>) {
    let end = loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(connack))) => {
                wire.lock().connected = Some(Box::new(connack));
            }
            Ok(Event::Incoming(Packet::Publish(publish))) => take(&wire, &publish),
            Ok(_) => continue,
            Err(error) => break end_of(&error),
        }
        wire.changed.notify_one();
    };
    wire.lock().ended = Some(end);
    wire.changed.notify_one();
}

fn take(wire: &Wire, publish: &Publish) {
    let correlation = publish
        .properties
        .as_ref()
        .and_then(|p| p.correlation_data.as_deref());
    let mut shared = wire.lock();
    // Late answers to a batch that was given up name nothing under way; its events are sent again.
    if let Some(waiting) = &mut shared.waiting {
        let heard = waiting.heard(correlation, &publish.payload, publish.retain);
        shared.heard += u64::from(heard == Heard::Decided);
    }
}

/// What an error of the client means to us.
fn end_of(error: &ConnectionError) -> End {
    match error {
        ConnectionError::ConnectionRefused(code) => refused(*code),
        ConnectionError::MqttState(StateError::ConnFail { reason }) => refused(*reason),
        ConnectionError::MqttState(StateError::ServerDisconnect {
            reason_code,
            reason_string,
        }) => {
            let said = reason_string
                .as_deref()
                .map(|said| format!(" ({said})"))
                .unwrap_or_default();
            let what = format!("the broker ended the connection: {reason_code:?}{said}");
            match reason_code {
                DisconnectReasonCode::SessionTakenOver => End::TakenOver,
                DisconnectReasonCode::PacketTooLarge => End::TooLarge(what),
                DisconnectReasonCode::NotAuthorized => End::Refused(what),
                _ => End::Lost(what),
            }
        }
        ConnectionError::MqttState(
            StateError::OutgoingPacketTooLarge { .. }
            | StateError::Deserialization(WireError::InvalidConnectReturnCode(PUBACK_TOO_LARGE)),
        ) => End::TooLarge("the broker does not take a packet of this size".into()),
        ConnectionError::Tls(error) => {
            let what = format!("TLS with the broker: {error}");
            match error {
                TlsError::Io(error) if !tls::needs_a_person(error) => End::Lost(what),
                _ => End::Refused(format!("{what}; mend ca_file, the host in url, or the broker's certificate")),
            }
        }
        // mosquitto 2.0 gives no reason when it closes a connection for another one of the same name.
        ConnectionError::MqttState(StateError::ConnectionAborted) => End::Lost(
            "connection to the broker: it closed the connection without a reason; it may have ended, or another \
             client has this sink's client identifier"
                .into(),
        ),
        other => End::Lost(format!("connection to the broker: {other}")),
    }
}

fn refused(code: ConnectReturnCode) -> End {
    use ConnectReturnCode as C;
    let what = format!("the broker refuses the connection: {code:?}");
    match code {
        C::BadUserNamePassword | C::NotAuthorized | C::Banned | C::BadAuthenticationMethod => {
            End::Refused(format!(
                "{what}; mend the user in url, password_file, or the broker's permissions"
            ))
        }
        C::RefusedProtocolVersion | C::UnsupportedProtocolVersion => {
            End::Refused(format!("{what}; a broker of MQTT 5 is needed"))
        }
        C::BadClientId | C::ClientIdentifierNotValid => {
            End::Refused(format!("{what}; configure another client_id"))
        }
        _ => End::Lost(what),
    }
}
