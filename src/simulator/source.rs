//! Owns: the PLC's programs that make pieces, present items and log entries, and the ledger of what they made.
//! May call: spec.
//! Never: take notice of who reads; present the next item before the last was acknowledged and let go.

use super::spec::{Handshake, Order, Pieces, Place, Ring, SimulatorSpec, Span};
use std::time::Instant;

/// Where a program's registers and bits are.
pub(super) trait Tables {
    fn bit(&self, place: Place) -> bool;
    fn set_bit(&mut self, place: Place, bit: bool);
    fn set_word(&mut self, place: Place, word: u16);
}

/// One item that the device presented, or one entry that it logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The device's own number.
    pub number: u32,
    /// Its data words are [`data_word`] of this: no two items in a row have the same data.
    pub seed: u32,
    /// The device saw it acknowledged; a ring knows no acknowledgement.
    pub acknowledged: bool,
}

/// The `index`-th data word of the item or entry that was made from `seed`.
#[must_use]
pub fn data_word(seed: u32, index: usize) -> u16 {
    (seed.wrapping_mul(2_654_435_761) >> 16) as u16 ^ (index as u16).wrapping_mul(257)
}

/// What the programs keep.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) pieces: Vec<(Pieces, PiecesState)>,
    pub(super) handshakes: Vec<(Handshake, ItemsState)>,
    pub(super) rings: Vec<(Ring, ItemsState)>,
    /// Nothing is made by itself any more.
    pub(super) stopped: bool,
}

/// A production counter.
#[derive(Debug)]
pub(super) struct PiecesState {
    /// What the register shows.
    pub(super) count: u64,
    /// Pieces made, whatever the register shows: the ledger.
    pub(super) made: u64,
    due: Instant,
}

/// Items of a handshake, or entries of a ring.
#[derive(Debug)]
pub(super) struct ItemsState {
    /// To be made as soon as the program may.
    pub(super) waiting: u64,
    /// The number of the next.
    pub(super) next: u32,
    /// What was made: the ledger.
    pub(super) made: Vec<Item>,
    seed: u32,
    due: Instant,
}

impl ItemsState {
    fn new(now: Instant, first: u32) -> Self {
        Self {
            waiting: 0,
            next: first,
            made: Vec::new(),
            seed: 0,
            due: now,
        }
    }

    fn come_due(&mut self, every: Span, stopped: bool, now: Instant) {
        while !every.0.is_zero() && now >= self.due {
            self.due += every.0;
            self.waiting += u64::from(!stopped);
        }
    }

    fn make(&mut self, first: u32, last: u32) -> Item {
        let number = self.next;
        self.seed = self.seed.wrapping_add(1);
        self.next = if number >= last { first } else { number + 1 };
        let item = Item {
            number,
            seed: self.seed,
            acknowledged: false,
        };
        self.made.push(item);
        item
    }
}

impl Sources {
    pub(super) fn new(spec: &SimulatorSpec, now: Instant) -> Self {
        let pieces = |program: &Pieces| {
            let state = PiecesState {
                count: program.start,
                made: 0,
                due: now + program.every.0,
            };
            (*program, state)
        };
        let items = |every: Span, first| ItemsState::new(now + every.0, first);
        let handshakes = spec.handshakes.iter();
        let rings = spec.rings.iter();
        Self {
            pieces: spec.pieces.iter().map(pieces).collect(),
            handshakes: handshakes
                .map(|p| (*p, items(p.every, p.numbers_from)))
                .collect(),
            stopped: false,
            rings: rings
                .map(|p| (*p, items(p.every, p.numbers_from)))
                .collect(),
        }
    }

    pub(super) fn scan(&mut self, tables: &mut impl Tables, now: Instant) {
        let stopped = self.stopped;
        for (program, state) in &mut self.pieces {
            while !program.every.0.is_zero() && now >= state.due {
                state.due += program.every.0;
                if !stopped {
                    state.make(program, program.by);
                }
            }
            program.show(tables, state.count);
        }
        for (program, state) in &mut self.handshakes {
            state.come_due(program.every, stopped, now);
            program.scan(tables, state);
        }
        for (program, state) in &mut self.rings {
            state.come_due(program.every, stopped, now);
            program.scan(tables, state);
        }
    }
}

impl PiecesState {
    pub(super) fn make(&mut self, program: &Pieces, pieces: u64) {
        self.made += pieces;
        let round = u128::from(program.wraps_after()) + 1;
        self.count = ((u128::from(self.count) + u128::from(pieces)) % round) as u64;
    }
}

impl Pieces {
    fn show(&self, tables: &mut impl Tables, count: u64) {
        let low_first = (0..self.words).map(|index| (count >> (16 * index)) as u16);
        let words: Vec<u16> = match self.word_order {
            Order::LowFirst => low_first.collect(),
            Order::HighFirst => low_first.rev().collect(),
        };
        put(tables, self.at, &words);
    }
}

impl Handshake {
    fn scan(&self, tables: &mut impl Tables, state: &mut ItemsState) {
        let (ready, ack) = (tables.bit(self.ready), tables.bit(self.ack));
        if ready && ack {
            if let Some(item) = state.made.last_mut() {
                item.acknowledged = true;
            }
            tables.set_bit(self.ready, false);
        } else if !ready && !ack && state.waiting > 0 {
            state.waiting -= 1;
            let item = state.make(self.numbers_from, self.numbers_to);
            put(tables, self.item, &self.word_order.split(item.number));
            if let Some(data) = self.data {
                let words: Vec<u16> = (0..self.data_words)
                    .map(|i| data_word(item.seed, i))
                    .collect();
                put(tables, data, &words);
            }
            tables.set_bit(self.ready, true);
        }
    }
}

impl Ring {
    fn scan(&self, tables: &mut impl Tables, state: &mut ItemsState) {
        while state.waiting > 0 {
            state.waiting -= 1;
            let item = state.make(self.numbers_from, self.numbers_to);
            let mut words = self.word_order.split(item.number).to_vec();
            words.extend((0..self.words - 2).map(|i| data_word(item.seed, i)));
            let slot = item.number as usize % self.entries;
            let base = Place {
                offset: self.base.offset + (slot * self.words) as u16,
                ..self.base
            };
            put(tables, base, &words);
            put(tables, self.head, &self.word_order.split(item.number));
        }
    }
}

fn put(tables: &mut impl Tables, place: Place, words: &[u16]) {
    for (offset, word) in (place.offset..=u16::MAX).zip(words) {
        tables.set_word(Place { offset, ..place }, *word);
    }
}
