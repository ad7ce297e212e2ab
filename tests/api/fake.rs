//! Owns: a gateway that answers what a test tells it to, behind the real server on a real socket.
//! May call: the crate's public items.
//! Never: decide anything that a test does not see.

use holdfast::api::backend::*;
use holdfast::api::roles::Roles;
use holdfast::api::server::{Limits, bind, serve_on};
use holdfast::api::types::TraceLine;
use holdfast::cli::client::{Client, Raw};
use holdfast::cli::exit::Failure;
use holdfast::core::gateway::{Answer, Refusal};
use holdfast::core::ids::*;
use holdfast::core::intent::{Digest, Intent, InvalidArgument, Request};
use holdfast::core::lifecycle::{Actor, Completion, Evidence, Source, State};
use holdfast::core::record::*;
use holdfast::core::spec::*;
use holdfast::core::time::Stamp;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

pub(crate) fn stamp(s: i64) -> Stamp {
    Stamp {
        boot_id: BootId([1; 16]),
        boottime_ns: 5_000_000_000,
        wall_us: 1_796_025_600_123_456 + s * 1_000_000,
        wall_trusted: true,
    }
}

pub(crate) fn operation(id: &str, state: State) -> Operation {
    Operation {
        id: OperationId::parse(id).unwrap(),
        intent: Intent {
            machine: "press-1".into(),
            command: "set_speed".into(),
            args: vec![("speed".into(), ArgValue::Number(50.into()))],
            expected_config_version: Some(7),
            ttl_ms: 10_000,
            issued_at_us: Some(stamp(0).wall_us),
            replaces: None,
        },
        digest: Digest {
            sha256: [7; 32],
            length: 90,
            encoding: 1,
        },
        class: Class::AbsoluteSet,
        actor: Actor::Gateway,
        created: stamp(0),
        submitted: CommitNo(1),
        deadline: None,
        replay_until_us: stamp(86_400).wall_us,
        disconnected_at: Some(stamp(-2)),
        version_found: Some(7),
        result_id: None,
        superseded_count: 0,
        links: Links::default(),
        request_id: None,
        device_boot: None,
        waived: None,
        busy_count: 0,
        attempts: vec![],
        findings: vec![],
        history_dropped: 0,
        history: vec![Transition {
            from: None,
            to: state.name().into(),
            at: stamp(0),
            source: Source::Api,
            actor: Actor::Gateway,
            attempt: None,
            detail: "recorded ".repeat(20),
        }],
        state,
    }
}

pub(crate) fn completed() -> State {
    let evidence = Evidence::from_operator(&Actor::Gateway, "seen", stamp(1));
    State::Completed(Completion::new(
        evidence,
        vec![("speed".into(), Value::Int(50))],
    ))
}

pub(crate) fn event(no: u64, index: u32, sequence: u64) -> (Position, EventRecord) {
    let position = Position {
        no: CommitNo(no),
        index,
    };
    let record = EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(sequence),
        },
        event_type: "operation.transition".into(),
        schema: 1,
        wall_us: stamp(0).wall_us,
        boottime_ns: 1,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: format!("{{\"text\":\"{}\"}}", "long ".repeat(30)),
        unsynchronised: None,
    };
    (position, record)
}

fn row(name: &str, class: Class) -> Row {
    Row {
        name: name.into(),
        class,
        queueable: true,
        ttl_ms: 10_000,
        max_queued: 1,
        stop: false,
        replace: ReplaceRule::SameOperator,
        precondition: true,
        on_restart: OnRestart::Hold,
        completion: holdfast::core::spec::Completion::Reply,
        completion_timeout_ms: 5000,
        verify: Verify::Readback,
        interlocks: vec!["door closed".into()],
        args: vec![],
        action: Action::Mailbox { opcode: 3 },
        device_contract_mailbox: false,
        merge_latest: false,
        i_accept: None,
        origins: BTreeMap::from([("ttl".into(), Origin::Row)]),
    }
}

fn machine() -> MachineSpec {
    MachineSpec {
        name: "press-1".into(),
        owner: "gw-line3".into(),
        read_only: false,
        link: LinkSpec::ModbusTcp(ModbusTcp {
            host: "127.0.0.1".into(),
            port: 1502,
            unit: 1,
            answering_unit: None,
            timeout_ms: 500,
            read_registers_max: 125,
            reconnect_ms_min: 100,
            reconnect_ms_max: 1000,
            heartbeat_ms: 1000,
        }),
        gate: GateSpec::default(),
        tags: vec![Tag {
            name: "speed".into(),
            at: Scalar {
                address: Address::Modbus {
                    area: ModbusArea::Holding,
                    offset: 100,
                },
                data_type: DataType::U16,
                word_order: WordOrder::HighFirst,
            },
            unit: Some("rpm".into()),
            poll_ms: 500,
            no_value: vec![],
            group: None,
        }],
        groups: vec![],
        events: vec![],
        commands: vec![
            row("set_speed", Class::AbsoluteSet),
            row("read_status", Class::Query),
        ],
        mailbox: None,
    }
}

/// What the gateway says, and what it was told.
pub(crate) struct Fake {
    /// By operation id, or by `act id`.
    pub(crate) answers: Mutex<HashMap<String, Answer>>,
    pub(crate) known: Mutex<BTreeMap<String, Known>>,
    pub(crate) events: Mutex<Vec<(Position, EventRecord)>>,
    pub(crate) commits: watch::Sender<CommitNo>,
    pub(crate) release: watch::Sender<bool>,
    pub(crate) denied: Mutex<Vec<(Actor, String)>>,
    pub(crate) submitted: Mutex<Vec<Request>>,
    pub(crate) acts: Mutex<Vec<Act>>,
    pub(crate) settled: Mutex<Vec<(EventKey, Settlement, String)>>,
    pub(crate) sink_acts: Mutex<Vec<(String, SinkAct, String)>>,
    pub(crate) traced: Mutex<Vec<(String, u64, Actor)>>,
    pub(crate) query: Mutex<Result<Vec<(String, Value)>, QueryError>>,
    pub(crate) reload: Mutex<Result<String, String>>,
    pub(crate) mode: Mutex<Mode>,
    pub(crate) ready: Mutex<bool>,
}

impl Fake {
    fn new() -> Self {
        Self {
            answers: Mutex::default(),
            known: Mutex::default(),
            events: Mutex::default(),
            commits: watch::channel(CommitNo(0)).0,
            release: watch::channel(false).0,
            denied: Mutex::default(),
            submitted: Mutex::default(),
            acts: Mutex::default(),
            settled: Mutex::default(),
            sink_acts: Mutex::default(),
            traced: Mutex::default(),
            query: Mutex::new(Ok(vec![("status".into(), Value::Int(3))])),
            reload: Mutex::new(Ok("1 machine changed".into())),
            mode: Mutex::new(Mode::Normal),
            ready: Mutex::new(true),
        }
    }
    pub(crate) fn answer(&self, key: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(key.into(), answer);
    }
    pub(crate) fn know(&self, operation: Operation) {
        let id = operation.id.to_string();
        let known = Known::Operation(Box::new(operation));
        self.known.lock().unwrap().insert(id, known);
    }
    fn answer_to(&self, key: &str) -> Answer {
        let refused = || Answer::Refused(Refusal::UnknownOperation(key.into()));
        let answers = self.answers.lock().unwrap();
        answers.get(key).cloned().unwrap_or_else(refused)
    }
}

fn ready<T: Send + 'static>(value: T) -> Reply<T> {
    Box::pin(std::future::ready(value))
}

impl Backend for Fake {
    fn submit(&self, request: Request, _: Actor) -> Reply<Answer> {
        let answer = match &request.operation_id {
            Some(id) => self.answer_to(id),
            None => Answer::Refused(Refusal::MissingOperationId),
        };
        self.submitted.lock().unwrap().push(request);
        ready(answer)
    }
    fn query(
        &self,
        _: Request,
        _: Actor,
        _: u64,
    ) -> Reply<Result<Vec<(String, Value)>, QueryError>> {
        ready(self.query.lock().unwrap().clone())
    }
    fn act(&self, id: OperationId, act: Act, _: Actor) -> Reply<Answer> {
        let name = match &act {
            Act::Cancel => "cancel",
            Act::Verify => "verify",
            Act::Approve => "approve",
            Act::Resolve { .. } => "resolve",
            Act::Reissue { .. } => "reissue",
        };
        self.acts.lock().unwrap().push(act);
        ready(self.answer_to(&format!("{name} {id}")))
    }
    fn wait(&self, id: OperationId, wait_ms: u64) -> Reply<Result<Option<Known>, ReadError>> {
        let mut release = self.release.subscribe();
        let found = self.known.lock().unwrap().get(id.as_str()).cloned();
        Box::pin(async move {
            let limit = std::time::Duration::from_millis(wait_ms);
            let _ = tokio::time::timeout(limit, release.wait_for(|free| *free)).await;
            Ok(found)
        })
    }
    fn operation(&self, id: OperationId) -> Reply<Result<Option<Known>, ReadError>> {
        ready(Ok(self.known.lock().unwrap().get(id.as_str()).cloned()))
    }
    fn operations(
        &self,
        filter: OperationFilter,
    ) -> Reply<Result<Page<Operation, CommitNo>, ReadError>> {
        let known = self.known.lock().unwrap();
        let items: Vec<Operation> = known
            .values()
            .filter_map(|known| match known {
                Known::Operation(operation) => Some(operation.as_ref().clone()),
                Known::Tombstone(_) => None,
            })
            .filter(|o| filter.state.as_ref().is_none_or(|s| s == o.state.name()))
            .collect();
        ready(Ok(Page { items, next: None }))
    }
    fn events(&self, after: EventsAfter, limit: usize) -> Reply<Result<EventsPage, ReadError>> {
        let events = self.events.lock().unwrap();
        let mut items: Vec<_> = events
            .iter()
            .filter(|(position, event)| match &after {
                EventsAfter::Start => true,
                EventsAfter::Position(at) => position > at,
                EventsAfter::Key(key) => event.key > *key,
            })
            .cloned()
            .collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|(at, _)| *at);
        ready(Ok(Page { items, next }))
    }
    fn commits(&self) -> watch::Receiver<CommitNo> {
        self.commits.subscribe()
    }
    fn status(&self) -> Reply<Status> {
        ready(Status {
            mode: *self.mode.lock().unwrap(),
            gateway: "gw-line3".into(),
            started: stamp(-3600),
            now: stamp(0),
            journal: JournalStatus {
                state: "ok".into(),
                used_bytes: 1 << 20,
                budget_bytes: 512 << 20,
                commit: CommitNo(u64::MAX),
                epoch: 7,
                telemetry_dropped: 0,
            },
            machines: vec![MachineStatus {
                name: "press-1".into(),
                owner: "gw-line3".into(),
                read_only: true,
                link: "down".into(),
                since: stamp(-15),
                reason: "connection refused ".repeat(8),
                model: None,
                in_flight: OperationId::parse(&"F".repeat(128)).ok(),
                queued: 1,
                held: 2,
                outcome_unknown: 3,
                counters: vec![("stale_reply".into(), 4)],
            }],
            sinks: vec![SinkStatus {
                name: "mes".into(),
                kind: "postgres".into(),
                ack_level: "committed".into(),
                state: "retrying: the database does not answer".into(),
                backlog: (12, 3400, Some(stamp(-90).wall_us)),
                counters: [10, 2, 1, 1, 5],
                dead_letters: 2,
                circuit: "retrying",
                rates_milli: Some((10_500, 41_500)),
                overtaking: true,
                lanes: 4,
                in_flight: 0,
                resent: 1,
                rewound: 0,
            }],
            counts: (1, 2, 3),
            alarms: vec![Alarm {
                code: "link_down".into(),
                severity: "warning".into(),
                since: stamp(-15),
                text: "press-1 does not answer ".repeat(5),
                mend: "look at the cable".into(),
            }],
        })
    }
    fn machines(&self) -> Vec<Arc<MachineSpec>> {
        vec![Arc::new(machine())]
    }
    fn tags(&self, _: String) -> Reply<Result<Vec<TagStatus>, ReadError>> {
        ready(Ok(vec![TagStatus {
            name: "speed".into(),
            value: None,
            unit: Some("rpm".into()),
            quality: Quality::Stale,
            reason: Some("the link is down".into()),
            read_at: Some(stamp(-20)),
        }]))
    }
    fn read_now(&self, _: String, _: Vec<String>) -> Reply<Result<Vec<TagStatus>, ReadError>> {
        ready(Err(ReadError::Device("press-1 does not answer".into())))
    }
    fn trace(
        &self,
        machine: String,
        ms: u64,
        actor: Actor,
    ) -> Reply<Result<Option<Trace>, Refusal>> {
        let mut traced = self.traced.lock().unwrap();
        traced.push((machine, ms, actor));
        let line = TraceLine {
            at: "2026-11-30T08:00:00.123456Z".into(),
            way: "sent".into(),
            length: 2,
            hex: "41 00".into(),
            ascii: "A.".into(),
            hidden: false,
        };
        ready(Ok((traced.len() < 2).then(|| (vec![line], 3))))
    }
    fn dead_letters(
        &self,
        sink: String,
        after: Option<EventKey>,
        limit: usize,
    ) -> Reply<Result<Page<DeadLetter, EventKey>, ReadError>> {
        if sink != "mes" {
            return ready(Err(ReadError::NotFound(format!("no sink {sink:?}"))));
        }
        let letters = [42, 43, 44].map(|n| DeadLetter {
            sink: sink.clone(),
            event: event(1, 0, n).1,
            status: "conflict".into(),
            reason: "same key, other content".into(),
            kept: Some("{\"qty\":2}".into()),
        });
        let mut items: Vec<DeadLetter> = letters
            .into_iter()
            .filter(|letter| after.as_ref().is_none_or(|after| letter.event.key > *after))
            .collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more);
        let next = next.map(|letter| letter.event.key.clone());
        ready(Ok(Page { items, next }))
    }
    fn settle_dead_letter(
        &self,
        _: String,
        key: EventKey,
        how: Settlement,
        reason: String,
        _: Actor,
    ) -> Reply<Result<Option<EventKey>, Refusal>> {
        let refused = key.sequence.0 == 44 && how == Settlement::Resend;
        let correction = matches!(how, Settlement::Mend { .. }).then(|| event(1, 0, 99).1.key);
        self.settled.lock().unwrap().push((key, how, reason));
        ready(if refused {
            Err(Refusal::InvalidArgument(InvalidArgument {
                field: "key".into(),
                found: "conflict again".into(),
                expected: "an event that the sink takes".into(),
            }))
        } else {
            Ok(correction)
        })
    }
    fn act_on_sink(
        &self,
        sink: String,
        act: SinkAct,
        reason: String,
        _: Actor,
    ) -> Reply<Result<String, Refusal>> {
        let mut acts = self.sink_acts.lock().unwrap();
        acts.push((sink, act, reason));
        ready(Ok("12 events are sent again".into()))
    }
    fn denied(&self, actor: Actor, action: String) -> Reply<()> {
        self.denied.lock().unwrap().push((actor, action));
        ready(())
    }
    fn reload(&self, _: Actor) -> Reply<Result<String, String>> {
        ready(self.reload.lock().unwrap().clone())
    }
    fn health(&self) -> Health {
        let ready = *self.ready.lock().unwrap();
        Health {
            ready,
            stuck: if ready {
                vec![]
            } else {
                vec!["journal".into()]
            },
        }
    }
}

/// The fake behind the real server.
pub(crate) struct Gateway {
    pub(crate) fake: Arc<Fake>,
    pub(crate) socket: PathBuf,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) roles: watch::Sender<Arc<Roles>>,
    pub(crate) server: Option<tokio::task::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

impl Gateway {
    pub(crate) fn start() -> Self {
        Self::with(Limits::default())
    }
    pub(crate) fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let fake = Arc::new(Fake::new());
        let (stop, stopping) = watch::channel(false);
        let (roles, given) = watch::channel(Arc::new(Roles {
            rules: vec![],
            own_uid: own_uid(),
        }));
        let listener = runtime.block_on(bind(&socket)).unwrap();
        let server = runtime.spawn(serve_on(listener, fake.clone(), given, limits, stopping));
        Self {
            fake,
            socket,
            runtime,
            stop,
            roles,
            server: Some(server),
            _dir: dir,
        }
    }
    pub(crate) fn client(&self) -> Client {
        Client::new(self.socket.clone())
    }
    pub(crate) fn get(&self, path: &str) -> Result<Raw, Failure> {
        self.runtime.block_on(self.client().get(path))
    }
    pub(crate) fn post(&self, path: &str, body: &str) -> Result<Raw, Failure> {
        self.runtime
            .block_on(self.client().post(path, body.into(), 20_000))
    }
    /// The real program, with no terminal at its ends.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .arg("--socket")
            .arg(&self.socket)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}
