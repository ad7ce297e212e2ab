//! Owns: when handshakes and rings are looked at, how they are read whole, and how one is acknowledged.
//! May call: link, exchange, plan of this room.
//! Never: read an item or an entry in two halves (EVT-06); acknowledge any item but the one that is asked for.

use super::exchange::{Ask, Called, End};
use super::link::{Link, LinkError, Words};
use super::plan::{REFUSED_RETRY_MS, Span, merge};
use crate::core::contract::{Presented, PresentedItem, RingReading};
use crate::core::spec::{EventKind, HandshakeSpec, MachineSpec, RingSpec, Scalar};
use crate::core::time::NS_PER_MS;
use std::collections::BTreeMap;

/// Most requests for entries of a ring in one go: a command that comes meanwhile waits no longer (SEND-07).
pub const RING_REQUESTS_MAX: usize = 2;

/// When each handshake and ring is looked at next.
#[derive(Clone, Debug)]
pub struct SourcePlan {
    /// By the event's place in the machine's file.
    due: BTreeMap<usize, Due>,
}

#[derive(Clone, Debug)]
struct Due {
    poll_ms: u64,
    due_ns: u64,
    /// Why it cannot be read.
    refused: Option<String>,
}

impl SourcePlan {
    /// The plan for the handshakes and rings of `spec`.
    #[must_use]
    pub fn new(spec: &MachineSpec) -> Self {
        let looked_at =
            |kind: &EventKind| matches!(kind, EventKind::Handshake(_) | EventKind::Ring(_));
        let due = spec.events.iter().enumerate();
        let due = due.filter(|(_, event)| looked_at(&event.kind));
        Self {
            due: due
                .map(|(index, event)| {
                    let due = Due {
                        poll_ms: event.kind.poll_ms().max(1),
                        due_ns: 0,
                        refused: None,
                    };
                    (index, due)
                })
                .collect(),
        }
    }

    /// The one that is most overdue at `now_ns`.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> Option<usize> {
        let due = self.due.iter().filter(|(_, due)| due.due_ns <= now_ns);
        due.min_by_key(|(_, due)| due.due_ns)
            .map(|(index, _)| *index)
    }

    /// When the next is due.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.due.values().map(|due| due.due_ns).min()
    }

    /// It was looked at; what the device refuses is asked for again after a pause.
    pub fn looked(&mut self, index: usize, now_ns: u64, failed: Option<&LinkError>) {
        let Some(due) = self.due.get_mut(&index) else {
            return;
        };
        due.refused = match failed {
            Some(
                error @ (LinkError::Exception { mendable: true, .. } | LinkError::NotPossible(_)),
            ) => Some(error.to_string()),
            _ => None,
        };
        let pause_ms = match due.refused {
            Some(_) => REFUSED_RETRY_MS.max(due.poll_ms),
            None => due.poll_ms,
        };
        due.due_ns = now_ns.saturating_add(pause_ms.saturating_mul(NS_PER_MS));
    }

    /// What the device refuses, in plain words, to be shown.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = |due: &Due| Some(format!("{}; check this [[event]]", due.refused.as_ref()?));
        self.due.values().filter_map(note).collect()
    }
}

impl Link {
    /// Looks at a handshake. Item and data are of one request, or bracketed by equal ready bits and numbers.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read_handshake(
        &mut self,
        handshake: &HandshakeSpec,
    ) -> Result<Presented, LinkError> {
        let flags = [handshake.ready, handshake.ack];
        let signs = [handshake.ready, handshake.ack, handshake.item];
        let before = self.read_places(&flags).await?;
        let (ready, ack) = (
            is_set(&before, &handshake.ready),
            is_set(&before, &handshake.ack),
        );
        if !ready {
            let item = None;
            return Ok(Presented { ready, ack, item });
        }
        let mut places = vec![handshake.item];
        places.extend(handshake.data.iter().map(|point| point.at));
        let words = self.read_places(&places).await?;
        let after = self.read_places(&signs).await?;
        let number = item_number(&words, handshake);
        let stood = is_set(&after, &handshake.ready)
            && is_set(&after, &handshake.ack) == ack
            && item_number(&after, handshake) == number;
        let item = number.filter(|_| stood).map(|number| PresentedItem {
            number,
            words: handshake
                .data
                .iter()
                .map(|point| words.raw(&point.at).unwrap_or_default())
                .collect(),
        });
        Ok(Presented { ready, ack, item })
    }

    /// Sets the acknowledgement if the device still presents `item` and does not have it yet, or clears it. Whether
    /// it was written.
    ///
    /// # Errors
    /// [`LinkError`]: then it may have been written; the next look shows.
    pub async fn acknowledge(
        &mut self,
        handshake: &HandshakeSpec,
        item: Option<u32>,
    ) -> Result<bool, LinkError> {
        let signs = [handshake.ready, handshake.ack, handshake.item];
        let words = self.read_places(&signs).await?;
        let stands = is_set(&words, &handshake.ack);
        let wanted = match item {
            Some(item) => {
                !stands
                    && is_set(&words, &handshake.ready)
                    && item_number(&words, handshake) == Some(item)
            }
            None => stands,
        };
        if !wanted {
            return Ok(false);
        }
        let bit = u16::from(item.is_some());
        let ask = Ask::Write {
            start: handshake.ack.address,
            words: vec![bit],
        };
        let called = self.call(&ask).await;
        match called.end {
            End::Echo => Ok(true),
            _ => Err(self.error(&called, &handshake.ack.address.to_string())),
        }
    }

    /// The number of a ring's newest entry.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read_ring_head(&mut self, ring: &RingSpec) -> Result<u32, LinkError> {
        let words = self.read_places(&[ring.head]).await?;
        let value = words.value(&ring.head).map_err(LinkError::NotPossible)?;
        let head = value.as_int().and_then(|head| u32::try_from(head).ok());
        head.ok_or_else(|| LinkError::NotPossible(format!("{value} is no number of an entry")))
    }

    /// Reads entries from number `first` on, as many as a few requests hold, and the head after them.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read_ring(
        &mut self,
        ring: &RingSpec,
        first: u32,
        count: u16,
    ) -> Result<RingReading, LinkError> {
        let mut entries: Vec<Vec<u16>> = Vec::new();
        for span in ring_spans(ring, first, count, self.limits.registers_max) {
            let read = self.read_spans(&[span]).await;
            let read = read.map_err(|called| self.error(&called, &span.to_string()))?;
            let words = read.0.into_iter().flat_map(|(_, words)| words);
            let words: Vec<u16> = words.collect();
            entries.extend(
                words
                    .chunks(usize::from(ring.words).max(1))
                    .map(<[u16]>::to_vec),
            );
        }
        let head = self.read_ring_head(ring).await?;
        Ok(RingReading {
            at: (self.clock)(),
            first,
            entries,
            head,
        })
    }

    /// The fewest requests over `places`.
    async fn read_places(&mut self, places: &[Scalar]) -> Result<Words, LinkError> {
        let spans = merge(places, self.limits.without_gaps());
        let read: Result<Words, Called> = self.read_spans(&spans).await;
        read.map_err(|called| {
            let what: Vec<String> = spans.iter().map(Span::to_string).collect();
            self.error(&called, &what.join(", "))
        })
    }
}

fn is_set(words: &Words, at: &Scalar) -> bool {
    words
        .value(at)
        .ok()
        .and_then(|value| value.as_int())
        .is_some_and(|bit| bit != 0)
}

fn item_number(words: &Words, handshake: &HandshakeSpec) -> Option<u32> {
    let value = words.value(&handshake.item).ok()?;
    u32::try_from(value.as_int()?).ok()
}

/// The requests for entries from `first` on: none holds half an entry, and none goes past the ring's end, where
/// the numbers go on at slot 0.
fn ring_spans(ring: &RingSpec, first: u32, count: u16, registers_max: u16) -> Vec<Span> {
    let in_one = (registers_max / ring.words.max(1)).max(1);
    let mut spans = Vec::new();
    let mut slot = (first % u32::from(ring.entries.max(1))) as u16;
    let mut left = count.min(ring.entries);
    // Past the highest number the slots do not go on in order: those come with the next request.
    let to_last = ring.numbering.last.saturating_sub(first).saturating_add(1);
    left = left.min(u16::try_from(to_last).unwrap_or(u16::MAX));
    while left > 0 && spans.len() < RING_REQUESTS_MAX {
        let entries = left.min(in_one).min(ring.entries - slot);
        spans.push(Span {
            area: ring.base.area(),
            start: ring.base.number() + u32::from(slot) * u32::from(ring.words),
            count: entries * ring.words,
        });
        left -= entries;
        slot = (slot + entries) % ring.entries;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::spec::{Address, DataType, ModbusArea, Numbering, WordOrder};

    fn ring(entries: u16, words: u16) -> RingSpec {
        let holding = |offset| Address::Modbus {
            area: ModbusArea::Holding,
            offset,
        };
        RingSpec {
            head: Scalar {
                address: holding(400),
                data_type: DataType::U32,
                word_order: WordOrder::HighFirst,
            },
            base: holding(402),
            entries,
            words,
            numbering: Numbering {
                first: 1,
                last: u32::MAX,
            },
            from_oldest: false,
            data: Vec::new(),
            poll_ms: 100,
        }
    }

    // covers: EVT-06
    #[test]
    fn no_request_holds_half_an_entry_or_goes_past_the_end_of_the_ring() {
        let spans = |first, count, max| {
            let spans = ring_spans(&ring(16, 8), first, count, max);
            spans.iter().map(|s| (s.start, s.count)).collect::<Vec<_>>()
        };
        assert_eq!(spans(3, 4, 125), [(402 + 24, 32)]);
        assert_eq!(spans(14, 4, 125), [(402 + 112, 16), (402, 16)]);
        // 20 registers hold two entries, and no more than two requests are made.
        assert_eq!(spans(0, 16, 20), [(402, 16), (418, 16)]);
        assert_eq!(spans(u32::MAX, 5, 125), [(402 + 120, 8)]);
        assert_eq!(spans(5, 1, 8), [(442, 8)]);
    }
}
