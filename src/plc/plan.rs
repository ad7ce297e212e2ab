//! Owns: which requests read which values: merging, groups, guards, and what a device turned out to refuse.
//! May call: core spec.
//! Never: tear a value over two requests; forget a refusal within the run.

use super::scatter::{Scatter, Scattered};
use crate::core::contract::DeviceCode;
use crate::core::spec::{Area, EventKind, LinkSpec, MachineSpec, Scalar, Value};
use std::collections::BTreeMap;

/// Widest gap of unasked registers that is read along to save a request.
pub const GAP_REGISTERS_MAX: u16 = 8;
/// Pause before a place that the device refuses is tried again, in milliseconds.
pub const REFUSED_RETRY_MS: u64 = 60_000;
/// Most retries within one cycle while the device says "busy" (F039).
pub const BUSY_RETRIES_MAX: u32 = 2;

const NS_PER_MS: u64 = 1_000_000;
/// Never asked for yet: it has missed nothing.
const DUE_AT_ONCE: u64 = 0;
/// All blocks that no refusal has parted.
const FIRST_PARTY: u32 = 0;

/// Neighbouring places of one table or device: one read request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The table or device.
    pub area: Area,
    /// First place.
    pub start: u32,
    /// How many.
    pub count: u16,
}

impl Span {
    /// The places that one value takes.
    #[must_use]
    pub fn of(at: &Scalar) -> Self {
        let area = at.address.area();
        Self {
            area,
            start: at.address.number(),
            count: if area.is_bits() {
                1
            } else {
                at.data_type.registers()
            },
        }
    }

    fn end(self) -> u32 {
        self.start.saturating_add(self.count.into())
    }

    /// The least span over both; `None` over two tables.
    fn over(self, other: Self) -> Option<Self> {
        let start = self.start.min(other.start);
        let count = self.end().max(other.end()) - start;
        (self.area == other.area).then_some(Self {
            area: self.area,
            start,
            count: u16::try_from(count).ok()?,
        })
    }

    /// The words of `at` among the words of this span.
    #[must_use]
    pub fn part<'a>(&self, at: &Scalar, words: &'a [u16]) -> Option<&'a [u16]> {
        let part = Self::of(at);
        let from = usize::try_from(part.start.checked_sub(self.start)?).ok()?;
        (part.area == self.area)
            .then(|| words.get(from..from + usize::from(part.count)))
            .flatten()
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.area.range(self.start, self.count.into()))
    }
}

/// How much one read request may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most registers.
    pub registers_max: u16,
    /// Most single bits.
    pub bits_max: u16,
    /// Widest gap that is read along.
    pub gap_max: u16,
    /// What one request may hold of places that are further apart.
    pub scatter: Scatter,
}

impl Limits {
    /// Those of a machine's link.
    #[must_use]
    pub fn of(link: &LinkSpec) -> Self {
        let (registers_max, bits_max) = match link {
            LinkSpec::ModbusTcp(link) => {
                let most = super::modbus::READ_REGISTERS_MAX;
                let registers = link.read_registers_max.clamp(1, most);
                (registers, super::modbus::READ_BITS_MAX)
            }
            LinkSpec::ModbusRtu(link) => {
                let most = super::modbus::READ_REGISTERS_MAX;
                let registers = link.read_registers_max.clamp(1, most);
                (registers, super::modbus::READ_BITS_MAX)
            }
            LinkSpec::Mc(link) => super::melsec::read_limits(link),
            LinkSpec::C24(link) => super::melsec::serial_read_limits(link),
        };
        Self {
            registers_max,
            bits_max,
            gap_max: GAP_REGISTERS_MAX,
            scatter: match link {
                LinkSpec::Mc(link) => super::melsec::scatter(link),
                LinkSpec::C24(link) => super::melsec::serial_scatter(link),
                LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => Scatter::default(),
            },
        }
    }

    /// The same, reading along nothing.
    #[must_use]
    pub fn without_gaps(self) -> Self {
        Self { gap_max: 0, ..self }
    }

    /// The same, reading along whatever lies between.
    #[must_use]
    pub fn over_gaps(self) -> Self {
        Self {
            gap_max: u16::MAX,
            ..self
        }
    }

    /// # Errors
    /// In plain words: one request cannot read `span`.
    pub(super) fn check(&self, span: Span) -> Result<(), String> {
        let inside = span.count > 0 && span.end() - 1 <= span.area.last();
        (inside && self.holds(span)).then_some(()).ok_or_else(|| {
            format!(
                "{span} does not fit one request of {} registers",
                self.registers_max
            )
        })
    }

    fn holds(&self, span: Span) -> bool {
        let max = if span.area.is_bits() {
            self.bits_max
        } else {
            self.registers_max
        };
        span.count <= max
    }
}

/// The fewest spans over `points`, whole values only; a value wider than the limit is alone in its span.
#[must_use]
pub fn merge(points: &[Scalar], limits: Limits) -> Vec<Span> {
    let mut parts: Vec<Span> = points.iter().map(Span::of).collect();
    parts.sort_by_key(|part| (part.area, part.start, part.count));
    let mut spans: Vec<Span> = Vec::new();
    for part in parts {
        let joined = spans.last().and_then(|last| {
            let gap = part.start.saturating_sub(last.end());
            last.over(part)
                .filter(|whole| gap <= u32::from(limits.gap_max) && limits.holds(*whole))
        });
        match (joined, spans.last_mut()) {
            (Some(whole), Some(last)) => *last = whole,
            _ => spans.push(part),
        }
    }
    spans
}

/// What a polled value is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PointId {
    /// `MachineSpec::tags[n]`.
    Tag(usize),
    /// `MachineSpec::events[n]`.
    Event(usize),
}

/// A value that is polled.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What it is for.
    pub id: PointId,
    /// Where it stands.
    pub at: Scalar,
    /// Raw values that are none (F045).
    pub no_value: Vec<Value>,
}

/// One step of polling: a few requests that belong together, usually one.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRequest {
    /// Several only where they are read by one request.
    blocks: Vec<usize>,
    /// The values it yields.
    pub points: Vec<Point>,
    /// What goes over the wire, in this order.
    pub spans: Vec<Span>,
    /// All of them by one request.
    pub scattered: Option<Scattered>,
    /// Read before and after; equal, or the values are not of one moment (F051).
    pub guard: Option<Scalar>,
    /// Why the values cannot be known to be of one moment.
    pub torn: Option<String>,
}

impl ReadRequest {
    /// Takes `other` in, if one request can read both; `false`: it cannot.
    fn join(&mut self, other: &Self, scatter: Scatter) -> bool {
        let spans = [self.spans.as_slice(), &other.spans].concat();
        let Some(scattered) = scatter.over(&spans) else {
            return false;
        };
        self.blocks.extend(&other.blocks);
        self.points.extend_from_slice(&other.points);
        (self.spans, self.scattered) = (spans, Some(scattered));
        true
    }
}

/// How a step ended, as far as the plan must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// Values came.
    Read,
    /// Some place is not there, or the request is too long for the device.
    Refused(DeviceCode),
    /// The device is busy.
    Busy,
    /// Nothing was read, and another request may do it at once.
    Again,
    /// Anything else.
    Failed,
}

#[derive(Clone, Debug)]
struct Block {
    poll_ms: u64,
    due_ns: u64,
    /// Points that must not be parted stand in one unit.
    units: Vec<Unit>,
    busy_retries: u32,
    /// The code by which the device refuses this block, which cannot be split further.
    refused: Option<DeviceCode>,
    /// Read with others of this number by one request, if that can be.
    party: u32,
    /// Its pieces are refused by one request; one by one they may be read.
    piece_by_piece: bool,
}

impl Block {
    fn cycle_ns(&self) -> u64 {
        self.poll_ms.saturating_mul(NS_PER_MS).max(1)
    }

    /// Whole cycles that have gone by since it was due.
    fn missed(&self, now_ns: u64) -> u64 {
        if self.due_ns == DUE_AT_ONCE {
            return 0;
        }
        now_ns.saturating_sub(self.due_ns) / self.cycle_ns()
    }
}

#[derive(Clone, Debug)]
struct Unit {
    points: Vec<Point>,
    guard: Option<Scalar>,
    /// Read in pieces, inside the guard if there is one.
    in_pieces: bool,
}

impl Unit {
    fn places(&self) -> Vec<Scalar> {
        self.points.iter().map(|point| point.at).collect()
    }
}

/// What is read when, learning from refusals. It outlives connections.
#[derive(Clone, Debug)]
pub struct PollPlan {
    limits: Limits,
    /// By number, so that a step finds its block after others were split.
    blocks: BTreeMap<usize, Block>,
    next_block: usize,
    next_party: u32,
    /// What the link can read at once of scattered places.
    scatter: Scatter,
    /// Cycles in which a block was not read (F033).
    skipped: u64,
}

impl PollPlan {
    /// The plan for all tags and event sources of `spec`.
    #[must_use]
    pub fn new(spec: &MachineSpec) -> Self {
        let mut plan = Self {
            limits: Limits::of(&spec.link),
            blocks: BTreeMap::new(),
            next_block: 0,
            next_party: FIRST_PARTY + 1,
            scatter: Limits::of(&spec.link).scatter,
            skipped: 0,
        };
        let mut singles: BTreeMap<(u64, Area), Vec<Unit>> = BTreeMap::new();
        for (poll_ms, unit) in units(spec, plan.limits) {
            if unit.in_pieces {
                plan.add(poll_ms, DUE_AT_ONCE, vec![unit]);
            } else if let Some(first) = unit.points.first() {
                let area = Span::of(&first.at).area;
                singles.entry((poll_ms, area)).or_default().push(unit);
            }
        }
        for ((poll_ms, _), units) in singles {
            for units in pack(units, plan.limits) {
                plan.add(poll_ms, DUE_AT_ONCE, units);
            }
        }
        plan
    }

    fn add(&mut self, poll_ms: u64, due_ns: u64, units: Vec<Unit>) {
        let block = Block {
            poll_ms,
            due_ns,
            units,
            busy_retries: 0,
            refused: None,
            party: FIRST_PARTY,
            piece_by_piece: false,
        };
        self.blocks.insert(self.next_block, block);
        self.next_block += 1;
    }

    /// What is due at `now_ns`, the most overdue first.
    #[must_use]
    pub fn due(&self, now_ns: u64) -> Vec<ReadRequest> {
        let mut due: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.due_ns <= now_ns)
            .collect();
        due.sort_by_key(|(number, block)| (block.due_ns, **number));
        let mut steps: Vec<(Option<u32>, ReadRequest)> = Vec::new();
        for (number, block) in due {
            let step = self.step(*number, block);
            let party = self.is_joinable(block, &step).then_some(block.party);
            let joined = steps
                .iter_mut()
                .filter(|(other, _)| party.is_some() && *other == party)
                .any(|(_, other)| other.join(&step, self.scatter));
            if !joined {
                steps.push((party, step));
            }
        }
        steps.into_iter().map(|(_, step)| step).collect()
    }

    /// What the link can read at once of scattered places, as it has turned out over this connection.
    pub fn scattering(&mut self, scatter: Scatter) {
        self.scatter = scatter;
    }

    /// Whether one request may read it together with others: what a device refuses is not to spoil theirs.
    fn is_joinable(&self, block: &Block, step: &ReadRequest) -> bool {
        let apart = block.units.iter().any(|unit| unit.in_pieces);
        !apart && block.refused.is_none() && step.spans.len() == 1
    }

    /// When the next step is due.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.blocks.values().map(|block| block.due_ns).min()
    }

    /// Cycles that were missed and are not made up for, those of a block that is late at `now_ns` included:
    /// a poll that comes late stands for one cycle, whatever was due before it (F033).
    #[must_use]
    pub fn skipped(&self, now_ns: u64) -> u64 {
        let late: u64 = self.blocks.values().map(|block| block.missed(now_ns)).sum();
        self.skipped.saturating_add(late)
    }

    /// What the device refuses, in plain words, to be shown.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = |(number, block): (&usize, &Block)| {
            let code = block.refused.as_ref()?;
            let spans = self.step(*number, block).spans;
            let places: Vec<String> = spans.iter().map(Span::to_string).collect();
            Some(format!(
                "the device refuses {} with {}; check the address in the machine's file",
                places.join(", "),
                code
            ))
        };
        self.blocks.iter().filter_map(note).collect()
    }

    fn step(&self, number: usize, block: &Block) -> ReadRequest {
        let points: Vec<Point> = block
            .units
            .iter()
            .flat_map(|unit| &unit.points)
            .cloned()
            .collect();
        let places: Vec<Scalar> = points.iter().map(|point| point.at).collect();
        let in_pieces = block.units.iter().any(|unit| unit.in_pieces);
        let guard = block.units.iter().find_map(|unit| unit.guard);
        let limits = if in_pieces {
            self.limits.without_gaps()
        } else {
            self.limits.over_gaps()
        };
        let spans = merge(&places, limits);
        let scattered = match in_pieces && !block.piece_by_piece {
            true => self.scatter.over(&spans),
            false => None,
        };
        ReadRequest {
            blocks: vec![number],
            points,
            guard: guard.filter(|_| in_pieces),
            torn: (in_pieces && guard.is_none() && scattered.is_none()).then(|| {
                "the group takes several requests and has no guard, so it may be of several moments"
                    .into()
            }),
            spans,
            scattered,
        }
    }

    /// Takes note of how `request` ended at `now_ns`; `false`: its values are asked for again at once, in
    /// smaller parts.
    pub fn finish(&mut self, request: &ReadRequest, end: StepEnd, now_ns: u64) -> bool {
        match (&end, &request.scattered) {
            (StepEnd::Again, _) => return false,
            (StepEnd::Refused(_), Some(_)) => {
                self.part(&request.blocks);
                return false;
            }
            _ => {}
        }
        let mut settled = true;
        for number in &request.blocks {
            settled &= self.finish_block(*number, end.clone(), now_ns);
        }
        settled
    }

    /// After a refusal of one request for all of `numbers`, which stay due: two parties from now on, and what is
    /// alone already is read piece by piece.
    fn part(&mut self, numbers: &[usize]) {
        let party = self.next_party;
        self.next_party = self.next_party.saturating_add(1);
        for number in &numbers[numbers.len() / 2..] {
            if let Some(block) = self.blocks.get_mut(number) {
                block.party = party;
                block.piece_by_piece |= numbers.len() == 1;
            }
        }
    }

    fn finish_block(&mut self, number: usize, end: StepEnd, now_ns: u64) -> bool {
        let Some(block) = self.blocks.get_mut(&number) else {
            return true;
        };
        let cycle_ns = block.cycle_ns();
        if end == StepEnd::Busy && block.busy_retries < BUSY_RETRIES_MAX {
            block.busy_retries += 1;
            block.due_ns = now_ns.saturating_add(cycle_ns / 4);
            return true;
        }
        block.busy_retries = 0;
        let missed = block.missed(now_ns);
        self.skipped = self.skipped.saturating_add(missed);
        block.due_ns = if block.due_ns == DUE_AT_ONCE {
            now_ns.saturating_add(cycle_ns)
        } else {
            let cycles = missed.saturating_add(1);
            block.due_ns.saturating_add(cycle_ns.saturating_mul(cycles))
        };
        match end {
            StepEnd::Read => block.refused = None,
            StepEnd::Refused(code) => return self.refine(number, code, now_ns),
            StepEnd::Busy | StepEnd::Again | StepEnd::Failed => {}
        }
        true
    }

    /// Splits a refused block; what cannot be split is remembered, and tried again now and then.
    fn refine(&mut self, number: usize, code: DeviceCode, now_ns: u64) -> bool {
        let limits = self.limits;
        let Some(block) = self.blocks.get_mut(&number) else {
            return true;
        };
        if block.units.len() > 1 {
            let upper = block.units.split_off(block.units.len() / 2);
            block.due_ns = now_ns;
            let poll_ms = block.poll_ms;
            self.add(poll_ms, now_ns, upper);
            return false;
        }
        let pieces = block.units.first_mut().filter(|unit| {
            !unit.in_pieces && merge(&unit.places(), limits.without_gaps()).len() > 1
        });
        if let Some(unit) = pieces {
            unit.in_pieces = true;
            block.due_ns = now_ns;
            false
        } else {
            block.refused = Some(code);
            let pause_ms = REFUSED_RETRY_MS.max(block.poll_ms);
            block.due_ns = now_ns.saturating_add(pause_ms.saturating_mul(NS_PER_MS));
            true
        }
    }
}

/// Every polled value, what must stay together in one unit.
fn units(spec: &MachineSpec, limits: Limits) -> Vec<(u64, Unit)> {
    let mut alone = Vec::new();
    let mut groups: BTreeMap<&str, (u64, Vec<Point>)> = BTreeMap::new();
    for (n, tag) in spec.tags.iter().enumerate() {
        let point = Point {
            id: PointId::Tag(n),
            at: tag.at,
            no_value: tag.no_value.clone(),
        };
        match &tag.group {
            Some(group) => {
                let (poll_ms, points) = groups.entry(group).or_insert((tag.poll_ms, Vec::new()));
                *poll_ms = tag.poll_ms.min(*poll_ms);
                points.push(point);
            }
            None => alone.push((tag.poll_ms, point)),
        }
    }
    for (n, event) in spec.events.iter().enumerate() {
        let (at, no_value) = match &event.kind {
            EventKind::OnChange { at, no_value, .. } => (*at, no_value.clone()),
            EventKind::Counter(counter) => (counter.at, Vec::new()),
            // What is read of these depends on what was read before: `source` reads them.
            EventKind::Handshake(_) | EventKind::Ring(_) => continue,
        };
        let point = Point {
            id: PointId::Event(n),
            at,
            no_value,
        };
        alone.push((event.kind.poll_ms(), point));
    }
    let unit = |points: Vec<Point>, guard| {
        let mut unit = Unit {
            points,
            guard,
            in_pieces: false,
        };
        unit.in_pieces = merge(&unit.places(), limits.over_gaps()).len() > 1;
        unit
    };
    let guard = |name: &str| spec.groups.iter().find(|group| group.name == name)?.guard;
    let alone = alone
        .into_iter()
        .map(|(ms, point)| (ms, unit(vec![point], None)));
    let grouped = groups
        .into_iter()
        .map(|(name, (ms, points))| (ms, unit(points, guard(name))));
    alone.chain(grouped).collect()
}

/// Units of one table and cycle, packed into as few requests as limits allow.
fn pack(mut units: Vec<Unit>, limits: Limits) -> Vec<Vec<Unit>> {
    let extent = |unit: &Unit| {
        let spans = merge(&unit.places(), limits.over_gaps());
        spans.into_iter().next()
    };
    units.sort_by_key(|unit| extent(unit).map(|span| (span.start, span.count)));
    let mut packs: Vec<(Option<Span>, Vec<Unit>)> = Vec::new();
    for unit in units {
        let own = extent(&unit);
        if let Some((span, pack)) = packs.last_mut()
            && let (Some(a), Some(b)) = (*span, own)
            && let Some(whole) = a.over(b)
            && b.start.saturating_sub(a.end()) <= u32::from(limits.gap_max)
            && limits.holds(whole)
        {
            *span = Some(whole);
            pack.push(unit);
        } else {
            packs.push((own, vec![unit]));
        }
    }
    packs.into_iter().map(|(_, pack)| pack).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::spec::{Address, DataType, ModbusArea, WordOrder};
    use proptest::prelude::*;

    const LIMITS: Limits = Limits {
        registers_max: 125,
        bits_max: 2000,
        gap_max: GAP_REGISTERS_MAX,
        scatter: Scatter {
            random_places_max: 0,
            blocks_max: 0,
            words_max: 0,
        },
    };

    fn at(area: ModbusArea, offset: u16, data_type: DataType) -> Scalar {
        Scalar {
            address: Address::Modbus { area, offset },
            data_type,
            word_order: WordOrder::HighFirst,
        }
    }
    fn span(area: ModbusArea, start: u32, count: u16) -> Span {
        let area = Area::Modbus(area);
        Span { area, start, count }
    }

    #[test]
    fn neighbours_are_one_request_and_tables_and_wide_gaps_are_not_crossed() {
        use ModbusArea::{Coil, Holding, Input};
        let points = [
            at(Holding, 10, DataType::U32),
            at(Holding, 0, DataType::U16),
            at(Holding, 21, DataType::U16),
            at(Input, 0, DataType::F64),
            at(Coil, 3, DataType::Bool),
        ];
        let spans = merge(&points, LIMITS);
        let expected = [
            span(Coil, 3, 1),
            span(Input, 0, 4),
            span(Holding, 0, 1),
            span(Holding, 10, 2),
            span(Holding, 21, 1),
        ];
        assert_eq!(spans, expected);
        assert_eq!(merge(&points, LIMITS.over_gaps()).len(), 3);
        assert_eq!(
            merge(&[at(Holding, 65535, DataType::U16)], LIMITS),
            [span(Holding, 65535, 1)]
        );
    }

    // covers: F033
    #[test]
    fn a_missed_cycle_is_counted_and_not_made_up_for() {
        let mut plan = PollPlan {
            limits: LIMITS,
            blocks: BTreeMap::new(),
            next_block: 0,
            next_party: FIRST_PARTY + 1,
            scatter: Scatter::default(),
            skipped: 0,
        };
        let point = Point {
            id: PointId::Tag(0),
            at: at(ModbusArea::Holding, 0, DataType::U16),
            no_value: Vec::new(),
        };
        let unit = Unit {
            points: vec![point],
            guard: None,
            in_pieces: false,
        };
        plan.add(100, DUE_AT_ONCE, vec![unit]);
        let ms = |ms: u64| ms * NS_PER_MS;
        let read_at = |plan: &mut PollPlan, now_ms: u64| {
            let step = plan.due(ms(now_ms)).remove(0);
            assert!(plan.finish(&step, StepEnd::Read, ms(now_ms)));
            (plan.skipped(ms(now_ms)), plan.next_due_ns())
        };
        // The first is late for nothing, whatever the clock says.
        assert_eq!(read_at(&mut plan, 5_000), (0, Some(ms(5_100))));
        assert_eq!(read_at(&mut plan, 5_199), (0, Some(ms(5_200))));
        // 5200 is read at 5430: the cycles of 5300 and 5400 are gone, the next is due on the beat.
        assert_eq!(plan.skipped(ms(5_430)), 2);
        assert_eq!(read_at(&mut plan, 5_430), (2, Some(ms(5_500))));
        assert!(plan.due(ms(5_499)).is_empty());
        assert_eq!(plan.skipped(ms(5_499)), 2);
        // A lost link misses cycles too, while it lasts.
        assert_eq!(plan.skipped(ms(6_500)), 12);
    }

    proptest! {
        // covers: EVT-06, F051
        #[test]
        fn every_value_is_whole_in_one_span_within_limits(
            places in proptest::collection::vec((any::<u16>(), 0usize..6), 1..40),
            registers_max in 4u16..=125, gap_max in 0u16..=65535,
        ) {
            let types = [DataType::Bool, DataType::U16, DataType::U32, DataType::F64, DataType::Text(5), DataType::I64];
            let points: Vec<Scalar> = places
                .iter()
                .map(|(offset, kind)| {
                    let data_type = types[*kind];
                    at(ModbusArea::Holding, offset % (65535 - 4), data_type)
                })
                .collect();
            let limits = Limits { registers_max, bits_max: 2000, gap_max, ..LIMITS };
            let spans = merge(&points, limits);
            for span in &spans {
                prop_assert!(limits.check(*span).is_ok());
            }
            for point in &points {
                let whole = |span: &&Span| span.part(point, &vec![0; usize::from(span.count)]).is_some();
                prop_assert!(spans.iter().any(|span| whole(&span)));
            }
        }
    }
}
