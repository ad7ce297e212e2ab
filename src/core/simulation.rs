//! Owns: a seeded play of the real core against a device with a hidden ledger: lost, late and doubled frames,
//! crashes, restarts of the PLC, cancellations, clock steps; the ledger judges what the core says.
//! May call: every file of this room.
//! Never: let the core see the ledger.

use super::contract::*;
use super::gateway::*;
use super::ids::*;
use super::jitter::Jitter;
use super::lifecycle::*;
use super::mailbox::{COMMAND_WORDS, STATUS_WORDS, crc16, encode_command, id_after, split_u32};
use super::scenarios::*;
use super::spec::*;
use super::time::*;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Rounds of one play.
const STEPS: usize = 250;
/// Plays in one test run; `HOLDFAST_SEEDS` for more.
const SEEDS: u64 = 300;

/// A frame on its way.
#[derive(Clone, Debug)]
enum Frame {
    Set { operation: OperationId },
    Commit { request: MailboxRequest },
}

/// The PLC: acts, counts, forgets nothing but what its ring pushes out.
#[derive(Default)]
struct Plc {
    boot: u32,
    last_accepted: u32,
    last_done: u32,
    effects: u32,
    commit_word: u16,
    block: Option<MailboxRequest>,
    ring: VecDeque<(u32, u16, u16)>,
    door: bool,
    /// The hidden ledger: effects by mailbox request id, and by operation for plain writes.
    by_request: HashMap<u32, u32>,
    by_operation: BTreeMap<OperationId, u32>,
}

impl Plc {
    fn take(&mut self, frame: &Frame) {
        match frame {
            Frame::Set { operation } => {
                *self.by_operation.entry(operation.clone()).or_default() += 1
            }
            Frame::Commit { request } => self.commit(request),
        }
    }

    fn commit(&mut self, request: &MailboxRequest) {
        // The block was laid by the same request or by a later one; a lone commit that does not fit is none.
        let fits = self
            .block
            .as_ref()
            .is_some_and(|block| block.request_id == request.request_id);
        let id = request.request_id;
        if !fits || self.commit_word == id as u16 {
            return;
        }
        self.commit_word = id as u16;
        if self.ring.iter().any(|(known, ..)| *known == id) || !id_after(id, self.last_accepted) {
            return;
        }
        self.last_accepted = id;
        let result = if request.opcode != 0 && !self.door {
            4
        } else {
            0
        };
        if result == 0 {
            self.last_done = id;
            if request.opcode != 0 {
                self.effects += 1;
                *self.by_request.entry(id).or_default() += 1;
            }
        }
        self.ring.push_back((id, result, self.effects as u16));
        if self.ring.len() > 4 {
            self.ring.pop_front();
        }
    }

    fn blocks(&self) -> MailboxBlocks {
        let order = WordOrder::HighFirst;
        let mut status = vec![0_u16; STATUS_WORDS];
        status[0] = 1;
        let mut put =
            |at: usize, value: u32| status[at..at + 2].copy_from_slice(&split_u32(value, order));
        put(1, self.boot);
        put(4, self.last_accepted);
        put(8, self.last_done);
        put(10, self.effects);
        for (n, (id, ..)) in self.ring.iter().enumerate() {
            put(16 + 4 * n, *id);
        }
        for (n, (_, result, effects)) in self.ring.iter().enumerate() {
            status[18 + 4 * n] = *result;
            status[19 + 4 * n] = *effects;
        }
        status[12] = 7;
        status[13] = 1;
        status[14] = u16::from(self.door);
        status[15] = 1;
        status[STATUS_WORDS - 1] = crc16(&status[..STATUS_WORDS - 1]);
        let command = match &self.block {
            Some(request) => {
                let mut words = encode_command(request, order).to_vec();
                words[COMMAND_WORDS - 1] = self.commit_word;
                words
            }
            None => vec![0; COMMAND_WORDS],
        };
        MailboxBlocks { command, status }
    }
}

struct Play {
    stage: Stage,
    plc: Plc,
    random: Jitter,
    /// Frames that were handed over and are still on their way.
    held_up: Vec<Frame>,
    pending: VecDeque<Effect>,
    submitted: Vec<(OperationId, super::intent::Request)>,
    /// Mailbox request ids by operation, as handed to the link.
    requests: HashMap<OperationId, Vec<u32>>,
    connected: bool,
    reached: BTreeMap<&'static str, u64>,
}

impl Play {
    fn new(seed: u64) -> Self {
        let mut spec = press("press-1");
        spec.commands[0].max_queued = 3;
        Self {
            stage: Stage::with(vec![spec]),
            plc: Plc {
                door: true,
                boot: 1,
                ..Plc::default()
            },
            random: Jitter::new(seed),
            held_up: Vec::new(),
            pending: VecDeque::new(),
            submitted: Vec::new(),
            requests: HashMap::new(),
            connected: false,
            reached: BTreeMap::new(),
        }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.random.below(n) == 0
    }
    fn reach(&mut self, branch: &'static str) {
        *self.reached.entry(branch).or_default() += 1;
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=3 => self.submit(),
            4 => self.again(),
            5 => self.cancel_or_approve(),
            6 => self.crash(),
            7 => {
                self.plc.boot += u32::from(self.random.below(6) == 0);
                self.plc.door = self.random.below(4) != 0;
            }
            8 => self.late_frame(),
            9 => {
                self.stage.now.wall_us += 3_600_000_000 * (self.random.below(3) as i64 - 1);
            }
            10..=12 => {
                let ms = self.random.below(1500);
                self.stage.pass(ms as f64 / 1000.0);
            }
            13..=14 => self.link(),
            _ => self.serve(),
        }
        self.collect();
        self.judge();
    }

    fn collect(&mut self) {
        let effects: Vec<Effect> = self.stage.effects.drain(..).collect();
        for effect in &effects {
            if let Effect::Run {
                operation,
                job: Job::Mailbox(request),
                ..
            } = effect
            {
                let ids = self.requests.entry(operation.clone()).or_default();
                ids.push(request.request_id);
            }
        }
        self.pending.extend(
            effects
                .into_iter()
                .filter(|effect| !matches!(effect, Effect::Answer { .. })),
        );
    }

    fn submit(&mut self) {
        let id = format!("OP{}", self.submitted.len());
        let request = match self.random.below(3) {
            0 => self
                .stage
                .set_request(&id, self.submitted.len() as u32 % 3000),
            1 => self.stage.request(&id, "eject_one"),
            _ => self.stage.request(&id, "read_status"),
        };
        if let Answer::Recorded(operation) = self.stage.submit(request.clone(), 1000) {
            self.submitted.push((operation.id, request));
        }
    }

    /// The same id again, with the same intent or another: never a second effect.
    fn again(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let at = self.random.below(self.submitted.len() as u64) as usize;
        let (_, mut request) = self.submitted[at].clone();
        let other = self.one_in(3);
        if other {
            request.ttl_ms = Some(9_000);
        }
        match self.stage.submit(request, 1000) {
            Answer::Replayed(_) => assert!(!other),
            Answer::Refused(Refusal::IdempotencyConflict { .. }) => assert!(other),
            Answer::Refused(Refusal::OutsideReplayWindow { .. }) => {}
            unexpected => panic!("{unexpected:?}"),
        }
        self.reach("resubmitted");
    }

    fn cancel_or_approve(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        let at = self.random.below(self.submitted.len() as u64) as usize;
        let id = self.submitted[at].0.to_string();
        let act = if self.one_in(2) {
            Act::Cancel
        } else {
            Act::Approve
        };
        if let Answer::Cancelled(_) = self.stage.act(&id, act) {
            self.reach("cancelled");
        }
    }

    /// The process dies: what was decided and not done is gone, some of it just after it was done.
    fn crash(&mut self) {
        while let Some(effect) = self.pending.pop_front() {
            if self.one_in(2)
                && let Some(frame) = self.frame(&effect)
            {
                self.lay(&effect);
                self.held_up.push(frame);
                self.reach("crashed after the bytes");
            }
        }
        let boots = self.one_in(4);
        self.stage.restart(!boots, true);
        if boots {
            let n = self.random.below(200) as u8 + 3;
            self.stage.now.boot_id = BootId([n; 16]);
        }
        self.connected = false;
        self.reach("crash");
    }

    fn late_frame(&mut self) {
        if self.held_up.is_empty() {
            return;
        }
        let at = self.random.below(self.held_up.len() as u64) as usize;
        let frame = self.held_up.remove(at);
        self.plc.take(&frame);
        self.reach("late frame");
        if matches!(frame, Frame::Commit { .. }) && self.one_in(3) {
            // The network doubled it.
            self.held_up.push(frame);
        }
    }

    fn link(&mut self) {
        self.connected = !self.connected;
        if self.connected {
            self.stage.link(LinkChange::Up);
        } else {
            self.stage.down();
        }
    }

    fn gate(&mut self) {
        let reading = GateReading {
            at: self.stage.now,
            identity: Some(Value::Int(4711)),
            config_version: Some(if self.one_in(10) { 8 } else { 7 }),
            mode: None,
            interlocks: vec![("door closed".into(), Value::Bool(self.plc.door))],
            quality: Quality::Good,
            mailbox: Some(self.plc.blocks()),
        };
        self.stage.input(Input::Gate {
            machine: "press-1".into(),
            reading: Ok(reading),
        });
    }

    fn frame(&self, effect: &Effect) -> Option<Frame> {
        match effect {
            Effect::Run {
                job: Job::Mailbox(request),
                ..
            }
            | Effect::Burn { request, .. } => Some(Frame::Commit {
                request: request.clone(),
            }),
            Effect::Run {
                operation,
                job: Job::Write { .. },
                ..
            } => Some(Frame::Set {
                operation: operation.clone(),
            }),
            _ => None,
        }
    }

    /// The block is written and read back before the commit leaves.
    fn lay(&mut self, effect: &Effect) {
        if let Effect::Run {
            job: Job::Mailbox(request),
            ..
        }
        | Effect::Burn { request, .. } = effect
        {
            self.plc.block = Some(request.clone());
        }
    }

    /// The machine task takes one errand.
    fn serve(&mut self) {
        let Some(effect) = self.pending.pop_front() else {
            return;
        };
        let machine = "press-1".to_owned();
        if !self.connected {
            let not_sent = exchange(
                Outcome::NotSent {
                    why: "not connected".into(),
                },
                0,
            );
            let input = match effect {
                Effect::Run {
                    operation, attempt, ..
                } => Input::Exchanged {
                    machine,
                    operation,
                    attempt,
                    exchange: not_sent,
                },
                Effect::ReadGate { .. } => Input::Gate {
                    machine,
                    reading: Err("not connected".into()),
                },
                Effect::Probe { operation, .. } => Input::Probed {
                    machine,
                    operation,
                    answer: ProbeAnswer::Failed("not connected".into()),
                },
                Effect::Burn { .. } => Input::Burned {
                    machine,
                    exchange: not_sent,
                },
                Effect::Answer { .. } | Effect::Acknowledge { .. } | Effect::ReadRing { .. } => {
                    return;
                }
            };
            self.stage.input(input);
            return;
        }
        match &effect {
            Effect::ReadGate { .. } => self.gate(),
            Effect::Probe {
                operation, probe, ..
            } => {
                let answer = match probe {
                    _ if self.random.below(5) == 0 => ProbeAnswer::Failed("timeout".into()),
                    Probe::Mailbox => ProbeAnswer::Mailbox(self.plc.blocks()),
                    Probe::Readback { points } => ProbeAnswer::Values(
                        points
                            .iter()
                            .map(|(name, _)| (name.clone(), Value::Int(1)))
                            .collect(),
                    ),
                    Probe::Done(_) => ProbeAnswer::Done { id: 0, result: 0 },
                };
                self.stage.input(Input::Probed {
                    machine,
                    operation: operation.clone(),
                    answer,
                });
            }
            Effect::Run {
                operation,
                attempt,
                deadline,
                ..
            } => {
                let valid = deadline.is_none_or(|deadline| {
                    matches!(deadline.at(&self.stage.now), Validity::Remaining(_))
                });
                let exchange = if valid {
                    self.exchange(&effect)
                } else {
                    exchange(
                        Outcome::NotSent {
                            why: "too late".into(),
                        },
                        0,
                    )
                };
                let (operation, attempt) = (operation.clone(), *attempt);
                self.stage.input(Input::Exchanged {
                    machine,
                    operation,
                    attempt,
                    exchange,
                });
            }
            Effect::Burn { .. } => {
                let exchange = self.exchange(&effect);
                self.stage.input(Input::Burned { machine, exchange });
            }
            Effect::Answer { .. } | Effect::Acknowledge { .. } | Effect::ReadRing { .. } => {}
        }
    }

    fn exchange(&mut self, effect: &Effect) -> Exchange {
        if let Effect::Run {
            job: Job::Read { points },
            ..
        } = effect
        {
            let values = points
                .iter()
                .map(|(name, _)| (name.clone(), Value::Int(1)))
                .collect();
            return exchange(Outcome::DeviceReplied(Reply::Values(values)), 12);
        }
        let Some(frame) = self.frame(effect) else {
            return exchange(
                Outcome::NotSent {
                    why: "nothing".into(),
                },
                0,
            );
        };
        let lost = |outcome| exchange(outcome, 12);
        match self.random.below(8) {
            0 => exchange(
                Outcome::NotSent {
                    why: "closed".into(),
                },
                0,
            ),
            1 => {
                self.reach("partly sent");
                exchange(
                    Outcome::PartlySent {
                        why: "reset".into(),
                    },
                    5,
                )
            }
            2 => {
                self.lay(effect);
                self.held_up.push(frame);
                self.reach("held up");
                lost(Outcome::SentNoReply {
                    why: "timeout".into(),
                })
            }
            3 => {
                self.lay(effect);
                self.plc.take(&frame);
                self.reach("reply lost");
                lost(Outcome::SentNoReply {
                    why: "timeout".into(),
                })
            }
            4 if matches!(frame, Frame::Set { .. }) => {
                let code = DeviceCode {
                    family: "modbus".into(),
                    code: 6,
                    meaning: "busy".into(),
                };
                lost(Outcome::DeviceBusy(code))
            }
            _ => {
                self.lay(effect);
                self.plc.take(&frame);
                self.reply(&frame)
            }
        }
    }

    fn reply(&mut self, frame: &Frame) -> Exchange {
        let Frame::Commit { request } = frame else {
            return exchange(Outcome::DeviceReplied(Reply::WriteEcho), 12);
        };
        let id = request.request_id;
        match self.plc.ring.iter().find(|(known, ..)| *known == id) {
            Some((_, 0, counter)) => {
                let echo = MailboxEcho {
                    request_id: id,
                    result: 0,
                    effect_counter: *counter,
                };
                exchange(Outcome::DeviceReplied(Reply::Mailbox(echo)), 12)
            }
            Some((_, result, _)) => {
                exchange(Outcome::DeviceRefused(super::mailbox::code(*result)), 12)
            }
            None => exchange(
                Outcome::SentNoReply {
                    why: "no record".into(),
                },
                12,
            ),
        }
    }

    fn effects_of(&self, id: &OperationId) -> u32 {
        let plain = self.plc.by_operation.get(id).copied().unwrap_or(0);
        let requests = self.requests.get(id).into_iter().flatten();
        let mailbox: u32 = requests
            .filter_map(|request| self.plc.by_request.get(request))
            .sum();
        plain + mailbox
    }

    /// What the ledger says against what the core has written down.
    fn judge(&self) {
        for (id, operation) in &self.stage.disk {
            let effects = self.effects_of(id);
            assert!(effects <= 1, "{id}: {effects} effects: {operation:#?}");
            if !operation.class.has_side_effect() {
                continue;
            }
            match &operation.state {
                State::Completed(_) => {
                    assert_eq!(effects, 1, "{id} is called completed: {operation:#?}")
                }
                State::Rejected(_)
                | State::Expired
                | State::Cancelled { .. }
                | State::Superseded { .. }
                | State::Failed { .. }
                | State::NotExecuted { .. }
                | State::Held(_)
                | State::Queued => assert_eq!(
                    effects,
                    0,
                    "{id} is called {}: {operation:#?}",
                    operation.state.name()
                ),
                State::Sending { .. }
                | State::Accepted { .. }
                | State::OutcomeUnknown(_)
                | State::Compensated { .. } => {}
            }
        }
    }

    /// All is healed: what can be proven is, and nothing stays under way.
    fn heal(&mut self) {
        while !self.held_up.is_empty() {
            self.late_frame_last();
        }
        self.judge();
        self.plc.door = true;
        if self.connected {
            self.link();
        }
        self.link();
        for _ in 0..400 {
            self.collect();
            while !self.pending.is_empty() {
                self.serve_well();
                self.collect();
            }
            self.stage.pass(0.5);
            self.gate_well();
        }
        self.judge();
        for operation in self.stage.disk.values() {
            let settled = !matches!(operation.state, State::Queued | State::Sending { .. });
            assert!(settled, "still under way: {operation:#?}");
        }
        let known: Vec<&OperationId> = self.submitted.iter().map(|(id, _)| id).collect();
        for id in known {
            assert!(
                self.stage.disk.contains_key(id),
                "{id} was acknowledged and is gone"
            );
        }
        let mut next: HashMap<Epoch, u64> = HashMap::new();
        for event in self
            .stage
            .events
            .iter()
            .filter(|event| event.key.source == "press-1")
        {
            let expected = next.entry(event.key.epoch).or_insert(1);
            assert_eq!(event.key.sequence.0, *expected);
            *expected += 1;
        }
    }

    fn late_frame_last(&mut self) {
        if let Some(frame) = self.held_up.pop() {
            self.plc.take(&frame);
        }
    }

    fn gate_well(&mut self) {
        let reading = GateReading {
            at: self.stage.now,
            identity: Some(Value::Int(4711)),
            config_version: Some(7),
            mode: None,
            interlocks: vec![("door closed".into(), Value::Bool(true))],
            quality: Quality::Good,
            mailbox: Some(self.plc.blocks()),
        };
        self.stage.input(Input::Gate {
            machine: "press-1".into(),
            reading: Ok(reading),
        });
    }

    fn serve_well(&mut self) {
        let Some(effect) = self.pending.pop_front() else {
            return;
        };
        let machine = "press-1".to_owned();
        match &effect {
            Effect::ReadGate { .. } => self.gate_well(),
            Effect::Probe {
                operation,
                probe: Probe::Mailbox,
                ..
            } => {
                let answer = ProbeAnswer::Mailbox(self.plc.blocks());
                self.stage.input(Input::Probed {
                    machine,
                    operation: operation.clone(),
                    answer,
                });
            }
            Effect::Probe { operation, .. } => {
                let answer = ProbeAnswer::Values(Vec::new());
                self.stage.input(Input::Probed {
                    machine,
                    operation: operation.clone(),
                    answer,
                });
            }
            Effect::Run {
                operation, attempt, ..
            } => {
                self.lay(&effect);
                let exchange = match self.frame(&effect) {
                    Some(frame) => {
                        self.plc.take(&frame);
                        self.reply(&frame)
                    }
                    None => exchange(Outcome::DeviceReplied(Reply::Values(Vec::new())), 12),
                };
                let (operation, attempt) = (operation.clone(), *attempt);
                self.stage.input(Input::Exchanged {
                    machine,
                    operation,
                    attempt,
                    exchange,
                });
            }
            Effect::Burn { .. } => {
                self.lay(&effect);
                if let Some(frame) = self.frame(&effect) {
                    self.plc.take(&frame);
                    let exchange = self.reply(&frame);
                    self.stage.input(Input::Burned { machine, exchange });
                }
            }
            Effect::Answer { .. } | Effect::Acknowledge { .. } | Effect::ReadRing { .. } => {}
        }
    }
}

fn exchange(outcome: Outcome, sent: u32) -> Exchange {
    Exchange {
        outcome,
        bytes_sent: sent,
        bytes_total: 12,
        request_ident: String::new(),
        sent_at: None,
        replied_at: None,
        reply: Vec::new(),
    }
}

// covers: REL-04, SEND-03, ST-05, CMD-02, CMD-06, EVT-02
#[test]
fn whatever_happens_the_core_says_nothing_that_the_ledger_denies() {
    let seeds = std::env::var("HOLDFAST_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(SEEDS);
    let first: u64 = std::env::var("HOLDFAST_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut ends: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in first..first + seeds {
        let played = std::panic::catch_unwind(|| {
            let mut play = Play::new(seed);
            for _ in 0..STEPS {
                play.step();
            }
            play.heal();
            play
        });
        let play = match played {
            Ok(play) => play,
            Err(cause) => {
                eprintln!("replay with HOLDFAST_SEED={seed} HOLDFAST_SEEDS=1");
                std::panic::resume_unwind(cause);
            }
        };
        for (branch, times) in play.reached {
            *reached.entry(branch).or_default() += times;
        }
        for operation in play.stage.disk.values() {
            *ends.entry(operation.state.name()).or_default() += 1;
        }
    }
    println!("{seeds} seeds from {first}: reached {reached:?}; ended {ends:?}");
    for branch in [
        "crash",
        "crashed after the bytes",
        "late frame",
        "held up",
        "reply lost",
        "partly sent",
        "cancelled",
    ] {
        assert!(reached.contains_key(branch), "never reached: {branch}");
    }
    for state in [
        "completed",
        "not_executed",
        "outcome_unknown",
        "expired",
        "rejected",
        "held",
        "failed",
    ] {
        assert!(ends.contains_key(state), "nothing ended as {state}");
    }
}
