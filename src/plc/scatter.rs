//! Owns: which scattered words one request can read, and by which command; pure.
//! May call: plan of this room (spans).
//! Never: put more into one request than its limits allow; part a span.

use super::plan::Span;

/// By which command scattered words are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// One place each, of one or two words.
    Random,
    /// First place and length each.
    Blocks,
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Random => "random reads (0403)",
            Self::Blocks => "block reads (0406)",
        })
    }
}

/// Several spans of words, read by one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scattered {
    /// By which command.
    pub how: How,
    /// What it reads, in the order of its values.
    pub spans: Vec<Span>,
}

impl Scattered {
    /// How many words its reply carries.
    #[must_use]
    pub fn words(&self) -> usize {
        self.spans.iter().map(|span| usize::from(span.count)).sum()
    }
}

/// How much one request for scattered words may hold; 0: the link has no such command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scatter {
    /// Most places of a random read, of one or two words each.
    pub random_places_max: usize,
    /// Most blocks of a block read.
    pub blocks_max: usize,
    /// Most words of either.
    pub words_max: usize,
}

impl Scatter {
    /// One request for all of `spans`; `None`: there is none, or they are neighbours that need none.
    #[must_use]
    pub fn over(&self, spans: &[Span]) -> Option<Scattered> {
        let words: usize = spans.iter().map(|span| usize::from(span.count)).sum();
        let bits = spans.iter().any(|span| span.area.is_bits());
        if spans.len() < 2 || bits || words > self.words_max {
            return None;
        }
        let places: usize = spans
            .iter()
            .map(|span| usize::from(span.count.div_ceil(2)))
            .sum();
        // Known to more ports than blocks are.
        let how = if places <= self.random_places_max {
            How::Random
        } else if spans.len() <= self.blocks_max {
            How::Blocks
        } else {
            return None;
        };
        let spans = spans.to_vec();
        Some(Scattered { how, spans })
    }

    /// The same without a command that the device does not know.
    #[must_use]
    pub fn without(self, how: How) -> Self {
        match how {
            How::Random => Self {
                random_places_max: 0,
                ..self
            },
            How::Blocks => Self {
                blocks_max: 0,
                ..self
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::melsec::{Device, Family, Kind};
    use crate::core::spec::Area;
    use proptest::prelude::*;

    const LIMITS: Scatter = Scatter {
        random_places_max: 192,
        blocks_max: 120,
        words_max: 960,
    };

    fn span(kind: Kind, start: u32, count: u16) -> Span {
        Span {
            area: Area::Melsec(Device::of(kind, Family::Q)),
            start,
            count,
        }
    }

    fn how(spans: &[Span], limits: Scatter) -> Option<How> {
        limits.over(spans).map(|read| read.how)
    }

    #[test]
    fn what_is_read_at_random_what_in_blocks_and_what_not_at_all() {
        let spread = |count: u16, length: u16| -> Vec<Span> {
            let at = |n: u16| span(Kind::D, u32::from(n) * 100, length);
            (0..count).map(at).collect()
        };
        assert_eq!(how(&spread(1, 1), LIMITS), None);
        assert_eq!(how(&spread(2, 1), LIMITS), Some(How::Random));
        assert_eq!(how(&spread(192, 2), LIMITS), Some(How::Random));
        assert_eq!(how(&spread(193, 1), LIMITS), None);
        assert_eq!(how(&spread(97, 3), LIMITS), Some(How::Blocks));
        assert_eq!(how(&spread(120, 8), LIMITS), Some(How::Blocks));
        assert_eq!(how(&spread(121, 4), LIMITS), None);
        assert_eq!(how(&spread(2, 481), LIMITS), None);
        let mixed = [span(Kind::D, 0, 1), span(Kind::M, 0, 1)];
        assert_eq!(how(&mixed, LIMITS), None);
        let two = spread(2, 1);
        let no_random = LIMITS.without(How::Random);
        assert_eq!(how(&two, no_random), Some(How::Blocks));
        assert_eq!(how(&two, no_random.without(How::Blocks)), None);
        assert_eq!(how(&two, Scatter::default()), None);
    }

    proptest! {
        #[test]
        fn a_request_reads_each_span_whole_and_stays_within_its_limits(
            parts in proptest::collection::vec((0u32..60_000, 1u16..40), 0..200),
        ) {
            let spans: Vec<Span> = parts.iter().map(|(at, n)| span(Kind::W, *at, *n)).collect();
            if let Some(read) = LIMITS.over(&spans) {
                prop_assert_eq!(&read.spans, &spans);
                prop_assert!(read.words() <= LIMITS.words_max);
                let places: usize = spans.iter().map(|s| usize::from(s.count.div_ceil(2))).sum();
                let within = match read.how {
                    How::Random => places <= LIMITS.random_places_max,
                    How::Blocks => spans.len() <= LIMITS.blocks_max,
                };
                prop_assert!(within);
            }
        }
    }
}
