//! Owns: the truth at the device: its tables, its ledger of effects, the requests it saw, its faults.
//! May call: spec, fault, frame, mailbox.
//! Never: let the gateway's side see or change the ledger; wait.

use super::fault::{Act, Fault, Traits};
use super::frame::{self, Request};
use super::mailbox::{COMMAND_WORDS, COMMIT_WORD, Job, Machine, Mailbox};
use super::spec::{Add, DoneProgram, MailboxProgram, Place, SimulatorSpec, TABLE_ITEMS};
use crate::core::spec::ModbusArea;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Requests that are kept; older ones are forgotten.
pub const SEEN_REQUESTS_MAX: usize = 10_000;
/// Effects that are kept; later ones are counted only.
pub const LEDGER_EFFECTS_MAX: usize = 1_000_000;

/// One physical effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Since the simulator's start.
    pub at: Duration,
    /// The connection whose request caused it, counted from 1; for the mailbox, the one that wrote last.
    pub connection: u64,
    /// What it was.
    pub cause: Cause,
}

/// What had an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Registers or coils were written, outside the mailbox.
    Write {
        /// The function code.
        function: u8,
        /// Coil or holding.
        area: ModbusArea,
        /// The first address.
        start: u16,
        /// What was written; a coil is 0 or 1.
        words: Vec<u16>,
    },
    /// The mailbox carried out a command.
    Mailbox {
        /// The id in the block.
        request_id: u32,
        /// What was done.
        opcode: u16,
        /// With what.
        parameters: Vec<u16>,
    },
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.3}s connection {}: ",
            self.at.as_secs_f64(),
            self.connection
        )?;
        match &self.cause {
            Cause::Write {
                function,
                area,
                start,
                words,
            } => {
                write!(
                    f,
                    "write {}:{start} = {words:?} (function {function:02X})",
                    area.name()
                )
            }
            Cause::Mailbox {
                request_id,
                opcode,
                parameters,
            } => {
                write!(
                    f,
                    "mailbox request {request_id}: opcode {opcode} {parameters:?}"
                )
            }
        }
    }
}

/// One request frame that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Since the simulator's start.
    pub at: Duration,
    /// Counted from 1.
    pub connection: u64,
    /// As in the MBAP header.
    pub transaction: u16,
    /// As in the MBAP header.
    pub unit: u8,
    /// Function code and data.
    pub pdu: Vec<u8>,
    /// The fault that struck it.
    pub fault: Option<Act>,
}

impl Seen {
    /// The function code.
    #[must_use]
    pub fn function(&self) -> u8 {
        self.pdu[0]
    }
    /// Whether it asked for a change.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.function(), 5 | 6 | 15 | 16)
    }
    /// The first address, if the request is long enough to have one.
    #[must_use]
    pub fn start(&self) -> Option<u16> {
        Some(u16::from_be_bytes([*self.pdu.get(1)?, *self.pdu.get(2)?]))
    }
}

/// How this side ends connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Rst,
    /// The network went: for the device the connection still stands, and so does its slot.
    Lost,
}

/// How the device hangs on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Connections of an older generation are over.
    pub(super) generation: u64,
    /// How those end.
    pub(super) ending: Ending,
    pub(super) listening: bool,
    pub(super) black_hole: bool,
    pub(super) frozen: bool,
    /// Counted, so that a connection notices one that is over already.
    pub(super) freezes: u64,
}

struct Slot {
    connection: u64,
    /// Set when the connection was lost without a FIN.
    free_at: Option<Instant>,
}

pub(super) struct State {
    pub(super) spec: SimulatorSpec,
    started: Instant,
    coils: Vec<bool>,
    discretes: Vec<bool>,
    inputs: Vec<u16>,
    holdings: Vec<u16>,
    ledger: Vec<Effect>,
    effects: usize,
    seen: VecDeque<Seen>,
    faults: Vec<Fault>,
    mailbox: Option<Mailbox>,
    done: VecDeque<(Instant, u32)>,
    counters_due: Vec<Instant>,
    boots: u32,
    connections: u64,
    last_writer: u64,
    slots: Vec<Slot>,
}

/// A handle on the device itself, as somebody standing beside the machine sees it.
#[derive(Clone)]
pub struct Device {
    state: Arc<Mutex<State>>,
    link: watch::Sender<Link>,
    changes: watch::Sender<u64>,
}

impl Device {
    pub(super) fn new(spec: SimulatorSpec) -> Self {
        let link = Link {
            generation: 0,
            ending: Ending::Fin,
            listening: true,
            black_hole: false,
            frozen: false,
            freezes: 0,
        };
        Self {
            state: Arc::new(Mutex::new(State::new(spec))),
            link: watch::Sender::new(link),
            changes: watch::Sender::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Changes the state and wakes whoever waits for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let out = change(&mut self.lock());
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
        out
    }
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// A holding register.
    #[must_use]
    pub fn holding(&self, offset: u16) -> u16 {
        self.lock().holdings[usize::from(offset)]
    }
    /// Two holding registers, high word first.
    #[must_use]
    pub fn holding_u32(&self, offset: u16) -> u32 {
        u32::from(self.holding(offset)) << 16 | u32::from(self.holding(offset.wrapping_add(1)))
    }
    /// Changes a holding register from inside the machine: no effect in the ledger.
    pub fn set_holding(&self, offset: u16, value: u16) {
        self.change(|state| state.holdings[usize::from(offset)] = value);
    }
    /// An input register.
    #[must_use]
    pub fn input(&self, offset: u16) -> u16 {
        self.lock().inputs[usize::from(offset)]
    }
    /// Changes an input register.
    pub fn set_input(&self, offset: u16, value: u16) {
        self.change(|state| state.inputs[usize::from(offset)] = value);
    }
    /// A coil.
    #[must_use]
    pub fn coil(&self, offset: u16) -> bool {
        self.lock().coils[usize::from(offset)]
    }
    /// Changes a coil from inside the machine.
    pub fn set_coil(&self, offset: u16, value: bool) {
        self.change(|state| state.coils[usize::from(offset)] = value);
    }
    /// A discrete input.
    #[must_use]
    pub fn discrete(&self, offset: u16) -> bool {
        self.lock().discretes[usize::from(offset)]
    }
    /// Changes a discrete input.
    pub fn set_discrete(&self, offset: u16, value: bool) {
        self.change(|state| state.discretes[usize::from(offset)] = value);
    }
    /// Puts `value` where the file says identity stands; false: it names no place.
    pub fn set_identity(&self, value: u16) -> bool {
        self.change(|state| state.set_point(state.spec.points.identity, value))
    }
    /// The same for the configuration version.
    pub fn set_version(&self, value: u16) -> bool {
        self.change(|state| state.set_point(state.spec.points.config_version, value))
    }
    /// The same for the mode.
    pub fn set_mode(&self, value: u16) -> bool {
        self.change(|state| state.set_point(state.spec.points.mode, value))
    }
    /// Closes or opens the `index`-th configured interlock.
    pub fn set_interlock(&self, index: usize, closed: bool) -> bool {
        self.change(|state| {
            let place = state.spec.points.interlocks.get(index).copied();
            state.set_point(place, u16::from(closed))
        })
    }

    /// Every physical effect, in order.
    #[must_use]
    pub fn ledger(&self) -> Vec<Effect> {
        self.lock().ledger.clone()
    }
    /// The effects from the `index`-th on.
    #[must_use]
    pub fn ledger_since(&self, index: usize) -> Vec<Effect> {
        self.lock().ledger.get(index..).unwrap_or_default().to_vec()
    }
    pub(super) fn ledger_len(&self) -> usize {
        self.lock().ledger.len()
    }
    /// How many effects there were.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.lock().effects
    }
    /// How many writes covered this holding register.
    #[must_use]
    pub fn effects_of_register(&self, offset: u16) -> usize {
        self.count_writes(ModbusArea::Holding, offset)
    }
    /// How many writes covered this coil.
    #[must_use]
    pub fn effects_of_coil(&self, offset: u16) -> usize {
        self.count_writes(ModbusArea::Coil, offset)
    }
    /// How often the mailbox carried out this request id.
    #[must_use]
    pub fn effects_of_request(&self, id: u32) -> usize {
        let fits = |effect: &&Effect| matches!(effect.cause, Cause::Mailbox { request_id, .. } if request_id == id);
        self.lock().ledger.iter().filter(fits).count()
    }
    fn count_writes(&self, table: ModbusArea, offset: u16) -> usize {
        let fits = |effect: &&Effect| match &effect.cause {
            Cause::Write {
                area, start, words, ..
            } => *area == table && offset >= *start && usize::from(offset - start) < words.len(),
            Cause::Mailbox { .. } => false,
        };
        self.lock().ledger.iter().filter(fits).count()
    }
    /// The last [`SEEN_REQUESTS_MAX`] requests that arrived, reads included.
    #[must_use]
    pub fn requests(&self) -> Vec<Seen> {
        self.lock().seen.iter().cloned().collect()
    }
    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.lock().connections
    }
    /// Connection slots that are taken now.
    #[must_use]
    pub fn slots_taken(&self) -> usize {
        let mut state = self.lock();
        state.free_slots(Instant::now());
        state.slots.len()
    }
    /// PLC starts, the first included.
    #[must_use]
    pub fn boots(&self) -> u32 {
        self.lock().boots
    }

    /// This fault alone.
    pub fn set_fault(&self, fault: Fault) {
        self.change(|state| state.faults = vec![fault]);
    }
    /// One more fault; of several that fit a request the first strikes.
    pub fn push_fault(&self, fault: Fault) {
        self.change(|state| state.faults.push(fault));
    }
    /// No faults.
    pub fn clear_faults(&self) {
        self.change(|state| state.faults.clear());
    }

    /// The link is lost: connections end, new ones are refused. When this returns, no request that
    /// arrives on an old connection is applied any more.
    pub fn cut(&self) {
        self.drop_connections(Ending::Lost, |link| link.listening = false);
    }
    /// The link is back, on the same port.
    pub fn restore(&self) {
        self.change(|_| self.link.send_modify(|link| link.listening = true));
    }
    /// Connections are accepted and everything that arrives is swallowed: no reply, no FIN, no effect.
    pub fn black_hole(&self, on: bool) {
        self.change(|_| self.link.send_modify(|link| link.black_hole = on));
    }
    /// The device stops reading and answering; what arrives meanwhile waits, and is served in one burst
    /// afterwards unless its sender has reset the connection (F060).
    pub fn freeze(&self, on: bool) {
        self.change(|_| {
            self.link.send_modify(|link| {
                link.frozen = on;
                link.freezes += u64::from(on);
            })
        });
    }
    /// Ends every connection with FIN; new ones are welcome (F069: a mode change).
    pub fn close_connections(&self) {
        self.drop_connections(Ending::Fin, |_| ());
    }
    /// Power off and on: boot counter +1, connections end with RST, a command under way is lost;
    /// registers and mailbox blocks are kept.
    pub fn reboot(&self) {
        self.drop_connections(Ending::Rst, |_| ());
        self.change(|state| state.reboot(Instant::now()));
    }
    fn drop_connections(&self, ending: Ending, also: impl FnOnce(&mut Link)) {
        // Under the lock, so that no request is applied between the two.
        self.change(|_| {
            self.link.send_modify(|link| {
                link.generation += 1;
                link.ending = ending;
                also(link);
            });
        });
    }

    /// Waits until `condition` holds; false: it did not within `limit`.
    pub async fn wait_for(&self, limit: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while !condition(self) {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }
}

impl State {
    fn new(spec: SimulatorSpec) -> Self {
        let now = Instant::now();
        let mut state = Self {
            started: now,
            coils: vec![false; TABLE_ITEMS],
            discretes: vec![false; TABLE_ITEMS],
            inputs: vec![0; TABLE_ITEMS],
            holdings: vec![0; TABLE_ITEMS],
            ledger: Vec::new(),
            effects: 0,
            seen: VecDeque::new(),
            faults: spec.faults.clone(),
            mailbox: spec
                .mailbox
                .as_ref()
                .map(|program| Mailbox::new(program, now)),
            done: VecDeque::new(),
            counters_due: spec
                .counters
                .iter()
                .map(|counter| now + counter.every.0)
                .collect(),
            boots: 1,
            connections: 0,
            last_writer: 0,
            slots: Vec::new(),
            spec,
        };
        let registers = state.spec.registers.clone();
        for (offset, run) in &registers.coil {
            fill(&mut state.coils, offset.0, &run.values());
        }
        for (offset, run) in &registers.discrete {
            fill(&mut state.discretes, offset.0, &run.values());
        }
        for (offset, run) in &registers.input {
            fill(&mut state.inputs, offset.0, &run.values());
        }
        for (offset, run) in &registers.holding {
            fill(&mut state.holdings, offset.0, &run.values());
        }
        state.scan(now);
        state
    }

    fn words(&mut self, area: ModbusArea) -> &mut Vec<u16> {
        if area == ModbusArea::Input {
            &mut self.inputs
        } else {
            &mut self.holdings
        }
    }
    fn point(&self, place: Place) -> u16 {
        let at = usize::from(place.offset);
        match place.area {
            ModbusArea::Coil => u16::from(self.coils[at]),
            ModbusArea::Discrete => u16::from(self.discretes[at]),
            ModbusArea::Input => self.inputs[at],
            ModbusArea::Holding => self.holdings[at],
        }
    }
    fn set_point(&mut self, place: Option<Place>, value: u16) -> bool {
        let Some(place) = place else { return false };
        let at = usize::from(place.offset);
        match place.area {
            ModbusArea::Coil => self.coils[at] = value != 0,
            ModbusArea::Discrete => self.discretes[at] = value != 0,
            ModbusArea::Input => self.inputs[at] = value,
            ModbusArea::Holding => self.holdings[at] = value,
        }
        true
    }
    fn machine(&self) -> Machine {
        let read = |place: Option<Place>| place.map_or(0, |place| self.point(place));
        let closed = self
            .spec
            .points
            .interlocks
            .iter()
            .all(|place| self.point(*place) != 0);
        Machine {
            config_version: read(self.spec.points.config_version),
            mode: read(self.spec.points.mode),
            interlocks_closed: closed,
        }
    }

    /// Takes a slot; `None`: all are taken.
    pub(super) fn connect(&mut self, now: Instant) -> Option<u64> {
        self.free_slots(now);
        if self.slots.len() >= self.spec.slots {
            return None;
        }
        self.connections += 1;
        self.slots.push(Slot {
            connection: self.connections,
            free_at: None,
        });
        Some(self.connections)
    }
    /// Gives the slot back: at once, or, of a connection that was lost, after the slot timeout.
    pub(super) fn disconnect(&mut self, connection: u64, lost: bool, now: Instant) {
        let free_at = if lost {
            now + self.spec.slot_timeout.0
        } else {
            now
        };
        if let Some(slot) = self
            .slots
            .iter_mut()
            .find(|slot| slot.connection == connection)
        {
            slot.free_at = Some(free_at);
        }
        self.free_slots(now);
    }
    fn free_slots(&mut self, now: Instant) {
        self.slots
            .retain(|slot| slot.free_at.is_none_or(|at| at > now));
    }

    /// Notes the request and finds the fault that strikes it.
    pub(super) fn arrive(
        &mut self,
        connection: u64,
        frame: &frame::Frame,
        now: Instant,
    ) -> Option<Act> {
        let traits = Traits {
            function: frame.pdu[0],
            commit: self.is_commit(&frame.pdu),
        };
        let fault = self
            .faults
            .iter_mut()
            .find_map(|fault| fault.strikes(&traits).then(|| fault.act.clone()));
        self.faults.retain(|fault| fault.times > 0);
        if self.seen.len() == SEEN_REQUESTS_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(Seen {
            at: now.duration_since(self.started),
            connection,
            transaction: u16::from_be_bytes(frame.transaction),
            unit: frame.unit,
            pdu: frame.pdu.clone(),
            fault: fault.clone(),
        });
        fault
    }
    fn is_commit(&self, pdu: &[u8]) -> bool {
        let Some(mailbox) = &self.spec.mailbox else {
            return false;
        };
        let Ok(Request::WriteWords { start, words }) = frame::parse(pdu) else {
            return false;
        };
        let commit = usize::from(mailbox.command.offset) + COMMIT_WORD;
        (usize::from(start)..usize::from(start) + words.len()).contains(&commit)
    }

    /// Carries out one request; the reply's PDU, or the exception code.
    pub(super) fn execute(
        &mut self,
        connection: u64,
        pdu: &[u8],
        now: Instant,
    ) -> Result<Vec<u8>, u8> {
        let request = frame::parse(pdu)?;
        let (area, start, count) = request.range();
        let too_long = matches!(pdu[0], 3 | 4) && count > self.spec.read_registers_max;
        if too_long || self.in_hole(area, start, count) {
            return Err(frame::ILLEGAL_ADDRESS);
        }
        let (from, to) = (usize::from(start), usize::from(start) + usize::from(count));
        match request {
            Request::Read { area, .. } => Ok(match area {
                ModbusArea::Coil => frame::bits_reply(pdu[0], &self.coils[from..to]),
                ModbusArea::Discrete => frame::bits_reply(pdu[0], &self.discretes[from..to]),
                ModbusArea::Input => frame::words_reply(pdu[0], &self.inputs[from..to]),
                ModbusArea::Holding => frame::words_reply(pdu[0], &self.holdings[from..to]),
            }),
            Request::WriteBits { bits, .. } => {
                self.coils[from..to].copy_from_slice(&bits);
                let words = bits.iter().map(|bit| u16::from(*bit)).collect();
                self.wrote(connection, pdu[0], ModbusArea::Coil, start, words, now);
                Ok(pdu[..5].to_vec())
            }
            Request::WriteWords { words, .. } => {
                self.holdings[from..to].copy_from_slice(&words);
                self.wrote(connection, pdu[0], ModbusArea::Holding, start, words, now);
                Ok(pdu[..5].to_vec())
            }
        }
    }
    fn in_hole(&self, area: ModbusArea, start: u16, count: u16) -> bool {
        let (start, end) = (u32::from(start), u32::from(start) + u32::from(count));
        self.spec.holes.iter().any(|hole| {
            let first = u32::from(hole.at.offset);
            hole.at.area == area && first < end && start < first + u32::from(hole.count)
        })
    }

    fn wrote(
        &mut self,
        connection: u64,
        function: u8,
        area: ModbusArea,
        start: u16,
        words: Vec<u16>,
        now: Instant,
    ) {
        self.last_writer = connection;
        if area == ModbusArea::Coil {
            self.run_rules(start, &words);
        }
        if let Some(done) = self.spec.done {
            self.note_request_id(done, area, start, words.len(), now);
        }
        if !self.inside_command_block(area, start, words.len()) {
            self.effect(
                connection,
                Cause::Write {
                    function,
                    area,
                    start,
                    words,
                },
                now,
            );
        }
        if self
            .spec
            .mailbox
            .as_ref()
            .is_some_and(|mailbox| mailbox.scan.0.is_zero())
        {
            self.scan(now);
        }
    }
    /// Writing the gateway's block moves nothing in the machine.
    fn inside_command_block(&self, area: ModbusArea, start: u16, count: usize) -> bool {
        self.spec.mailbox.as_ref().is_some_and(|mailbox| {
            let first = usize::from(mailbox.command.offset);
            area == ModbusArea::Holding
                && usize::from(start) >= first
                && usize::from(start) + count <= first + COMMAND_WORDS
        })
    }
    fn run_rules(&mut self, start: u16, words: &[u16]) {
        for rule in self.spec.rules.clone() {
            let index = usize::from(rule.when.offset).checked_sub(usize::from(start));
            if index.and_then(|index| words.get(index)) == Some(&1) {
                self.add(&rule.add);
                if rule.clears {
                    self.coils[usize::from(rule.when.offset)] = false;
                }
            }
        }
    }
    fn note_request_id(
        &mut self,
        done: DoneProgram,
        area: ModbusArea,
        start: u16,
        count: usize,
        now: Instant,
    ) {
        let (first, at) = (usize::from(start), usize::from(done.request_id.offset));
        if area == ModbusArea::Holding && first <= at && at + 2 <= first + count {
            let id = done
                .word_order
                .join(self.holdings[at], self.holdings[at + 1]);
            self.done.push_back((now + done.delay.0, id));
        }
    }
    fn add(&mut self, steps: &[Add]) {
        for step in steps {
            let word = &mut self.words(step.at.area)[usize::from(step.at.offset)];
            *word = word.wrapping_add(step.by);
        }
    }
    fn effect(&mut self, connection: u64, cause: Cause, now: Instant) {
        self.effects += 1;
        if self.ledger.len() < LEDGER_EFFECTS_MAX {
            self.ledger.push(Effect {
                at: now.duration_since(self.started),
                connection,
                cause,
            });
        }
    }

    /// One scan of the PLC's program: counters, completion reports, mailbox.
    pub(super) fn scan(&mut self, now: Instant) {
        for index in 0..self.spec.counters.len() {
            let counter = self.spec.counters[index];
            if !counter.every.0.is_zero() && now >= self.counters_due[index] {
                self.counters_due[index] += counter.every.0;
                self.add(&[Add {
                    at: counter.at,
                    by: counter.by,
                }]);
            }
        }
        if let Some(done) = self.spec.done {
            while self.done.front().is_some_and(|(at, _)| *at <= now) {
                if let Some((_, id)) = self.done.pop_front() {
                    self.report_done(done, id);
                }
            }
        }
        if let (Some(program), Some(mailbox)) = (self.spec.mailbox.clone(), self.mailbox.take()) {
            self.mailbox = Some(self.scan_mailbox(&program, mailbox, now));
        }
    }
    fn report_done(&mut self, done: DoneProgram, id: u32) {
        let at = usize::from(done.id.offset);
        self.words(done.id.area)[at..at + 2].copy_from_slice(&done.word_order.split(id));
        self.set_point(done.result, done.result_code);
    }
    fn scan_mailbox(
        &mut self,
        program: &MailboxProgram,
        mut mailbox: Mailbox,
        now: Instant,
    ) -> Mailbox {
        let from = usize::from(program.command.offset);
        let mut block = [0; COMMAND_WORDS];
        block.copy_from_slice(&self.holdings[from..from + COMMAND_WORDS]);
        if let Some(job) = mailbox.scan(&block, &program.opcodes, self.machine(), now) {
            self.carry_out(program, job, now);
        }
        let status = mailbox.status(self.machine(), now);
        let at = usize::from(program.status.offset);
        self.words(program.status.area)[at..at + status.len()].copy_from_slice(&status);
        mailbox
    }
    fn carry_out(&mut self, program: &MailboxProgram, job: Job, now: Instant) {
        if let Some(row) = program.opcodes.iter().find(|row| row.opcode == job.opcode) {
            self.add(&row.add);
            for step in &row.set {
                let value = job.parameters.get(step.parameter).copied().unwrap_or(0);
                self.set_point(Some(step.at), value);
            }
        }
        let Job {
            id: request_id,
            opcode,
            parameters,
        } = job;
        self.effect(
            self.last_writer,
            Cause::Mailbox {
                request_id,
                opcode,
                parameters,
            },
            now,
        );
    }

    fn reboot(&mut self, now: Instant) {
        self.boots = self.boots.wrapping_add(1);
        self.done.clear();
        if let Some(mailbox) = &mut self.mailbox {
            mailbox.reboot(now);
        }
        self.scan(now);
    }
}

fn fill<T: Copy>(table: &mut [T], offset: u16, values: &[T]) {
    for (cell, value) in table[usize::from(offset)..].iter_mut().zip(values) {
        *cell = *value;
    }
}
