//! Owns: callers who load a gateway and remember what it told them; the device's ledger by operation.
//! May call: harness.
//! Never: take anything for told that was not answered; read an effect from the gateway.

use super::harness::Rig;
use holdfast::cli::client::Client;
use holdfast::cli::exit::Failure;
use holdfast::core::spec::ModbusArea;
use holdfast::simulator::{Cause, Device};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The machine's register that ticks.
pub(crate) const TICK: u16 = 210;
/// Marks are told apart in a 16-bit register.
const MARK_MAX: u32 = u16::MAX as u32;

/// The machine of a load: every command that acts carries a mark of its own, so the ledger tells whose it is.
pub(crate) fn machine_toml(plain: &str) -> String {
    let widened = plain
        .replace("max = 3000", "max = 65535")
        .replace("max = 10 }", "max = 65535 }");
    widened
        + r#"
[[command]]
name = "eject_marked"
class = "relative_action"
mailbox = { opcode = 4 }
args = { mark = { type = "u16", min = 1, max = 65535 } }
verify = "mailbox"
[[event]]
type = "tick"
source = "on_change"
read = "holding:210"
poll = "20ms"
class = "business"
"#
}

/// Its simulated counterpart.
pub(crate) fn sim_toml(plain: &str) -> String {
    let opcode = "[[mailbox.opcode]]\nopcode = 4\nadd = [{ at = \"holding:202\", by = 1 }]\n[done]";
    plain.replace("[done]", opcode)
}

/// A random source that a printed seed replays.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What an operation does at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Mailbox,
    Length,
    Speed,
    Nudge,
    Query,
}

/// What somebody was last told about an operation.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) state: String,
    pub(crate) result_id: Json,
}

/// One operation that somebody asked for, with or without ever hearing of it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) mark: u32,
    pub(crate) body: Json,
    pub(crate) told: Option<Told>,
}

/// Everything that all callers know.
#[derive(Default)]
pub(crate) struct Book {
    asked: Mutex<BTreeMap<String, Asked>>,
    mark: AtomicU32,
    pub(crate) refused: AtomicU32,
    pub(crate) values_read: AtomicU32,
}

/// Whether nothing can follow this state.
pub(crate) fn is_final(state: &str) -> bool {
    matches!(state, "completed" | "compensated") || ended_without_effect(state)
}

/// Whether this state says that the device did nothing, and never will.
fn ended_without_effect(state: &str) -> bool {
    matches!(
        state,
        "rejected" | "expired" | "cancelled" | "superseded" | "failed" | "not_executed"
    )
}

/// The answer, whatever its status; `None`: none came.
pub(crate) async fn ask(client: &Client, path: &str, body: Option<&Json>) -> Option<(u16, Json)> {
    let answer = match body {
        Some(body) => client.post(path, body.to_string(), 10_000).await,
        None => client.get(path).await,
    };
    match answer {
        Ok(raw) => Some((raw.status, serde_json::from_str(&raw.text).ok()?)),
        Err(Failure::Problem { status, body }) => Some((status, body)),
        Err(_) => None,
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Asked>> {
        // A check that failed in one caller must not hide behind the others' panics.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }
    pub(crate) fn get(&self, id: &str) -> Asked {
        self.lock()[id].clone()
    }
    /// How many are in each state, as far as anybody was told.
    pub(crate) fn states(&self) -> BTreeMap<String, usize> {
        let mut states = BTreeMap::new();
        for asked in self.lock().values() {
            let state = asked
                .told
                .as_ref()
                .map_or("(never told)", |told| &told.state);
            *states.entry(state.to_owned()).or_default() += 1;
        }
        states
    }

    /// A new operation, entered before it is sent.
    pub(crate) fn new_request(&self, kind: Kind) -> (String, Json) {
        let mark = self.mark.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(mark <= MARK_MAX, "too many operations to tell apart");
        let (command, args) = match kind {
            Kind::Mailbox => ("eject_marked", json!({ "mark": mark })),
            Kind::Length => ("set_length", json!({ "length": mark })),
            Kind::Speed => ("set_speed", json!({ "speed": mark })),
            Kind::Nudge => ("nudge", json!({ "by": mark })),
            Kind::Query => ("read_status", json!({})),
        };
        let id = format!("op-{mark:05}-{command}");
        let mut body = json!({ "operation_id": id, "machine": "press-1", "command": command, "args": args,
            "issued_at": jiff::Timestamp::now().to_string() });
        if kind == Kind::Speed {
            body["expected_config_version"] = 7.into();
        }
        let asked = Asked {
            kind,
            mark,
            body: body.clone(),
            told: None,
        };
        self.lock().insert(id.clone(), asked);
        (id, body)
    }

    /// An answer about `id` has come; what was told before must still hold.
    pub(crate) fn hear(&self, id: &str, operation: &Json) {
        let now = Told {
            state: operation["state"]
                .as_str()
                .unwrap_or_else(|| panic!("no state in {operation}"))
                .to_owned(),
            result_id: operation["result_id"].clone(),
        };
        let mut asked = self.lock();
        let asked = asked.get_mut(id).expect("it was asked for");
        if let Some(before) = &asked.told
            && is_final(&before.state)
        {
            // Answers may overtake one another: what was final stays what is known.
            assert!(
                !is_final(&now.state)
                    || (&now.state, &now.result_id) == (&before.state, &before.result_id),
                "{id} was {before:?}, and now: {operation}"
            );
            return;
        }
        asked.told = Some(now);
    }

    /// The whole truth about some operations, from a gateway under no load, against the device's ledger.
    pub(crate) async fn verify(&self, client: &Client, device: &Device, ids: &[String]) {
        for id in ids {
            let (status, operation) = ask(client, &format!("/v1/operations/{id}"), None)
                .await
                .unwrap_or_else(|| panic!("the gateway does not answer about {id}"));
            let asked = self.get(id);
            if status == 404 {
                assert!(asked.told.is_none(), "LOST: {id} was told {:?}", asked.told);
            } else {
                assert_eq!(status, 200, "{operation}");
                if let Some(told) = &asked.told
                    && is_final(&told.state)
                {
                    assert_eq!(
                        (operation["state"].as_str(), &operation["result_id"]),
                        (Some(told.state.as_str()), &told.result_id),
                        "CHANGED: {operation}"
                    );
                }
                self.hear(id, &operation);
            }
        }
        let effects = Effects::of(device);
        for id in ids {
            effects.check(id, &self.get(id));
        }
    }

    /// Submits, asks again, cancels, queries, until told to stop or nobody answers.
    pub(crate) async fn call_until(&self, client: Client, seed: u64, stop: Arc<AtomicBool>) {
        let mut random = Random::new(seed);
        while !stop.load(Ordering::Relaxed) {
            let goes_on = match random.below(20) {
                0..=2 => self.ask_again(&client, &mut random).await,
                3 => self.read_value(&client).await,
                4..=9 => self.submit(&client, Kind::Mailbox, &mut random).await,
                10..=14 => self.submit(&client, Kind::Length, &mut random).await,
                15..=17 => self.submit(&client, Kind::Speed, &mut random).await,
                18 => self.submit(&client, Kind::Query, &mut random).await,
                _ if random.one_in(4) => self.submit(&client, Kind::Nudge, &mut random).await,
                _ => continue,
            };
            if !goes_on {
                return;
            }
        }
    }

    async fn submit(&self, client: &Client, kind: Kind, random: &mut Random) -> bool {
        let (id, body) = self.new_request(kind);
        if !self.send(client, &id, &body, random).await {
            return false;
        }
        if random.one_in(12) {
            let path = format!("/v1/operations/{id}/cancel");
            let Some((status, answer)) = ask(client, &path, Some(&json!({}))).await else {
                return false;
            };
            if status == 200 {
                assert_eq!(answer["cancelled"], true, "{answer}");
                self.hear(&id, &answer["operation"]);
            }
        }
        true
    }

    /// Sends a request; notes what the answer says. False: there was none.
    pub(crate) async fn send(
        &self,
        client: &Client,
        id: &str,
        body: &Json,
        random: &mut Random,
    ) -> bool {
        let known = self.get(id).told;
        let path = if random.one_in(2) {
            "/v1/operations?wait=300ms"
        } else {
            "/v1/operations"
        };
        let Some((status, answer)) = ask(client, path, Some(body)).await else {
            return false;
        };
        match status {
            201 => {
                assert!(
                    known.is_none(),
                    "LOST: {id} was told {known:?}, and is taken anew"
                );
                self.hear(id, &answer);
            }
            200 => self.hear(id, &answer),
            409 if answer["operation"].is_object() => self.hear(id, &answer["operation"]),
            409 | 503 | 507 => {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            _ => panic!("{id}: {status} {answer}"),
        }
        true
    }

    async fn ask_again(&self, client: &Client, random: &mut Random) -> bool {
        let known = self.ids();
        if known.is_empty() {
            return true;
        }
        let id = &known[random.below(known.len() as u64) as usize];
        let body = self.get(id).body;
        self.send(client, id, &body, random).await
    }

    async fn read_value(&self, client: &Client) -> bool {
        let query = json!({ "machine": "press-1", "command": "read_status", "args": {} });
        let Some((status, answer)) = ask(client, "/v1/operations?wait=300ms", Some(&query)).await
        else {
            return false;
        };
        if status == 200 {
            assert!(answer.to_string().contains("77"), "{answer}");
            self.values_read.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

/// The device's ledger by operation.
pub(crate) struct Effects(HashMap<(Kind, u32), usize>);

impl Effects {
    pub(crate) fn of(device: &Device) -> Self {
        let mut counted = HashMap::new();
        for effect in device.ledger() {
            let whose = match &effect.cause {
                Cause::Mailbox {
                    opcode: 4,
                    parameters,
                    ..
                } => (Kind::Mailbox, u32::from(parameters[0])),
                Cause::Write {
                    area: ModbusArea::Holding,
                    start,
                    words,
                    ..
                } => match (start, words.as_slice()) {
                    (100, [speed]) => (Kind::Speed, u32::from(*speed)),
                    (102, [high, low]) => (Kind::Length, u32::from(*high) << 16 | u32::from(*low)),
                    // `start_cycle`: its test counts it.
                    (500, _) => continue,
                    (150, [by]) => (Kind::Nudge, u32::from(*by)),
                    _ => panic!("nobody asked for this: {effect}"),
                },
                // A handshake's acknowledgement: its test looks at the items.
                Cause::Write {
                    area: ModbusArea::Coil,
                    start: 21,
                    ..
                } => continue,
                _ => panic!("nobody asked for this: {effect}"),
            };
            *counted.entry(whose).or_default() += 1;
        }
        Self(counted)
    }
    pub(crate) fn total(&self) -> usize {
        self.0.values().sum()
    }
    pub(crate) fn count(&self, asked: &Asked) -> usize {
        self.0.get(&(asked.kind, asked.mark)).copied().unwrap_or(0)
    }
    /// Every effect belongs to an operation that was asked for.
    pub(crate) fn all_asked_for(&self, book: &Book) {
        let marks: HashMap<u32, Kind> = book
            .ids()
            .iter()
            .map(|id| book.get(id))
            .map(|asked| (asked.mark, asked.kind))
            .collect();
        for (kind, mark) in self.0.keys() {
            assert_eq!(
                marks.get(mark),
                Some(kind),
                "nobody asked for {kind:?} {mark}"
            );
        }
    }

    fn check(&self, id: &str, asked: &Asked) {
        let count = self.count(asked);
        assert!(count <= 1, "TWICE: {id} had {count} effects: {asked:?}");
        let state = asked.told.as_ref().map_or("", |told| told.state.as_str());
        match state {
            "completed" if asked.kind != Kind::Query => {
                assert_eq!(count, 1, "{id} is completed without an effect");
            }
            // Never durable, so never sent; or ended without a send.
            "" => assert_eq!(count, 0, "{id} is not known, and had an effect"),
            _ if ended_without_effect(state) => {
                assert_eq!(count, 0, "{id} is {state}, and had an effect");
            }
            _ => {}
        }
    }
}

/// A register of the machine changes all the time, as a piece counter does.
pub(crate) async fn tick_until(device: Device, stop: Arc<AtomicBool>) {
    let mut every = tokio::time::interval(std::time::Duration::from_millis(7));
    while !stop.load(Ordering::Relaxed) {
        every.tick().await;
        device.set_holding(TICK, device.holding(TICK).wrapping_add(1));
    }
}

/// Every key of the log and of the file sink: gapless, once, the same content.
pub(crate) async fn check_events(rig: &mut Rig) -> usize {
    rig.until("the sink has taken everything", async |rig| {
        let (_, status) = rig.get("/v1/status").await;
        status["sinks"][0]["backlog"]["events"] == "0"
    })
    .await;
    // What is logged while this looks may be missing in the sink, and what is in the sink is in the log by now.
    let before = by_key(&rig.events().await);
    let lines = rig.sink_lines();
    let sunk = by_key(&lines);
    assert_eq!(sunk.len(), lines.len(), "a key stands twice in the sink");
    let after = by_key(&rig.events().await);
    let mut last: Option<&(String, u64, u64)> = None;
    for key in after.keys() {
        let expected = match last {
            Some(last) if (&last.0, last.1) == (&key.0, key.1) => last.2 + 1,
            _ => 1,
        };
        assert_eq!(key.2, expected, "a gap before {key:?}, after {last:?}");
        last = Some(key);
    }
    for (key, event) in &sunk {
        assert_eq!(
            after.get(key),
            Some(event),
            "{key:?} differs from the log's"
        );
    }
    let missing: Vec<_> = before
        .keys()
        .filter(|key| !sunk.contains_key(key))
        .collect();
    let newest = sunk.len();
    assert!(
        missing.is_empty() || newest < before.len() && missing.len() < 50,
        "not in the sink: {missing:?}"
    );
    after.len()
}

fn by_key(events: &[Json]) -> BTreeMap<(String, u64, u64), Json> {
    let number = |json: &Json| json.as_str().unwrap().parse::<u64>().unwrap();
    let keyed = events.iter().map(|event| {
        let mut event = event.clone();
        event.as_object_mut().unwrap().remove("cursor");
        let key = (
            event["source"].as_str().unwrap().to_owned(),
            number(&event["epoch"]),
            number(&event["sequence"]),
        );
        (key, event)
    });
    keyed.collect()
}
