//! The whole way as processes: PLC, gateway, mosquitto, receiver, PostgreSQL.

use super::harness::{HOLDFAST, PATIENCE, Rig};
use super::mosquitto_server::Mosquitto;
use super::postgres_server::{Database, PostgresServer, Version};
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v5::Packet;
use rumqttc::{AsyncClient, Event, MqttOptions};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// `holdfast receiver`, which takes from a broker.
struct ReceiverProcess {
    dir: TempDir,
    child: Option<Child>,
}

impl ReceiverProcess {
    fn new(broker: &Mosquitto, database: &Database<'_>) -> Self {
        let dir = tempfile::Builder::new().prefix("hr").tempdir().unwrap();
        let text = format!(
            "schema = 1\nlisten = \"127.0.0.1:0\"\n[database]\nurl = \"{}\"\n[mqtt]\nurl = \"{}\"\n\
             topic = \"plant/{{gateway}}/events\"\nack_topic = \"plant/{{gateway}}/acks\"\nclient_id = \"receiver\"\n",
            database.writer_url(),
            broker.url(),
        );
        std::fs::write(dir.path().join("receiver.toml"), text).unwrap();
        Self { dir, child: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&mut self, kill_at: Option<&str>) {
        assert!(self.child.is_none());
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"));
        let mut command = Command::new(HOLDFAST);
        command
            .arg("--config")
            .arg(self.path("receiver.toml"))
            .arg("receiver")
            .env("HOLDFAST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap());
        if let Some(point) = kill_at {
            command.env("HOLDFAST_KILL_AT", point);
        }
        self.child = Some(command.spawn().unwrap());
    }

    async fn until_dead(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self
            .child
            .as_mut()
            .expect("it was started")
            .try_wait()
            .unwrap()
            .is_none()
        {
            assert!(Instant::now() < deadline, "it does not die\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.child = None;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for ReceiverProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn with_sink(rig: &mut Rig, broker: &Mosquitto, more: &str) {
    let start = rig.gateway_toml.find("[[sink]]").unwrap();
    rig.gateway_toml.truncate(start);
    rig.gateway_toml += &format!(
        "[[sink]]\nname = \"mes\"\nkind = \"mqtt\"\nurl = \"{}\"\n{more}",
        broker.url()
    );
}

async fn sink_of(rig: &Rig) -> Json {
    let (_, sinks) = rig.get("/v1/sinks").await;
    sinks["sinks"][0].clone()
}

async fn keys(rig: &Rig) -> BTreeSet<String> {
    let part = |event: &Json, name: &str| event[name].as_str().unwrap().to_owned();
    let key = |event: &Json| {
        format!(
            "{}/{}/{}",
            part(event, "source"),
            part(event, "epoch"),
            part(event, "sequence")
        )
    };
    rig.events().await.iter().map(key).collect()
}

async fn keys_in(database: &Database<'_>) -> BTreeSet<String> {
    let rows = database
        .query("SELECT source || '/' || epoch || '/' || sequence FROM holdfast.event")
        .await;
    rows.into_iter().flatten().flatten().collect()
}

// covers: B5, B6, FWD-02, ING-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_killed_between_commit_and_answer_doubles_nothing() {
    let broker = Mosquitto::start();
    let server = PostgresServer::shared(Version::V15).await;
    let database = server.database().await;
    let mut receiver = ReceiverProcess::new(&broker, &database);
    receiver.start(Some("receiver.after-commit"));
    let mut rig = Rig::new().await;
    with_sink(
        &mut rig,
        &broker,
        "topic = \"plant/{gateway}/events\"\nack_topic = \"plant/{gateway}/acks\"\nack_timeout = \"500ms\"\n",
    );
    rig.start_up().await;
    for n in 1..=3 {
        let request = rig.set_speed(&format!("OP{n}"), 10 * n);
        assert_eq!(rig.submit_wait(&request).await.0, 201);
    }
    receiver.until_dead().await;
    let committed = keys_in(&database).await;
    assert!(!committed.is_empty(), "it died behind a commit");
    receiver.start(None);
    rig.until("the books hold what the journal holds", async |rig| {
        let sink = sink_of(rig).await;
        sink["backlog"]["events"] == "0" && keys_in(&database).await == keys(rig).await
    })
    .await;
    let sink = sink_of(&rig).await;
    assert_eq!(
        (&sink["kind"], &sink["ack_level"]),
        (&"mqtt".into(), &"committed".into())
    );
    let count = |name: &str| {
        sink["counters"][name]
            .as_str()
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    let rows = database.rows().await;
    assert_eq!(count("accepted") + count("duplicates"), rows, "{sink}");
    assert!(
        count("duplicates") >= 1,
        "what was committed without an answer came again: {sink}"
    );
    assert!(committed.is_subset(&keys(&rig).await));
    assert!(rig.stop().await.success());
}

// covers: F119, FWD-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_changed_while_events_wait_loses_none_and_the_sink_says_broker_acked() {
    let mut broker = Mosquitto::start();
    let mut rig = Rig::new().await;
    with_sink(&mut rig, &broker, "topic = \"old/{source}\"\n");
    broker.kill();
    rig.start_up().await;
    for n in 1..=3 {
        let request = rig.set_speed(&format!("OP{n}"), 10 * n);
        assert_eq!(rig.submit_wait(&request).await.0, 201);
    }
    let waiting = keys(&rig).await;
    assert!(rig.stop().await.success());
    broker.restart();
    let came: Arc<Mutex<Vec<(String, Json)>>> = Arc::default();
    let mut options = MqttOptions::new("listener", ("127.0.0.1", broker.port));
    options.set_clean_start(true);
    let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
    let kept = Arc::clone(&came);
    let task = tokio::spawn(async move {
        while let Ok(event) = events.poll().await {
            if let Event::Incoming(Packet::Publish(publish)) = event {
                let topic = String::from_utf8(publish.topic.to_vec()).unwrap();
                let event = serde_json::from_slice(&publish.payload).unwrap();
                kept.lock().unwrap().push((topic, event));
            }
        }
    });
    let notice = client
        .subscribe_tracked("#", QoS::AtLeastOnce)
        .await
        .unwrap();
    notice.wait_async().await.unwrap();
    with_sink(&mut rig, &broker, "topic = \"new/{source}/{type}\"\n");
    rig.start_up().await;
    rig.until("all events have come", async |rig| {
        let expected = rig.events().await;
        let came = came.lock().unwrap();
        expected.iter().all(|event| {
            came.iter()
                .any(|(_, found)| found["digest"] == event["digest"])
        })
    })
    .await;
    let came = came.lock().unwrap().clone();
    assert!(came.iter().all(|(topic, event)| {
        *topic
            == format!(
                "new/{}/{}",
                event["source"].as_str().unwrap(),
                event["type"].as_str().unwrap()
            )
    }));
    assert!(waiting.len() > 3 && waiting.is_subset(&keys(&rig).await));
    let sink = sink_of(&rig).await;
    assert_eq!(sink["ack_level"], "broker");
    for command in ["sinks", "status"] {
        let said = rig.command(&[command]).output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("mqtt (broker-acked)"), "{said}");
    }
    assert!(rig.stop().await.success());
    task.abort();
}
