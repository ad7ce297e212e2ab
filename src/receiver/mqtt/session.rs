//! Owns: one connection of the receiver to the broker: what comes, and what is answered on it.
//! May call: the broker's address in `upstream`.
//! Never: acknowledge to the broker by itself; outlive its connection, since packet ids mean nothing on the next
//! one (F117).

use super::MqttReceiverConfig;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{
    Packet, Publish, RetainForwardRule, SubscribeFilter, SubscribeReasonCode,
};
use rumqttc::{
    AckMode, AsyncClient, Event, EventLoop, PersistedAckMode, PersistedSession, SessionStore,
    SessionStoreError, SessionStoreKey,
};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Messages that the broker may have sent without an acknowledgement.
const RECEIVE_MAX: u16 = 2_000;
/// Answers and acknowledgements that wait for the connection to take them.
const REQUESTS_MAX: usize = 2 * RECEIVE_MAX as usize;
/// Longest time until the subscription stands, in milliseconds.
const OPEN_MS_MAX: u64 = 15_000;
/// Version of the client's model of a session.
const SESSION_FORMAT: u16 = 1;

/// A connection with its subscription.
pub(super) struct Session {
    pub(super) client: AsyncClient,
    pub(super) messages: mpsc::Receiver<Publish>,
    ended: oneshot::Receiver<String>,
    task: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    /// Connects and subscribes.
    pub(super) async fn open(config: &MqttReceiverConfig) -> Result<Self, String> {
        let mut options = config.broker.options(&config.client_id)?;
        options.set_ack_mode(AckMode::Manual);
        options.set_receive_maximum(Some(RECEIVE_MAX));
        options.set_clean_start(config.session_s == 0);
        options.set_session_expiry_interval(Some(config.session_s));
        if config.session_s > 0 {
            options.set_session_store(NothingOpen {
                session_s: config.session_s,
            });
        }
        let (client, events) = AsyncClient::builder(options).capacity(REQUESTS_MAX).build();
        let (came, messages) = mpsc::channel(RECEIVE_MAX.into());
        let (tell, ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            let _ = tell.send(drive(events, came).await);
        });
        let mut session = Self {
            client,
            messages,
            ended,
            task,
        };
        let within = Duration::from_millis(OPEN_MS_MAX);
        match tokio::time::timeout(within, session.subscribe(config)).await {
            Ok(Ok(())) => Ok(session),
            Ok(Err(Some(refused))) => Err(refused),
            Ok(Err(None)) => Err(session.why_ended().await),
            Err(_) => Err(format!(
                "the broker at {} does not answer",
                config.broker.url
            )),
        }
    }

    /// `Err(None)`: the connection ended.
    async fn subscribe(&self, config: &MqttReceiverConfig) -> Result<(), Option<String>> {
        let path = config.filter();
        let filter = SubscribeFilter {
            path: path.clone(),
            qos: QoS::AtLeastOnce,
            // Not together with a shared subscription (MQTT 5, 3.8.3.1).
            nolocal: false,
            preserve_retain: true,
            retain_forward_rule: RetainForwardRule::Never,
        };
        let notice = self
            .client
            .subscribe_many_tracked([filter])
            .await
            .map_err(|_| None)?;
        let suback = notice.wait_async().await.map_err(|_| None)?;
        match suback.return_codes.first() {
            Some(SubscribeReasonCode::Success(QoS::AtLeastOnce | QoS::ExactlyOnce)) => Ok(()),
            Some(code) => Err(Some(format!(
                "the broker refuses the subscription to {path:?}: {code:?}"
            ))),
            None => Err(Some(format!(
                "the broker did not answer the subscription to {path:?}"
            ))),
        }
    }

    /// Why the connection ended; called once it has.
    pub(super) async fn why_ended(&mut self) -> String {
        let within = Duration::from_millis(OPEN_MS_MAX);
        match tokio::time::timeout(within, &mut self.ended).await {
            Ok(Ok(reason)) => reason,
            _ => "the connection ended".to_owned(),
        }
    }
}

/// Takes what comes until the connection ends; never waits for who uses it, so that answers can go out.
async fn drive(mut events: EventLoop, came: mpsc::Sender<Publish>) -> String {
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::Publish(publish))) => {
                let unasked = publish.qos == QoS::AtMostOnce;
                match came.try_send(publish) {
                    Err(mpsc::error::TrySendError::Full(_)) if unasked => {
                        log::warn!(
                            "mqtt: a message of QoS 0 was dropped: more than {RECEIVE_MAX} wait"
                        );
                    }
                    Err(mpsc::error::TrySendError::Full(_)) => {
                        return format!(
                            "the broker sends more than {RECEIVE_MAX} messages at once"
                        );
                    }
                    Err(mpsc::error::TrySendError::Closed(_)) => return "closed here".to_owned(),
                    Ok(()) => {}
                }
            }
            Ok(_) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// The session of a receiver that has just started: it has sent nothing that is still open. What the broker
/// keeps for it comes again, and the books know what they have.
#[derive(Debug)]
struct NothingOpen {
    session_s: u32,
}

type Stored<'a, T> = Pin<Box<dyn Future<Output = Result<T, SessionStoreError>> + Send + 'a>>;

impl SessionStore for NothingOpen {
    fn load<'a>(&'a self, key: &'a SessionStoreKey) -> Stored<'a, Option<PersistedSession>> {
        let session = PersistedSession {
            format_version: SESSION_FORMAT,
            client_id: key.client_id().to_owned(),
            clean_start: false,
            session_expiry_interval: Some(self.session_s),
            outgoing_inflight_upper_limit: None,
            ack_mode: PersistedAckMode::Manual,
            last_pkid: 0,
            last_puback: 0,
            replay: Vec::new(),
            incoming_qos2: Vec::new(),
        };
        Box::pin(async move { Ok(Some(session)) })
    }
    fn save<'a>(&'a self, _: &'a SessionStoreKey, _: &'a PersistedSession) -> Stored<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    fn clear<'a>(&'a self, _: &'a SessionStoreKey) -> Stored<'a, ()> {
        Box::pin(async { Ok(()) })
    }
}
