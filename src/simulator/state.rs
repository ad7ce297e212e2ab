//! Owns: the device's tables and program: what a request does, what a scan does, what is noted.
//! May call: device (what a ledger holds), fault, frame, mailbox, source, spec.
//! Never: wait, or reach a socket.

use super::device::{Cause, Effect, LEDGER_EFFECTS_MAX, SEEN_REQUESTS_MAX, Seen};
use super::fault::{Act, Fault, Traits};
use super::frame::{self, Request};
use super::incoming::Incoming;
use super::mailbox::{COMMAND_WORDS, COMMIT_WORD, Job, Machine, Mailbox};
use super::source::{Sources, Tables};
use super::spec::{Add, DoneProgram, MailboxProgram, Place, SimulatorSpec, TABLE_ITEMS};
use crate::core::spec::ModbusArea;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

pub(super) struct Slot {
    connection: u64,
    /// Set when the connection was lost without a FIN.
    free_at: Option<Instant>,
}

pub(super) struct State {
    pub(super) spec: SimulatorSpec,
    pub(super) started: Instant,
    pub(super) coils: Vec<bool>,
    pub(super) discretes: Vec<bool>,
    pub(super) inputs: Vec<u16>,
    pub(super) holdings: Vec<u16>,
    pub(super) ledger: Vec<Effect>,
    pub(super) effects: usize,
    pub(super) seen: VecDeque<Seen>,
    pub(super) faults: Vec<Fault>,
    mailbox: Option<Mailbox>,
    done: VecDeque<(Instant, u32)>,
    counters_due: Vec<Instant>,
    pub(super) sources: Sources,
    pub(super) boots: u32,
    /// The low four bits of SD203.
    pub(super) operating: u16,
    /// Devices that only MC protocol shows, by code and number.
    pub(super) extra: BTreeMap<(u8, u32), u16>,
    pub(super) connections: u64,
    /// Requests that began before the line was silent for long enough.
    pub(super) early_requests: u64,
    last_writer: u64,
    pub(super) slots: Vec<Slot>,
}

impl State {
    pub(super) fn new(spec: SimulatorSpec) -> Self {
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
            sources: Sources::new(&spec, now),
            boots: 1,
            operating: super::state_mc::RUN,
            extra: BTreeMap::new(),
            connections: 0,
            early_requests: 0,
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
    pub(super) fn set_point(&mut self, place: Option<Place>, value: u16) -> bool {
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

    /// The clock of every record.
    pub(super) fn elapsed(&self) -> std::time::Duration {
        self.started.elapsed()
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
    pub(super) fn free_slots(&mut self, now: Instant) {
        self.slots
            .retain(|slot| slot.free_at.is_none_or(|at| at > now));
    }

    /// Notes the request and finds the fault that strikes it.
    pub(super) fn arrive(
        &mut self,
        connection: u64,
        incoming: &Incoming,
        now: Instant,
    ) -> Option<Act> {
        let pdu = incoming.pdu();
        let traits = Traits {
            function: pdu[0],
            commit: incoming.writes().is_some_and(|w| self.is_commit(w)),
        };
        let fault = self
            .faults
            .iter_mut()
            .find_map(|fault| fault.strikes(&traits).then(|| fault.act.clone()));
        self.faults.retain(|fault| fault.times > 0);
        if self.seen.len() == SEEN_REQUESTS_MAX {
            self.seen.pop_front();
        }
        let (transaction, unit) = incoming.ident();
        self.seen.push_back(Seen {
            at: now.duration_since(self.started),
            connection,
            transaction,
            unit,
            pdu,
            fault: fault.clone(),
        });
        fault
    }
    /// Whether these holding registers cover the mailbox's commit word.
    fn is_commit(&self, written: std::ops::Range<usize>) -> bool {
        self.spec.mailbox.as_ref().is_some_and(|mailbox| {
            written.contains(&(usize::from(mailbox.command.offset) + COMMIT_WORD))
        })
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
    pub(super) fn in_hole(&self, area: ModbusArea, start: u16, count: u16) -> bool {
        let (start, end) = (u32::from(start), u32::from(start) + u32::from(count));
        self.spec.holes.iter().any(|hole| {
            let first = u32::from(hole.at.offset);
            hole.at.area == area && first < end && start < first + u32::from(hole.count)
        })
    }

    pub(super) fn wrote(
        &mut self,
        connection: u64,
        function: u8,
        area: ModbusArea,
        start: u16,
        words: Vec<u16>,
        now: Instant,
    ) {
        let range = usize::from(start)..usize::from(start) + words.len();
        let cause = self.landed(connection, function, area, start, words);
        self.note_request_id(now, |at| area == ModbusArea::Holding && range.contains(&at));
        if let Some(cause) = cause {
            self.effect(connection, cause, now);
        }
        self.after_write(now);
    }
    /// The program's answer to values that stand in a table now; what moved in the machine by them.
    pub(super) fn landed(
        &mut self,
        connection: u64,
        function: u8,
        area: ModbusArea,
        start: u16,
        words: Vec<u16>,
    ) -> Option<Cause> {
        self.last_writer = connection;
        if area == ModbusArea::Coil {
            self.run_rules(start, &words);
        }
        let inside = self.inside_command_block(area, start, words.len());
        (!inside).then_some(Cause::Write {
            function,
            area,
            start,
            words,
        })
    }
    /// A scan as soon as a frame has been carried out, where the program is that quick.
    pub(super) fn after_write(&mut self, now: Instant) {
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
    /// Takes the request id for which a report is due, if a frame wrote both its registers.
    pub(super) fn note_request_id(&mut self, now: Instant, wrote: impl Fn(usize) -> bool) {
        let Some(done) = self.spec.done else {
            return;
        };
        let at = usize::from(done.request_id.offset);
        if wrote(at) && wrote(at + 1) {
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
    pub(super) fn effect(&mut self, connection: u64, cause: Cause, now: Instant) {
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
        if self.operating != super::state_mc::RUN {
            return;
        }
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
        let mut sources = std::mem::take(&mut self.sources);
        sources.scan(self, now);
        self.sources = sources;
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

    pub(super) fn reboot(&mut self, now: Instant) {
        self.boots = self.boots.wrapping_add(1);
        self.operating = super::state_mc::RUN;
        self.done.clear();
        if let Some(mailbox) = &mut self.mailbox {
            mailbox.reboot(now);
        }
        self.scan(now);
    }
}

impl Tables for State {
    fn bit(&self, place: Place) -> bool {
        self.point(place) != 0
    }
    fn set_bit(&mut self, place: Place, bit: bool) {
        self.set_point(Some(place), u16::from(bit));
    }
    fn set_word(&mut self, place: Place, word: u16) {
        self.set_point(Some(place), word);
    }
}

fn fill<T: Copy>(table: &mut [T], offset: u16, values: &[T]) {
    for (cell, value) in table[usize::from(offset)..].iter_mut().zip(values) {
        *cell = *value;
    }
}
