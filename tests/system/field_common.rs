//! Owns: questions that several field cases ask of a rig.
//! May call: the harness.
//! Never: know one case.

use super::harness::Rig;
use serde_json::{Value as Json, json};

impl Rig {
    /// A link counter of the press.
    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let (_, machine) = self.get("/v1/machines/press-1").await;
        let text = machine["counters"][name].as_str().unwrap_or_default();
        text.parse()
            .unwrap_or_else(|_| panic!("no counter {name}: {machine}"))
    }
    /// A tag of the press as it was last polled.
    pub(crate) async fn tag(&self, name: &str) -> Json {
        let (status, answer) = self
            .get(&format!("/v1/machines/press-1/tags?read={name}"))
            .await;
        assert_eq!(status, 200, "{answer}");
        answer["tags"][0].clone()
    }
    /// Waits until a tag is as `fits` wants it.
    pub(crate) async fn until_tag(&mut self, name: &str, fits: impl Fn(&Json) -> bool) -> Json {
        let what = format!("tag {name} is as expected");
        self.until(&what, async |rig| fits(&rig.tag(name).await))
            .await;
        self.tag(name).await
    }
    /// Waits for `count` more polls than now.
    pub(crate) async fn polls(&mut self, count: u64) {
        let from = self.counter("polls").await;
        self.until("polls go on", async |rig| {
            rig.counter("polls").await >= from + count
        })
        .await;
    }
    pub(crate) async fn reload(&self) -> (u16, Json) {
        self.write_config();
        self.post("/v1/reload", json!({})).await
    }
    /// The codes of the alarms that stand.
    pub(crate) async fn alarms(&self) -> Vec<String> {
        let (_, status) = self.get("/v1/status").await;
        let alarms = status["alarms"].as_array().unwrap();
        alarms
            .iter()
            .map(|alarm| alarm["code"].as_str().unwrap().to_owned())
            .collect()
    }
    /// Events of one type.
    pub(crate) async fn events_of(&self, kind: &str) -> Vec<Json> {
        let events = self.events().await;
        events
            .into_iter()
            .filter(|event| event["type"] == kind)
            .collect()
    }
    /// `count` events of the press, each durable before the next change of its register.
    pub(crate) async fn make_events(&mut self, count: u16) {
        let from = self.device.holding(200);
        // What stands there now is an event too, once it was read.
        self.until_piece(from).await;
        for value in from + 1..=from + count {
            self.device.set_holding(200, value);
            self.until_piece(value).await;
        }
    }
    async fn until_piece(&mut self, value: u16) {
        let what = format!("piece {value} is recorded");
        self.until(&what, async |rig| {
            let events = rig.events_of("piece.count").await;
            events
                .last()
                .is_some_and(|event| event["body"]["value"] == value)
        })
        .await;
    }
}

/// The identity of an event.
pub(crate) fn key(event: &Json) -> (String, u64, u64) {
    let number = |name: &str| event[name].as_str().unwrap().parse().unwrap();
    let source = event["source"].as_str().unwrap().to_owned();
    (source, number("epoch"), number("sequence"))
}
