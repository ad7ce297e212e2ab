//! Owns: wiring: configuration to tasks, signals to a clean stop.
//! May call: every room but cli and simulator.
//! Never: be ready before recovery has ended; lose what was acknowledged at a stop.

use super::backend::{Gate, Inner, ReloadRequest};
use super::clock::Clock;
use super::engine::{Engine, EngineError, Message, Store, Switchboard, WAITING_MESSAGES_MAX};
use super::machine_task::{MachineTask, Shared};
use super::progress::Progress;
use super::sink_state::SinkShared;
use super::sink_task::{SinkErrand, SinkTask};
use crate::api;
use crate::config::{self, GatewayConfig, Problem, Who};
use crate::core::gateway::{Gateway, Restored, Settings};
use crate::core::lifecycle::Actor;
use crate::core::record::{CursorRecord, Record, SinkRecord, StartRecord};
use crate::core::roles::{self, Roles};
use crate::core::spec::MachineSpec;
use crate::journal::{self, OpenError, Opened, Options, Recovered, Retention};
use crate::plc::port::Ports;
use crate::sys;
use sd_notify::NotifyState;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// No wall time before this release is believed, microseconds since 1970.
pub const RELEASED_US: i64 = 1_795_996_800_000_000;
/// Longest time for the store to open, in milliseconds.
const OPEN_MS_MAX: u64 = 60_000;
/// Wait before the journal is tried again for want of room, in milliseconds.
const OPEN_RETRY_MS: u64 = 2_000;
/// Most requests that wait for a sink.
const SINK_ERRANDS_MAX: usize = 16;
/// Tombstones outlive their operation's window and retention by this many windows (CAP-03).
const TOMBSTONE_WINDOWS: u64 = 2;

/// Why the gateway does not run, by who must act.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Operator: the files.
    #[error("the configuration has {} problem(s)", .0.len())]
    Configuration(Vec<Problem>),
    /// Operator: the system.
    #[error("{0}")]
    System(String),
    /// Operator: the journal.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Operator: the interface.
    #[error(transparent)]
    Bind(#[from] api::server::BindError),
    /// Disk.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A machine task and the way to end it.
struct Running {
    spec: Arc<MachineSpec>,
    stop: watch::Sender<Option<&'static str>>,
    task: JoinHandle<()>,
}

/// What the service manager and people at a terminal send.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Option<Self> {
        Some(Self {
            terminate: signal(SignalKind::terminate()).ok()?,
            interrupt: signal(SignalKind::interrupt()).ok()?,
            hangup: signal(SignalKind::hangup()).ok()?,
        })
    }
}

struct Service {
    config_path: PathBuf,
    boards_dir: PathBuf,
    config: GatewayConfig,
    clock: Clock,
    engine: mpsc::Sender<Message>,
    board: Switchboard,
    gate: Gate,
    roles: watch::Sender<Arc<Roles>>,
    running: HashMap<String, Running>,
    /// The lines that machines share.
    ports: Ports,
    /// The start, as it goes on record.
    start: StartRecord,
    /// The journal is another computer's, and nobody has said that this one takes its place: no machine is
    /// touched, neither for commands nor for counts.
    foreign: bool,
}

/// Runs the gateway until it is told to stop by a signal, or by `stop` where one is given.
///
/// # Errors
/// [`RunError`].
pub async fn run(
    config_path: &Path,
    boards_dir: &Path,
    stop: Option<watch::Receiver<bool>>,
) -> Result<(), RunError> {
    let config = config::load(config_path, boards_dir).map_err(RunError::Configuration)?;
    for warning in &config.warnings {
        log::warn!("{warning}");
    }
    let clock = Clock::new(config.board.battery_clock, RELEASED_US).map_err(|error| {
        RunError::System(format!("the kernel's clocks cannot be read: {error}"))
    })?;
    let opened = open_journal(&config, &clock).await?;
    // Opening took memory that running does not.
    sys::trim_heap();
    let (service, engine, sinks, reload) = build(config_path, boards_dir, config, clock, opened);
    serve(service, engine, sinks, reload, stop).await
}

/// Waits for room where that can come by itself (CAP-02); everything else is for the operator.
async fn open_journal(config: &GatewayConfig, clock: &Clock) -> Result<Opened, RunError> {
    let machine_id = super::computer::describe();
    loop {
        let options = Options {
            dir: config.state_dir.join("journal"),
            budget_bytes: config.journal_budget_bytes,
            gateway: config.gateway.clone(),
            now: clock.now(),
            build_wall_us: RELEASED_US,
            machine_id: machine_id.clone(),
            open_timeout: Duration::from_millis(OPEN_MS_MAX),
        };
        let opened = tokio::task::spawn_blocking(move || journal::open(options)).await;
        match opened.map_err(|error| RunError::System(error.to_string()))? {
            Err(error) if error.passes() => {
                log::error!("{error}");
                let _ = sd_notify::notify(&[NotifyState::Status("waiting for disk space")]);
                tokio::time::sleep(Duration::from_millis(OPEN_RETRY_MS)).await;
            }
            other => return Ok(other?),
        }
    }
}

type Reloads = mpsc::Receiver<ReloadRequest>;

fn build(
    config_path: &Path,
    boards_dir: &Path,
    config: GatewayConfig,
    clock: Clock,
    opened: Opened,
) -> (Service, Engine, Vec<SinkTask>, Reloads) {
    let now = clock.now();
    let (store, recovered) = match opened {
        Opened::Normal(journal, recovered) => (Store::Open(journal), recovered),
        Opened::Recovery(damaged, recovered) => (Store::ReadOnly(damaged), recovered),
    };
    let recovery = matches!(store, Store::ReadOnly(_));
    report_findings(&recovered, recovery);
    let reader = match &store {
        Store::Open(journal) => journal.reader(),
        Store::ReadOnly(damaged) => damaged.reader(),
    };
    let specs: Vec<Arc<MachineSpec>> = config.machines.iter().cloned().map(Arc::new).collect();
    let own_roles = roles_of(&config);
    let restored = Restored {
        epoch: recovered.epoch,
        next_commit: recovered.next_commit,
        operations: recovered.open_operations.clone(),
        machines: recovered.machines.clone(),
        sources: recovered.sources.clone(),
        highest_wall_us: recovered.highest_wall_us,
        unproven_before_us: recovered.unproven_before_us,
        new_incarnation: recovered.note.is_some(),
        previous_epoch: recovered.previous_epoch,
        note: recovered.note.clone(),
        clean: recovered.clean,
        foreign: recovered.foreign.clone(),
        shed: recovered.shed.clone(),
        recovery,
    };
    let seed = now.boottime_ns ^ recovered.epoch.0.rotate_left(32);
    let core = Gateway::new(
        settings(&config, own_roles.clone()),
        specs.clone(),
        restored,
        &now,
        seed,
    );
    let progress = Progress::default();
    let (engine_inbox, inbox) = mpsc::channel(WAITING_MESSAGES_MAX);
    let board = Switchboard::default();
    let retention = retention(&config);
    let beat = progress.part("journal", now.boottime_ns);
    let engine = Engine {
        core,
        store,
        clock: clock.clone(),
        inbox,
        board: board.clone(),
        beat,
        retention,
    };
    let (reload, reloads) = mpsc::channel(1);
    let mut sinks = Vec::new();
    let mut shown = Vec::new();
    for sink in &config.sinks {
        let cursor = recovered
            .cursors
            .iter()
            .find(|cursor| cursor.sink == sink.name)
            .cloned();
        let cursor = cursor.unwrap_or_else(|| CursorRecord {
            sink: sink.name.clone(),
            ..CursorRecord::default()
        });
        let more = recovered.sinks.iter().find(|more| more.sink == sink.name);
        let more = more.cloned().unwrap_or_else(|| SinkRecord {
            sink: sink.name.clone(),
            ..SinkRecord::default()
        });
        let (errands, taken) = mpsc::channel::<SinkErrand>(SINK_ERRANDS_MAX);
        let place = super::place::sink(&config.gateway, sink);
        let shared = Arc::new(SinkShared::new(
            &sink.name,
            (place.kind, place.ack_level.name(), place.lanes.len()),
            cursor,
            more,
        ));
        shown.push((Arc::clone(&shared), errands));
        sinks.push(SinkTask {
            sink: place,
            shared,
            reader: reader.clone(),
            clock: clock.clone(),
            engine: engine_inbox.clone(),
            errands: taken,
            stop: watch::channel(false).1,
            volatile: recovery,
        });
    }
    let gate = Gate::new(Inner {
        gateway: config.gateway.clone(),
        started: now,
        engine: engine_inbox.clone(),
        reader,
        clock: clock.clone(),
        board: board.clone(),
        machines: Default::default(),
        sinks: shown,
        progress,
        reload,
        epoch: recovered.epoch.0,
        recovery,
        queries: Default::default(),
    });
    let own_name = config.gateway.clone();
    let service = Service {
        config_path: config_path.to_owned(),
        boards_dir: boards_dir.to_owned(),
        roles: watch::Sender::new(Arc::new(own_roles)),
        config,
        clock,
        engine: engine_inbox,
        board,
        gate,
        running: HashMap::new(),
        ports: Ports::default(),
        start: StartRecord {
            gateway: own_name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clean: recovered.clean,
            note: recovered.note,
        },
        foreign: recovered.foreign.is_some(),
    };
    (service, engine, sinks, reloads)
}

fn report_findings(recovered: &Recovered, recovery: bool) {
    for finding in &recovered.findings {
        log::error!("journal: {}: {}", finding.code, finding.text);
    }
    if recovery {
        log::error!(
            "recovery mode: reads are answered, nothing is sent; see holdfast journal check and salvage"
        );
    } else if !recovered.clean && recovered.next_commit.0 > 1 {
        log::warn!("the stop before was not clean; the journal was verified whole");
    }
    if let Some(foreign) = &recovered.foreign {
        log::error!("no machine is touched: {foreign}; see holdfast journal adopt");
    }
    if let Some(note) = &recovered.note {
        log::warn!("a new epoch {} was begun: {note}", recovered.epoch);
    }
}

fn settings(config: &GatewayConfig, roles: Roles) -> Settings {
    Settings {
        gateway: config.gateway.clone(),
        replay_window_ms: config.replay_window_ms,
        drain_per_machine_milli: config.recovery_machine_milli_per_s,
        drain_total_milli: config.recovery_total_milli_per_s,
        roles,
    }
}

fn retention(config: &GatewayConfig) -> Retention {
    let windows = config.replay_window_ms.saturating_mul(TOMBSTONE_WINDOWS);
    Retention {
        keep_events_ms: config.keep_events_ms,
        keep_operations_ms: config.replay_retention_ms,
        keep_tombstones_ms: config.replay_retention_ms.saturating_add(windows),
        sinks: config.sinks.iter().map(|sink| sink.name.clone()).collect(),
    }
}

/// A group that the system does not know gives nobody anything, and is said so.
fn roles_of(config: &GatewayConfig) -> Roles {
    let rule = |rule: &config::RoleRule| {
        let who = match &rule.who {
            Who::Uid(uid) => roles::Who::Uid(*uid),
            Who::Group(name) => match api::roles::gid_of(name) {
                Some(gid) => roles::Who::Gid(gid),
                None => {
                    log::warn!(
                        "[[api.role]]: this computer has no group {name:?}; the rule gives nobody anything"
                    );
                    return None;
                }
            },
        };
        Some(roles::RoleRule {
            who,
            role: rule.role,
        })
    };
    let mut rules: Vec<roles::RoleRule> = config.roles.iter().filter_map(rule).collect();
    if rules.is_empty() && !config.roles.is_empty() {
        // Every rule names an unknown group: that must not open the default.
        rules.push(roles::RoleRule {
            who: roles::Who::Token(String::new()),
            role: roles::Role::Viewer,
        });
    }
    Roles {
        rules,
        own_uid: rustix::process::geteuid().as_raw(),
    }
}

async fn serve(
    mut service: Service,
    engine: Engine,
    sinks: Vec<SinkTask>,
    mut reloads: Reloads,
    stop: Option<watch::Receiver<bool>>,
) -> Result<(), RunError> {
    // Before anybody can hear that it runs: whoever stops it then means a clean stop.
    let signals = Signals::listen();
    let listener = api::server::bind(&service.config.api_unix).await?;
    let (ended, mut engine_ended) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name("engine".into())
        .spawn(move || {
            let _ = ended.send(engine.run());
        });
    thread
        .map_err(|error| RunError::System(format!("the engine's thread cannot start: {error}")))?;
    service.announce_start().await;
    for spec in service.config.machines.clone() {
        service.begin(Arc::new(spec));
    }
    let (stop_all, stopping) = watch::channel(false);
    let mut sink_tasks = Vec::new();
    for mut sink in sinks {
        sink.stop = stopping.clone();
        sink_tasks.push(tokio::spawn(sink.run()));
    }
    let api = tokio::spawn(api::server::serve_on(
        listener,
        Arc::new(service.gate.clone()),
        service.roles.subscribe(),
        api::server::Limits::default(),
        stopping.clone(),
    ));
    let watchdog = tokio::spawn(watch_over(service.gate.clone()));
    let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("running")]);
    log::info!(
        "ready: {} machine(s), socket {}",
        service.running.len(),
        service.config.api_unix.display()
    );
    let broken = service
        .until_stopped(&mut reloads, &mut engine_ended, stop, signals)
        .await;
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    log::info!("stopping");
    stop_all.send_replace(true);
    let result = match broken {
        Some(result) => result,
        None => {
            for task in sink_tasks {
                let _ = task.await;
            }
            let _ = service.engine.send(Message::Stop).await;
            engine_ended.await.unwrap_or(Err(EngineError::Fault))
        }
    };
    let _ = api.await;
    let _ = std::fs::remove_file(&service.config.api_unix);
    watchdog.abort();
    for running in service.running.into_values() {
        running.stop.send_replace(Some("the gateway is stopping"));
        let _ = running.task.await;
    }
    Ok(result?)
}

/// The service manager hears of life only while the writer and every machine task move (OPS-01).
async fn watch_over(gate: Gate) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut beat = tokio::time::interval(limit / 3);
    loop {
        beat.tick().await;
        let health = crate::api::backend::Backend::health(&gate);
        if health.ready {
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        } else {
            log::error!("no progress: {}", health.stuck.join(", "));
        }
    }
}

impl Service {
    /// The start itself is on record, before anything else of this epoch is acknowledged.
    async fn announce_start(&self) {
        let record = Record::Start(self.start.clone());
        let (reply, durable) = oneshot::channel();
        if self
            .engine
            .send(Message::Keep(Box::new(record), reply))
            .await
            .is_ok()
        {
            let _ = durable.await;
        }
    }

    /// Starts a machine's task, if the machine is this gateway's (AGT-01).
    fn begin(&mut self, spec: Arc<MachineSpec>) {
        let shared = Arc::new(Shared::new(Arc::clone(&spec)));
        let inner = self.gate.inner();
        {
            let mut machines = inner
                .machines
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            machines.retain(|known| known.spec.name != spec.name);
            machines.push(Arc::clone(&shared));
            machines.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        }
        if spec.owner != self.config.gateway || self.foreign {
            return;
        }
        let (to, errands) = mpsc::unbounded_channel();
        let (stop, stopping) = watch::channel(None);
        let beat = inner.progress.part(
            &format!("machine {}", spec.name),
            self.clock.now().boottime_ns,
        );
        let task = MachineTask::new(
            shared,
            &self.ports,
            self.clock.clone(),
            self.engine.clone(),
            errands,
            stopping,
            beat,
        );
        self.board.connect(&spec.name, to);
        let task = tokio::spawn(task.run());
        self.running
            .insert(spec.name.clone(), Running { spec, stop, task });
    }

    async fn end(&mut self, name: &str) {
        let Some(running) = self.running.remove(name) else {
            return;
        };
        running
            .stop
            .send_replace(Some("its configuration is read anew"));
        let _ = running.task.await;
        self.board.disconnect(name);
        self.gate
            .inner()
            .progress
            .forget(&format!("machine {name}"));
    }

    /// Until a signal, or until the engine or a machine task ends by itself. `Some`: the engine's end.
    async fn until_stopped(
        &mut self,
        reloads: &mut Reloads,
        engine_ended: &mut oneshot::Receiver<Result<(), EngineError>>,
        stop: Option<watch::Receiver<bool>>,
        signals: Option<Signals>,
    ) -> Option<Result<(), EngineError>> {
        let Some(Signals {
            mut terminate,
            mut interrupt,
            mut hangup,
        }) = signals
        else {
            log::error!("signals cannot be received");
            return None;
        };
        let mut stop = stop.unwrap_or_else(|| watch::Sender::new(false).subscribe());
        loop {
            let told = async {
                if stop.wait_for(|stop| *stop).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = terminate.recv() => return None,
                _ = interrupt.recv() => return None,
                () = told => return None,
                ended = &mut *engine_ended => return Some(ended.unwrap_or(Err(EngineError::Fault))),
                _ = hangup.recv() => match self.reload(Actor::Gateway).await {
                    Ok(done) => log::info!("{done}"),
                    Err(why) => log::error!("nothing changed: {why}"),
                },
                Some((actor, reply)) = reloads.recv() => {
                    let result = self.reload(actor).await;
                    let _ = reply.send(result);
                }
            }
        }
    }

    /// CFG-03: all or nothing.
    async fn reload(&mut self, actor: Actor) -> Result<String, String> {
        let _ = sd_notify::notify(&[NotifyState::Reloading]);
        let result = self.try_reload(actor).await;
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        result
    }

    async fn try_reload(&mut self, actor: Actor) -> Result<String, String> {
        let fresh = config::load(&self.config_path, &self.boards_dir).map_err(|problems| {
            problems
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        })?;
        fixed(&self.config, &fresh)?;
        let own_roles = roles_of(&fresh);
        let specs: Vec<Arc<MachineSpec>> = fresh.machines.iter().cloned().map(Arc::new).collect();
        let gone: Vec<String> = self
            .running
            .values()
            .filter(|running| !specs.contains(&running.spec))
            .map(|running| running.spec.name.clone())
            .collect();
        // The old connection is closed before anything is decided by the new file (F141).
        for name in &gone {
            self.end(name).await;
        }
        let (reply, durable) = oneshot::channel();
        let message = Message::Reconfigure(
            specs.clone(),
            Box::new(settings(&fresh, own_roles.clone())),
            actor,
            reply,
        );
        self.engine
            .send(message)
            .await
            .map_err(|_| "the gateway is stopping".to_owned())?;
        let _ = durable.await;
        self.roles.send_replace(Arc::new(own_roles));
        {
            let mut machines = self
                .gate
                .inner()
                .machines
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            machines.retain(|known| specs.iter().any(|spec| *spec == known.spec));
        }
        let mut begun: Vec<String> = Vec::new();
        for spec in specs {
            let known = self
                .gate
                .inner()
                .machines
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .iter()
                .any(|shared| shared.spec == spec);
            if !known {
                begun.push(spec.name.clone());
                self.begin(spec);
            }
        }
        self.config = fresh;
        Ok(reloaded(&begun, &gone))
    }
}

/// What a reload did, by machine.
fn reloaded(begun: &[String], gone: &[String]) -> String {
    let names = |what: &str, names: Vec<&String>| {
        let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let parts: Vec<String> = [
        names(
            "changed:",
            begun.iter().filter(|name| gone.contains(name)).collect(),
        ),
        names(
            "new:",
            begun.iter().filter(|name| !gone.contains(name)).collect(),
        ),
        names(
            "gone:",
            gone.iter().filter(|name| !begun.contains(name)).collect(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() {
        return "reloaded; no machine changed".to_owned();
    }
    format!("reloaded; machines {}", parts.join("; "))
}

/// What cannot change while running says so (CFG-03).
fn fixed(old: &GatewayConfig, new: &GatewayConfig) -> Result<(), String> {
    let changed = [
        ("gateway", old.gateway != new.gateway),
        ("board", old.board != new.board),
        ("state_dir", old.state_dir != new.state_dir),
        (
            "[journal]",
            old.journal_budget_bytes != new.journal_budget_bytes
                || old.keep_events_ms != new.keep_events_ms,
        ),
        (
            "[replay] retention",
            old.replay_retention_ms != new.replay_retention_ms,
        ),
        ("[api] unix", old.api_unix != new.api_unix),
        ("[[sink]]", old.sinks != new.sinks),
    ];
    let names: Vec<&str> = changed
        .iter()
        .filter(|(_, changed)| *changed)
        .map(|(name, _)| *name)
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} cannot change while running: restart the gateway for it",
        names.join(", ")
    ))
}
