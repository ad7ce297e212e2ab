//! Owns: the simulated disk: what was written, what was synced, and what a crash leaves of the difference.
//! May call: the journal's frames.
//! Never: keep less than what was synced.

use super::chance::Chance;
use holdfast::core::ids::Epoch;
use holdfast::core::record::Block;
use holdfast::journal::log_bytes::{self, Tail};

/// What a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The log as one file, and the small facts beside it.
#[derive(Default)]
pub(crate) struct Disk {
    /// As the running process sees it.
    live: Vec<u8>,
    /// As a power cut leaves it at least.
    synced: Vec<u8>,
    tail: Tail,
    /// The epoch of the last start, durable before anything is done in it.
    pub(crate) epoch: Epoch,
    /// The last commit that was acknowledged.
    pub(crate) high_water: u64,
}

impl Disk {
    /// Writes without a sync.
    pub(crate) fn write(&mut self, blocks: &[Block]) {
        for block in blocks {
            assert_eq!(block.no.0, self.tail.no + 1, "commits have no gaps");
            let (frames, tail) = log_bytes::framed(block, self.tail).expect("a block that fits");
            self.live.extend_from_slice(&frames);
            self.tail = tail;
        }
    }

    pub(crate) fn sync(&mut self) {
        let from = self.synced.len();
        self.synced.extend_from_slice(&self.live[from..]);
        self.high_water = self.tail.no;
    }

    /// The power goes, or the process dies: of what was not synced any sectors may be there. Whether something
    /// was torn.
    pub(crate) fn crash(&mut self, chance: &mut Chance) -> bool {
        let whole = self.synced.len();
        let end = self.live.len();
        let mode = chance.below("disk", 4);
        let mut image = self.live.clone();
        let mut lost = 0;
        let mut at = whole;
        while at < end {
            let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
            let keep = match mode {
                0 => true,
                1 => false,
                _ => !chance.one_in("disk", 4),
            };
            if !keep {
                lost += 1;
                let fill = if mode == 3 { 0xA5 } else { 0 };
                image[at..next].fill(fill);
            }
            at = next;
        }
        if mode == 2 && end > whole {
            // The file's length was not there yet either.
            image.truncate(whole + chance.below("disk", (end - whole) as u64 + 1) as usize);
        }
        let torn = lost > 0 || image.len() < end;
        self.live = image;
        torn
    }

    /// What a start finds: every block up to the first place where none follows. The rest is cut off.
    pub(crate) fn recover(&mut self) -> Vec<Block> {
        let (blocks, tail) = log_bytes::read(&self.live);
        assert!(
            tail.no >= self.high_water,
            "the log ends at commit {}, and {} was acknowledged",
            tail.no,
            self.high_water
        );
        self.live.truncate(tail.bytes);
        self.synced.clone_from(&self.live);
        self.tail = tail;
        self.high_water = tail.no;
        blocks
    }
}
