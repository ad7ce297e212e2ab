//! Owns: the device as somebody standing beside the machine sees it: its ledger, its switches, its cable.
//! May call: state, fault, source, spec.
//! Never: let the gateway's side see or change the ledger.

use super::fault::{Act, Fault};
use super::source::Item;
use super::spec::SimulatorSpec;
use super::state::State;
use crate::core::spec::ModbusArea;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Requests that are kept; older ones are forgotten.
pub const SEEN_REQUESTS_MAX: usize = 10_000;
/// Effects that are kept; later ones are counted only.
pub const LEDGER_EFFECTS_MAX: usize = 1_000_000;

/// One physical effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Since the simulator's start.
    pub at: Duration,
    /// The connection whose request caused it, counted from 1; for the mailbox, the one that wrote last.
    pub connection: u64,
    /// What it was.
    pub cause: Cause,
}

/// What had an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Registers or coils were written, outside the mailbox.
    Write {
        /// The function code.
        function: u8,
        /// Coil or holding.
        area: ModbusArea,
        /// The first address.
        start: u16,
        /// What was written; a coil is 0 or 1.
        words: Vec<u16>,
    },
    /// The mailbox carried out a command.
    Mailbox {
        /// The id in the block.
        request_id: u32,
        /// What was done.
        opcode: u16,
        /// With what.
        parameters: Vec<u16>,
    },
    /// A device that only MC protocol shows was written.
    Device {
        /// Its code in binary frames.
        code: u8,
        /// The first number.
        start: u32,
        /// What was written; a bit is 0 or 1.
        words: Vec<u16>,
    },
    /// One frame of MC protocol wrote several places.
    Scattered {
        /// What each of them was, in the order of the frame.
        parts: Vec<Cause>,
    },
    /// The CPU was told to run (1001), stop (1002) or pause (1003), and did.
    Remote {
        /// The command.
        order: u16,
    },
}

impl Cause {
    /// Whether it wrote to this place of this table.
    fn covers(&self, table: ModbusArea, offset: u16) -> bool {
        match self {
            Self::Write {
                area, start, words, ..
            } => *area == table && offset >= *start && usize::from(offset - start) < words.len(),
            Self::Scattered { parts } => parts.iter().any(|part| part.covers(table, offset)),
            Self::Mailbox { .. } | Self::Device { .. } | Self::Remote { .. } => false,
        }
    }
}

impl std::fmt::Display for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.3}s connection {}: ",
            self.at.as_secs_f64(),
            self.connection
        )?;
        self.cause.fmt(f)
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Write {
                function,
                area,
                start,
                words,
            } => {
                write!(
                    f,
                    "write {}:{start} = {words:?} (function {function:02X})",
                    area.name()
                )
            }
            Self::Mailbox {
                request_id,
                opcode,
                parameters,
            } => {
                write!(
                    f,
                    "mailbox request {request_id}: opcode {opcode} {parameters:?}"
                )
            }
            Self::Device { code, start, words } => {
                write!(f, "write device {code:02X} {start} = {words:?}")
            }
            Self::Scattered { parts } => {
                let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
                write!(f, "one frame: {}", parts.join("; "))
            }
            Self::Remote { order } => write!(f, "remote operation {order:04X}"),
        }
    }
}

/// One request frame that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Since the simulator's start.
    pub at: Duration,
    /// Counted from 1.
    pub connection: u64,
    /// As in the MBAP header; over MC protocol the serial number; over RTU 0.
    pub transaction: u16,
    /// As in the MBAP header; over MC protocol the station.
    pub unit: u8,
    /// Function code and data; of a request over MC protocol the function that does the same, first place and
    /// number of places.
    pub pdu: Vec<u8>,
    /// The fault that struck it.
    pub fault: Option<Act>,
}

impl Seen {
    /// The function code.
    #[must_use]
    pub fn function(&self) -> u8 {
        self.pdu[0]
    }
    /// Whether it asked for a change.
    #[must_use]
    pub fn is_write(&self) -> bool {
        matches!(self.function(), 5 | 6 | 15 | 16)
    }
    /// The first address, if the request is long enough to have one.
    #[must_use]
    pub fn start(&self) -> Option<u16> {
        Some(u16::from_be_bytes([*self.pdu.get(1)?, *self.pdu.get(2)?]))
    }
}

/// How this side ends connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Fin,
    Rst,
    /// The network went: for the device the connection still stands, and so does its slot.
    Lost,
}

/// How the device hangs on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// Connections of an older generation are over.
    pub(super) generation: u64,
    /// How those end.
    pub(super) ending: Ending,
    pub(super) listening: bool,
    pub(super) black_hole: bool,
    pub(super) frozen: bool,
    /// Counted, so that a connection notices one that is over already.
    pub(super) freezes: u64,
}

/// A handle on the device itself, as somebody standing beside the machine sees it.
#[derive(Clone)]
pub struct Device {
    state: Arc<Mutex<State>>,
    link: watch::Sender<Link>,
    changes: watch::Sender<u64>,
}

impl Device {
    pub(super) fn new(spec: SimulatorSpec) -> Self {
        let link = Link {
            generation: 0,
            ending: Ending::Fin,
            listening: true,
            black_hole: false,
            frozen: false,
            freezes: 0,
        };
        Self {
            state: Arc::new(Mutex::new(State::new(spec))),
            link: watch::Sender::new(link),
            changes: watch::Sender::new(0),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Changes the state and wakes whoever waits for a change.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let out = change(&mut self.lock());
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
        out
    }
    pub(super) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// A holding register.
    #[must_use]
    pub fn holding(&self, offset: u16) -> u16 {
        self.lock().holdings[usize::from(offset)]
    }
    /// Two holding registers, high word first.
    #[must_use]
    pub fn holding_u32(&self, offset: u16) -> u32 {
        u32::from(self.holding(offset)) << 16 | u32::from(self.holding(offset.wrapping_add(1)))
    }
    /// Changes a holding register from inside the machine: no effect in the ledger.
    pub fn set_holding(&self, offset: u16, value: u16) {
        self.change(|state| state.holdings[usize::from(offset)] = value);
    }
    /// An input register.
    #[must_use]
    pub fn input(&self, offset: u16) -> u16 {
        self.lock().inputs[usize::from(offset)]
    }
    /// Changes an input register.
    pub fn set_input(&self, offset: u16, value: u16) {
        self.change(|state| state.inputs[usize::from(offset)] = value);
    }
    /// The low four bits of SD203: 0 run, 2 stop, 3 pause.
    #[must_use]
    pub fn operating_state(&self) -> u16 {
        self.lock().operating
    }
    /// A coil.
    #[must_use]
    pub fn coil(&self, offset: u16) -> bool {
        self.lock().coils[usize::from(offset)]
    }
    /// Changes a coil from inside the machine.
    pub fn set_coil(&self, offset: u16, value: bool) {
        self.change(|state| state.coils[usize::from(offset)] = value);
    }
    /// A discrete input.
    #[must_use]
    pub fn discrete(&self, offset: u16) -> bool {
        self.lock().discretes[usize::from(offset)]
    }
    /// Changes a discrete input.
    pub fn set_discrete(&self, offset: u16, value: bool) {
        self.change(|state| state.discretes[usize::from(offset)] = value);
    }
    /// Puts `value` where the file says identity stands; false: it names no place.
    pub fn set_identity(&self, value: u16) -> bool {
        self.change(|state| state.set_point(state.spec.points.identity, value))
    }
    /// The same for the configuration version.
    pub fn set_version(&self, value: u16) -> bool {
        self.change(|state| state.set_point(state.spec.points.config_version, value))
    }
    /// The same for the mode.
    pub fn set_mode(&self, value: u16) -> bool {
        self.change(|state| state.set_point(state.spec.points.mode, value))
    }
    /// Closes or opens the `index`-th configured interlock.
    pub fn set_interlock(&self, index: usize, closed: bool) -> bool {
        self.change(|state| {
            let place = state.spec.points.interlocks.get(index).copied();
            state.set_point(place, u16::from(closed))
        })
    }

    /// Every physical effect, in order.
    #[must_use]
    pub fn ledger(&self) -> Vec<Effect> {
        self.lock().ledger.clone()
    }
    /// The effects from the `index`-th on.
    #[must_use]
    pub fn ledger_since(&self, index: usize) -> Vec<Effect> {
        self.lock().ledger.get(index..).unwrap_or_default().to_vec()
    }
    pub(super) fn ledger_len(&self) -> usize {
        self.lock().ledger.len()
    }
    /// How many effects there were.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.lock().effects
    }
    /// How many writes covered this holding register.
    #[must_use]
    pub fn effects_of_register(&self, offset: u16) -> usize {
        self.count_writes(ModbusArea::Holding, offset)
    }
    /// How many writes covered this coil.
    #[must_use]
    pub fn effects_of_coil(&self, offset: u16) -> usize {
        self.count_writes(ModbusArea::Coil, offset)
    }
    /// How often the mailbox carried out this request id.
    #[must_use]
    pub fn effects_of_request(&self, id: u32) -> usize {
        let fits = |effect: &&Effect| matches!(effect.cause, Cause::Mailbox { request_id, .. } if request_id == id);
        self.lock().ledger.iter().filter(fits).count()
    }
    fn count_writes(&self, table: ModbusArea, offset: u16) -> usize {
        let covers = |effect: &&Effect| effect.cause.covers(table, offset);
        self.lock().ledger.iter().filter(covers).count()
    }
    /// The `index`-th production counter makes pieces at once.
    pub fn make_pieces(&self, index: usize, pieces: u64) {
        self.change(|state| {
            let (program, count) = &mut state.sources.pieces[index];
            count.make(program, pieces);
            state.scan(Instant::now());
        });
    }
    /// From now on nothing is made by itself; what waits is still presented.
    pub fn stop_making(&self) {
        self.change(|state| state.sources.stopped = true);
    }
    /// Pieces that were made, whatever the registers show.
    #[must_use]
    pub fn pieces_made(&self, index: usize) -> u64 {
        self.lock().sources.pieces[index].1.made
    }
    /// Sets what a production counter shows, as a reset does.
    pub fn reset_pieces(&self, index: usize, count: u64) {
        self.change(|state| {
            state.sources.pieces[index].1.count = count;
            state.scan(Instant::now());
        });
    }
    /// So many items more come to wait at the `index`-th handshake.
    pub fn present(&self, index: usize, items: u64) {
        self.change(|state| {
            state.sources.handshakes[index].1.waiting += items;
            state.scan(Instant::now());
        });
    }
    /// The next item gets this number.
    pub fn number_next_item(&self, index: usize, number: u32) {
        self.change(|state| state.sources.handshakes[index].1.next = number);
    }
    /// What was presented, in order.
    #[must_use]
    pub fn items(&self, index: usize) -> Vec<Item> {
        self.lock().sources.handshakes[index].1.made.clone()
    }
    /// Writes so many entries into the `index`-th ring.
    pub fn log_entries(&self, index: usize, entries: u64) {
        self.change(|state| {
            state.sources.rings[index].1.waiting += entries;
            state.scan(Instant::now());
        });
    }
    /// The next entry gets this number.
    pub fn number_next_entry(&self, index: usize, number: u32) {
        self.change(|state| state.sources.rings[index].1.next = number);
    }
    /// What was logged, in order.
    #[must_use]
    pub fn entries(&self, index: usize) -> Vec<Item> {
        self.lock().sources.rings[index].1.made.clone()
    }
    /// Since the simulator's start: the clock of [`Seen::at`] and [`Effect::at`].
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.lock().elapsed()
    }

    /// The last [`SEEN_REQUESTS_MAX`] requests that arrived, reads included.
    #[must_use]
    pub fn requests(&self) -> Vec<Seen> {
        self.lock().seen.iter().cloned().collect()
    }
    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.lock().connections
    }
    /// Requests that began before the line was silent for as long as it must be, and were not taken.
    #[must_use]
    pub fn early_requests(&self) -> u64 {
        self.lock().early_requests
    }
    /// Connection slots that are taken now.
    #[must_use]
    pub fn slots_taken(&self) -> usize {
        let mut state = self.lock();
        state.free_slots(Instant::now());
        state.slots.len()
    }
    /// What every [`Effect::at`] and [`Seen::at`] counts from.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.lock().started
    }
    /// PLC starts, the first included.
    #[must_use]
    pub fn boots(&self) -> u32 {
        self.lock().boots
    }

    /// This fault alone.
    pub fn set_fault(&self, fault: Fault) {
        self.change(|state| state.faults = vec![fault]);
    }
    /// One more fault; of several that fit a request the first strikes.
    pub fn push_fault(&self, fault: Fault) {
        self.change(|state| state.faults.push(fault));
    }
    /// No faults.
    pub fn clear_faults(&self) {
        self.change(|state| state.faults.clear());
    }

    /// The link is lost: connections end, new ones are refused. When this returns, no request that
    /// arrives on an old connection is applied any more.
    pub fn cut(&self) {
        self.drop_connections(Ending::Lost, |link| link.listening = false);
    }
    /// The link is back, on the same port: listening as soon as the runtime gets to it, so the first
    /// connection after this may still be refused.
    pub fn restore(&self) {
        self.change(|_| self.link.send_modify(|link| link.listening = true));
    }
    /// Connections are accepted and everything that arrives is swallowed: no reply, no FIN, no effect.
    pub fn black_hole(&self, on: bool) {
        self.change(|_| self.link.send_modify(|link| link.black_hole = on));
    }
    /// The device stops reading and answering; what arrives meanwhile waits, and is served in one burst
    /// afterwards unless its sender has reset the connection (F060).
    pub fn freeze(&self, on: bool) {
        self.change(|_| {
            self.link.send_modify(|link| {
                link.frozen = on;
                link.freezes += u64::from(on);
            })
        });
    }
    /// Ends every connection with FIN; new ones are welcome (F069: a mode change).
    pub fn close_connections(&self) {
        self.drop_connections(Ending::Fin, |_| ());
    }
    /// Power off and on: boot counter +1, connections end with RST, a command under way is lost;
    /// registers and mailbox blocks are kept.
    pub fn reboot(&self) {
        self.drop_connections(Ending::Rst, |_| ());
        self.change(|state| state.reboot(Instant::now()));
    }
    fn drop_connections(&self, ending: Ending, also: impl FnOnce(&mut Link)) {
        // Under the lock, so that no request is applied between the two.
        self.change(|_| {
            self.link.send_modify(|link| {
                link.generation += 1;
                link.ending = ending;
                also(link);
            });
        });
    }

    /// Waits until `condition` holds; false: it did not within `limit`.
    pub async fn wait_for(&self, limit: Duration, condition: impl Fn(&Self) -> bool) -> bool {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while !condition(self) {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }
}
