//! Owns: the scene of part C: the link lost at t=0, readings at t=1, eject_one at t=2, set_speed 50 at t=3.
//! May call: the harness.
//! Never: let real time decide where on the scene's clock something happens.

use super::harness::{PRESS, PRESS_SIM, Rig};
use serde_json::{Value as Json, json};
use tokio::task::JoinSet;

/// Where the reading of the articles stands.
const STATUS_REGISTER: u16 = 5160;
/// Requests under way at once while the readings are asked.
const BATCH: usize = 20;

/// The scene, and its clock.
pub(crate) struct Scene {
    pub(crate) rig: Rig,
    t0_ns: i64,
    more: usize,
}

impl Scene {
    /// Up to and including t=3, with `more` readings after the first.
    pub(crate) async fn new(more: usize) -> Self {
        Self::with(PRESS, more).await
    }

    /// The same with another machine file.
    pub(crate) async fn with(machine_toml: &str, more: usize) -> Self {
        Self::of(Rig::with(machine_toml, PRESS_SIM).await, more).await
    }

    /// The same with a rig that was not started yet.
    pub(crate) async fn of(mut rig: Rig, more: usize) -> Self {
        rig.start_up().await;
        rig.cut().await;
        let t0_ns = rig.clock.boot_ns() + 1_000_000_000;
        let mut scene = Self { rig, t0_ns, more };
        scene.at_ms(1_000);
        scene.ask_readings().await;
        scene.at_ms(2_000);
        let eject = scene.rig.request("EJECT", "eject_one", json!({}));
        let (status, problem) = scene.rig.submit(&eject).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (409, Some("disconnected")),
            "{problem}"
        );
        scene.at_ms(3_000);
        let mut set = scene.rig.set_speed("SET50", 50);
        set["ttl"] = "10s".into();
        let (status, operation) = scene.rig.submit(&set).await;
        assert_eq!(
            (status, operation["state"].as_str()),
            (201, Some("queued")),
            "{operation}"
        );
        scene
    }

    /// The clock stands at t, in nanoseconds.
    pub(crate) fn at_ns(&mut self, t_ns: i64) {
        self.rig.clock.stand_at(self.t0_ns + t_ns);
    }
    pub(crate) fn at_ms(&mut self, t_ms: i64) {
        self.at_ns(t_ms * 1_000_000);
    }

    /// The link comes back at t, and the clock runs on from there.
    pub(crate) async fn back_at_ms(&mut self, t_ms: i64) {
        self.at_ms(t_ms);
        self.rig.restore().await;
        self.rig.clock.run_on();
    }

    async fn ask_readings(&self) {
        let mut asked = JoinSet::new();
        for n in 0..=self.more {
            // The last one by itself: it is the newest beyond doubt.
            while asked.len() >= BATCH || (n == self.more && !asked.is_empty()) {
                recorded(asked.join_next().await);
            }
            let request = self.rig.request(&read_id(n), "read_status", json!({}));
            let client = self.rig.client.clone();
            asked.spawn(async move {
                let raw = client.post("/v1/operations", request.to_string(), 30_000);
                raw.await.map(|raw| raw.status)
            });
        }
        recorded(asked.join_next().await);
    }

    /// The newest reading, whatever its state.
    pub(crate) fn newest(&self) -> String {
        read_id(self.more)
    }

    /// How often the device was asked for the reading.
    pub(crate) fn readings_at_device(&self) -> usize {
        let requests = self.rig.device.requests();
        let fits = |seen: &&holdfast::simulator::Seen| {
            !seen.is_write() && seen.start() == Some(STATUS_REGISTER)
        };
        requests.iter().filter(fits).count()
    }

    /// Column "read": one fresh query, the others superseded and counted.
    pub(crate) async fn one_fresh_reading(&mut self) {
        let newest = self.newest();
        let read = self.rig.until_state(&newest, "completed").await;
        assert_eq!(read["superseded_count"], self.more, "{read}");
        let values = read["result"]["values"].as_object().unwrap();
        assert!(values.values().all(|value| *value == 77), "{read}");
        assert_eq!(self.readings_at_device(), 1);
        let report = self.report().await;
        for n in 0..self.more {
            let row = row(&report, &read_id(n));
            assert_eq!(row["state"], "superseded", "{row}");
        }
    }

    /// Column "relative": refused at t=2 because of the link, and no effect ever.
    pub(crate) async fn relative_refused_at_2(&self) {
        let eject = self.rig.operation("EJECT").await;
        assert_eq!(
            (eject["state"].as_str(), eject["code"].as_str()),
            (Some("rejected"), Some("disconnected")),
            "{eject}"
        );
        assert_eq!(entered_ns(&eject, "rejected"), self.t0_ns + 2_000_000_000);
        assert_eq!(self.rig.device.holding(200), 0);
        assert_eq!(eject["attempts"].as_array().unwrap().len(), 0);
    }

    /// Both of the columns that most rows share.
    pub(crate) async fn read_and_relative(&mut self) {
        self.one_fresh_reading().await;
        self.relative_refused_at_2().await;
    }

    /// SET50 ended without a byte of it having left.
    pub(crate) async fn set_never_sent(&mut self, state: &str) -> Json {
        let set = self.rig.until_state("SET50", state).await;
        assert_eq!(set["attempts"].as_array().unwrap().len(), 0, "{set}");
        assert_eq!(set["args"]["speed"], 50, "its content is kept: {set}");
        assert_eq!(self.rig.speed_writes(), 0);
        set
    }

    /// SET50 was done once.
    pub(crate) async fn set_done_once(&mut self) -> Json {
        let set = self.rig.until_state("SET50", "completed").await;
        assert_eq!(
            (self.rig.device.holding(100), self.rig.speed_writes()),
            (50, 1),
            "{set}"
        );
        assert_eq!(set["attempts"].as_array().unwrap().len(), 1, "{set}");
        set
    }

    /// Moment `t_ms` of the scene on the boot clock.
    pub(crate) fn t_ns(&self, t_ms: i64) -> i64 {
        self.t0_ns + t_ms * 1_000_000
    }

    /// Rows of the acceptance report.
    pub(crate) async fn report(&self) -> Vec<Json> {
        report(&self.rig).await
    }
}

fn read_id(n: usize) -> String {
    format!("READ-{n}")
}

fn recorded<E: std::fmt::Debug>(asked: Option<Result<Result<u16, E>, tokio::task::JoinError>>) {
    if let Some(answer) = asked {
        assert_eq!(answer.unwrap().unwrap(), 201);
    }
}

/// The whole report, over all its pages.
pub(crate) async fn report(rig: &Rig) -> Vec<Json> {
    let mut rows: Vec<Json> = Vec::new();
    let mut path = "/v1/report?limit=200".to_owned();
    loop {
        let (status, page) = rig.get(&path).await;
        assert_eq!(status, 200, "{page}");
        rows.extend(page["operations"].as_array().unwrap().iter().cloned());
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/report?limit=200&after={next}"),
            None => return rows,
        }
    }
}

/// The one row of an operation.
pub(crate) fn row<'a>(report: &'a [Json], id: &str) -> &'a Json {
    let mut rows = report.iter().filter(|row| row["operation_id"] == id);
    let row = rows.next().unwrap_or_else(|| panic!("{id} is missing"));
    assert!(rows.next().is_none(), "{id} is there twice");
    row
}

/// When an operation came into a state, on the boot clock.
pub(crate) fn entered_ns(operation: &Json, state: &str) -> i64 {
    let history = operation["history"].as_array().unwrap();
    let entry = history.iter().rfind(|entry| entry["to"] == state);
    let entry = entry.unwrap_or_else(|| panic!("never {state}: {operation}"));
    entry["boottime_ns"].as_str().unwrap().parse().unwrap()
}
