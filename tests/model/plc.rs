//! Owns: the device: plain registers, the PLC's side of the mailbox by its rules, and the ledger of what really happened.
//! May call: the layout of the mailbox's words.
//! Never: let the gateway see the ledger; act on a commit twice.

use holdfast::core::contract::MailboxBlocks;
use holdfast::core::mailbox::{
    COMMAND_WORDS, COMMIT_WORD, STATUS_WORDS, crc16, id_after, split_u32,
};
use holdfast::core::spec::WordOrder;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

const CRC_WORD: usize = 17;
const RING_ENTRIES: usize = 4;
const VERSION_NONE: u16 = 0xFFFF;
const TICK_NS: u64 = 100_000_000;
const EPOCH: u16 = 7;
const SEQUENCE: u16 = 1;
const CRC: u16 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Plc {
    pub(crate) version: u16,
    pub(crate) boots: u32,
    words: [u16; COMMAND_WORDS],
    /// The commit that was last looked at.
    commit: u16,
    epoch: Option<u32>,
    accepted: u32,
    done: u32,
    state: u16,
    result: u16,
    ring: VecDeque<(u32, u16, u16)>,
    block_since_ns: Option<u64>,
    /// Accepted, and not ended yet.
    pub(crate) executing: Option<u32>,
    effects: u32,
    /// What a device without a mailbox says it finished last.
    pub(crate) finished: u32,
    /// The ledger: effects by mailbox request id.
    pub(crate) by_request: BTreeMap<u32, u32>,
    /// The ledger: effects of plain writes by operation.
    pub(crate) by_operation: [u32; 3],
}

impl Plc {
    pub(crate) fn new() -> Self {
        Self {
            version: 7,
            boots: 1,
            words: [0; COMMAND_WORDS],
            commit: 0,
            epoch: None,
            accepted: 0,
            done: 0,
            state: 0,
            result: 0,
            ring: VecDeque::new(),
            block_since_ns: None,
            executing: None,
            effects: 0,
            finished: 0,
            by_request: BTreeMap::new(),
            by_operation: [0; 3],
        }
    }

    /// What can make a difference from here on; times as they stand at `at_ns`.
    pub(crate) fn sameness(&self, at_ns: u64, into: &mut impl Hasher) {
        (self.version, self.boots, self.words, self.commit).hash(into);
        (self.epoch, self.accepted, self.done, self.state).hash(into);
        (self.result, &self.ring, self.executing, self.effects).hash(into);
        self.block_since_ns.map(|since| at_ns - since).hash(into);
        (self.finished, &self.by_request, self.by_operation).hash(into);
    }

    /// A plain write acts.
    pub(crate) fn write(&mut self, operation: usize, request: Option<u32>) {
        self.by_operation[operation] += 1;
        self.finished = request.unwrap_or(self.finished);
    }

    /// The words before the commit arrive.
    pub(crate) fn block(&mut self, words: &[u16], at_ns: u64) {
        if self.words[..COMMIT_WORD] != *words {
            self.words[..COMMIT_WORD].copy_from_slice(words);
            self.block_since_ns = Some(at_ns);
        }
    }

    /// The commit word arrives. `slow`: what it starts takes longer than this scan.
    pub(crate) fn commit(&mut self, word: u16, slow: bool, at_ns: u64) {
        self.words[COMMIT_WORD] = word;
        // One command at a time; a commit that came meanwhile is looked at afterwards.
        if self.executing.is_none() {
            self.scan(slow, at_ns);
        }
    }

    fn scan(&mut self, slow: bool, at_ns: u64) {
        let words = self.words;
        let long = |at: usize| u32::from(words[at]) << 16 | u32::from(words[at + 1]);
        let (id, epoch) = (long(4), long(1));
        if words[COMMIT_WORD] == self.commit {
            return;
        }
        self.commit = words[COMMIT_WORD];
        if self.commit != id as u16 {
            return;
        }
        if crc16(&words[..CRC_WORD]) != words[CRC_WORD] {
            return self.refuse(CRC);
        }
        if let Some((_, result, _)) = self.ring.iter().find(|(known, ..)| *known == id) {
            (self.state, self.result) = (state_of(*result), *result);
            return;
        }
        if self.epoch.is_some_and(|last| id_after(last, epoch)) {
            return self.refuse(EPOCH);
        }
        if !id_after(id, self.accepted) {
            return self.refuse(SEQUENCE);
        }
        (self.epoch, self.accepted) = (Some(epoch), id);
        match self.objection(at_ns) {
            Some(why) => self.record(id, why),
            None if slow && words[3] != 0 => {
                (self.state, self.result, self.executing) = (2, 0, Some(id));
            }
            None => self.finish(id),
        }
    }

    fn objection(&self, at_ns: u64) -> Option<u16> {
        let (opcode, version, ticks) = (self.words[3], self.words[15], u64::from(self.words[16]));
        if opcode == 0 {
            return None;
        }
        let age_ns = self.block_since_ns.map(|since| at_ns - since);
        if ticks > 0 && age_ns.is_none_or(|age| age > ticks * TICK_NS) {
            return Some(8);
        }
        (version != VERSION_NONE && version != self.version).then_some(3)
    }

    fn refuse(&mut self, why: u16) {
        (self.state, self.result) = (4, why);
    }

    /// Effect, last done id, counter and ring in one scan.
    fn finish(&mut self, id: u32) {
        if self.words_opcode(id) != Some(0) {
            self.effects += 1;
            *self.by_request.entry(id).or_default() += 1;
        }
        self.done = id;
        self.record(id, 0);
    }

    /// `None`: the block is another's by now, so what is executed is a command that was taken before.
    fn words_opcode(&self, id: u32) -> Option<u16> {
        let stands = u32::from(self.words[4]) << 16 | u32::from(self.words[5]);
        (stands == id && self.executing.is_none()).then_some(self.words[3])
    }

    fn record(&mut self, id: u32, result: u16) {
        (self.state, self.result) = (state_of(result), result);
        self.ring.push_front((id, result, self.effects as u16));
        self.ring.truncate(RING_ENTRIES);
    }

    /// What was executed ends, and a commit that came meanwhile is looked at.
    pub(crate) fn ends(&mut self, at_ns: u64) {
        if let Some(id) = self.executing {
            self.finish(id);
            self.executing = None;
            self.scan(false, at_ns);
        }
    }

    /// Power off and on: the blocks are latched; what was executed goes on or is lost, and nobody will report it.
    pub(crate) fn restart(&mut self, goes_on: bool, at_ns: u64) {
        self.boots += 1;
        self.block_since_ns = None;
        if self.executing.is_some() && !goes_on {
            self.executing = None;
            self.state = 0;
            self.scan(false, at_ns);
        }
    }

    /// It comes back without its latched memory, as after a new program or a dead battery.
    pub(crate) fn cold_start(&mut self) {
        let kept = self.clone();
        *self = Self::new();
        self.boots = kept.boots + 1;
        self.version = kept.version;
        (self.by_request, self.by_operation) = (kept.by_request, kept.by_operation);
    }

    pub(crate) fn blocks(&self) -> MailboxBlocks {
        let mut status = vec![0_u16; STATUS_WORDS];
        status[0] = 1;
        let pairs = [
            (1, self.boots),
            (4, self.accepted),
            (8, self.done),
            (10, self.effects),
        ];
        for (at, value) in pairs {
            status[at..at + 2].copy_from_slice(&split_u32(value, WordOrder::HighFirst));
        }
        (status[6], status[7]) = (self.state, self.result);
        (status[12], status[13], status[14], status[15]) = (self.version, 1, 1, 1);
        for (n, (id, result, effects)) in self.ring.iter().enumerate() {
            let at = 16 + 4 * n;
            status[at..at + 2].copy_from_slice(&split_u32(*id, WordOrder::HighFirst));
            (status[at + 2], status[at + 3]) = (*result, *effects);
        }
        status[STATUS_WORDS - 1] = crc16(&status[..STATUS_WORDS - 1]);
        MailboxBlocks {
            command: self.words.to_vec(),
            status,
        }
    }
}

fn state_of(result: u16) -> u16 {
    if result == 0 { 3 } else { 4 }
}
