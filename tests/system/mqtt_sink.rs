//! The `mqtt` sink against a real broker, with a receiver that says whatever a test wants.

use super::harness::until;
use super::mosquitto_server::Mosquitto;
use futures_util::future::join;
use holdfast::core::ids::{Epoch, EventKey, Sequence};
use holdfast::core::outbox::Verdict;
use holdfast::core::record::{EventRecord, Position};
use holdfast::core::spec::{EventClass, Quality};
use holdfast::sink::mqtt::{MqttSinkConfig, TAKEOVERS_MAX, sink};
use holdfast::sink::{AckLevel, Sink};
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Packet, Publish, PublishProperties};
use rumqttc::{AsyncClient, Event, MqttOptions, PublishOptions};
use serde_json::{Value as Json, json};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) const TOPIC: &str = "plant/{gateway}/events";
pub(crate) const ACKS: &str = "plant/{gateway}/acks";
/// Silence after which these tests' batches are given up, in milliseconds.
const SHORT_MS: u64 = 400;
/// ... where answers are expected.
pub(crate) const LONG_MS: u64 = 20_000;

pub(crate) fn config(broker: &Mosquitto, ack_ms: u64) -> MqttSinkConfig {
    MqttSinkConfig {
        url: broker.url(),
        password_file: None,
        ca_file: None,
        client_id: "gw-1-mes".into(),
        gateway: "gw-1".into(),
        topic: TOPIC.into(),
        ack_topic: Some(ACKS.into()),
        ack_ms,
    }
}

pub(crate) fn event(n: u64, body: &str) -> (Position, EventRecord) {
    let event = EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(n),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 1_796_025_600_000_000,
        boottime_ns: 5,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: body.into(),
        unsynchronised: None,
    };
    (Position::default(), event)
}

fn events(count: u64) -> Vec<(Position, EventRecord)> {
    (1..=count).map(|n| event(n, "{}")).collect()
}

pub(crate) async fn deliver(sink: &mut Sink, batch: &[(Position, EventRecord)]) -> Vec<Verdict> {
    let verdicts = sink.lanes[0].deliver(batch).await;
    assert_eq!(verdicts.len(), batch.len());
    verdicts
}

#[track_caller]
fn reason(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Retry { reason, .. } => reason,
        other => panic!("expected a retry, got {other:?}"),
    }
}

/// A message to answer with.
struct Answer {
    correlation: Option<Vec<u8>>,
    payload: Vec<u8>,
    retain: bool,
}

impl Answer {
    fn new(to: &Publish, body: Json) -> Self {
        let properties = to.properties.as_ref().expect("it has properties");
        Self {
            correlation: properties
                .correlation_data
                .as_ref()
                .map(|data| data.to_vec()),
            payload: body.to_string().into_bytes(),
            retain: false,
        }
    }
    fn right(to: &Publish, status: &str) -> Self {
        Self::new(to, json!({ "key": key_of(to), "status": status }))
    }
}

fn key_of(publish: &Publish) -> String {
    let event: Json = serde_json::from_slice(&publish.payload).unwrap();
    let part = |name: &str| event[name].as_str().unwrap().to_owned();
    format!("{}/{}/{}", part("source"), part("epoch"), part("sequence"))
}

/// Subscribed to the events; what came is kept.
struct Receiver {
    task: JoinHandle<()>,
    came: Arc<Mutex<Vec<Publish>>>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    async fn start(
        broker: &Mosquitto,
        mut answer: impl FnMut(&Publish) -> Vec<Answer> + Send + 'static,
    ) -> Self {
        let mut options = MqttOptions::new("receiver", ("127.0.0.1", broker.port));
        options.set_clean_start(true);
        let (client, mut events) = AsyncClient::builder(options).capacity(1_000).build();
        let came = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&came);
        let (ready, subscribed) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut ready = Some(ready);
            client
                .subscribe("plant/+/events", QoS::AtLeastOnce)
                .await
                .unwrap();
            while let Ok(event) = events.poll().await {
                match event {
                    Event::Incoming(Packet::SubAck(_)) => {
                        let _ = ready.take().map(|ready| ready.send(()));
                    }
                    Event::Incoming(Packet::Publish(publish)) => {
                        let topic = publish
                            .properties
                            .as_ref()
                            .and_then(|p| p.response_topic.clone());
                        for answer in answer(&publish) {
                            let options = PublishOptions::new(QoS::AtLeastOnce)
                                .retain(answer.retain)
                                .properties(PublishProperties {
                                    correlation_data: answer.correlation.map(Into::into),
                                    ..PublishProperties::default()
                                });
                            let topic = topic.clone().expect("it names where to answer");
                            client.try_publish(topic, answer.payload, options).unwrap();
                        }
                        kept.lock().unwrap().push(publish);
                    }
                    _ => {}
                }
            }
        });
        subscribed.await.expect("the receiver subscribes");
        Self { task, came }
    }

    fn came(&self) -> Vec<Publish> {
        self.came.lock().unwrap().clone()
    }
}

// covers: FWD-02, FWD-07, EVT-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receivers_answer_finishes_each_event_with_its_own_verdict() {
    let broker = Mosquitto::start();
    let statuses = ["accepted", "duplicate", "conflict", "malformed", "retry"];
    let mut n = 0;
    let receiver = Receiver::start(&broker, move |publish| {
        n += 1;
        let body = json!({ "key": key_of(publish), "status": statuses[(n - 1) % 5], "reason": "so", "kept": "{}" });
        vec![Answer::new(publish, body)]
    })
    .await;
    let mut sink = sink(config(&broker, LONG_MS));
    assert_eq!(sink.ack_level, AckLevel::Committed);
    let batch = events(5);
    let verdicts = deliver(&mut sink, &batch).await;
    assert_eq!(verdicts[..2], [Verdict::Accepted, Verdict::Duplicate]);
    let kept = Verdict::Conflict {
        reason: "so".into(),
        kept: Some("{}".into()),
    };
    assert_eq!(verdicts[2], kept);
    assert_eq!(
        verdicts[3],
        Verdict::Malformed {
            reason: "so".into()
        }
    );
    assert_eq!(reason(&verdicts[4]), "so");
    let came = receiver.came();
    assert_eq!(came.len(), 5);
    for (publish, (_, event)) in came.iter().zip(&batch) {
        let text = String::from_utf8(publish.payload.to_vec()).unwrap();
        assert_eq!(
            text,
            holdfast::core::event::to_json(event),
            "the canonical bytes"
        );
        assert_eq!((publish.retain, publish.qos), (false, QoS::AtLeastOnce));
        assert_eq!(publish.topic, "plant/gw-1/events".as_bytes());
        let properties = publish.properties.as_ref().unwrap();
        let copy = ("key".to_owned(), event.key.to_string());
        assert!(properties.user_properties.contains(&copy), "{properties:?}");
    }
}

// covers: FWD-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_of_the_broker_alone_finishes_nothing() {
    let broker = Mosquitto::start();
    let receiver = Receiver::start(&broker, |_| Vec::new()).await;
    let mut sink = sink(config(&broker, SHORT_MS));
    let verdicts = deliver(&mut sink, &events(3)).await;
    for verdict in &verdicts {
        assert!(
            reason(verdict).contains("no receiver acknowledged"),
            "{verdict:?}"
        );
    }
    assert_eq!(
        receiver.came().len(),
        3,
        "the broker had them all, and passed them on"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_receiver_it_is_said_at_once() {
    let broker = Mosquitto::start();
    let mut sink = sink(config(&broker, LONG_MS));
    let began = Instant::now();
    let verdicts = deliver(&mut sink, &events(3)).await;
    assert!(
        reason(&verdicts[0]).contains("no receiver is there"),
        "{verdicts:?}"
    );
    assert!(
        began.elapsed() < Duration::from_millis(LONG_MS),
        "no patience was used up"
    );
}

// covers: FWD-02, F117
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_answers_decide_nothing_and_right_ones_decide_once() {
    let broker = Mosquitto::start();
    let _receiver = Receiver::start(&broker, |publish| {
        let key = key_of(publish);
        let mut garbage = Answer::right(publish, "accepted");
        garbage.payload = b"\xff{accepted".to_vec();
        let mut elsewhere = Answer::right(publish, "accepted");
        elsewhere.correlation = Some(b"press-1/7/99 sha256:00".to_vec());
        let mut retained = Answer::right(publish, "accepted");
        retained.retain = true;
        let mut answers = vec![
            garbage,
            elsewhere,
            Answer::new(
                publish,
                json!({ "key": "press-1/7/99", "status": "accepted" }),
            ),
            Answer::new(
                publish,
                json!({ "key": key, "digest": "sha256:00", "status": "accepted" }),
            ),
            Answer::new(publish, json!({ "key": key, "status": "committed" })),
        ];
        if key != "press-1/7/2" {
            // Twice, and then something else.
            answers.extend(
                ["duplicate", "duplicate", "conflict"].map(|status| Answer::right(publish, status)),
            );
        }
        answers
    })
    .await;
    let mut sink = sink(config(&broker, SHORT_MS));
    let verdicts = deliver(&mut sink, &events(3)).await;
    assert_eq!(
        (&verdicts[0], &verdicts[2]),
        (&Verdict::Duplicate, &Verdict::Duplicate)
    );
    assert!(
        reason(&verdicts[1]).contains("none of ours"),
        "{verdicts:?}"
    );
}

// covers: F073
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retained_answer_of_the_past_is_no_answer() {
    let broker = Mosquitto::start();
    let receiver = Receiver::start(&broker, |publish| {
        let mut retained = Answer::right(publish, "accepted");
        retained.retain = true;
        vec![retained]
    })
    .await;
    let batch = events(1);
    // To a subscriber that is there, a broker passes a retained message on as a fresh one.
    let first = deliver(&mut sink(config(&broker, LONG_MS)), &batch).await;
    assert_eq!(first, [Verdict::Accepted]);
    drop(receiver);
    let _silent = Receiver::start(&broker, |_| Vec::new()).await;
    let again = deliver(&mut sink(config(&broker, SHORT_MS)), &batch).await;
    assert!(
        reason(&again[0]).contains("no receiver acknowledged"),
        "{again:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_ack_topic_the_sink_says_that_the_broker_is_all_it_knows() {
    let broker = Mosquitto::start();
    let mut sink = sink(MqttSinkConfig {
        ack_topic: None,
        ..config(&broker, LONG_MS)
    });
    assert_eq!(
        (sink.ack_level, sink.ack_level.name()),
        (AckLevel::Broker, "broker")
    );
    assert_eq!(
        deliver(&mut sink, &events(3)).await,
        vec![Verdict::Accepted; 3]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_broker_forbids_stops_the_sink_until_a_person_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let acl = "user gw\ntopic read plant/gw-1/acks\ntopic write plant/gw-1/events\nuser mute\ntopic read plant/gw-1/acks\n";
    std::fs::write(dir.path().join("acl"), acl).unwrap();
    let passwords = dir.path().join("passwords");
    std::fs::write(&passwords, "").unwrap();
    for user in ["gw", "mute"] {
        let made = Command::new("mosquitto_passwd")
            .args(["-b", &passwords.display().to_string(), user, "right"])
            .status();
        assert!(made.unwrap().success());
    }
    let broker = Mosquitto::inside(
        dir,
        "allow_anonymous false\npassword_file DIR/passwords\nacl_file DIR/acl\n",
        "",
    );
    let secret = |text: &str| {
        let path = broker.path().join(text);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Some(path)
    };
    let user = |name: &str, password_file| MqttSinkConfig {
        url: broker.url().replace("//", &format!("//{name}@")),
        password_file,
        ..config(&broker, LONG_MS)
    };
    for (config, says) in [
        (user("gw", secret("wrong")), "password_file"),
        (config(&broker, LONG_MS), "refuses the connection"),
        (
            user("gw", Some(broker.path().join("none"))),
            "cannot be read",
        ),
        (user("mute", secret("right")), "publish"),
    ] {
        let verdicts = deliver(&mut sink(config.clone()), &events(2)).await;
        for verdict in &verdicts {
            let Verdict::Stop { reason } = verdict else {
                panic!("{config:?}: {verdict:?}\n{}", broker.log())
            };
            assert!(reason.contains(says), "{reason}");
        }
    }
    let verdicts = deliver(&mut sink(user("gw", secret("right"))), &events(1)).await;
    assert!(
        reason(&verdicts[0]).contains("no receiver is there"),
        "all is permitted: {verdicts:?}"
    );
}

/// A broker by hand: takes a connection and a subscription, and answers every first publish with `farewell`.
async fn broker_that_says(farewell: &'static [u8]) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let task = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut packet = [0; 4096];
            let mut next = async |stream: &mut TcpStream| {
                stream
                    .read(&mut packet)
                    .await
                    .map(|_| packet[2..4].to_vec())
            };
            // CONNECT, SUBSCRIBE with its packet id, PUBLISH.
            next(&mut stream).await.unwrap();
            stream.write_all(&[0x20, 3, 0, 0, 0]).await.unwrap();
            let id = next(&mut stream).await.unwrap();
            stream
                .write_all(&[0x90, 4, id[0], id[1], 0, 1])
                .await
                .unwrap();
            next(&mut stream).await.unwrap();
            stream.write_all(farewell).await.unwrap();
        }
    });
    (port, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_of_one_client_id_are_told_so_in_the_end() {
    let broker = Mosquitto::start();
    // DISCONNECT, session taken over.
    let (port, task) = broker_that_says(&[0xe0, 2, 0x8e, 0]).await;
    let mut taken = sink(MqttSinkConfig {
        url: format!("mqtt://127.0.0.1:{port}"),
        ..config(&broker, LONG_MS)
    });
    let batch = events(1);
    for _ in 1..TAKEOVERS_MAX {
        let verdicts = deliver(&mut taken, &batch).await;
        assert!(
            reason(&verdicts[0]).contains("another client"),
            "{verdicts:?}"
        );
    }
    let verdicts = deliver(&mut taken, &batch).await;
    let Verdict::Stop { reason: says } = &verdicts[0] else {
        panic!("{verdicts:?}")
    };
    assert!(
        says.contains("gw-1-mes") && says.contains("second gateway"),
        "{says}"
    );
    task.abort();
    // mosquitto 2.0 takes a connection over without a word: then it is only guessed, and it goes on.
    let mut one = sink(config(&broker, LONG_MS));
    let receiver = Receiver::start(&broker, |_| Vec::new()).await;
    let kick = async {
        until("a message came", async || !receiver.came().is_empty()).await;
        let other = MqttSinkConfig {
            gateway: "gw-2".into(),
            ..config(&broker, 1)
        };
        deliver(&mut sink(other), &events(1)).await
    };
    let (verdicts, _) = join(deliver(&mut one, &batch), kick).await;
    let says = reason(&verdicts[0]);
    assert!(says.contains("client identifier"), "{says}");
}

// covers: FWD-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_too_large_for_the_broker_is_malformed_and_holds_up_no_other() {
    for limit in ["max_packet_size 3000\n", "message_size_limit 2000\n"] {
        let broker = Mosquitto::with(&format!("allow_anonymous true\n{limit}"), "");
        let _receiver =
            Receiver::start(&broker, |publish| vec![Answer::right(publish, "accepted")]).await;
        let mut sink = sink(config(&broker, LONG_MS));
        let mut waiting = events(5);
        waiting[2] = event(3, &format!("{{\"long\":\"{}\"}}", "x".repeat(4_000)));
        let mut refused = Vec::new();
        for _ in 0..6 {
            if waiting.is_empty() {
                break;
            }
            let verdicts = deliver(&mut sink, &waiting).await;
            let mut again = Vec::new();
            for (event, verdict) in waiting.into_iter().zip(verdicts) {
                match verdict {
                    Verdict::Retry { .. } => again.push(event),
                    Verdict::Malformed { reason } => refused.push((event.1.key.sequence.0, reason)),
                    other => assert_eq!(other, Verdict::Accepted),
                }
            }
            waiting = again;
        }
        assert!(waiting.is_empty(), "{limit}: {waiting:?}\n{}", broker.log());
        assert_eq!(
            refused.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
            [3],
            "{limit}"
        );
    }
}

// covers: F060, F117
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_or_frozen_costs_retries_and_nothing_else() {
    let mut broker = Mosquitto::start();
    let mut sink = sink(config(&broker, SHORT_MS));
    let batch = events(10);
    broker.kill();
    let verdicts = deliver(&mut sink, &batch).await;
    assert!(
        reason(&verdicts[0]).contains("connection to the broker"),
        "{verdicts:?}"
    );
    broker.restart();
    {
        let receiver =
            Receiver::start(&broker, |publish| vec![Answer::right(publish, "accepted")]).await;
        assert_eq!(
            deliver(&mut sink, &batch).await,
            vec![Verdict::Accepted; 10]
        );
        assert_eq!(receiver.came().len(), 10, "nothing was kept from before");
        broker.freeze();
        let verdicts = deliver(&mut sink, &batch).await;
        assert!(
            reason(&verdicts[9]).contains("did not take it"),
            "{verdicts:?}"
        );
        broker.thaw();
        let mut patience = 0;
        while deliver(&mut sink, &batch).await != vec![Verdict::Accepted; 10] {
            patience += 1;
            assert!(patience < 20, "it does not come back\n{}", broker.log());
        }
    }
    // Killed under way, once and again: the next try is a new connection with a new subscription.
    for _ in 0..3 {
        let _receiver =
            Receiver::start(&broker, |publish| vec![Answer::right(publish, "accepted")]).await;
        assert_eq!(
            deliver(&mut sink, &batch).await,
            vec![Verdict::Accepted; 10]
        );
        let many = events(1_000);
        let (verdicts, ()) = join(deliver(&mut sink, &many), async { broker.kill() }).await;
        assert!(
            verdicts
                .iter()
                .all(|v| matches!(v, Verdict::Accepted | Verdict::Retry { .. }))
        );
        broker.restart();
    }
}

// covers: FWD-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_only_the_right_authority_is_believed() {
    let dir = tempfile::tempdir().unwrap();
    let openssl = |args: &str| {
        let made = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
    };
    for name in ["ca", "other"] {
        openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"
        ));
    }
    openssl("req -newkey rsa:2048 -nodes -subj /CN=broker -keyout server.key -out server.csr");
    std::fs::write(dir.path().join("ext"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.pem",
    );
    let listener = "certfile DIR/server.pem\nkeyfile DIR/server.key\n";
    let broker = Mosquitto::inside(dir, "allow_anonymous true\n", listener);
    let with = |host: &str, ca: &str| MqttSinkConfig {
        url: format!("mqtts://{host}:{}", broker.port),
        ca_file: Some(broker.path().join(ca)),
        ack_topic: None,
        ..config(&broker, LONG_MS)
    };
    let good = deliver(&mut sink(with("localhost", "ca.pem")), &events(2)).await;
    assert_eq!(good, vec![Verdict::Accepted; 2], "{}", broker.log());
    for (host, ca) in [("localhost", "other.pem"), ("127.0.0.1", "ca.pem")] {
        let verdicts = deliver(&mut sink(with(host, ca)), &events(1)).await;
        let Verdict::Stop { reason } = &verdicts[0] else {
            panic!("{verdicts:?}")
        };
        assert!(reason.contains("certificate"), "{reason}");
    }
}
