//! From the `mqtt` sink over a real broker and receiver into real books, and what may go wrong in between.

use super::harness::until;
use super::mosquitto_server::Mosquitto;
use super::mqtt_sink::{ACKS, LONG_MS, TOPIC, config, deliver, event};
use super::postgres_server::{Database, PostgresServer, VERSIONS, Version};
use futures_util::future::join;
use holdfast::core::outbox::Verdict;
use holdfast::receiver::mqtt::{MqttReceiverConfig, MqttStats, run};
use holdfast::receiver::{BooksLedger, Connect, Ledger};
use holdfast::sink::Sink;
use holdfast::sink::mqtt::{MqttSinkConfig, sink};
use holdfast::upstream::broker::Broker;
use holdfast::upstream::topic::TopicTemplate;
use holdfast::upstream::{Books, UpstreamError};
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::{Packet, Publish, PublishProperties};
use rumqttc::{AsyncClient, Event, MqttOptions, PublishOptions};
use serde_json::Value as Json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Events that go through when nothing else is asked for.
const EVENTS_DEFAULT: u64 = 10_000;
/// Times that the broker is killed meanwhile.
const KILLS: i64 = 5;
const BATCH: usize = 100;
/// How long any condition may take to come true, in milliseconds.
const PATIENCE: Duration = Duration::from_millis(30_000);

/// A receiver in this process.
struct Receiving {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    stats: Arc<MqttStats>,
    /// While set, the books cannot be reached.
    away: Arc<AtomicBool>,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiving {
    /// ... that is subscribed.
    async fn start(broker: &Mosquitto, database: &Database<'_>, session_s: u32) -> Self {
        Self::named(broker, database, session_s, "books", None).await
    }

    async fn named(
        broker: &Mosquitto,
        database: &Database<'_>,
        session_s: u32,
        client_id: &str,
        group: Option<&str>,
    ) -> Self {
        let config = MqttReceiverConfig {
            broker: Broker {
                url: broker.url(),
                password_file: None,
                ca_file: None,
            },
            client_id: client_id.into(),
            topic: TopicTemplate::new(TOPIC),
            ack_topic: TopicTemplate::new(ACKS),
            group: group.map(str::to_owned),
            session_s,
            batch_events_max: 500,
            gather_ms: 5,
        };
        config.check().unwrap();
        let away = Arc::new(AtomicBool::new(false));
        let target = database.writer();
        let is_away = Arc::clone(&away);
        let connect: Connect = Arc::new(move || {
            let (target, is_away) = (target.clone(), Arc::clone(&is_away));
            Box::pin(async move {
                if is_away.load(Ordering::Relaxed) {
                    return Err(UpstreamError::Passing("the books are away".into()));
                }
                let books = Books::connect(&target).await?;
                Ok(Box::new(BooksLedger(books)) as Box<dyn Ledger>)
            })
        });
        let stats = Arc::new(MqttStats::default());
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(run(config, connect, Arc::clone(&stats), stopped));
        let receiving = Self {
            task,
            stop,
            stats,
            away,
        };
        receiving
            .until("it is subscribed", |stats| stats.state() == "ok")
            .await;
        receiving
    }

    async fn until(&self, what: &str, condition: impl Fn(&MqttStats) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.stats) {
            assert!(
                Instant::now() < deadline,
                "in vain: {what}: {} {:?}",
                self.stats.state(),
                self.stats
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it in order.
    async fn stop(mut self) {
        self.stop.send(true).unwrap();
        (&mut self.task).await.unwrap();
    }
}

/// A client of the broker that may do anything.
struct Anyone {
    client: AsyncClient,
    task: JoinHandle<()>,
    came: Arc<Mutex<Vec<Publish>>>,
}

impl Drop for Anyone {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Anyone {
    async fn new(broker: &Mosquitto, name: &str, listens_to: &str) -> Self {
        let mut options = MqttOptions::new(name, ("127.0.0.1", broker.port));
        options.set_clean_start(true);
        let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
        let came = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&came);
        let task = tokio::spawn(async move {
            while let Ok(event) = events.poll().await {
                if let Event::Incoming(Packet::Publish(publish)) = event {
                    kept.lock().unwrap().push(publish);
                }
            }
        });
        let notice = client
            .subscribe_tracked(listens_to, QoS::AtLeastOnce)
            .await
            .unwrap();
        notice.wait_async().await.unwrap();
        Self { client, task, came }
    }

    async fn publish(&self, topic: &str, payload: &str, answer: Option<&str>, retain: bool) {
        let options = PublishOptions::new(QoS::AtLeastOnce)
            .retain(retain)
            .properties(PublishProperties {
                response_topic: answer.map(str::to_owned),
                correlation_data: Some("c".into()),
                ..PublishProperties::default()
            });
        let notice = self
            .client
            .publish_tracked(topic, payload.to_owned(), options)
            .await
            .unwrap();
        notice.wait_async().await.unwrap();
    }

    /// The statuses that were answered, once there are so many.
    async fn answers(&self, count: usize) -> Vec<(String, String)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let came = self.came.lock().unwrap().clone();
            if came.len() >= count {
                return came
                    .iter()
                    .map(|publish| {
                        let answer: Json = serde_json::from_slice(&publish.payload).unwrap();
                        let text =
                            |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
                        (text("key"), text("status"))
                    })
                    .collect();
            }
            assert!(
                Instant::now() < deadline,
                "{} of {count} answers came",
                came.len()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn events_wanted() -> u64 {
    let given = std::env::var("HOLDFAST_EVENTS").ok();
    given.map_or(EVENTS_DEFAULT, |text| {
        text.parse().expect("HOLDFAST_EVENTS is a number")
    })
}

struct Sent {
    accepted: u64,
    duplicates: u64,
    retries: u64,
}

/// As the outbox does it: a batch at a time, what was not finished again.
async fn send_all(sink: &mut Sink, count: u64) -> Sent {
    let mut sent = Sent {
        accepted: 0,
        duplicates: 0,
        retries: 0,
    };
    let mut next = 1;
    let mut waiting = Vec::new();
    while next <= count || !waiting.is_empty() {
        while next <= count && waiting.len() < BATCH {
            waiting.push(event(next, "{}"));
            next += 1;
        }
        let verdicts = deliver(sink, &waiting).await;
        let mut again = Vec::new();
        for (event, verdict) in waiting.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Accepted => sent.accepted += 1,
                Verdict::Duplicate => sent.duplicates += 1,
                Verdict::Retry { .. } => again.push(event),
                other => panic!("{}: {other:?}", event.1.key),
            }
        }
        sent.retries += again.len() as u64;
        if again.len() == BATCH {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        waiting = again;
    }
    sent
}

/// Kills the broker at equal distances of the way, as the books see it.
async fn kill_on_the_way(broker: &mut Mosquitto, database: &Database<'_>, count: u64) {
    for n in 1..=KILLS {
        let mark = i64::try_from(count).unwrap() * n / (KILLS + 1);
        until("so many rows", async || database.rows().await >= mark).await;
        broker.kill();
        broker.restart();
    }
}

// covers: B1, B5, FWD-02, FWD-07, F117
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_killed_on_the_way_loses_and_doubles_nothing_in_the_books() {
    let count = events_wanted();
    let mut broker = Mosquitto::start();
    let server = PostgresServer::shared(Version::V18).await;
    let database = server.database().await;
    let receiving = Receiving::start(&broker, &database, 0).await;
    let mut sink = sink(config(&broker, 3_000));
    let began = Instant::now();
    let (sent, ()) = join(
        send_all(&mut sink, count),
        kill_on_the_way(&mut broker, &database, count),
    )
    .await;
    let took = began.elapsed();
    println!(
        "{count} events, {KILLS} kills: {:.1} s, {:.0} a second; {} accepted, {} duplicates, {} sent again; {} messages received",
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64(),
        sent.accepted,
        sent.duplicates,
        sent.retries,
        receiving.stats.received(),
    );
    let count_i64 = i64::try_from(count).unwrap();
    assert_eq!(
        (database.rows().await, database.total().await),
        (count_i64, count_i64)
    );
    assert_eq!(sent.accepted + sent.duplicates, count);
    let distinct = "SELECT count(DISTINCT (source, epoch, sequence)) FROM holdfast.event";
    assert_eq!(database.number(distinct).await, count_i64);
    let [received, accepted, duplicate, conflict, malformed, failed] = database.counters().await;
    assert_eq!(
        (accepted, conflict, malformed, failed),
        (count_i64, 0, 0, 0)
    );
    assert_eq!(received, accepted + duplicate);
    receiving.stop().await;
}

// covers: ING-02, FWD-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receivers_of_one_group_share_the_events_and_one_of_them_may_die() {
    const COUNT: u64 = 1_000;
    let broker = Mosquitto::start();
    let server = PostgresServer::shared(Version::V15).await;
    let database = server.database().await;
    let one = Receiving::named(&broker, &database, 0, "one", Some("books")).await;
    let two = Receiving::named(&broker, &database, 0, "two", Some("books")).await;
    let mut sink = sink(config(&broker, 1_000));
    let dying = async {
        one.until("it takes its part", |stats| stats.received() > 100)
            .await;
        drop(one);
    };
    let (sent, ()) = join(send_all(&mut sink, COUNT), dying).await;
    assert_eq!(sent.accepted + sent.duplicates, COUNT);
    assert!(two.stats.received() > 100);
    assert_eq!(
        (database.rows().await, database.total().await),
        (1_000, 1_000)
    );
    two.stop().await;
}

// covers: FWD-02, ING-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_books_verdict_comes_back_to_the_sink() {
    let broker = Mosquitto::start();
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.database().await;
        let receiving = Receiving::start(&broker, &database, 0).await;
        let mut sink = sink(config(&broker, LONG_MS));
        assert_eq!(
            deliver(&mut sink, &[event(1, "{}"), event(2, "{}")]).await,
            vec![Verdict::Accepted; 2]
        );
        let verdicts = deliver(
            &mut sink,
            &[event(1, "{}"), event(2, "{\"other\":1}"), event(3, "{}")],
        )
        .await;
        assert_eq!(
            (&verdicts[0], &verdicts[2]),
            (&Verdict::Duplicate, &Verdict::Accepted)
        );
        let Verdict::Conflict { kept, .. } = &verdicts[1] else {
            panic!("{verdicts:?}")
        };
        assert!(kept.is_some(), "what the books hold is told");
        assert_eq!((database.rows().await, database.total().await), (3, 3));
        // The same key twice in one batch of the receiver.
        let anyone = Anyone::new(&broker, "anyone", "plant/gw-9/acks").await;
        let text = holdfast::core::event::to_json(&event(9, "{}").1);
        let twice = ["a", "b"]
            .map(|_| anyone.publish("plant/gw-9/events", &text, Some("plant/gw-9/acks"), false));
        futures_util::future::join_all(twice).await;
        let mut answers: Vec<String> = anyone
            .answers(2)
            .await
            .into_iter()
            .map(|(_, status)| status)
            .collect();
        answers.sort();
        assert_eq!(answers, ["accepted", "duplicate"]);
        receiving.stop().await;
    }
}

// covers: F073, F085, ING-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_publisher_reaches_neither_totals_nor_foreign_topics() {
    let broker = Mosquitto::start();
    let server = PostgresServer::shared(Version::V15).await;
    let database = server.database().await;
    let good = holdfast::core::event::to_json(&event(1, "{}").1);
    let own = Some("plant/gw-1/acks");
    // Retained before the receiver is there: it is not even brought.
    let anyone = Anyone::new(&broker, "anyone", "plant/gw-1/acks").await;
    anyone.publish("plant/gw-1/events", &good, own, true).await;
    let receiving = Receiving::start(&broker, &database, 0).await;
    let spy = Anyone::new(&broker, "spy", "cmd/#").await;
    for payload in [
        "",
        "no json",
        "[1,2]",
        "\u{0}",
        &good.replace("\"qty\":1", "\"qty\":1000"),
    ] {
        anyone
            .publish("plant/gw-1/events", payload, own, false)
            .await;
    }
    let answers = anyone.answers(5).await;
    assert!(
        answers.iter().all(|(_, status)| status == "malformed"),
        "{answers:?}"
    );
    assert_eq!(answers[4].0, "press-1/7/1");
    anyone
        .publish("plant/gw-1/events", &good, Some("cmd/press-1/eject"), false)
        .await;
    anyone
        .publish("plant/gw-1/events", &good, Some("plant/gw-2/acks"), false)
        .await;
    anyone.publish("plant/gw-1/events", &good, own, true).await;
    let answers = anyone.answers(6).await;
    assert_eq!(answers[5], ("press-1/7/1".into(), "duplicate".into()));
    assert_eq!((database.rows().await, database.total().await), (1, 1));
    let [received, accepted, duplicate, conflict, malformed, failed] = database.counters().await;
    assert_eq!(
        [accepted, duplicate, conflict, malformed, failed],
        [1, 2, 0, 5, 0]
    );
    assert_eq!(received, 8);
    assert_eq!(
        database
            .number("SELECT count(*) FROM holdfast.dead_letter")
            .await,
        5
    );
    receiving.stop().await;
    assert_eq!(
        spy.came.lock().unwrap().len(),
        0,
        "nothing was published where the message wished"
    );
}

// covers: ING-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_books_are_away_nothing_is_acknowledged_and_nothing_lost() {
    let broker = Mosquitto::start();
    let server = PostgresServer::shared(Version::V18).await;
    let database = server.database().await;
    let receiving = Receiving::start(&broker, &database, 3_600).await;
    receiving.away.store(true, Ordering::Relaxed);
    // Whoever waits for an answer is told to come again.
    let mut acked = sink(config(&broker, LONG_MS));
    let batch = [event(1, "{}"), event(2, "{}")];
    for verdict in deliver(&mut acked, &batch).await {
        let Verdict::Retry { reason, .. } = verdict else {
            panic!("{verdict:?}")
        };
        assert!(reason.contains("the books are away"), "{reason}");
    }
    // For whom nobody waits, the message is kept, over a death of the receiver too.
    let mut unacked = sink(MqttSinkConfig {
        ack_topic: None,
        client_id: "gw-1-plain".into(),
        ..config(&broker, LONG_MS)
    });
    let plain = [event(3, "{}"), event(4, "{}")];
    assert_eq!(
        deliver(&mut unacked, &plain).await,
        vec![Verdict::Accepted; 2]
    );
    receiving
        .until("they have come", |stats| stats.received() >= 4)
        .await;
    assert_eq!(
        (receiving.stats.of_status("accepted"), database.rows().await),
        (0, 0)
    );
    drop(receiving);
    let more = [event(5, "{}")];
    assert_eq!(
        deliver(&mut unacked, &more).await,
        vec![Verdict::Accepted],
        "the broker keeps it"
    );
    let receiving = Receiving::start(&broker, &database, 3_600).await;
    receiving
        .until("the broker brings them again", |stats| {
            stats.of_status("accepted") >= 3
        })
        .await;
    assert_eq!(
        deliver(&mut acked, &batch).await,
        vec![Verdict::Accepted; 2]
    );
    // Away and back while it runs: tried again without a new message.
    receiving.away.store(true, Ordering::Relaxed);
    database.terminate_all().await;
    assert_eq!(
        deliver(&mut unacked, &[event(6, "{}")]).await,
        vec![Verdict::Accepted]
    );
    receiving
        .until("it has come", |stats| stats.received() >= 6)
        .await;
    receiving.away.store(false, Ordering::Relaxed);
    receiving
        .until("it is entered", |stats| stats.of_status("accepted") >= 6)
        .await;
    assert_eq!((database.rows().await, database.total().await), (6, 6));
    let [received, accepted, ..] = database.counters().await;
    assert_eq!((received, accepted), (6, 6));
    receiving.stop().await;
}
