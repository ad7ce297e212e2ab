//! Owns: the PLC's side of the mailbox: when it acts, what it refuses, what it reports.
//! May call: spec.
//! Never: share code with the gateway's side; act on anything but a change of commit.

use super::spec::{MailboxProgram, Opcode, Order};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Words of the gateway's block.
pub(super) const COMMAND_WORDS: usize = 19;
/// Words of the PLC's block.
pub(super) const STATUS_WORDS: usize = 33;
/// Place of the commit word in the gateway's block.
pub(super) const COMMIT_WORD: usize = 18;
const CRC_WORD: usize = 17;
const RING_ENTRIES_MAX: usize = 4;
const LAYOUT_VERSION: u16 = 1;
const VERSION_NONE: u16 = 0xFFFF;
const TICK_MS: u64 = 100;
const HEARTBEAT_MS: u64 = 100;

/// Words 6 of the PLC's block.
mod state {
    pub(super) const IDLE: u16 = 0;
    pub(super) const EXECUTING: u16 = 2;
    pub(super) const DONE: u16 = 3;
    pub(super) const REJECTED: u16 = 4;
    pub(super) const FAILED: u16 = 5;
}

/// Word 7 of the PLC's block.
mod result {
    pub(super) const OK: u16 = 0;
    pub(super) const SEQUENCE: u16 = 1;
    pub(super) const CRC: u16 = 2;
    pub(super) const VERSION: u16 = 3;
    pub(super) const INTERLOCK: u16 = 4;
    pub(super) const OPCODE: u16 = 5;
    pub(super) const LAYOUT: u16 = 6;
    pub(super) const EPOCH: u16 = 7;
    pub(super) const LATE: u16 = 8;
    pub(super) const MACHINE_MIN: u16 = 100;
}

/// What the program reads from the machine in each scan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) config_version: u16,
    pub(super) mode: u16,
    pub(super) interlocks_closed: bool,
}

/// One request that the mailbox finished with an effect: to be done in the same scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: u32,
    pub(super) opcode: u16,
    pub(super) parameters: Vec<u16>,
}

#[derive(Clone, Copy, Debug)]
struct Finished {
    id: u32,
    result: u16,
    counter_low: u16,
}

/// The program's memory. All but `executing` and `block_since` survives a power loss.
#[derive(Debug)]
pub(super) struct Mailbox {
    order: Order,
    commit: u16,
    epoch: Option<u32>,
    boots: u32,
    accepted: u32,
    done: u32,
    counter: u32,
    state: u16,
    result: u16,
    ring: VecDeque<Finished>,
    block: [u16; COMMIT_WORD],
    /// When the block was last seen to change; unknown after a start.
    block_since: Option<Instant>,
    executing: Option<(Instant, Job)>,
    started: Instant,
}

impl Mailbox {
    pub(super) fn new(program: &MailboxProgram, now: Instant) -> Self {
        Self {
            order: program.word_order,
            commit: 0,
            epoch: None,
            boots: 1,
            accepted: 0,
            done: 0,
            counter: 0,
            state: state::IDLE,
            result: result::OK,
            ring: VecDeque::new(),
            block: [0; COMMIT_WORD],
            block_since: None,
            executing: None,
            started: now,
        }
    }

    /// Power off and on: what was being executed is lost, and nobody will report it.
    pub(super) fn reboot(&mut self, now: Instant) {
        self.boots = self.boots.wrapping_add(1);
        self.block_since = None;
        self.started = now;
        if self.executing.take().is_some() {
            self.state = state::IDLE;
        }
    }

    /// One scan over the gateway's block. The effect of the returned job belongs to this scan.
    pub(super) fn scan(
        &mut self,
        words: &[u16; COMMAND_WORDS],
        opcodes: &[Opcode],
        machine: Machine,
        now: Instant,
    ) -> Option<Job> {
        if self.block != words[..COMMIT_WORD] {
            self.block.copy_from_slice(&words[..COMMIT_WORD]);
            self.block_since = Some(now);
        }
        if let Some((end, _)) = &self.executing {
            if now < *end {
                return None;
            }
            let (_, job) = self.executing.take()?;
            return self.finish(job, opcodes);
        }
        if words[COMMIT_WORD] == self.commit {
            return None;
        }
        self.commit = words[COMMIT_WORD];
        let id = self.order.join(words[4], words[5]);
        if self.commit.to_be_bytes() != id.to_be_bytes()[2..] {
            return None;
        }
        self.take(id, words, opcodes, machine, now)
    }

    fn take(
        &mut self,
        id: u32,
        words: &[u16; COMMAND_WORDS],
        opcodes: &[Opcode],
        machine: Machine,
        now: Instant,
    ) -> Option<Job> {
        let epoch = self.order.join(words[1], words[2]);
        if words[0] != LAYOUT_VERSION || words[6] > 8 {
            return self.refuse(result::LAYOUT);
        }
        if crc(&words[..CRC_WORD]) != words[CRC_WORD] {
            return self.refuse(result::CRC);
        }
        if let Some(known) = self.ring.iter().find(|entry| entry.id == id) {
            (self.state, self.result) = (state_of(known.result), known.result);
            return None;
        }
        if self.epoch.is_some_and(|last| above(last, epoch)) {
            return self.refuse(result::EPOCH);
        }
        if !above(id, self.accepted) {
            return self.refuse(result::SEQUENCE);
        }
        // From here on the id is used up, whatever becomes of it: a copy is answered from the ring,
        // and one that has left the ring is out of sequence.
        self.epoch = Some(epoch);
        self.accepted = id;
        if let Some(why) = self.objection(words, opcodes, machine, now) {
            self.record(id, why);
            return None;
        }
        let job = Job {
            id,
            opcode: words[3],
            parameters: words[7..7 + usize::from(words[6])].to_vec(),
        };
        let duration = opcodes
            .iter()
            .find(|row| row.opcode == job.opcode)
            .map_or(Duration::ZERO, |row| row.duration.0);
        if duration.is_zero() {
            return self.finish(job, opcodes);
        }
        self.state = state::EXECUTING;
        self.result = result::OK;
        self.executing = Some((now + duration, job));
        None
    }

    /// Why a request in sequence is not carried out. Nothing speaks against a no-op: burning an id
    /// must work in every state of the machine.
    fn objection(
        &self,
        words: &[u16; COMMAND_WORDS],
        opcodes: &[Opcode],
        machine: Machine,
        now: Instant,
    ) -> Option<u16> {
        if words[3] == 0 {
            return None;
        }
        let validity = Duration::from_millis(u64::from(words[16]) * TICK_MS);
        let in_time = self
            .block_since
            .is_some_and(|since| now.duration_since(since) <= validity);
        if !validity.is_zero() && !in_time {
            return Some(result::LATE);
        }
        if words[15] != VERSION_NONE && words[15] != machine.config_version {
            return Some(result::VERSION);
        }
        if !machine.interlocks_closed {
            return Some(result::INTERLOCK);
        }
        (!opcodes.iter().any(|row| row.opcode == words[3])).then_some(result::OPCODE)
    }

    fn refuse(&mut self, why: u16) -> Option<Job> {
        (self.state, self.result) = (state::REJECTED, why);
        None
    }

    /// Effect counter, last-done and ring change together; the caller does the effect in the same scan.
    fn finish(&mut self, job: Job, opcodes: &[Opcode]) -> Option<Job> {
        let row = opcodes.iter().find(|row| row.opcode == job.opcode);
        let outcome = row.map_or(result::OK, |row| row.result);
        let effect = row.is_some() && outcome == result::OK;
        if effect {
            self.counter = self.counter.wrapping_add(1);
        }
        if outcome == result::OK {
            self.done = job.id;
        }
        self.record(job.id, outcome);
        effect.then_some(job)
    }

    fn record(&mut self, id: u32, outcome: u16) {
        (self.state, self.result) = (state_of(outcome), outcome);
        let [.., high, low] = self.counter.to_be_bytes();
        self.ring.push_front(Finished {
            id,
            result: outcome,
            counter_low: u16::from_be_bytes([high, low]),
        });
        self.ring.truncate(RING_ENTRIES_MAX);
    }

    /// The PLC's block, CRC included.
    pub(super) fn status(&self, machine: Machine, now: Instant) -> [u16; STATUS_WORDS] {
        let mut words = [0; STATUS_WORDS];
        words[0] = LAYOUT_VERSION;
        let beats = now.duration_since(self.started).as_millis() / u128::from(HEARTBEAT_MS);
        words[3] = u16::try_from(beats % 65_536).unwrap_or(0);
        let pairs = [
            (1, self.boots),
            (4, self.accepted),
            (8, self.done),
            (10, self.counter),
        ];
        for (at, value) in pairs {
            words[at..at + 2].copy_from_slice(&self.order.split(value));
        }
        (words[6], words[7]) = (self.state, self.result);
        words[12] = machine.config_version;
        words[13] = machine.mode;
        words[14] = u16::from(machine.interlocks_closed);
        words[15] = 1;
        for (slot, entry) in self.ring.iter().enumerate() {
            let at = 16 + slot * 4;
            words[at..at + 2].copy_from_slice(&self.order.split(entry.id));
            (words[at + 2], words[at + 3]) = (entry.result, entry.counter_low);
        }
        words[STATUS_WORDS - 1] = crc(&words[..STATUS_WORDS - 1]);
        words
    }
}

fn state_of(outcome: u16) -> u16 {
    match outcome {
        result::OK => state::DONE,
        result::MACHINE_MIN.. => state::FAILED,
        _ => state::REJECTED,
    }
}

/// Serial number arithmetic (RFC 1982): `a` is above `b`.
fn above(a: u32, b: u32) -> bool {
    (1..1 << 31).contains(&a.wrapping_sub(b))
}

/// CRC-16/MODBUS over words, each high byte first.
pub(super) fn crc(words: &[u16]) -> u16 {
    words
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .fold(0xFFFF, |crc, byte| {
            (0..8).fold(crc ^ u16::from(byte), |crc, _| {
                if crc & 1 == 1 {
                    crc >> 1 ^ 0xA001
                } else {
                    crc >> 1
                }
            })
        })
}
