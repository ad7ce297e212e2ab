//! Owns: what a device's own numbers say: how far a count went, which items are missing, what is a reset.
//! May call: spec.
//! Never: make a quantity that is negative or beyond what the device can have done; guess without a bound.

use super::spec::{CounterSpec, Numbering};

/// Without a `max_step`, a step up to this much is believed where the count has gone down: a wrap, or pieces
/// since a reset. More would be a guess.
pub const UNSTATED_STEP_MAX: u64 = 4_096;
/// Most items that may be missing over a wrap of their numbers; beyond, the device was reset.
pub const WRAP_MISSING_MAX: u64 = 16;

/// How a count came from one reading to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It did not move.
    None,
    /// So many more.
    By {
        /// How many.
        qty: u64,
        /// It passed its highest value.
        wrapped: bool,
    },
    /// The device was reset, or its count was set.
    Reset {
        /// Pieces since then; `None`: what it reads now cannot all have been counted since.
        since: Option<u64>,
    },
}

/// What `now` means after `before`, `cycles` cycles of polling later (`None`: nobody knows how many).
#[must_use]
pub fn growth(counter: &CounterSpec, before: u64, now: u64, cycles: Option<u64>) -> Growth {
    if now == before {
        return Growth::None;
    }
    let bound = counter
        .max_step
        .map(|step| cycles.map_or(u64::MAX, |cycles| step.saturating_mul(cycles.max(1))));
    let round = u128::from(counter.wraps_after) + 1;
    if now > before {
        let qty = now - before;
        if bound.is_none_or(|bound| qty <= bound) && i64::try_from(qty).is_ok() {
            return Growth::By {
                qty,
                wrapped: false,
            };
        }
    } else {
        let forward = (u128::from(now) + round).saturating_sub(u128::from(before));
        // However long nobody looked: a count that fell far is more likely one that was reset.
        let most = counter.max_step.map_or(UNSTATED_STEP_MAX, |step| {
            let quarter = u64::try_from(round / 4).unwrap_or(u64::MAX);
            bound.unwrap_or(u64::MAX).min(quarter.max(step))
        });
        if before <= counter.wraps_after && forward <= u128::from(most) {
            let qty = u64::try_from(forward).unwrap_or(u64::MAX);
            return Growth::By { qty, wrapped: true };
        }
    }
    let most = bound.unwrap_or(UNSTATED_STEP_MAX);
    let since = now.checked_sub(counter.reset_to);
    Growth::Reset {
        since: since.filter(|qty| *qty <= most && i64::try_from(*qty).is_ok()),
    }
}

/// How one number follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// It is none that the device gives.
    Outside,
    /// The same.
    Same,
    /// The next.
    Next,
    /// Some were left out between the two.
    Jump {
        /// How many.
        missing: u64,
    },
    /// The device began anew.
    Reset,
}

impl Numbering {
    /// How many numbers there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        u64::from(self.last.saturating_sub(self.first)) + 1
    }
    /// Whether the device gives this number.
    #[must_use]
    pub fn holds(&self, number: u32) -> bool {
        (self.first..=self.last).contains(&number)
    }
    /// How many steps lead from one number to another, counting onwards.
    #[must_use]
    pub fn steps(&self, from: u32, to: u32) -> u64 {
        let (from, to) = (u64::from(from), u64::from(to));
        if to >= from {
            to - from
        } else {
            (to + self.count()).saturating_sub(from)
        }
    }
    /// The number so many steps on.
    #[must_use]
    pub fn ahead(&self, from: u32, steps: u64) -> u32 {
        let place = u64::from(from.saturating_sub(self.first)) + steps % self.count();
        let place = u32::try_from(place % self.count()).unwrap_or(0);
        self.first.saturating_add(place)
    }
    /// The number so many steps back.
    #[must_use]
    pub fn back(&self, from: u32, steps: u64) -> u32 {
        self.ahead(from, self.count() - steps % self.count())
    }
    /// What `now` means after `before`.
    #[must_use]
    pub fn follows(&self, before: u32, now: u32) -> Follows {
        if !self.holds(now) {
            return Follows::Outside;
        }
        if !self.holds(before) {
            return Follows::Reset;
        }
        let missing_max = WRAP_MISSING_MAX.min(self.count() / 4);
        match self.steps(before, now) {
            0 => Follows::Same,
            1 => Follows::Next,
            steps if now > before || steps - 1 <= missing_max => {
                Follows::Jump { missing: steps - 1 }
            }
            _ => Follows::Reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::spec::{Address, DataType, ModbusArea, Scalar, WordOrder};
    use proptest::prelude::*;

    fn counter(wraps_after: u64, max_step: Option<u64>) -> CounterSpec {
        CounterSpec {
            at: Scalar {
                address: Address::Modbus {
                    area: ModbusArea::Holding,
                    offset: 0,
                },
                data_type: DataType::U32,
                word_order: WordOrder::HighFirst,
            },
            unit: None,
            wraps_after,
            reset_to: 0,
            max_step,
            poll_ms: 1000,
        }
    }
    fn by(qty: u64, wrapped: bool) -> Growth {
        Growth::By { qty, wrapped }
    }

    // covers: EVT-03
    #[test]
    fn a_wrap_is_told_from_a_reset_by_what_the_machine_can_do() {
        let stated = counter(65_535, Some(50));
        let unstated = counter(65_535, None);
        for (counter, before, now, cycles, expected) in [
            (&stated, 7, 7, Some(1), Growth::None),
            (&stated, 7, 57, Some(1), by(50, false)),
            (&stated, 65_530, 4, Some(1), by(10, true)),
            (&stated, 65_535, 0, Some(1), by(1, true)),
            // 41 would have to be 25 600 pieces by a wrap: it began anew.
            (
                &stated,
                40_000,
                41,
                Some(1),
                Growth::Reset { since: Some(41) },
            ),
            (
                &stated,
                40_000,
                0,
                Some(1),
                Growth::Reset { since: Some(0) },
            ),
            // Somebody set it: nothing says how many pieces that were.
            (
                &stated,
                40_000,
                30_000,
                Some(1),
                Growth::Reset { since: None },
            ),
            (&stated, 7, 30_000, Some(1), Growth::Reset { since: None }),
            // A weekend makes more plausible, upwards; a long fall stays a reset.
            (&stated, 7, 30_000, Some(10_000), by(29_993, false)),
            (
                &stated,
                40_000,
                30_000,
                Some(10_000),
                Growth::Reset {
                    since: Some(30_000),
                },
            ),
            (&stated, 60_000, 5_000, Some(10_000), by(10_536, true)),
            (&unstated, 7, 30_000, None, by(29_993, false)),
            (&unstated, 65_000, 100, None, by(636, true)),
            (
                &unstated,
                40_000,
                30_000,
                None,
                Growth::Reset { since: None },
            ),
            (
                &unstated,
                40_000,
                12,
                None,
                Growth::Reset { since: Some(12) },
            ),
        ] {
            let found = growth(counter, before, now, cycles);
            assert_eq!(found, expected, "{before} -> {now} in {cycles:?}");
        }
        let wide = counter(u64::MAX, None);
        assert_eq!(growth(&wide, u64::MAX - 1, 3, None), by(5, true));
        assert_eq!(
            growth(&wide, 0, u64::MAX, None),
            Growth::Reset { since: None }
        );
        let decimal = counter(9_999, Some(100));
        assert_eq!(growth(&decimal, 9_990, 9, Some(1)), by(19, true));
    }

    // covers: EVT-04
    #[test]
    fn a_missing_item_is_told_from_a_device_that_began_anew() {
        let whole = Numbering {
            first: 1,
            last: u32::MAX,
        };
        for (before, now, expected) in [
            (7, 7, Follows::Same),
            (7, 8, Follows::Next),
            (7, 11, Follows::Jump { missing: 3 }),
            (7, 0, Follows::Outside),
            (7, 6, Follows::Reset),
            (7, 1, Follows::Reset),
            (u32::MAX, 1, Follows::Next),
            (u32::MAX - 1, 3, Follows::Jump { missing: 3 }),
            (u32::MAX - 100, 3, Follows::Reset),
            (0, 5, Follows::Reset),
        ] {
            assert_eq!(whole.follows(before, now), expected, "{before} -> {now}");
        }
        let from_zero = Numbering {
            first: 0,
            last: 9_999,
        };
        assert_eq!(from_zero.follows(9_999, 0), Follows::Next);
        assert_eq!(from_zero.follows(5, 10_000), Follows::Outside);
        assert_eq!(
            (from_zero.ahead(9_998, 3), from_zero.back(1, 3)),
            (1, 9_998)
        );
    }

    proptest! {
        // covers: EVT-03
        #[test]
        fn no_reading_makes_more_than_the_machine_can_do(
            before: u32, now: u32, step in 1_u64..5_000, cycles in 1_u64..1_000,
        ) {
            let counter = counter(u64::from(u32::MAX), Some(step));
            let qty = match growth(&counter, before.into(), now.into(), Some(cycles)) {
                Growth::None => 0,
                Growth::By { qty, .. } => qty,
                Growth::Reset { since } => since.unwrap_or(0),
            };
            prop_assert!(qty <= step * cycles);
        }

        // covers: EVT-04
        #[test]
        fn steps_go_there_and_back(first in 0_u32..3, width in 1_u32.., from: u32, steps: u64) {
            let numbering = Numbering { first, last: first.saturating_add(width) };
            let from = numbering.ahead(first, from.into());
            let to = numbering.ahead(from, steps);
            prop_assert!(numbering.holds(from) && numbering.holds(to));
            prop_assert_eq!(numbering.steps(from, to), steps % numbering.count());
            prop_assert_eq!(numbering.back(to, steps), from);
        }
    }
}
