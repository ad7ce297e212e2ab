//! Owns: one play: the gateway's shell over the simulated disk, clock, machines, network and sinks.
//! May call: the core, and every file of this test.
//! Never: perform an effect whose block is not synced; wait.

use super::books::Books;
use super::chance::{Chance, Kind};
use super::disk::Disk;
use super::line::{Line, request_of};
use super::orders::{Order, Orders};
use super::plant::{MACHINES, SINKS, machines, settings};
use super::upstream::{SinkTask, Upstream};
use holdfast::core::gateway::{Act, Answer, Effect, Gateway, Input, Restored, Token};
use holdfast::core::ids::{BootId, CommitNo, Epoch, OperationId};
use holdfast::core::intent::Request;
use holdfast::core::lifecycle::{Actor, HeldReason};
use holdfast::core::record::{Block, Operation, Stored, Tombstone};
use holdfast::core::time::{NS_PER_MS, NS_PER_S, Now};
use std::collections::{BTreeMap, HashMap, VecDeque};

const WALL_US: i64 = 1_796_000_000_000_000;
/// Most inputs that wait and are committed with one sync.
const ROUND_INPUTS_MAX: usize = 6;
/// Steps of the trace that are kept.
const TRACE_LINES_MAX: usize = 60;

/// What a validity really is, by clocks that the gateway does not have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrueEnd {
    boot: BootId,
    boottime_ns: u64,
    true_ns: u64,
    /// The wall clock was wrong and called trusted: nothing holds over a reboot then.
    misled: bool,
}

pub(crate) struct Asked {
    pub(crate) id: OperationId,
    act: Option<Act>,
    at: Now,
    ttl_ms: u64,
}

/// One play.
pub(crate) struct World {
    pub(crate) chance: Chance,
    pub(crate) core: Gateway,
    pub(crate) now: Now,
    /// Time as it is; no reboot touches it.
    true_ns: u64,
    pub(crate) disk: Disk,
    pub(crate) books: Books,
    pub(crate) lines: Vec<Line>,
    sinks: Vec<SinkTask>,
    pub(crate) upstreams: Vec<Upstream>,
    inbox: VecDeque<Input>,
    tokens: u64,
    asked: HashMap<Token, Asked>,
    pub(crate) submitted: Vec<(OperationId, Request)>,
    /// Heard to be recorded, and the end that was heard, if one was.
    pub(crate) acknowledged: BTreeMap<OperationId, Option<&'static str>>,
    pub(crate) requests: HashMap<OperationId, Vec<u32>>,
    ends: HashMap<OperationId, TrueEnd>,
    orders: Orders,
    pub(crate) tombstones: BTreeMap<OperationId, Tombstone>,
    replay_window_ms: u64,
    pub(crate) pieces_from: Vec<u64>,
    pub(crate) reached: BTreeMap<&'static str, u64>,
    pub(crate) checked: BTreeMap<&'static str, u64>,
    pub(crate) trace: Option<VecDeque<String>>,
}

fn gateway(
    books: &Books,
    epoch: Epoch,
    previous: Epoch,
    window_ms: u64,
    now: &Now,
    seed: u64,
) -> Gateway {
    let open = books
        .operations
        .values()
        .filter(|operation| !operation.state.is_ended());
    let mut operations: Vec<Operation> = open.cloned().collect();
    operations.sort_by_key(|operation| operation.submitted);
    let first = books.log.is_empty();
    let restored = Restored {
        epoch,
        next_commit: CommitNo(books.log.len() as u64 + 1),
        operations,
        machines: books.machines.values().cloned().collect(),
        sources: books.sources.values().cloned().collect(),
        highest_wall_us: books.highest_wall_us,
        new_incarnation: first,
        note: first.then(|| "created".to_owned()),
        previous_epoch: if first { Epoch(0) } else { previous },
        ..Restored::default()
    };
    Gateway::new(settings(window_ms), machines(), restored, now, seed)
}

impl World {
    pub(crate) fn new(seed: u64, without: &[Kind], traced: bool) -> Self {
        let mut chance = Chance::new(seed, without);
        let now = Now {
            boot_id: BootId([1; 16]),
            boottime_ns: 100 * NS_PER_S,
            wall_us: WALL_US,
            wall_trusted: true,
        };
        let books = Books::default();
        let replay_window_ms = if chance.one_in("plan", 2) {
            12_000
        } else {
            24 * 3600 * 1000
        };
        let mut disk = Disk::default();
        disk.epoch = Epoch(7);
        let core = gateway(&books, disk.epoch, Epoch(0), replay_window_ms, &now, seed);
        let mut lines: Vec<Line> = MACHINES
            .iter()
            .enumerate()
            .map(|(n, name)| Line::new(name, n < 2))
            .collect();
        for line in &mut lines {
            // Near its highest, so that it wraps in the play.
            line.device.pieces = 9_900 + chance.below("device", 100);
            line.device.head = chance.below("device", 40) as u32;
        }
        let mut world = Self {
            pieces_from: lines.iter().map(|line| line.device.pieces).collect(),
            chance,
            core,
            now,
            true_ns: 0,
            disk,
            sinks: SINKS
                .iter()
                .map(|(name, lanes)| SinkTask::new(name, *lanes, &books, seed))
                .collect(),
            upstreams: SINKS.iter().map(|_| Upstream::default()).collect(),
            books,
            lines,
            inbox: VecDeque::new(),
            tokens: 0,
            asked: HashMap::new(),
            submitted: Vec::new(),
            acknowledged: BTreeMap::new(),
            requests: HashMap::new(),
            ends: HashMap::new(),
            orders: Orders::default(),
            tombstones: BTreeMap::new(),
            replay_window_ms,
            reached: BTreeMap::new(),
            checked: BTreeMap::new(),
            trace: traced.then(VecDeque::new),
        };
        world.inbox.push_back(Input::Started);
        world.round();
        world
    }

    pub(crate) fn reach(&mut self, branch: &'static str) {
        *self.reached.entry(branch).or_default() += 1;
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            if trace.len() >= TRACE_LINES_MAX {
                trace.pop_front();
            }
            trace.push_back(text());
            crate::keep_trace(self);
        }
    }

    /// One step of the first phase.
    pub(crate) fn step(&mut self) {
        match self.chance.below("plan", 36) {
            0..=3 => self.submit(),
            4 => self.submit_again(),
            5 => self.ask(),
            6..=8 => self.work(),
            9 => self.trouble(),
            10 => self.arrive(),
            11 => self.clocks(),
            12..=14 => self.connect_or_not(),
            15..=17 => {
                let ms = self.chance.below("clock", 1_500);
                self.pass(ms);
            }
            18..=21 => self.poll(),
            22..=24 => self.forward(),
            25 => self.upkeep(),
            _ => self.serve_one(),
        }
        // What waits goes in one round, now or with what comes next.
        if self.inbox.len() >= ROUND_INPUTS_MAX || !self.chance.one_in("plan", 3) {
            self.round();
        }
        if self.chance.strikes(Kind::CrashIdle) {
            self.crash("idle");
        }
    }

    pub(crate) fn tell(&mut self, input: Input) {
        self.inbox.push_back(input);
    }

    fn any_line(&mut self) -> usize {
        self.chance.below("plan", MACHINES.len() as u64) as usize
    }

    /// Decides on all that waits, commits it with one sync, and acts.
    pub(crate) fn round(&mut self) {
        let mut blocks = Vec::new();
        let mut effects = Vec::new();
        while let Some(input) = self.inbox.pop_front() {
            for id in self.core.missing(&input) {
                if let Some(stored) = self.stored(&id) {
                    self.core.recall(stored);
                }
            }
            let shown = self.trace.is_some().then(|| short(&format!("{input:?}")));
            self.orders.told(&input, |machine| {
                let line = self.lines.iter().find(|line| line.name == machine);
                line.expect("a machine of the plant").connections
            });
            let output = self.core.handle(&self.now, input);
            self.orders.decided(&output.effects);
            if let Some(shown) = shown {
                let decided = output
                    .effects
                    .iter()
                    .map(|effect| short(&format!("{effect:?}")));
                let decided = decided.collect::<Vec<_>>().join("; ");
                self.note(|| format!("  in {shown}\n     -> {decided}"));
            }
            blocks.extend(output.blocks);
            effects.extend(output.effects);
        }
        self.finish(blocks, effects);
    }

    /// What leaves was decided by the gate of the very connection that it leaves over.
    fn check_gate(&mut self, at: usize, effect: &Effect) {
        if self.orders.leaves(effect, self.lines[at].connections) {
            let invariant = "bytes by the gate of their own connection";
            *self.checked.entry(invariant).or_default() += 1;
        }
    }

    /// The commit was slow: a link that an order is for went and came back meanwhile, and its gate was read.
    fn link_back(&mut self, effects: &[Effect]) {
        let Some(order) = effects.iter().find_map(Order::of) else {
            return;
        };
        let line = self.lines.iter_mut();
        let line = line.filter(|line| line.connected && line.name == order.machine());
        for line in line {
            if self.chance.strikes(Kind::LinkBack) {
                let (lost, back) = (line.disconnect(), line.connect());
                let gate = line.read_gate(&mut self.chance, &self.now);
                self.inbox
                    .extend(lost.into_iter().chain(back).chain([gate]));
            }
        }
    }

    fn stored(&self, id: &OperationId) -> Option<Stored> {
        if let Some(tombstone) = self.tombstones.get(id) {
            return Some(Stored::Tombstone(tombstone.clone()));
        }
        let operation = self.books.operations.get(id)?;
        Some(Stored::Operation(Box::new(operation.clone())))
    }

    fn finish(&mut self, blocks: Vec<Block>, effects: Vec<Effect>) {
        let early = acknowledges_early();
        if early {
            for effect in effects.clone() {
                self.perform(effect);
            }
        }
        if !blocks.is_empty() {
            if self.chance.strikes(Kind::CrashBeforeWrite) {
                return self.crash("before the write");
            }
            self.disk.write(&blocks);
            if self.chance.strikes(Kind::CrashBeforeSync) {
                return self.crash("before the sync");
            }
            if self.chance.strikes(Kind::SyncFails) {
                // What is in the file is not known any more, so the process ends.
                return self.crash("a sync failed");
            }
            self.disk.sync();
            for block in blocks {
                self.books.enter(block);
            }
            if self.chance.strikes(Kind::CrashAfterSync) {
                return self.crash("after the sync");
            }
        }
        self.core.committed();
        self.link_back(&effects);
        if early {
            return;
        }
        for effect in effects {
            if self.chance.strikes(Kind::CrashAmongEffects) {
                return self.crash("among the effects");
            }
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        let machine = match &effect {
            Effect::Answer { token, answer } => return self.heard(*token, answer),
            Effect::Run {
                machine, operation, ..
            } => {
                if let Some(request) = request_of(&effect) {
                    let ids = self.requests.entry(operation.clone()).or_default();
                    ids.push(request.request_id);
                }
                machine
            }
            Effect::ReadGate { machine }
            | Effect::Probe { machine, .. }
            | Effect::Burn { machine, .. }
            | Effect::Acknowledge { machine, .. }
            | Effect::ReadRing { machine, .. } => machine,
        };
        let line = self.lines.iter_mut().find(|line| line.name == machine);
        line.expect("a machine of the plant")
            .errands
            .push_back(effect);
    }

    /// The caller has the answer: from here on it is a promise.
    fn heard(&mut self, token: Token, answer: &Answer) {
        let Some(asked) = self.asked.remove(&token) else {
            return;
        };
        match answer {
            Answer::Recorded(operation) => {
                let new = !self.acknowledged.contains_key(&operation.id);
                assert!(new, "{} was recorded twice as new", operation.id);
                self.promise(operation);
            }
            Answer::Replayed(operation) => {
                self.reach("replayed");
                self.promise(operation);
            }
            Answer::Cancelled(operation) => {
                self.reach("cancelled");
                self.promise(operation);
            }
            Answer::TooLate(operation) => {
                self.reach("too late to cancel");
                self.promise(operation);
            }
            Answer::Done(operation) => {
                if asked.act == Some(Act::Approve) {
                    self.reach("approved");
                    // Where nothing was left to prove, the word of a person begins a validity of its own.
                    if operation.waived == Some(HeldReason::ValidityUnprovable) {
                        self.ends
                            .insert(asked.id.clone(), self.true_end(&asked.at, asked.ttl_ms));
                    }
                }
                self.promise(operation);
            }
            Answer::Refused(_) => self.reach("refused"),
        }
    }

    fn promise(&mut self, operation: &Operation) {
        let end = operation.state.is_ended().then(|| operation.state.name());
        let known = self.acknowledged.entry(operation.id.clone()).or_default();
        *known = known.or(end);
    }

    fn true_end(&self, at: &Now, ttl_ms: u64) -> TrueEnd {
        let ttl_ns = ttl_ms * NS_PER_MS;
        TrueEnd {
            boot: at.boot_id,
            boottime_ns: at.boottime_ns + ttl_ns,
            true_ns: self.true_ns + ttl_ns,
            misled: at.wall_trusted && !self.wall_is_right(),
        }
    }

    fn true_wall_us(&self) -> i64 {
        WALL_US + (self.true_ns / 1_000) as i64
    }

    fn wall_is_right(&self) -> bool {
        self.now.wall_us.abs_diff(self.true_wall_us()) < 1_000
    }

    /// No byte leaves at or after the end of a validity, by the true clock.
    fn check_bytes(&mut self, id: &OperationId) {
        let Some(end) = self.ends.get(id).copied() else {
            return;
        };
        if end.boot == self.now.boot_id {
            assert!(
                self.now.boottime_ns < end.boottime_ns,
                "bytes of {id} left at or after its deadline"
            );
            *self.checked.entry("bytes before the deadline").or_default() += 1;
        } else if !end.misled && (!self.now.wall_trusted || self.wall_is_right()) {
            assert!(
                self.true_ns < end.true_ns,
                "bytes of {id} left after its deadline, over a reboot"
            );
            *self
                .checked
                .entry("bytes before the deadline, over a reboot")
                .or_default() += 1;
        }
    }

    fn submit_request(&mut self, request: Request, act: Option<Act>) {
        self.tokens += 1;
        let token = Token(self.tokens);
        let id =
            OperationId::parse(request.operation_id.as_deref().unwrap_or_default()).expect("an id");
        let ttl_ms = request.ttl_ms.unwrap_or(10_000);
        let actor = Actor::Uid {
            uid: 1000,
            gids: vec![1000],
        };
        self.asked.insert(
            token,
            Asked {
                id: id.clone(),
                act: act.clone(),
                at: self.now,
                ttl_ms,
            },
        );
        let input = match act {
            None => Input::Submit {
                request,
                actor,
                token,
            },
            Some(act) => Input::Act {
                id,
                act,
                actor,
                token,
            },
        };
        self.tell(input);
        // Its validity begins when it is decided, which is at this moment of the clock.
        self.round();
    }

    fn submit(&mut self) {
        let machine = MACHINES[self.any_line()];
        let id = format!("OP{}", self.submitted.len());
        let mut request = Request {
            operation_id: Some(id.clone()),
            machine: machine.into(),
            issued_at_us: Some(self.now.wall_us),
            ..Request::default()
        };
        match self.chance.below("people", 5) {
            0..=2 => {
                request.command = "set_speed".into();
                request.expected_config_version = Some(7);
                let value = (self.submitted.len() as u32 % 3000).to_string();
                let value = holdfast::core::intent::RawValue::Number(value);
                let arg = holdfast::core::intent::RawArg { value, unit: None };
                request.args.insert("speed".into(), arg);
                request.ttl_ms = self.chance.one_in("people", 2).then_some(3_000);
                let before = self
                    .submitted
                    .iter()
                    .rev()
                    .find(|(_, r)| r.machine == machine && r.command == "set_speed");
                if self.chance.one_in("people", 4) {
                    request.replaces = before.map(|(id, _)| id.to_string());
                }
            }
            3 => request.command = "eject_one".into(),
            _ => request.command = "read_status".into(),
        }
        let id = OperationId::parse(&id).expect("an id");
        let ttl_ms = request.ttl_ms.unwrap_or(10_000);
        self.note(|| format!("submit {id} {} to {machine}", request.command));
        if request.command != "read_status" {
            self.ends
                .insert(id.clone(), self.true_end(&self.now, ttl_ms));
        }
        self.submitted.push((id, request.clone()));
        self.submit_request(request, None);
    }

    /// The same id once more: as it was, or with another meaning. Never a second effect.
    fn submit_again(&mut self) {
        let Some((mut id, mut request)) = self.pick() else {
            return;
        };
        let archived = self.tombstones.len() as u64;
        let old = archived > 0 && self.chance.one_in("people", 2);
        if old {
            let at = self.chance.below("people", archived) as usize;
            let chosen = self.tombstones.keys().nth(at).cloned();
            let found = self
                .submitted
                .iter()
                .find(|(known, _)| Some(known) == chosen.as_ref());
            (id, request) = found.cloned().unwrap_or((id, request));
        }
        if old || self.chance.one_in("people", 3) {
            // A caller that lost its memory: the id is old, and its time is new.
            request.issued_at_us = Some(self.now.wall_us);
        }
        self.note(|| format!("submit {id} again"));
        if !self.books.operations.contains_key(&id) && !self.acknowledged.contains_key(&id) {
            // The first was never recorded, so this is the first.
            let ttl_ms = request.ttl_ms.unwrap_or(10_000);
            if request.command != "read_status" {
                self.ends
                    .insert(id.clone(), self.true_end(&self.now, ttl_ms));
            }
        }
        if self.tombstones.contains_key(&id) {
            self.reach("asked for an archived id");
        }
        self.submit_request(request, None);
    }

    fn pick(&mut self) -> Option<(OperationId, Request)> {
        let count = self.submitted.len() as u64;
        let at = self.chance.below("people", count) as usize;
        self.submitted.get(at).cloned()
    }

    fn ask(&mut self) {
        let Some((id, request)) = self.pick() else {
            return;
        };
        let act = match self.chance.below("people", 3) {
            0 => Act::Cancel,
            1 => Act::Approve,
            _ => Act::Verify,
        };
        self.note(|| format!("{act:?} {id}"));
        self.submit_request(request, Some(act));
    }

    fn work(&mut self) {
        let at = self.any_line();
        let (pieces, item) = (
            self.chance.below("device", 9),
            self.chance.one_in("device", 3),
        );
        let entries = if self.chance.one_in("device", 12) {
            20
        } else {
            self.chance.below("device", 4)
        };
        let device = &mut self.lines[at].device;
        device.work(pieces, entries, item);
        if entries == 1 {
            device.speed = device.speed.wrapping_add(1);
        }
        device.finish();
    }

    /// What can go wrong at any moment without anybody's doing.
    fn trouble(&mut self) {
        let at = self.any_line();
        if self.chance.strikes(Kind::PlcRestart) {
            self.lines[at].device.restart();
        }
        let door = !self.chance.strikes(Kind::DoorOpen);
        let moved = self.chance.strikes(Kind::VersionMoved);
        let other = self.chance.strikes(Kind::OtherDevice);
        let line = &mut self.lines[at];
        line.device.door = door;
        line.device.version = if moved { 8 } else { 7 };
        if line.device.other != other {
            // Nobody exchanges a device without the link going down.
            self.drop_link(at);
            self.lines[at].device.other = other;
        }
        let full = self.chance.strikes(Kind::Full).then(|| "full".to_owned());
        if full.is_some() != self.core.capacity_full().is_some() {
            self.tell(Input::Capacity(full));
        }
        for n in 0..self.sinks.len() {
            if let Some(input) = self.sinks[n].tend(&self.books, &mut self.chance) {
                self.tell(input);
            }
        }
    }

    fn connect_or_not(&mut self) {
        let away = self.lines.iter().position(|line| !line.connected);
        let at = away.unwrap_or(self.any_line());
        if away.is_some() {
            let inputs = self.lines[at].connect();
            self.inbox.extend(inputs);
        } else if self.chance.strikes(Kind::LinkLost) {
            self.drop_link(at);
        }
    }

    fn drop_link(&mut self, at: usize) {
        if self.lines[at].connected {
            self.note(|| format!("link of {} lost", MACHINES[at]));
            let inputs = self.lines[at].disconnect();
            self.inbox.extend(inputs);
            self.round();
        }
    }

    fn arrive(&mut self) {
        let at = self.any_line();
        let count = self.lines[at].held_up.len() as u64;
        if count > 0 {
            let frame = self.chance.below("net", count) as usize;
            self.note(|| format!("a held-up frame arrives at {}", MACHINES[at]));
            self.lines[at].arrive(frame, &mut self.chance);
        }
        if let Some(late) = self.lines[at].late_answer() {
            self.tell(late);
        }
    }

    fn clocks(&mut self) {
        if self.chance.strikes(Kind::WallStep) {
            let hours = self.chance.below("clock", 5) as i64 - 2;
            self.now.wall_us = self.true_wall_us() + hours * 3_600_000_000;
        } else if self.chance.one_in("clock", 2) {
            self.now.wall_us = self.true_wall_us();
        }
    }

    /// Advances the clocks, so that every timer fires at its very moment.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.round();
        let end = self.now.boottime_ns + ms * NS_PER_MS;
        loop {
            let due = self.core.next_due_ns().filter(|due| *due <= end);
            let to = due.unwrap_or(end).max(self.now.boottime_ns);
            let by = to - self.now.boottime_ns;
            self.true_ns += by;
            self.now.wall_us += (by / 1_000) as i64;
            self.now.boottime_ns = to;
            let boot = self.now.boot_id;
            self.tell(Input::Tick);
            self.round();
            if due.is_none() || self.now.boot_id != boot || self.now.boottime_ns >= end {
                return;
            }
            // What a timer decided is done at once, now and then.
            if self.chance.one_in("plan", 2) {
                self.serve_one();
                self.round();
            }
        }
    }

    fn poll(&mut self) {
        let at = self.any_line();
        let inputs = self.lines[at].poll(&mut self.chance, &self.now);
        self.inbox.extend(inputs);
        if self.chance.one_in("plan", 3) && self.lines[at].connected {
            let input = self.lines[at].read_gate(&mut self.chance, &self.now);
            self.tell(input);
        }
        self.lines[at].device.scan();
    }

    fn serve_one(&mut self) {
        let busy = self
            .lines
            .iter()
            .enumerate()
            .filter(|(_, line)| !line.errands.is_empty());
        let busy: Vec<usize> = busy.map(|(at, _)| at).collect();
        if !busy.is_empty() {
            let which = self.chance.below("plan", busy.len() as u64) as usize;
            self.serve(busy[which]);
        }
    }

    pub(crate) fn serve(&mut self, at: usize) {
        let effect = self.lines[at].errands.front().cloned();
        let served = self.lines[at].serve(&mut self.chance, &self.now);
        if let Some(effect) = effect.filter(|_| served.sent) {
            self.check_gate(at, &effect);
            if let Effect::Run { operation, .. } = effect {
                self.check_bytes(&operation);
            }
        }
        self.inbox.extend(served.input);
        if served.doubt {
            self.drop_link(at);
        }
    }

    fn forward(&mut self) {
        let at = self.chance.below("plan", SINKS.len() as u64) as usize;
        let Self {
            sinks,
            upstreams,
            books,
            chance,
            now,
            inbox,
            ..
        } = self;
        let (sink, upstream) = (&mut sinks[at], &mut upstreams[at]);
        sink.send(books, now);
        inbox.extend(sink.answer(upstream, books, chance, now));
        inbox.extend(sink.save_if_due(now, false));
        if sink.is_split() {
            self.reach("fresh events overtook a backlog");
        }
    }

    /// Operations past their window are archived, as the journal's upkeep does it.
    fn upkeep(&mut self) {
        if !self.now.wall_trusted || !self.chance.strikes(Kind::Archived) {
            return;
        }
        let window_us = self.replay_window_ms as i64 * 1_000;
        let over = |operation: &&Operation| {
            let issued = operation.intent.issued_at_us.unwrap_or(i64::MIN / 2);
            let base = operation.replay_until_us.max(issued + window_us);
            operation.state.is_ended() && base < self.now.wall_us
        };
        let ended = self.books.operations.values().filter(over);
        let archived: Vec<Tombstone> = ended
            .map(|operation| Tombstone {
                id: operation.id.clone(),
                digest: operation.digest,
                state: operation.state.name().into(),
                created_us: operation.created.wall_us,
            })
            .collect();
        for tombstone in archived {
            self.tombstones.insert(tombstone.id.clone(), tombstone);
        }
    }

    /// The process dies, and starts again from what the disk kept.
    pub(crate) fn crash(&mut self, when: &'static str) {
        self.reach(when);
        self.note(|| format!("CRASH: {when}"));
        for at in 0..self.lines.len() {
            for left in self.lines[at].abandon(&mut self.chance, &self.now) {
                self.check_gate(at, &left);
                if let Effect::Run { operation, .. } = left {
                    self.check_bytes(&operation);
                }
            }
        }
        for (sink, upstream) in self.sinks.iter_mut().zip(&mut self.upstreams) {
            sink.abandon(upstream, &self.books, &mut self.chance);
        }
        self.inbox.clear();
        self.orders = Orders::default();
        self.asked.clear();
        if self.disk.crash(&mut self.chance) {
            self.reach("a torn write");
        }
        self.restart();
    }

    fn restart(&mut self) {
        let down_ns = self.chance.below("clock", 8_000) * NS_PER_MS;
        self.true_ns += down_ns;
        self.now.boottime_ns += down_ns;
        self.now.wall_us += (down_ns / 1_000) as i64;
        if self.chance.strikes(Kind::Reboot) {
            self.now.boot_id.0[0] = self.now.boot_id.0[0].wrapping_add(1);
            self.now.boottime_ns = NS_PER_S + self.chance.below("clock", 12_000) * NS_PER_MS;
            self.true_ns += self.now.boottime_ns;
            self.now.wall_trusted = !self.chance.strikes(Kind::ClockNotTrusted);
            self.now.wall_us = self.true_wall_us();
            if !self.now.wall_trusted {
                self.now.wall_us += (self.chance.below("clock", 5) as i64 - 3) * 3_600_000_000;
            }
        }
        self.books = Books::read(self.disk.recover());
        let previous = self.disk.epoch;
        self.disk.epoch = Epoch(previous.0 + 1);
        let seed = self.chance.below("plan", u64::MAX);
        self.core = gateway(
            &self.books,
            self.disk.epoch,
            previous,
            self.replay_window_ms,
            &self.now,
            seed,
        );
        let names = SINKS.iter();
        self.sinks = names
            .map(|(name, lanes)| SinkTask::new(name, *lanes, &self.books, seed))
            .collect();
        self.check_recovered();
        self.tell(Input::Started);
        self.round();
    }

    /// All is healed, and everything runs until nothing moves any more.
    pub(crate) fn heal(&mut self, rounds: usize) {
        self.chance.unsafe_phase = false;
        for at in 0..self.lines.len() {
            while !self.lines[at].held_up.is_empty() {
                self.lines[at].arrive(0, &mut self.chance);
            }
            let device = &mut self.lines[at].device;
            (device.door, device.version) = (true, 7);
            self.drop_link(at);
            self.lines[at].device.other = false;
        }
        self.now.wall_us = self.true_wall_us();
        self.tell(Input::Capacity(None));
        self.round();
        for _ in 0..rounds {
            for at in 0..self.lines.len() {
                if !self.lines[at].connected {
                    let inputs = self.lines[at].connect();
                    self.inbox.extend(inputs);
                    self.round();
                }
                self.lines[at].device.finish();
                let inputs = self.lines[at].poll(&mut self.chance, &self.now);
                self.inbox.extend(inputs);
                self.round();
                while !self.lines[at].errands.is_empty() {
                    self.serve(at);
                    self.round();
                }
                self.lines[at].device.scan();
                let input = self.lines[at].read_gate(&mut self.chance, &self.now);
                self.tell(input);
                self.round();
            }
            self.pass(700);
            self.drain_sinks();
        }
        // A backlog in small batches takes its time.
        while self.drain_sinks() {
            self.pass(1_000);
        }
    }

    /// Whether anything moved.
    fn drain_sinks(&mut self) -> bool {
        let before: usize = self
            .upstreams
            .iter()
            .map(|upstream| upstream.taken.len())
            .sum();
        let letters = self.books.letters.len();
        for at in 0..SINKS.len() {
            let Self {
                sinks,
                upstreams,
                books,
                chance,
                now,
                inbox,
                ..
            } = self;
            let (sink, upstream) = (&mut sinks[at], &mut upstreams[at]);
            sink.resume();
            sink.send(books, now);
            while sink.in_flight() > 0 {
                inbox.extend(sink.answer(upstream, books, chance, now));
                sink.send(books, now);
            }
            for letter in books.letters_of(SINKS[at].0) {
                inbox.extend([sink.resend(upstream, &letter, books, chance)]);
            }
            inbox.extend(sink.save_if_due(now, true));
            self.round();
        }
        let after: usize = self
            .upstreams
            .iter()
            .map(|upstream| upstream.taken.len())
            .sum();
        after != before || self.books.letters.len() != letters
    }

    /// Effects at the machines, by operation, and what was written.
    pub(crate) fn effects_of(&self, id: &OperationId) -> (u32, Option<&Vec<u16>>) {
        let mut count = 0;
        let mut written = None;
        for line in &self.lines {
            if let Some(all) = line.device.by_operation.get(id) {
                count += all.len() as u32;
                written = all.last();
            }
        }
        let machine = self
            .submitted
            .iter()
            .find(|(known, _)| known == id)
            .map(|(_, request)| &request.machine);
        let device = self
            .lines
            .iter()
            .find(|line| Some(line.name) == machine.map(String::as_str));
        for request in self.requests.get(id).into_iter().flatten() {
            count += device
                .and_then(|line| line.device.by_request.get(request))
                .copied()
                .unwrap_or(0);
        }
        (count, written)
    }
}

/// The deliberate fault of a shell that answers first and syncs then.
fn acknowledges_early() -> bool {
    holdfast::seeded::is_on(holdfast::seeded::Fault::AcknowledgeBeforeSync)
}

fn short(text: &str) -> String {
    text.chars().take(260).collect()
}
