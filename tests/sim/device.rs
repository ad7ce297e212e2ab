//! Owns: the simulated machine: what it does, and the ledgers of effects and items that the gateway cannot see.
//! May call: the layout of the mailbox.
//! Never: forget an effect.

use holdfast::core::contract::{MailboxBlocks, MailboxRequest, Presented, PresentedItem};
use holdfast::core::ids::OperationId;
use holdfast::core::mailbox::{
    COMMAND_WORDS, COMMIT_WORD, RING_ENTRIES, STATUS_WORDS, crc16, encode_command, id_after,
    split_u32,
};
use holdfast::core::spec::WordOrder;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Highest number of an item; 1 comes after it.
pub(crate) const ITEM_LAST: u32 = 20;
/// Slots of its ring.
pub(crate) const RING_SLOTS: u32 = 16;
/// The highest count; 0 comes after it.
pub(crate) const COUNT_LAST: u64 = 9_999;

/// A frame on its way.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    Set {
        operation: OperationId,
        words: Vec<u16>,
    },
    Commit {
        request: MailboxRequest,
    },
}

/// One machine.
#[derive(Default)]
pub(crate) struct Device {
    pub(crate) boot: u32,
    pub(crate) door: bool,
    pub(crate) version: u16,
    /// Another machine stands at its address.
    pub(crate) other: bool,
    pub(crate) slow: bool,
    last_accepted: u32,
    last_done: u32,
    effects: u32,
    commit_word: u16,
    block: Option<MailboxRequest>,
    executing: Option<MailboxRequest>,
    ring: VecDeque<(u32, u16, u16)>,
    /// The hidden ledger of effects: by mailbox request, and by operation what was written.
    pub(crate) by_request: HashMap<u32, u32>,
    pub(crate) by_operation: BTreeMap<OperationId, Vec<Vec<u16>>>,
    /// The watched value.
    pub(crate) speed: u16,
    /// Pieces ever made; what it shows wraps.
    pub(crate) pieces: u64,
    /// Items that wait to be presented, by a number that never repeats; the one presented; those acknowledged.
    pub(crate) waiting: u64,
    pub(crate) serial: u64,
    ready: bool,
    ack: bool,
    pub(crate) acknowledged: BTreeSet<u64>,
    /// The newest entry of its ring.
    pub(crate) head: u32,
}

impl Device {
    pub(crate) fn new() -> Self {
        Self {
            boot: 1,
            door: true,
            version: 7,
            speed: 1,
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self, frame: &Frame) {
        match frame {
            Frame::Set { operation, words } => {
                self.speed = words.first().copied().unwrap_or(self.speed);
                let entry = self.by_operation.entry(operation.clone()).or_default();
                entry.push(words.clone());
            }
            Frame::Commit { request } => self.commit(request),
        }
    }

    /// The block is written and read back before the commit leaves.
    pub(crate) fn lay(&mut self, request: &MailboxRequest) {
        self.block = Some(request.clone());
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.executing.is_some()
    }

    fn commit(&mut self, request: &MailboxRequest) {
        let id = request.request_id;
        // A lone commit that does not fit the block is none, and one that changes nothing is none either.
        let fits = self
            .block
            .as_ref()
            .is_some_and(|block| block.request_id == id);
        if !fits || self.commit_word == id as u16 {
            return;
        }
        self.commit_word = id as u16;
        let known = self.ring.iter().any(|(known, ..)| *known == id);
        if known || self.executing.is_some() || !id_after(id, self.last_accepted) {
            return;
        }
        self.last_accepted = id;
        if request.opcode != 0 && !self.door {
            return self.record(id, 4);
        }
        self.executing = Some(request.clone());
        if !self.slow || request.opcode == 0 {
            self.finish();
        }
    }

    /// Ends what it is at: effect, last done and counter in one scan.
    pub(crate) fn finish(&mut self) {
        let Some(request) = self.executing.take() else {
            return;
        };
        self.last_done = request.request_id;
        if request.opcode != 0 {
            self.effects += 1;
            *self.by_request.entry(request.request_id).or_default() += 1;
        }
        self.record(request.request_id, 0);
    }

    fn record(&mut self, id: u32, result: u16) {
        self.ring.push_back((id, result, self.effects as u16));
        if self.ring.len() > RING_ENTRIES {
            self.ring.pop_front();
        }
    }

    pub(crate) fn record_of(&self, id: u32) -> Option<(u16, u16)> {
        let found = self.ring.iter().find(|(known, ..)| *known == id)?;
        Some((found.1, found.2))
    }

    pub(crate) fn restart(&mut self) {
        self.boot += 1;
        self.executing = None;
    }

    pub(crate) fn blocks(&self) -> MailboxBlocks {
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
        status[6] = if self.executing.is_some() { 2 } else { 0 };
        status[12] = self.version;
        status[13] = 1;
        status[14] = u16::from(self.door);
        status[15] = 1;
        status[STATUS_WORDS - 1] = crc16(&status[..STATUS_WORDS - 1]);
        let command = match &self.block {
            Some(request) => {
                let mut words = encode_command(request, order).to_vec();
                words[COMMIT_WORD] = self.commit_word;
                words
            }
            None => vec![0; COMMAND_WORDS],
        };
        MailboxBlocks { command, status }
    }

    /// It works for a moment.
    pub(crate) fn work(&mut self, pieces: u64, entries: u64, item: bool) {
        self.pieces += pieces;
        self.head += entries as u32;
        self.waiting += u64::from(item);
        self.scan();
    }

    /// One scan of the handshake's program.
    pub(crate) fn scan(&mut self) {
        if self.ready && self.ack {
            self.ready = false;
            self.acknowledged.insert(self.serial);
        } else if !self.ready && !self.ack && self.waiting > 0 {
            self.waiting -= 1;
            self.serial += 1;
            self.ready = true;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.pieces % (COUNT_LAST + 1)
    }

    fn number(&self) -> u32 {
        ((self.serial - 1) % u64::from(ITEM_LAST)) as u32 + 1
    }

    pub(crate) fn presented(&self) -> Presented {
        let item = self.ready.then(|| PresentedItem {
            number: self.number(),
            words: vec![split_u32(self.serial as u32, WordOrder::HighFirst).to_vec()],
        });
        Presented {
            ready: self.ready,
            ack: self.ack,
            item,
        }
    }

    /// The acknowledgement as the adapter writes it: only for the item that still stands.
    pub(crate) fn acknowledge(&mut self, item: Option<u32>) {
        match item {
            Some(number) if self.ready && !self.ack && self.number() == number => self.ack = true,
            Some(_) => {}
            None => self.ack = false,
        }
    }

    pub(crate) fn entry(&self, number: u32) -> Vec<u16> {
        // Slot n holds the newest entry with that remainder.
        let behind = self.head.wrapping_sub(number) / RING_SLOTS * RING_SLOTS;
        let there = number + if self.head >= number { behind } else { 0 };
        let mut words = split_u32(there, WordOrder::HighFirst).to_vec();
        words.push(there as u16);
        words
    }
}
