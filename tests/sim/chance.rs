//! Owns: every random choice of a play, from one seed forked per part, and which faults a play has (swarm).
//! May call: core's jitter.
//! Never: let one kind of fault that is switched off change what another does.

use holdfast::core::jitter::Jitter;
use std::collections::BTreeMap;

macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        /// What can go wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Kind { $($name),* }
        impl Kind {
            pub(crate) const ALL: &[Kind] = &[$(Kind::$name),*];
        }
    };
}
kinds! {
    NotSent, PartlySent, HeldUp, Doubled, ReplyLost, LateReply, Busy, SlowDevice,
    ProbeFails, GateFails, BlockCorrupt, LinkLost, OtherDevice, PlcRestart, DoorOpen, VersionMoved,
    AckLost, RingMoves, RingFails, ReadFails,
    CrashIdle, CrashBeforeWrite, CrashBeforeSync, CrashAfterSync, CrashAmongEffects, SyncFails, Reboot, ClockNotTrusted, WallStep,
    Full, Archived,
    SinkAway, SinkInPart, SinkReplyLost, SinkMalformed, SinkStops, SinkRewound,
    LinkBack,
}

impl Kind {
    /// Whether it ends the process; these are asked for at every commit and every effect.
    fn is_crash(self) -> bool {
        matches!(
            self,
            Kind::CrashIdle
                | Kind::CrashBeforeWrite
                | Kind::CrashBeforeSync
                | Kind::CrashAfterSync
                | Kind::CrashAmongEffects
                | Kind::SyncFails
        )
    }
}

/// Odds are of so many.
const PER: u64 = 1_000;
/// Odds that a fault may have in one play.
const ODDS: [u64; 4] = [10, 40, 120, 350];
/// The same for what ends the process: a play of nothing but starts gets nowhere.
const CRASH_ODDS: [u64; 4] = [1, 4, 12, 40];

/// All chance of one play.
pub(crate) struct Chance {
    seed: u64,
    faults: BTreeMap<Kind, (Jitter, u64)>,
    parts: BTreeMap<&'static str, Jitter>,
    /// Faults strike at all: the first phase.
    pub(crate) unsafe_phase: bool,
    pub(crate) struck: BTreeMap<Kind, u64>,
}

impl Chance {
    pub(crate) fn new(seed: u64, without: &[Kind]) -> Self {
        let faults = Kind::ALL.iter().map(|kind| {
            let mut own = Jitter::new(seed.rotate_left(17) ^ (0xFA17 + *kind as u64) << 40);
            // Half of the faults are off in a play: they would hide what the others find.
            let odds = match own.below(2) {
                0 => 0,
                _ if kind.is_crash() => CRASH_ODDS[own.below(CRASH_ODDS.len() as u64) as usize],
                _ => ODDS[own.below(ODDS.len() as u64) as usize],
            };
            let odds = if without.contains(kind) { 0 } else { odds };
            (*kind, (own, odds))
        });
        Self {
            seed,
            faults: faults.collect(),
            parts: BTreeMap::new(),
            unsafe_phase: true,
            struck: BTreeMap::new(),
        }
    }

    /// Whether this fault strikes now.
    pub(crate) fn strikes(&mut self, kind: Kind) -> bool {
        let Some((own, odds)) = self.faults.get_mut(&kind) else {
            return false;
        };
        let hit = own.below(PER) < *odds && self.unsafe_phase;
        if hit {
            *self.struck.entry(kind).or_default() += 1;
        }
        hit
    }

    /// A number in `0..bound`, of one part's own.
    pub(crate) fn below(&mut self, part: &'static str, bound: u64) -> u64 {
        let seed = self.seed;
        let fork = || {
            let mixed = part
                .bytes()
                .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
                });
            Jitter::new(mixed)
        };
        self.parts.entry(part).or_insert_with(fork).below(bound)
    }

    pub(crate) fn one_in(&mut self, part: &'static str, n: u64) -> bool {
        self.below(part, n) == 0
    }
}
