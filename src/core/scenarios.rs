//! Owns: the articles' cases played against the core alone, on a virtual clock.
//! May call: every file of this room.
//! Never: wait; a second here is an addition.

use super::contract::*;
use super::gateway::*;
use super::ids::*;
use super::intent::{RawArg, RawValue, Request};
use super::lifecycle::*;
use super::record::*;
use super::roles::Roles;
use super::spec::{Completion, *};
use super::time::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const WALL_US: i64 = 1_796_000_000_000_000;

pub(super) fn holding(offset: u16, data_type: DataType) -> Scalar {
    Scalar {
        address: Address::Modbus {
            area: ModbusArea::Holding,
            offset,
        },
        data_type,
        word_order: WordOrder::HighFirst,
    }
}

pub(super) fn row(name: &str, class: Class, action: Action) -> Row {
    Row {
        name: name.into(),
        class,
        queueable: false,
        ttl_ms: 10_000,
        max_queued: 1,
        stop: false,
        replace: ReplaceRule::Never,
        precondition: false,
        on_restart: OnRestart::Hold,
        completion: Completion::Reply,
        completion_timeout_ms: 5_000,
        verify: Verify::Manual,
        interlocks: vec!["door closed".into()],
        args: Vec::new(),
        action,
        device_contract_mailbox: false,
        merge_latest: false,
        i_accept: None,
        origins: BTreeMap::new(),
    }
}

/// The press of the third article, with a mailbox for its relative action.
pub(super) fn press(name: &str) -> MachineSpec {
    let start = Address::Modbus {
        area: ModbusArea::Holding,
        offset: 100,
    };
    let mut set = row(
        "set_speed",
        Class::AbsoluteSet,
        Action::Write {
            start,
            request_id: false,
        },
    );
    set.queueable = true;
    set.replace = ReplaceRule::SameOperator;
    set.precondition = true;
    set.verify = Verify::Readback;
    set.args = vec![ArgSpec {
        name: "speed".into(),
        data_type: DataType::U16,
        word_order: WordOrder::HighFirst,
        unit: Some("rpm".into()),
        min: Some(0.into()),
        max: Some(3000.into()),
        default: None,
        secret: false,
    }];
    let mut eject = row(
        "eject_one",
        Class::RelativeAction,
        Action::Mailbox { opcode: 3 },
    );
    eject.completion = Completion::Mailbox;
    eject.verify = Verify::Mailbox;
    let points = vec![("status".into(), holding(5160, DataType::U16))];
    let mut read = row("read_status", Class::Query, Action::Read { points });
    read.ttl_ms = 60_000;
    MachineSpec {
        name: name.into(),
        owner: "gw".into(),
        read_only: false,
        link: LinkSpec::ModbusTcp(ModbusTcp {
            host: "127.0.0.1".into(),
            port: 502,
            unit: 1,
            answering_unit: None,
            timeout_ms: 500,
            read_registers_max: 125,
            reconnect_ms_min: 100,
            reconnect_ms_max: 1000,
            heartbeat_ms: 1000,
        }),
        gate: GateSpec {
            identity: Some(IdentityCheck {
                at: holding(110, DataType::U16),
                equals: Value::Int(4711),
            }),
            config_version: Some(holding(120, DataType::U16)),
            mode: None,
            interlocks: vec![Interlock {
                name: "door closed".into(),
                at: holding(3, DataType::Bool),
                equals: Value::Bool(true),
            }],
            age_ms_max: 2_000,
        },
        tags: Vec::new(),
        groups: Vec::new(),
        events: vec![EventSource {
            event_type: "speed.changed".into(),
            class: EventClass::Business,
            kind: EventKind::OnChange {
                at: holding(100, DataType::U16),
                unit: None,
                deadband: 2.0,
                no_value: Vec::new(),
                poll_ms: 500,
            },
        }],
        commands: vec![set, eject, read],
        mailbox: Some(MailboxSpec {
            command: Address::Modbus {
                area: ModbusArea::Holding,
                offset: 300,
            },
            status: Address::Modbus {
                area: ModbusArea::Holding,
                offset: 340,
            },
            word_order: WordOrder::HighFirst,
        }),
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        gateway: "gw".into(),
        replay_window_ms: 24 * 3600 * 1000,
        drain_per_machine_milli: 5_000,
        drain_total_milli: 20_000,
        roles: Roles {
            rules: Vec::new(),
            own_uid: 1000,
        },
    }
}

pub(super) fn person(uid: u32) -> Actor {
    Actor::Uid {
        uid,
        gids: vec![uid],
    }
}

/// A gateway, a clock, and what would be on disk.
pub(super) struct Stage {
    pub(super) core: Gateway,
    pub(super) now: Now,
    pub(super) effects: Vec<Effect>,
    pub(super) events: Vec<EventRecord>,
    pub(super) disk: BTreeMap<OperationId, Operation>,
    pub(super) machines: BTreeMap<String, MachineRecord>,
    pub(super) sources: BTreeMap<(String, String), SourceRecord>,
    pub(super) specs: Vec<Arc<MachineSpec>>,
    pub(super) tokens: u64,
    pub(super) unproven_before_us: i64,
    pub(super) new_incarnation: bool,
    pub(super) epoch: u64,
    pub(super) commits: u64,
    pub(super) connections: u64,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::with(vec![press("press-1")])
    }
    pub(super) fn with(specs: Vec<MachineSpec>) -> Self {
        let now = Now {
            boot_id: BootId([1; 16]),
            boottime_ns: 100 * NS_PER_S,
            wall_us: WALL_US,
            wall_trusted: true,
        };
        let specs: Vec<_> = specs.into_iter().map(Arc::new).collect();
        let restored = Restored {
            epoch: Epoch(7),
            next_commit: CommitNo(1),
            ..Restored::default()
        };
        let core = Gateway::new(settings(), specs.clone(), restored, &now, 42);
        let mut stage = Self {
            core,
            now,
            effects: Vec::new(),
            events: Vec::new(),
            disk: BTreeMap::new(),
            machines: BTreeMap::new(),
            sources: BTreeMap::new(),
            specs,
            tokens: 0,
            unproven_before_us: 0,
            new_incarnation: false,
            epoch: 7,
            commits: 0,
            connections: 0,
        };
        stage.input(Input::Started);
        stage
    }
    pub(super) fn input(&mut self, input: Input) -> Vec<Effect> {
        for id in self.core.missing(&input) {
            if let Some(operation) = self.disk.get(&id) {
                self.core
                    .recall(Stored::Operation(Box::new(operation.clone())));
            }
        }
        let output = self.core.handle(&self.now, input);
        for block in &output.blocks {
            assert_eq!(block.no.0, self.commits + 1, "commits have no gaps");
            self.commits = block.no.0;
        }
        for record in output.blocks.into_iter().flat_map(|block| block.records) {
            match record {
                Record::Operation(operation) => {
                    self.disk.insert(operation.id.clone(), *operation);
                }
                Record::Machine(machine) => {
                    self.machines.insert(machine.name.clone(), machine);
                }
                Record::Source(source) => {
                    let key = (source.machine.clone(), source.event_type.clone());
                    self.sources.insert(key, source);
                }
                Record::Event(event) => self.events.push(event),
                _ => {}
            }
        }
        self.core.committed();
        self.effects.extend(output.effects.iter().cloned());
        output.effects
    }
    /// Advances the clocks in steps that fire every timer.
    pub(super) fn pass(&mut self, seconds: f64) {
        let end = self.now.boottime_ns + (seconds * 1e9) as u64;
        loop {
            let due = self.core.next_due_ns().filter(|due| *due <= end);
            let to = due.unwrap_or(end).max(self.now.boottime_ns);
            self.now.wall_us += ((to - self.now.boottime_ns) / 1000) as i64;
            self.now.boottime_ns = to;
            self.input(Input::Tick);
            if due.is_none() {
                return;
            }
        }
    }
    /// The process dies and starts again, `same_boot` or not.
    pub(super) fn restart(&mut self, same_boot: bool, wall_trusted: bool) {
        if !same_boot {
            self.now.boot_id = BootId([2; 16]);
            self.now.boottime_ns = NS_PER_S;
            self.now.wall_trusted = wall_trusted;
        }
        self.epoch += 1;
        let restored = Restored {
            epoch: Epoch(self.epoch),
            next_commit: CommitNo(self.commits + 1),
            operations: self
                .disk
                .values()
                .filter(|op| !op.state.is_ended())
                .cloned()
                .collect(),
            machines: self.machines.values().cloned().collect(),
            sources: self.sources.values().cloned().collect(),
            highest_wall_us: WALL_US,
            unproven_before_us: self.unproven_before_us,
            new_incarnation: self.new_incarnation,
            note: self.new_incarnation.then(|| "a copy was put back".into()),
            ..Restored::default()
        };
        self.core = Gateway::new(settings(), self.specs.clone(), restored, &self.now, 43);
        self.effects.clear();
        self.input(Input::Started);
    }
    pub(super) fn request(&self, id: &str, command: &str) -> Request {
        Request {
            operation_id: Some(id.into()),
            machine: "press-1".into(),
            command: command.into(),
            issued_at_us: Some(self.now.wall_us),
            ..Request::default()
        }
    }
    pub(super) fn submit(&mut self, request: Request, uid: u32) -> Answer {
        self.tokens += 1;
        let token = Token(self.tokens);
        let effects = self.input(Input::Submit {
            request,
            actor: person(uid),
            token,
        });
        answer(&effects, token)
    }
    pub(super) fn act(&mut self, id: &str, act: Act) -> Answer {
        self.tokens += 1;
        let token = Token(self.tokens);
        let id = OperationId::parse(id).unwrap();
        let effects = self.input(Input::Act {
            id,
            act,
            actor: person(0),
            token,
        });
        answer(&effects, token)
    }
    pub(super) fn set(&mut self, id: &str, speed: u32, uid: u32) -> Answer {
        let request = self.set_request(id, speed);
        self.submit(request, uid)
    }
    pub(super) fn set_request(&self, id: &str, speed: u32) -> Request {
        let mut request = self.request(id, "set_speed");
        let value = RawValue::Number(speed.to_string());
        request
            .args
            .insert("speed".into(), RawArg { value, unit: None });
        request.expected_config_version = Some(7);
        request
    }
    pub(super) fn link(&mut self, change: LinkChange) {
        self.input(Input::Link {
            machine: "press-1".into(),
            change,
        });
    }
    /// A connection stands, and nothing is known of the device yet.
    pub(super) fn connect(&mut self) {
        self.connections += 1;
        self.link(LinkChange::Up(ConnectionNo(self.connections)));
    }
    pub(super) fn down(&mut self) {
        self.link(LinkChange::Down {
            reason: "test".into(),
        });
    }
    pub(super) fn up(&mut self, version: i64) {
        self.up_as(4711, version, true);
    }
    pub(super) fn up_as(&mut self, identity: i128, version: i64, door: bool) {
        self.connect();
        self.gate(identity, version, door);
    }
    pub(super) fn gate(&mut self, identity: i128, version: i64, door: bool) {
        let reading = GateReading {
            at: self.now,
            identity: Some(Value::Int(identity)),
            config_version: Some(version),
            mode: None,
            interlocks: vec![("door closed".into(), Value::Bool(door))],
            quality: Quality::Good,
            mailbox: None,
        };
        self.input(Input::Gate {
            machine: "press-1".into(),
            reading: Ok(reading),
        });
    }
    /// Lets the drain's rate limit pass while the gate stays fresh.
    pub(super) fn settle(&mut self, version: i64) {
        for _ in 0..4 {
            self.pass(0.1);
            self.gate(4711, version, true);
        }
    }
    pub(super) fn state(&self, id: &str) -> State {
        self.disk[&OperationId::parse(id).unwrap()].state.clone()
    }
    pub(super) fn runs(&self) -> Vec<(String, AttemptId)> {
        let run = |effect: &Effect| match effect {
            Effect::Run {
                operation, attempt, ..
            } => Some((operation.to_string(), *attempt)),
            _ => None,
        };
        self.effects.iter().filter_map(run).collect()
    }
    pub(super) fn runs_of(&self, id: &str) -> usize {
        self.runs().iter().filter(|(run, _)| run == id).count()
    }
    pub(super) fn exchanged(&mut self, id: &str, outcome: Outcome) {
        let (_, attempt) = self
            .runs()
            .into_iter()
            .rfind(|(run, _)| run == id)
            .expect("it was sent");
        let sent = match outcome {
            Outcome::NotSent { .. } => 0,
            Outcome::PartlySent { .. } => 5,
            _ => 12,
        };
        let exchange = Exchange {
            outcome,
            bytes_sent: sent,
            bytes_total: 12,
            request_ident: String::new(),
            sent_at: Some(self.now),
            replied_at: Some(self.now),
            reply: Vec::new(),
        };
        let operation = OperationId::parse(id).unwrap();
        self.input(Input::Exchanged {
            machine: "press-1".into(),
            operation,
            attempt,
            exchange,
        });
    }
    pub(super) fn echo(&mut self, id: &str) {
        self.exchanged(id, Outcome::DeviceReplied(Reply::WriteEcho));
    }
}

fn answer(effects: &[Effect], token: Token) -> Answer {
    let found = effects.iter().find_map(|effect| match effect {
        Effect::Answer { token: to, answer } if *to == token => Some((**answer).clone()),
        _ => None,
    });
    found.expect("every request is answered in its own turn")
}

pub(super) fn recorded(answer: Answer) -> Operation {
    match answer {
        Answer::Recorded(operation) => *operation,
        other => panic!("not recorded: {other:?}"),
    }
}

/// t = 0 link lost; t = 1 reads; t = 2 relative action; t = 3 set to 50.
fn article_three() -> Stage {
    let mut stage = Stage::new();
    stage.up(7);
    stage.down();
    stage.pass(1.0);
    for n in 0..301 {
        let request = stage.request(&format!("R{n}"), "read_status");
        recorded(stage.submit(request, 1000));
    }
    stage.pass(1.0);
    let request = stage.request("REL", "eject_one");
    let relative = recorded(stage.submit(request, 1000));
    assert_eq!(relative.state, State::Rejected(RejectReason::Disconnected));
    stage.pass(1.0);
    assert_eq!(recorded(stage.set("SET", 50, 1000)).state, State::Queued);
    stage
}

// covers: C1, POL-02
#[test]
fn back_after_fifteen_seconds() {
    let mut stage = article_three();
    stage.pass(9.999);
    assert_eq!(stage.state("SET"), State::Queued);
    stage.pass(0.001);
    assert_eq!(stage.state("SET"), State::Expired);
    stage.pass(2.0);
    stage.up(7);
    stage.settle(7);
    let runs: Vec<String> = stage.runs().into_iter().map(|(id, _)| id).collect();
    assert_eq!(runs, ["R300"], "one fresh query, and nothing else");
    let newest = &stage.disk[&OperationId::parse("R300").unwrap()];
    assert_eq!(newest.superseded_count, 300);
    assert!(matches!(stage.state("R0"), State::Superseded { .. }));
}

// covers: C2, C3, C6, POL-06, POL-07
#[test]
fn what_the_gate_stops_is_held_with_its_content() {
    for (identity, version, door, code) in [
        (4711, 8, true, "version_conflict"),
        (4711, 7, false, "interlock_open"),
        (4712, 7, true, "identity_mismatch"),
    ] {
        let mut stage = article_three();
        stage.pass(5.0);
        stage.up_as(identity, version, door);
        for _ in 0..4 {
            stage.pass(0.1);
            stage.gate(identity, version, door);
            if stage.runs_of("R300") > 0 && stage.state("R300").name() == "sending" {
                stage.exchanged("R300", Outcome::DeviceReplied(Reply::Values(Vec::new())));
            }
        }
        let State::Held(held) = stage.state("SET") else {
            panic!("{:?}", stage.state("SET"))
        };
        assert_eq!(held.code(), code);
        assert_eq!(stage.runs_of("SET"), 0);
        let kept = &stage.disk[&OperationId::parse("SET").unwrap()].intent.args;
        assert_eq!(kept[0].1, ArgValue::Number(50.into()));
    }
}

// covers: C4, ST-03
#[test]
fn back_in_time_with_everything_as_expected() {
    let mut stage = article_three();
    stage.pass(5.0);
    stage.up(7);
    stage.settle(7);
    stage.exchanged(
        "R300",
        Outcome::DeviceReplied(Reply::Values(vec![("status".into(), Value::Int(1))])),
    );
    stage.settle(7);
    stage.pass(0.3);
    stage.gate(4711, 7, true);
    assert_eq!(stage.runs_of("SET"), 1);
    stage.echo("SET");
    assert!(matches!(stage.state("SET"), State::Completed(_)));
    let history = &stage.disk[&OperationId::parse("SET").unwrap()].history;
    assert!(history.last().unwrap().at.boottime_ns > history[0].at.boottime_ns);
}

// covers: C5, TIME-02
#[test]
fn back_at_exactly_the_deadline() {
    for (before_ns, sent) in [(0_u64, 0), (1, 1)] {
        let mut stage = Stage::new();
        stage.up(7);
        stage.down();
        recorded(stage.set("SET", 50, 1000));
        stage.now.boottime_ns += 10 * NS_PER_S - before_ns;
        stage.connect();
        stage.core.next_drain_ns = 0;
        stage.gate(4711, 7, true);
        stage
            .core
            .machines
            .get_mut("press-1")
            .unwrap()
            .next_drain_ns = 0;
        stage.gate(4711, 7, true);
        assert_eq!(
            stage.runs_of("SET"),
            sent,
            "{before_ns} ns before the deadline"
        );
        if sent == 0 {
            assert_eq!(stage.state("SET"), State::Expired);
        }
    }
}

// covers: C7, C8, C9, POL-04, POL-05
#[test]
fn only_the_same_person_replaces_and_only_one_waits() {
    let mut stage = article_three();
    let second = recorded(stage.set("SET2", 55, 1000));
    assert_eq!(
        second.state,
        State::Rejected(RejectReason::QueueFull { limit: 1 })
    );
    let mut other = stage.set_request("SET3", 60);
    other.replaces = Some("SET".into());
    let refused = recorded(stage.submit(other, 0));
    assert!(matches!(
        refused.state,
        State::Rejected(RejectReason::ReplaceRefused { .. })
    ));
    assert_eq!(stage.state("SET"), State::Queued);
    let mut same = stage.set_request("SET4", 60);
    same.replaces = Some("SET".into());
    assert_eq!(recorded(stage.submit(same, 1000)).state, State::Queued);
    assert_eq!(
        stage.state("SET"),
        State::Superseded {
            by: OperationId::parse("SET4").unwrap()
        }
    );
}

// covers: CMD-02, CMD-03, A1, A2
#[test]
fn an_id_means_one_thing_for_ever() {
    let mut stage = Stage::new();
    stage.up(7);
    let request = stage.set_request("OP7", 50);
    recorded(stage.submit(request.clone(), 1000));
    stage.echo("OP7");
    let mut ids = Vec::new();
    for _ in 0..3 {
        match stage.submit(request.clone(), 1000) {
            Answer::Replayed(operation) => ids.push(operation.result_id.clone().unwrap()),
            other => panic!("{other:?}"),
        }
    }
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
    let mut changed = request;
    changed.args.get_mut("speed").unwrap().value = RawValue::Number("51".into());
    match stage.submit(changed, 1000) {
        Answer::Refused(Refusal::IdempotencyConflict {
            recorded,
            received,
            differing_fields,
        }) => {
            assert_ne!(recorded.sha256, received.sha256);
            assert_eq!(differing_fields, ["args.speed"]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.runs_of("OP7"), 1);
    assert!(
        stage
            .events
            .iter()
            .any(|event| event.event_type == "operation.conflict")
    );
}

// covers: SEND-03, SEND-04, ST-05, POL-10
#[test]
fn what_an_outcome_proves() {
    let refused = DeviceCode {
        family: "modbus".into(),
        code: 2,
        meaning: "illegal data address".into(),
    };
    let unclear = DeviceCode {
        family: "modbus".into(),
        code: 4,
        meaning: "server device failure".into(),
    };
    for (outcome, state) in [
        (
            Outcome::PartlySent {
                why: "reset".into(),
            },
            "outcome_unknown",
        ),
        (
            Outcome::SentNoReply {
                why: "timeout".into(),
            },
            "outcome_unknown",
        ),
        (Outcome::DeviceRefused(refused), "failed"),
        (Outcome::DeviceUnclear(unclear), "outcome_unknown"),
        (Outcome::DeviceAccepted, "accepted"),
        (
            Outcome::NotSent {
                why: "closed".into(),
            },
            "queued",
        ),
    ] {
        let mut stage = Stage::new();
        stage.up(7);
        recorded(stage.set("SET", 50, 1000));
        stage.exchanged("SET", outcome.clone());
        assert_eq!(stage.state("SET").name(), state, "{outcome:?}");
        if state == "outcome_unknown" {
            stage.down();
            stage.pass(100.0);
            stage.up(7);
            stage.settle(7);
            stage.restart(true, true);
            assert_eq!(
                stage.state("SET").name(),
                "outcome_unknown",
                "nothing but evidence ends it"
            );
            assert_eq!(stage.runs_of("SET"), 0, "and it is never sent again");
        }
    }
}

// covers: POL-09
#[test]
fn a_relative_action_that_was_not_sent_does_not_slip_into_the_queue() {
    let mut stage = Stage::new();
    stage.up(7);
    let request = stage.request("REL", "eject_one");
    recorded(stage.submit(request, 1000));
    stage.exchanged(
        "REL",
        Outcome::NotSent {
            why: "closed".into(),
        },
    );
    assert_eq!(
        stage.state("REL"),
        State::Rejected(RejectReason::Disconnected)
    );
}

// covers: ST-04, A7
#[test]
fn accepted_and_never_heard_of_again_is_unknown() {
    let mut stage = Stage::new();
    stage.up(7);
    recorded(stage.set("SET", 50, 1000));
    stage.exchanged("SET", Outcome::DeviceAccepted);
    stage.pass(4.999);
    assert_eq!(stage.state("SET").name(), "accepted");
    stage.pass(0.001);
    assert_eq!(
        stage.state("SET"),
        State::OutcomeUnknown(UnknownReason::CompletionTimeout)
    );
}

// covers: REC-02, TIME-03, TIME-04, C10, C11
#[test]
fn a_restart_keeps_what_is_left_and_never_refills_it() {
    // Same boot: exactly what was left.
    let mut stage = article_three();
    stage.pass(2.0);
    stage.restart(true, true);
    assert_eq!(stage.state("SET"), State::Queued);
    stage.pass(7.999);
    assert_eq!(stage.state("SET"), State::Queued);
    stage.pass(0.001);
    assert_eq!(stage.state("SET"), State::Expired);
    // Another boot, wall time trusted: the same by the wall.
    let mut stage = article_three();
    stage.pass(2.0);
    stage.restart(false, true);
    assert_eq!(stage.state("SET"), State::Queued);
    stage.now.wall_us -= 86_400_000_000;
    stage.pass(7.998);
    assert_eq!(stage.state("SET"), State::Queued);
    stage.pass(0.003);
    assert_eq!(stage.state("SET"), State::Expired);
    // Not trusted: the row says hold.
    let mut stage = article_three();
    stage.pass(2.0);
    stage.restart(false, false);
    assert_eq!(
        stage.state("SET"),
        State::Held(HeldReason::ValidityUnprovable)
    );
}

// covers: CAN-01, CAN-02, C15
#[test]
fn cancelled_is_never_said_after_the_send_boundary() {
    let mut stage = article_three();
    assert!(matches!(
        stage.act("SET", Act::Cancel),
        Answer::Cancelled(_)
    ));
    assert_eq!(stage.state("SET").name(), "cancelled");
    let mut stage = Stage::new();
    stage.up(7);
    recorded(stage.set("SET", 50, 1000));
    assert!(matches!(stage.act("SET", Act::Cancel), Answer::TooLate(_)));
    stage.exchanged(
        "SET",
        Outcome::SentNoReply {
            why: "timeout".into(),
        },
    );
    assert!(matches!(stage.act("SET", Act::Cancel), Answer::TooLate(_)));
    assert_eq!(stage.state("SET").name(), "outcome_unknown");
}

// covers: VER-02, C14
#[test]
fn an_equal_readback_is_a_finding_and_no_proof() {
    let mut stage = Stage::new();
    stage.up(7);
    recorded(stage.set("SET", 50, 1000));
    stage.exchanged(
        "SET",
        Outcome::SentNoReply {
            why: "timeout".into(),
        },
    );
    let operation = OperationId::parse("SET").unwrap();
    let answer = ProbeAnswer::Values(vec![("speed".into(), Value::Int(50))]);
    stage.input(Input::Probed {
        machine: "press-1".into(),
        operation: operation.clone(),
        answer,
    });
    assert_eq!(stage.state("SET").name(), "outcome_unknown");
    let finding = stage.disk[&operation].findings.last().unwrap();
    assert!(finding.says.contains("not proof"), "{}", finding.says);
}

// covers: VER-05, CMD-08, A22
#[test]
fn a_person_resolves_with_a_reason_and_does_it_again_under_a_new_name() {
    let mut stage = Stage::new();
    stage.up(7);
    recorded(stage.set("OP7", 50, 1000));
    stage.exchanged(
        "OP7",
        Outcome::SentNoReply {
            why: "timeout".into(),
        },
    );
    let without = Act::Resolve {
        verdict: Verdict::NotExecuted,
        reason: " ".into(),
        by_operation: None,
    };
    assert!(matches!(
        stage.act("OP7", without),
        Answer::Refused(Refusal::InvalidArgument(_))
    ));
    let again = Act::Reissue {
        new_id: "OP8".into(),
        reason: "the press did not move".into(),
    };
    recorded(stage.act("OP7", again));
    let old = &stage.disk[&OperationId::parse("OP7").unwrap()];
    let new = &stage.disk[&OperationId::parse("OP8").unwrap()];
    assert_eq!(old.links.reissued_by, [OperationId::parse("OP8").unwrap()]);
    assert_eq!(
        new.links.reissue_of,
        Some(OperationId::parse("OP7").unwrap())
    );
    let reason = Act::Resolve {
        verdict: Verdict::NotExecuted,
        reason: "seen".into(),
        by_operation: None,
    };
    assert!(matches!(stage.act("OP7", reason), Answer::Done(_)));
    assert_eq!(stage.state("OP7").name(), "not_executed");
}

// covers: TIME-06, A15
#[test]
fn the_replay_window_ends_at_its_edge() {
    let mut stage = Stage::new();
    stage.up(7);
    let request = stage.set_request("OP7", 50);
    recorded(stage.submit(request.clone(), 1000));
    stage.echo("OP7");
    stage.now.boottime_ns += 24 * 3600 * NS_PER_S - 1;
    assert!(matches!(
        stage.submit(request.clone(), 1000),
        Answer::Replayed(_)
    ));
    stage.now.boottime_ns += 1;
    let at = stage.submit(request, 1000);
    assert!(matches!(
        at,
        Answer::Refused(Refusal::OutsideReplayWindow { .. })
    ));
    assert_eq!(stage.runs_of("OP7"), 1);
    let mut old = stage.set_request("OLD", 50);
    old.issued_at_us = Some(stage.now.wall_us - 24 * 3600 * 1_000_000);
    assert!(matches!(
        stage.submit(old, 1000),
        Answer::Refused(Refusal::OutsideReplayWindow { .. })
    ));
}

// covers: EVT-02, CMD-07
#[test]
fn every_transition_is_an_event_and_keys_have_no_gaps() {
    let mut stage = article_three();
    stage.pass(20.0);
    stage.up(7);
    stage.settle(7);
    let keys: Vec<u64> = stage
        .events
        .iter()
        .filter(|e| e.key.source == "press-1")
        .map(|e| e.key.sequence.0)
        .collect();
    assert_eq!(keys, (1..=keys.len() as u64).collect::<Vec<_>>());
    let transitions = stage
        .events
        .iter()
        .filter(|e| e.event_type == "operation.transition")
        .count();
    let history: usize = stage.disk.values().map(|op| op.history.len()).sum();
    assert_eq!(transitions, history);
}

// covers: EVT-03
#[test]
fn a_watched_value_makes_an_event_when_it_moves_more_than_the_deadband() {
    let mut stage = Stage::new();
    let seen = |stage: &mut Stage, value: i128| {
        let before = stage.events.len();
        stage.input(Input::Observed {
            machine: "press-1".into(),
            event_type: "speed.changed".into(),
            value: Some(Value::Int(value)),
            quality: Quality::Good,
            reason: None,
            at: stage.now,
            since: None,
        });
        stage.events.len() - before
    };
    assert_eq!(seen(&mut stage, 50), 1);
    assert_eq!(seen(&mut stage, 52), 0);
    assert_eq!(seen(&mut stage, 53), 1);
    stage.restart(true, true);
    assert_eq!(seen(&mut stage, 53), 0, "the baseline is durable");
    assert_eq!(seen(&mut stage, 60), 1);
}

// covers: C16, POL-08
#[test]
fn many_machines_coming_back_at_once_are_drained_at_the_set_rate_and_in_order() {
    let specs: Vec<MachineSpec> = (0..200)
        .map(|n| {
            let mut spec = press(&format!("press-{n}"));
            spec.commands[0].max_queued = 3;
            spec
        })
        .collect();
    let mut stage = Stage::with(specs);
    for n in 0..200 {
        for k in 0..2 {
            let mut request = stage.set_request(&format!("M{n}-{k}"), 50);
            request.machine = format!("press-{n}");
            recorded(stage.submit(request, 1000));
        }
    }
    let gate = |stage: &mut Stage, n: usize| {
        let reading = GateReading {
            at: stage.now,
            identity: Some(Value::Int(4711)),
            config_version: Some(7),
            mode: None,
            interlocks: vec![("door closed".into(), Value::Bool(true))],
            quality: Quality::Good,
            mailbox: None,
        };
        stage.input(Input::Gate {
            machine: format!("press-{n}"),
            reading: Ok(reading),
        });
    };
    for n in 0..200 {
        stage.input(Input::Link {
            machine: format!("press-{n}"),
            change: LinkChange::Up(ConnectionNo(2)),
        });
        gate(&mut stage, n);
    }
    let start = stage.now.boottime_ns;
    let mut sent: Vec<(u64, String)> = Vec::new();
    for _ in 0..40 {
        for n in 0..200 {
            gate(&mut stage, n);
        }
        stage.pass(0.25);
        for effect in std::mem::take(&mut stage.effects) {
            if let Effect::Run {
                machine,
                operation,
                attempt,
                ..
            } = effect
            {
                sent.push((stage.now.boottime_ns - start, operation.to_string()));
                let exchange = Exchange {
                    outcome: Outcome::DeviceReplied(Reply::WriteEcho),
                    bytes_sent: 12,
                    bytes_total: 12,
                    request_ident: String::new(),
                    sent_at: None,
                    replied_at: None,
                    reply: Vec::new(),
                };
                stage.input(Input::Exchanged {
                    machine,
                    operation,
                    attempt,
                    exchange,
                });
            }
        }
    }
    let in_first_second = sent.iter().filter(|(at, _)| *at <= NS_PER_S).count();
    assert!(
        in_first_second <= 21,
        "{in_first_second} in the first second, 20/s allowed"
    );
    assert!(sent.len() > 100, "but it does drain: {}", sent.len());
    for n in 0..200 {
        let of: Vec<&String> = sent
            .iter()
            .map(|(_, id)| id)
            .filter(|id| id.starts_with(&format!("M{n}-")))
            .collect();
        assert!(
            of.windows(2).all(|pair| pair[0] < pair[1]),
            "order within a machine: {of:?}"
        );
    }
}

// covers: TIME-06, REC-04
#[test]
fn after_a_salvage_an_id_that_is_not_on_record_proves_nothing_about_older_requests() {
    let mut stage = Stage::new();
    stage.up(7);
    let lost = stage.set_request("LOST", 50);
    recorded(stage.submit(lost.clone(), 1000));
    stage.echo("LOST");
    stage.pass(1.0);
    stage.disk.clear();
    stage.unproven_before_us = stage.now.wall_us;
    stage.restart(true, true);
    stage.pass(1.0);
    stage.up(7);
    let again = stage.submit(lost, 1000);
    assert!(
        matches!(again, Answer::Refused(Refusal::OutsideReplayWindow { .. })),
        "{again:?}"
    );
    assert_eq!(stage.runs_of("LOST"), 0);
    recorded(stage.set("NEW", 50, 1000));
}
