//! Owns: the proof that what was decided for an earlier connection is not handed over on a new one (POL-06).
//! May call: the scripted server, the machine's task, the real core in the place of the engine.
//! Never: take the task's word for what was sent.

use crate::server::{Act, Server, asked, echo, holding, registers, scalar, spec};
use holdfast::core::contract::{Job, Outcome};
use holdfast::core::gateway::{Effect, Gateway, Input, LinkChange, Restored, Settings, Token};
use holdfast::core::ids::{AttemptId, CommitNo, ConnectionNo, Epoch, OperationId};
use holdfast::core::intent::Request;
use holdfast::core::lifecycle::{Actor, HeldReason, State};
use holdfast::core::machine::LinkState;
use holdfast::core::roles::Roles;
use holdfast::core::spec::{
    Action, Class, Completion, DataType, MachineSpec, ModeCheck, OnRestart, ReplaceRule, Row,
    Verify,
};
use holdfast::plc::port::Ports;
use holdfast::service::clock::Clock;
use holdfast::service::engine::Message;
use holdfast::service::errand::Errand;
use holdfast::service::machine_task::{MachineTask, Shared};
use holdfast::service::progress::Progress;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const WAIT_MAX: Duration = Duration::from_secs(5);
/// Where the mode stands, and what it says.
const MODE: u16 = 130;
const AUTOMATIC: u16 = 1;
const BY_HAND: u16 = 2;

fn write(n: u64, connection: ConnectionNo) -> Errand {
    Errand::Run {
        connection,
        operation: OperationId::parse("OP1").unwrap(),
        attempt: AttemptId { epoch: Epoch(7), n },
        job: Job::Write {
            start: holding(100),
            words: vec![50],
        },
        deadline: None,
    }
}

/// The task, and the engine's ends of it.
struct Task {
    inbox: mpsc::Receiver<Message>,
    errands: mpsc::UnboundedSender<Errand>,
    stop: watch::Sender<Option<&'static str>>,
    clock: Clock,
    task: MachineTask,
}

fn task(spec: MachineSpec) -> Task {
    let (engine, inbox) = mpsc::channel(64);
    let (errands, waiting) = mpsc::unbounded_channel();
    let (stop, stopping) = watch::channel(None);
    let clock = Clock::new(true, 0).unwrap();
    let beat = Progress::default().part("press-1", clock.now().boottime_ns);
    let task = MachineTask::new(
        Arc::new(Shared::new(Arc::new(spec))),
        &Ports::default(),
        clock.clone(),
        engine,
        waiting,
        stopping,
        beat,
    );
    Task {
        inbox,
        errands,
        stop,
        clock,
        task,
    }
}

async fn next<T>(inbox: &mut mpsc::Receiver<Message>, wanted: impl Fn(&Input) -> Option<T>) -> T {
    loop {
        let message = timeout(WAIT_MAX, inbox.recv()).await.unwrap().unwrap();
        if let Message::Input(input) = message
            && let Some(found) = wanted(&input)
        {
            return found;
        }
    }
}

fn outcome(input: &Input) -> Option<Outcome> {
    match input {
        Input::Exchanged { exchange, .. } => Some(exchange.outcome.clone()),
        _ => None,
    }
}

// The engine was slow: what it decided while the connection before this one stood comes when a new one was made.
// covers: POL-06, F055
#[tokio::test]
async fn an_order_goes_out_over_the_connection_that_it_names_and_over_no_other() {
    let server = Server::start(|request| {
        let (_, count) = asked(request);
        vec![Act::Bytes(match request[7] {
            6 | 16 => echo(request),
            _ => registers(request, &vec![0; usize::from(count)]),
        })]
    })
    .await;
    let Task {
        mut inbox,
        errands,
        stop,
        task,
        ..
    } = task(spec(server.port));
    let task = tokio::spawn(task.run());
    let up = next(&mut inbox, |input| match input {
        Input::Link {
            change: LinkChange::Up(connection),
            ..
        } => Some(*connection),
        _ => None,
    })
    .await;
    let before = ConnectionNo(up.0.wrapping_sub(1));
    next(&mut inbox, gate_ok).await;
    assert!(errands.send(write(1, before)).is_ok());
    let first = next(&mut inbox, outcome).await;
    assert!(matches!(first, Outcome::NotSent { .. }), "{first:?}");
    assert_eq!(server.count(6) + server.count(16), 0);
    assert!(errands.send(write(2, up)).is_ok());
    let second = next(&mut inbox, outcome).await;
    assert!(matches!(second, Outcome::DeviceReplied(_)), "{second:?}");
    assert_eq!(server.count(6) + server.count(16), 1);
    stop.send_replace(Some("the test is over"));
    timeout(WAIT_MAX, task).await.unwrap().unwrap();
}

/// The engine, but for its journal: the real core decides, and a command is handed over when the test says so.
struct Slow {
    core: Gateway,
    inbox: mpsc::Receiver<Message>,
    errands: mpsc::UnboundedSender<Errand>,
    clock: Clock,
    kept: Vec<Errand>,
}

impl Slow {
    fn new(
        spec: &MachineSpec,
        inbox: mpsc::Receiver<Message>,
        errands: mpsc::UnboundedSender<Errand>,
        clock: Clock,
    ) -> Self {
        let settings = Settings {
            gateway: "gw".into(),
            replay_window_ms: 3_600_000,
            drain_per_machine_milli: u64::MAX,
            drain_total_milli: u64::MAX,
            roles: Roles {
                rules: Vec::new(),
                own_uid: 1000,
            },
        };
        let restored = Restored {
            epoch: Epoch(7),
            next_commit: CommitNo(1),
            ..Restored::default()
        };
        let specs = vec![Arc::new(spec.clone())];
        let core = Gateway::new(settings, specs, restored, &clock.now(), 42);
        let mut slow = Self {
            core,
            inbox,
            errands,
            clock,
            kept: Vec::new(),
        };
        slow.decide(Input::Started);
        slow
    }

    fn decide(&mut self, input: Input) {
        let output = self.core.handle(&self.clock.now(), input);
        self.core.committed();
        for effect in output.effects {
            let command = matches!(effect, Effect::Run { .. });
            match Errand::of(effect) {
                Some((_, errand)) if command => self.kept.push(errand),
                Some((_, errand)) => assert!(self.errands.send(errand).is_ok()),
                None => {}
            }
        }
    }

    /// Decides on what comes, until `seen` of an input, which is decided upon as well.
    async fn until<T>(&mut self, seen: impl Fn(&Input) -> Option<T>) -> T {
        loop {
            let message = timeout(WAIT_MAX, self.inbox.recv()).await.unwrap().unwrap();
            if let Message::Input(input) = message {
                let found = seen(&input);
                self.decide(input);
                if let Some(found) = found {
                    return found;
                }
            }
        }
    }

    /// The same while timers fire, until the operation stands as `is`.
    async fn until_state(&mut self, id: &OperationId, is: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        loop {
            let state = &self.core.operation(id).unwrap().state;
            if is(state) {
                return;
            }
            assert!(begun.elapsed() < WAIT_MAX, "it stands as {state:?}");
            let due_ns = self.core.next_due_ns().unwrap_or(u64::MAX);
            let wait_ns = due_ns.saturating_sub(self.clock.now().boottime_ns);
            let wait = Duration::from_nanos(wait_ns).min(WAIT_MAX);
            let input = match timeout(wait, self.inbox.recv()).await {
                Ok(Some(Message::Input(input))) => input,
                Ok(_) => continue,
                Err(_) => Input::Tick,
            };
            self.decide(input);
        }
    }
}

fn set_speed() -> Row {
    Row {
        name: "set_speed".into(),
        class: Class::AbsoluteSet,
        queueable: true,
        ttl_ms: 60_000,
        max_queued: 3,
        stop: false,
        replace: ReplaceRule::Never,
        precondition: false,
        on_restart: OnRestart::Hold,
        completion: Completion::Reply,
        completion_timeout_ms: 5_000,
        verify: Verify::Manual,
        interlocks: Vec::new(),
        args: Vec::new(),
        action: Action::Write {
            start: holding(100),
            request_id: true,
        },
        device_contract_mailbox: false,
        merge_latest: false,
        i_accept: None,
        origins: BTreeMap::new(),
    }
}

fn gate_ok(input: &Input) -> Option<()> {
    matches!(input, Input::Gate { reading: Ok(_), .. }).then_some(())
}

// A command was cleared by what one connection's gate said; it is handed over on the next, whose gate says otherwise.
// covers: POL-06, SEND-03
#[tokio::test]
async fn a_command_that_an_earlier_connections_gate_let_through_is_decided_anew() {
    let (mode, cut) = (
        Arc::new(AtomicU16::new(AUTOMATIC)),
        Arc::new(AtomicBool::new(false)),
    );
    let (shown, cuts) = (Arc::clone(&mode), Arc::clone(&cut));
    let server = Server::start(move |request| {
        if cuts.swap(false, Ordering::SeqCst) {
            return vec![Act::Rst];
        }
        vec![Act::Bytes(match request[7] {
            6 | 16 => echo(request),
            _ => registers(request, &[shown.load(Ordering::SeqCst)]),
        })]
    })
    .await;
    let mut spec = spec(server.port);
    spec.gate.mode = Some(ModeCheck {
        at: scalar(MODE, DataType::U16),
        allowed: vec![AUTOMATIC.into()],
    });
    spec.gate.age_ms_max = 1_000;
    spec.commands = vec![set_speed()];
    let Task {
        inbox,
        errands,
        stop,
        clock,
        task,
    } = task(spec.clone());
    let mut engine = Slow::new(&spec, inbox, errands, clock);
    let task = tokio::spawn(task.run());

    engine.until(gate_ok).await;
    assert_eq!(engine.core.machines()["press-1"].link, LinkState::Up);
    let id = OperationId::parse("OP1").unwrap();
    engine.decide(Input::Submit {
        request: Request {
            operation_id: Some("OP1".into()),
            machine: "press-1".into(),
            command: "set_speed".into(),
            issued_at_us: Some(engine.clock.now().wall_us),
            ..Request::default()
        },
        actor: Actor::Uid {
            uid: 1000,
            gids: vec![1000],
        },
        token: Token(1),
    });
    engine
        .until_state(&id, |state| matches!(state, State::Sending { .. }))
        .await;
    assert_eq!(engine.kept.len(), 1);

    mode.store(BY_HAND, Ordering::SeqCst);
    cut.store(true, Ordering::SeqCst);
    engine
        .until(|input| match input {
            Input::Link {
                change: LinkChange::Down { .. },
                ..
            } => Some(()),
            _ => None,
        })
        .await;
    engine.until(gate_ok).await;
    assert_eq!(engine.core.machines()["press-1"].link, LinkState::Up);

    let late = engine.kept.pop().unwrap();
    assert!(engine.errands.send(late).is_ok());
    let outcome = engine.until(outcome).await;
    assert!(matches!(outcome, Outcome::NotSent { .. }), "{outcome:?}");
    let by_hand = HeldReason::ModeNotAllowed {
        found: BY_HAND.into(),
    };
    engine
        .until_state(&id, |state| *state == State::Held(by_hand.clone()))
        .await;
    assert_eq!(server.count(6) + server.count(16), 0);
    stop.send_replace(Some("the test is over"));
    drop(engine.inbox);
    timeout(WAIT_MAX, task).await.unwrap().unwrap();
}
