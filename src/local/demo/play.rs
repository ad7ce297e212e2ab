//! Owns: the play: a cable out for 15 s, two that come back after 8 s, and a reply that is lost.
//! May call: the interface's client, the simulated PLCs' own side.
//! Never: know what the gateway did but from its interface, or what a PLC did but from its ledger.

use super::Broken;
use super::narrator::Narrator;
use super::stage::{Place, Press, Stage};
use holdfast::api::types::{OperationView, parse_time};
use holdfast::cli::client::Client;
use holdfast::cli::exit::Failure;
use holdfast::cli::report;
use holdfast::cli::text::{Tone, now};
use holdfast::simulator::{Act, Cause, Fault, Matching};
use serde_json::{Value as Json, json};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// How long anything may take to come true, in milliseconds.
const PATIENCE_MS: u64 = 10_000;
/// Between two looks, in milliseconds.
const LOOK_MS: u64 = 10;
/// A display asks this often, in milliseconds.
const DISPLAY_MS: u64 = 250;
/// Registers of a press.
const SPEED: u16 = 100;
const PIECES: u16 = 200;
const STATUS: u16 = 5160;
/// The mailbox's "eject one".
const EJECT: u16 = 3;

/// What the scenes share.
struct Play<'a> {
    client: Client,
    stage: &'a Stage,
    teller: &'a mut Narrator,
    /// t = 0.
    start: Instant,
    start_us: i64,
}

/// An answer to a submission.
struct Answer {
    status: u16,
    replayed: bool,
    operation: OperationView,
}

/// Plays everything; what was found is with the narrator.
pub(super) async fn play(
    place: &Place,
    stage: &Stage,
    teller: &mut Narrator,
) -> Result<(), Broken> {
    teller.aside("One gateway and three simulated presses, all in this process. Whatever the");
    teller.aside("gateway says was asked over its socket; effects are counted in the PLCs.");
    teller.aside(&format!("Files, log, socket: {}", place.dir().display()));
    let mut play = Play {
        client: Client::new(place.socket()),
        stage,
        teller,
        start: Instant::now(),
        start_us: 0,
    };
    for press in stage.presses() {
        play.until_link(press, |state| state == "up").await?;
    }
    play.teller
        .aside("All three links are up: identity, version, mode and door are as expected.");
    play.disconnection().await?;
    play.lost_reply().await?;
    play.teller
        .head("THE ACCEPTANCE REPORT (holdfast report): every operation, once");
    report::run(&play.client, &mut play.teller.out, None).await?;
    Ok(())
}

impl Play<'_> {
    async fn disconnection(&mut self) -> Result<(), Broken> {
        let Stage {
            long,
            same,
            changed,
        } = self.stage;
        self.teller.head("A CABLE IS OUT");
        self.start = Instant::from_std(self.teller.begin());
        self.start_us = parse_time(&now()).unwrap_or_default();
        for press in self.stage.presses() {
            press.device.cut();
        }
        let seen = long.device.requests().len();
        self.say("The cables of all three presses are pulled. press-1 comes back at t=15, press-2 and press-3 at t=8.");
        for press in self.stage.presses() {
            self.until_link(press, |state| state != "up").await?;
        }
        self.say("The gateway has noticed: none of the links is up.");
        self.at(1_000).await;
        self.say("A display asks press-1 for its status, and goes on asking four times a second.");
        let display = self.display(1_000, 14_000);
        self.at(2_000).await;
        self.refused().await?;
        self.at(3_000).await;
        self.three_settings().await?;
        self.at(7_000).await;
        changed.device.set_version(8);
        self.say("At press-3 somebody loads another configuration: version 8 instead of 7.");
        self.at(8_000).await;
        same.device.restore();
        changed.device.restore();
        self.say("The cables of press-2 and press-3 are back.");
        self.in_time().await?;
        self.another_version().await?;
        self.too_late().await?;
        let asked = display
            .await
            .map_err(|error| Broken::Ended(error.to_string()))??;
        self.at(15_000).await;
        long.device.restore();
        self.say("The cable of press-1 is back.");
        self.fresh_reading(asked, seen).await
    }

    /// t=2: a relative action does not wait.
    async fn refused(&mut self) -> Result<(), Broken> {
        let request = request("EJECT-1", "press-1", "eject_one", json!({}));
        let answer = self.submit(&request).await?;
        let operation = &answer.operation;
        let told = format!(
            "EJECT-1, \"eject one part\", for press-1. The answer, at once: {} ({}): {}.",
            operation.state,
            code(operation),
            operation.reason
        );
        self.teller.say(tone(&operation.state), &told);
        let found = format!("{} {}", operation.state, code(operation));
        self.teller
            .expect("EJECT-1, relative, at t=2", "rejected disconnected", found);
        self.teller
            .expect("EJECT-1, status of the answer", 409, answer.status);
        Ok(())
    }

    /// t=3: a setting may wait, with a validity and an expected version.
    async fn three_settings(&mut self) -> Result<(), Broken> {
        self.say("SET-1, SET-2, SET-3: \"set the speed to 50\" for each press, valid for 10 s, meant for configuration version 7.");
        for n in 1..=3 {
            let id = format!("SET-{n}");
            let args = json!({"speed": {"value": 50, "unit": "rpm"}});
            let mut request = request(&id, &format!("press-{n}"), "set_speed", args);
            request["ttl"] = "10s".into();
            request["expected_config_version"] = 7.into();
            let answer = self.submit(&request).await?;
            let found = format!("{} {}", answer.status, answer.operation.state);
            let told = format!("{id}: {}.", answer.operation.state);
            self.teller.say(tone(&answer.operation.state), &told);
            self.teller
                .expect(&format!("{id} at t=3"), "201 queued", found);
        }
        Ok(())
    }

    /// t=8, nothing has changed.
    async fn in_time(&mut self) -> Result<(), Broken> {
        let device = &self.stage.same.device;
        let set = self.until_settled("SET-2").await?;
        let writes = device.effects_of_register(SPEED);
        let speed = device.holding(SPEED);
        let told = format!(
            "SET-2: {}. press-2 was still at version {}, so it was sent; the PLC counts {writes} write, and its speed is {speed}.",
            set.state,
            version(&set)
        );
        self.teller.say(tone(&set.state), &told);
        self.teller.expect(
            "SET-2, version still 7",
            "completed, found 7",
            format!("{}, found {}", set.state, version(&set)),
        );
        self.teller.expect("SET-2, effects at press-2", 1, writes);
        self.teller.expect("SET-2, speed at press-2", 50, speed);
        Ok(())
    }

    /// t=8, another version.
    async fn another_version(&mut self) -> Result<(), Broken> {
        let set = self.until_settled("SET-3").await?;
        let writes = self.stage.changed.device.effects_of_register(SPEED);
        let told = format!(
            "SET-3: {}: {}. The PLC counts {writes} writes. The content is kept: {}.",
            set.state, set.reason, set.args
        );
        self.teller.say(tone(&set.state), &told);
        let found = format!("{} {}, found {}", set.state, code(&set), version(&set));
        self.teller.expect(
            "SET-3, version now 8",
            "held version_conflict, found 8",
            found,
        );
        self.teller.expect("SET-3, effects at press-3", 0, writes);
        let kept = &set.args["speed"];
        let kept = kept.get("value").unwrap_or(kept);
        self.teller.expect("SET-3, speed that is kept", "50", kept);
        Ok(())
    }

    /// t=13: the validity of press-1's setting ends, and its cable is still out.
    async fn too_late(&mut self) -> Result<(), Broken> {
        self.at(12_000).await;
        let before = self.operation("SET-1").await?;
        let told = format!("SET-1 is {} still: press-1 is away.", before.state);
        self.teller.say(tone(&before.state), &told);
        self.teller
            .expect("SET-1 before t=13", "queued", &before.state);
        let set = self.until_settled("SET-1").await?;
        let ended = set.history.last().map_or("", |entry| &entry.at);
        let (from, to) = (parse_time(&set.created_at), parse_time(ended));
        let lasted_us = to.unwrap_or_default() - from.unwrap_or_default();
        let lasted_s = lasted_us as f64 / 1e6;
        let told = format!(
            "SET-1: {}: {}. That was {lasted_s:.2} s after it had been submitted.",
            set.state, set.reason
        );
        self.teller.say(tone(&set.state), &told);
        self.teller.expect("SET-1 at t=13", "expired", &set.state);
        self.teller.expect(
            "SET-1 ended 10 s after it was submitted, not earlier, at most 2 s later",
            true,
            (10.0..12.0).contains(&lasted_s),
        );
        Ok(())
    }

    /// t=15: of all the readings, one is done, now.
    async fn fresh_reading(&mut self, asked: u32, seen: usize) -> Result<(), Broken> {
        let id = reading(asked);
        let read = self.until_settled(&id).await?;
        let device = &self.stage.long.device;
        let requests = device.requests();
        let reached = requests.get(seen..).unwrap_or_default().iter();
        let reached = reached.filter(|seen| seen.start() == Some(STATUS)).count();
        let values = read
            .result
            .as_ref()
            .map_or(&Json::Null, |result| &result["values"]);
        let told = format!(
            "The display asked {asked} times. {reached} reading reached the PLC, now: {id} is {} and stands for {} older ones. Its answer: {values}",
            read.state, read.superseded_count
        );
        self.teller.say(tone(&read.state), &told);
        self.teller
            .expect("the newest reading", "completed", &read.state);
        self.teller
            .expect("readings that reached press-1", 1, reached);
        self.teller
            .expect("readings it stands for", asked - 1, read.superseded_count);
        let first = self.operation(&reading(1)).await?;
        self.teller
            .expect("the first reading", "superseded", &first.state);
        let set = self.operation("SET-1").await?;
        let (writes, pieces) = (device.effects_of_register(SPEED), ejected(&self.stage.long));
        let told = format!(
            "SET-1 is {}. press-1 counts {writes} writes of its speed and {pieces} parts ejected: what was too late, and what was refused.",
            set.state
        );
        self.say(&told);
        self.teller
            .expect("SET-1 after the return", "expired", &set.state);
        self.teller.expect("SET-1, effects at press-1", 0, writes);
        self.teller.expect("EJECT-1, effects at press-1", 0, pieces);
        Ok(())
    }

    /// OP7: the PLC does it, its reply is lost, its own record tells.
    async fn lost_reply(&mut self) -> Result<(), Broken> {
        self.teller.head("A REPLY IS LOST");
        let press = &self.stage.long;
        let lost = Fault::next(Matching::Commit, Act::DropReply);
        press.device.set_fault(lost);
        self.say(
            "OP7, \"eject one part\", for press-1. The PLC will do it, and its reply will be lost.",
        );
        let request = request("OP7", "press-1", "eject_one", json!({}));
        self.submit(&request).await?;
        let done = self.follow("OP7", "completed").await?;
        let ways: Vec<&str> = done.history.iter().map(|entry| entry.to.as_str()).collect();
        let unknown = ways.iter().position(|state| *state == "outcome_unknown");
        self.teller
            .expect("OP7 was outcome_unknown first", true, unknown.is_some());
        self.teller
            .expect("OP7 in the end", "completed", &done.state);
        let evidence = done
            .evidence
            .as_ref()
            .map_or(&Json::Null, |evidence| &evidence["method"]);
        let evidence = evidence.as_str().unwrap_or("none");
        let pieces = ejected(press);
        let told = format!(
            "The evidence is the {evidence}'s, the PLC's own record of requests. Sent: {} time. The PLC counts {pieces} part ejected.",
            done.attempts.len()
        );
        self.say(&told);
        self.teller.expect("OP7, evidence", "mailbox", evidence);
        self.teller
            .expect("OP7, times it was sent", 1, done.attempts.len());
        self.teller.expect("OP7, effects at press-1", 1, pieces);
        self.teller
            .expect("good pieces at press-1", 1, press.device.holding(PIECES));
        let again = self.submit(&request).await?;
        let first = done.result_id.unwrap_or_else(|| "none".into());
        let second = again
            .operation
            .result_id
            .clone()
            .unwrap_or_else(|| "none, again".into());
        let pieces = ejected(press);
        let told = format!(
            "OP7 is submitted once more, as a caller does that lost the answer: {}, {}, result {second} ({}). The PLC counts {pieces} part ejected.",
            if again.replayed {
                "known already"
            } else {
                "NEW"
            },
            again.operation.state,
            if first == second {
                "as before"
            } else {
                "ANOTHER"
            },
        );
        self.teller.say(tone(&again.operation.state), &told);
        self.teller
            .expect("OP7 again, status of the answer", 200, again.status);
        self.teller.expect("OP7 again, result", first, second);
        self.teller
            .expect("OP7 again, effects at press-1", 1, pieces);
        Ok(())
    }

    fn say(&mut self, text: &str) {
        self.teller.say(Tone::Plain, text);
    }
    async fn at(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    async fn submit(&self, request: &Json) -> Result<Answer, Broken> {
        submit(&self.client, request).await
    }
    async fn operation(&self, id: &str) -> Result<OperationView, Broken> {
        let raw = self.client.get(&format!("/v1/operations/{id}")).await?;
        Ok(raw.parse()?)
    }
    /// Looks until it neither waits nor is on its way.
    async fn until_settled(&self, id: &str) -> Result<OperationView, Broken> {
        let deadline = Instant::now() + Duration::from_millis(PATIENCE_MS);
        loop {
            let operation = self.operation(id).await?;
            if !matches!(operation.state.as_str(), "queued" | "sending" | "accepted") {
                return Ok(operation);
            }
            pause(deadline, || format!("{id}, which is {}", operation.state)).await?;
        }
    }
    /// Tells every step of an operation as it is seen, with the time at which it was recorded.
    async fn follow(&mut self, id: &str, end: &str) -> Result<OperationView, Broken> {
        let deadline = Instant::now() + Duration::from_millis(PATIENCE_MS);
        let mut told = 0;
        loop {
            let operation = self.operation(id).await?;
            for entry in operation.history.get(told..).unwrap_or_default() {
                let us = parse_time(&entry.at).unwrap_or_default() - self.start_us;
                let text = format!("{id}: {}: {}", entry.to, entry.detail);
                self.teller.say_at(us as f64 / 1e6, tone(&entry.to), &text);
                told += 1;
            }
            if operation.state == end {
                return Ok(operation);
            }
            pause(deadline, || format!("{id}, which is {}", operation.state)).await?;
        }
    }
    async fn until_link(&self, press: &Press, fits: fn(&str) -> bool) -> Result<(), Broken> {
        let deadline = Instant::now() + Duration::from_millis(PATIENCE_MS);
        loop {
            let raw = self
                .client
                .get(&format!("/v1/machines/{}", press.name))
                .await;
            // The socket is not there yet, at first.
            let state = match raw {
                Ok(raw) => raw.parse::<Json>()?["link"]["state"].to_string(),
                Err(Failure::NotReachable(_)) => "unknown".into(),
                Err(failure) => return Err(failure.into()),
            };
            let state = state.trim_matches('"');
            if state != "unknown" && fits(state) {
                return Ok(());
            }
            pause(deadline, || {
                format!("{}, whose link is {state}", press.name)
            })
            .await?;
        }
    }

    /// Asks for the status of press-1 from `from_ms` to `to_ms`; how often it asked.
    fn display(&self, from_ms: u64, to_ms: u64) -> JoinHandle<Result<u32, Broken>> {
        let (client, start) = (self.client.clone(), self.start);
        tokio::spawn(async move {
            let mut asked = 0;
            for ms in (from_ms..to_ms).step_by(DISPLAY_MS as usize) {
                sleep_until(start + Duration::from_millis(ms)).await;
                let request = request(&reading(asked + 1), "press-1", "read_status", json!({}));
                submit(&client, &request).await?;
                asked += 1;
            }
            Ok(asked)
        })
    }
}

async fn pause(deadline: Instant, what: impl Fn() -> String) -> Result<(), Broken> {
    if Instant::now() > deadline {
        return Err(Broken::InVain(PATIENCE_MS / 1000, what()));
    }
    sleep(Duration::from_millis(LOOK_MS)).await;
    Ok(())
}

/// Submits. A rejection that was recorded is an answer too.
async fn submit(client: &Client, request: &Json) -> Result<Answer, Broken> {
    match client.post("/v1/operations", request.to_string(), 0).await {
        Ok(raw) => Ok(Answer {
            status: raw.status,
            replayed: raw.replayed,
            operation: raw.parse()?,
        }),
        Err(Failure::Problem { status, body }) if body["operation"].is_object() => Ok(Answer {
            status,
            replayed: false,
            operation: serde_json::from_value(body["operation"].clone())
                .map_err(|error| Broken::Interface(Failure::NotReachable(error.to_string())))?,
        }),
        Err(failure) => Err(failure.into()),
    }
}

fn request(id: &str, machine: &str, command: &str, args: Json) -> Json {
    json!({ "operation_id": id, "machine": machine, "command": command, "args": args, "issued_at": now() })
}
fn reading(n: u32) -> String {
    format!("READ-{n}")
}
fn tone(state: &str) -> Tone {
    Tone::of_state(state)
}
fn code(operation: &OperationView) -> &str {
    operation.code.as_deref().unwrap_or("without a code")
}
fn version(operation: &OperationView) -> String {
    let found = operation.version_found;
    found.map_or_else(|| "not read".into(), |version| version.to_string())
}
/// How often the mailbox ejected, by the PLC's own ledger.
fn ejected(press: &Press) -> usize {
    let ledger = press.device.ledger();
    let fits = |cause: &Cause| matches!(cause, Cause::Mailbox { opcode, .. } if *opcode == EJECT);
    ledger.iter().filter(|effect| fits(&effect.cause)).count()
}
