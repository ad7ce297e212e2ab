//! Owns: a line that several machines may share: its one opening, its silences, what came unasked on it.
//! May call: exchange, melsec, metered, rtu, serial, silence, turns, wire of this room; core serial, spec.
//! Never: send before the line was silent for as long as it must be; judge a reply.

use super::exchange::{Ask, Called, Codec, End, Framed};
use super::metered::{Clock, Framing, Line, Tally, Wire};
use super::rtu::{RtuCodec, RtuFraming};
use super::tap::TraceWay;
use super::turns::{Purpose, Turn, Turns};
use super::{melsec, serial, silence, wire};
use crate::core::serial::Way;
use crate::core::spec::LinkSpec;
use crate::sys::LineErrors;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep, timeout_at};

/// Longest wait for a line to fall silent beside its settle time, in milliseconds.
const DRAIN_MS_MAX: u64 = 5_000;
/// Most bytes of noise read at once.
const DRAIN_BYTES_MAX: usize = 2_048;
/// Until the runtime has looked at what the kernel holds, in milliseconds.
const LOOK_MS: u64 = 1;
/// So many requests in a row that nobody answered have a connection through a server opened anew.
const UNANSWERED_MAX: u32 = 3;
/// Between two log lines about noise on one line, in milliseconds.
const NOISE_LOG_MS_MIN: u64 = 60_000;

/// The lines of this process: machines that name the same one share it.
#[derive(Clone, Default)]
pub struct Ports(Arc<Mutex<HashMap<Way, Weak<Port>>>>);

impl Ports {
    pub(super) fn get(&self, way: &Way) -> Arc<Port> {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ports.retain(|_, port| port.strong_count() > 0);
        if let Some(port) = ports.get(way).and_then(Weak::upgrade) {
            return port;
        }
        let port = Arc::new(Port::new(way.clone()));
        ports.insert(way.clone(), Arc::downgrade(&port));
        port
    }
}

/// How a line is treated, as one machine's configuration has it.
#[derive(Clone, Debug)]
pub(super) struct Manners {
    pub(super) settle: Duration,
    turnaround: Duration,
    timeout_ms: u64,
    /// What is sent after a doubt, before the silence, so that nobody waits for the rest of a request.
    resync: Vec<u8>,
}

impl Manners {
    /// Nothing where the connection is the machine's own.
    pub(super) fn of(link: &LinkSpec) -> Option<Self> {
        let line = link.on_line()?;
        Some(Self {
            settle: Duration::from_millis(line.settle_ms),
            turnaround: Duration::from_millis(line.turnaround_ms),
            timeout_ms: link.timeout_ms(),
            resync: match link {
                LinkSpec::C24(link) => melsec::resync(link),
                _ => Vec::new(),
            },
        })
    }
}

/// What is spoken on a line.
pub(super) fn spoken(link: &LinkSpec) -> Option<(Box<dyn Framing>, Box<dyn Codec>)> {
    match link {
        LinkSpec::ModbusTcp(_) | LinkSpec::Mc(_) => None,
        LinkSpec::ModbusRtu(link) => Some((
            Box::new(RtuFraming::new(link.echo)),
            Box::new(RtuCodec::new(link)),
        )),
        LinkSpec::C24(link) => Some(melsec::on_line(link)),
    }
}

struct Opened {
    wire: Box<dyn Wire>,
    number: u64,
    /// As they stood at the opening.
    line_errors: Option<LineErrors>,
}

#[derive(Default)]
struct State {
    opened: Option<Opened>,
    /// Openings so far.
    number: u64,
    /// The last byte that came, or that will have left.
    busy_until: Option<Instant>,
    /// The silence without which the line is not used again.
    doubt: Option<Duration>,
    /// What is in doubt may carry a secret.
    hidden: bool,
    /// What goes out before that silence begins.
    resync: Vec<u8>,
    unanswered: u32,
    noise_logged: Option<Instant>,
}

/// One line.
pub(super) struct Port {
    way: Way,
    turns: Turns,
    state: Mutex<State>,
}

impl Port {
    fn new(way: Way) -> Self {
        Self {
            way,
            turns: Turns::default(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn; may be dropped while it waits.
    pub(super) async fn turn(&self, purpose: Purpose) -> Turn {
        self.turns.take(purpose).await
    }

    /// Opens the line if it is not open. The caller has the turn.
    async fn open(&self, manners: &Manners) -> Result<u64> {
        if let Some(opened) = &self.state().opened {
            return Ok(opened.number);
        }
        let wire = match &self.way {
            Way::Serial(line) => serial::open(line).await?,
            Way::Tcp { host, port } => wire::tcp(host, *port, manners.timeout_ms).await?,
        };
        Ok(self.opened(wire, manners))
    }

    /// What stood in the adapter's buffers, or on the way, is not known.
    fn opened(&self, wire: Box<dyn Wire>, manners: &Manners) -> u64 {
        let mut state = self.state();
        state.number += 1;
        let number = state.number;
        let line_errors = wire.line_errors();
        state.opened = Some(Opened {
            wire,
            number,
            line_errors,
        });
        state.doubt = Some(manners.settle);
        state.resync.clone_from(&manners.resync);
        state.unanswered = 0;
        number
    }

    /// What the driver has counted on the line since it was opened, where it counts.
    pub(super) fn line_errors(&self) -> Option<LineErrors> {
        let state = self.state();
        let opened = state.opened.as_ref()?;
        Some(opened.wire.line_errors()?.since(opened.line_errors?))
    }

    fn is_open(&self, number: u64) -> bool {
        let state = self.state();
        state.opened.as_ref().is_some_and(|o| o.number == number)
    }

    fn has_unread(&self) -> bool {
        let state = self.state();
        state.opened.as_ref().is_some_and(|o| o.wire.has_unread())
    }

    fn close(&self) {
        self.state().opened = None;
    }

    fn gap(&self) -> Duration {
        match &self.way {
            Way::Serial(line) => Duration::from_micros(line.gap_us()),
            Way::Tcp { .. } => Duration::ZERO,
        }
    }

    /// Waits until a request may go: silence between frames, and after a doubt as long as a late reply may take.
    /// What comes meanwhile is nobody's. The caller has the turn.
    pub(super) async fn quiet(
        &self,
        manners: &Manners,
        clock: &Clock,
        tally: &Tally,
    ) -> Result<()> {
        self.resynchronise(clock, tally).await?;
        let gap = self.gap() + manners.turnaround;
        let doubt = self.state().doubt;
        let silent_for = doubt.unwrap_or_default().max(gap);
        let began = Instant::now();
        let most = began + silent_for + Duration::from_millis(DRAIN_MS_MAX);
        let mut until = match (doubt, self.state().busy_until) {
            (Some(silence), busy) => busy.map_or(began, |busy| busy.max(began)) + silence,
            (None, Some(busy)) => busy + gap,
            (None, None) => began,
        };
        let mut noise = Vec::new();
        loop {
            let read = tokio::select! {
                biased;
                read = self.read_some(&mut noise) => read,
                () = silence::until(until) => {
                    if !self.has_unread() || Instant::now() > most {
                        break;
                    }
                    // Has the runtime look.
                    sleep(Duration::from_millis(LOOK_MS)).await;
                    continue;
                }
            };
            let fresh = read.as_ref().map_or(0, |read| noise.len().min(*read));
            let hidden = tally.tap.is_hiding();
            tally.tap.hide(hidden || self.state().hidden);
            let now = clock();
            tally
                .tap
                .note(TraceWay::Unasked, &now, &noise[noise.len() - fresh..]);
            tally.tap.hide(hidden);
            let read = read.inspect_err(|_| self.close())?;
            tally.noise_bytes.fetch_add(read as u64, Relaxed);
            until = Instant::now() + silent_for;
            if until > most {
                let address = self.way.address();
                return Err(Error::other(format!(
                    "{address} does not fall silent: another master, noise, or a wrong baud rate?"
                )));
            }
        }
        let mut state = self.state();
        state.doubt = None;
        let hidden = std::mem::take(&mut state.hidden);
        drop(state);
        if !hidden {
            self.log_noise(&noise);
        }
        Ok(())
    }

    /// Has whoever waits for the rest of a request drop it. It proves nothing about that request.
    async fn resynchronise(&self, clock: &Clock, tally: &Tally) -> Result<()> {
        let resync = std::mem::take(&mut self.state().resync);
        let mut rest = resync.as_slice();
        let by = Instant::now() + Duration::from_millis(DRAIN_MS_MAX);
        while !rest.is_empty() {
            let sent = timeout_at(by, poll_fn(|cx| self.poll_write(cx, None, rest))).await;
            let sent = sent.unwrap_or_else(|_| Err(self.stuck()));
            let sent = sent.inspect_err(|_| self.close())?.min(rest.len());
            tally.tap.note(TraceWay::Sent, &clock(), &rest[..sent]);
            rest = &rest[sent..];
        }
        Ok(())
    }

    fn log_noise(&self, noise: &[u8]) {
        if noise.is_empty() {
            return;
        }
        let mut state = self.state();
        let pause = Duration::from_millis(NOISE_LOG_MS_MIN);
        if state.noise_logged.is_none_or(|at| at.elapsed() >= pause) {
            state.noise_logged = Some(Instant::now());
            log::warn!(
                "{}: {} bytes that nobody had asked for, such as {}; more are only counted for a while",
                self.way.address(),
                noise.len(),
                super::matching::hex(&noise[..noise.len().min(16)])
            );
        }
    }

    /// The next bytes that come; the first of them are added to `kept`.
    async fn read_some(&self, kept: &mut Vec<u8>) -> Result<usize> {
        poll_fn(|cx| {
            let mut room = [0; DRAIN_BYTES_MAX];
            let mut room = ReadBuf::new(&mut room);
            ready!(self.poll_read(cx, None, &mut room))?;
            let read = room.filled();
            let keep = DRAIN_BYTES_MAX.saturating_sub(kept.len()).min(read.len());
            kept.extend_from_slice(&read[..keep]);
            Poll::Ready(Ok(read.len()))
        })
        .await
    }

    fn poll_read(
        &self,
        cx: &mut Context<'_>,
        number: Option<u64>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let mut state = self.state();
        let opened = state.opened_as(number)?;
        let before = out.filled().len();
        let read = ready!(Pin::new(opened.wire.as_mut()).poll_read(cx, out));
        let read = match read {
            // An adapter that was pulled out reads as the end, over and over.
            Ok(()) if out.filled().len() == before => Err(self.gone()),
            Ok(()) => Ok(()),
            Err(e) => Err(Error::new(e.kind(), format!("{}: {e}", self.way.address()))),
        };
        match &read {
            Ok(()) => state.busy_until = Some(Instant::now()),
            Err(_) => state.opened = None,
        }
        Poll::Ready(read)
    }

    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        number: Option<u64>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let mut state = self.state();
        let opened = state.opened_as(number)?;
        let taken = ready!(Pin::new(opened.wire.as_mut()).poll_write(cx, bytes));
        match &taken {
            Ok(count) => {
                let now = Instant::now();
                let from = state.busy_until.map_or(now, |busy| busy.max(now));
                state.busy_until = Some(from + self.time(*count));
            }
            Err(_) => state.opened = None,
        }
        Poll::Ready(taken)
    }

    fn time(&self, characters: usize) -> Duration {
        match &self.way {
            Way::Serial(line) => Duration::from_micros(line.time_us(characters)),
            Way::Tcp { .. } => Duration::ZERO,
        }
    }

    fn stuck(&self) -> Error {
        let address = self.way.address();
        let waited = DRAIN_MS_MAX / 1000;
        Error::other(format!(
            "{address} took no byte for {waited} s: is its driver stuck?"
        ))
    }

    fn gone(&self) -> Error {
        let what = match &self.way {
            Way::Serial(line) => format!("{} is gone: was the adapter unplugged?", line.path),
            Way::Tcp { .. } => "the server closed the connection".into(),
        };
        Error::new(ErrorKind::UnexpectedEof, what)
    }

    /// Has the line fall silent before the next request, as after a doubt.
    pub(super) fn settle(&self, manners: &Manners) {
        self.state().doubt = Some(manners.settle);
    }

    /// A request that nothing matched: its reply may still come, and must find nobody waiting.
    fn doubt(&self, doubt: Doubt, order: bool, manners: &Manners, hidden: bool) {
        let mut state = self.state();
        state.doubt = Some(manners.settle);
        state.resync.clone_from(&manners.resync);
        state.hidden |= hidden;
        state.unanswered = state.unanswered.saturating_add(1);
        if let (Some(opened), Doubt::Unsent) = (&state.opened, doubt) {
            opened.wire.discard_unsent();
        }
        if !matches!(self.way, Way::Tcp { .. }) {
            return;
        }
        // What the kernel still holds of an order must not arrive later (F060), and only a reset has it dropped. Polls
        // keep the connection for the other units; but a way through a server may be half dead, where a
        // port of this computer says so when it is gone.
        let is_order = order && matches!(doubt, Doubt::Unsent);
        if (is_order || state.unanswered >= UNANSWERED_MAX)
            && let Some(opened) = state.opened.take()
        {
            opened.wire.abort_on_close();
        }
    }
}

impl State {
    fn opened_as(&mut self, number: Option<u64>) -> Result<&mut Opened> {
        let closed = || Error::new(ErrorKind::NotConnected, "the line was closed");
        let opened = self.opened.as_mut().ok_or_else(closed)?;
        match number {
            Some(number) if number != opened.number => Err(closed()),
            _ => Ok(opened),
        }
    }
}

/// One opening of a port, as one machine's line uses it while it has the turn.
struct PortWire {
    port: Arc<Port>,
    number: u64,
}

impl AsyncRead for PortWire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.port.poll_read(cx, Some(self.number), out)
    }
}

impl AsyncWrite for PortWire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.port.poll_write(cx, Some(self.number), bytes)
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Wire for PortWire {
    fn closed_by_peer(&self) -> Option<String> {
        match self.port.state().opened_as(Some(self.number)) {
            Ok(opened) => opened.wire.closed_by_peer(),
            Err(closed) => Some(closed.to_string()),
        }
    }
    // The others' line stays; what is in doubt is drained before the next request.
    fn abort_on_close(&self) {}
}

/// One machine's use of a port.
pub(super) struct OnPort {
    port: Arc<Port>,
    number: u64,
    framed: Framed,
    tally: Arc<Tally>,
    manners: Manners,
}

impl OnPort {
    /// Opens the port if nobody has. The caller has the turn.
    pub(super) async fn open(
        port: &Arc<Port>,
        link: &LinkSpec,
        clock: Clock,
        tally: Arc<Tally>,
    ) -> Result<Self> {
        let (Some(manners), Some((framing, codec))) = (Manners::of(link), spoken(link)) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let number = port.open(&manners).await?;
        let port = Arc::clone(port);
        let wire = Box::new(PortWire {
            port: Arc::clone(&port),
            number,
        });
        let line = Line::new(wire, framing, clock, Arc::clone(&tally));
        let timeout = Duration::from_millis(link.timeout_ms());
        let shown = Arc::clone(&tally);
        Ok(Self {
            port,
            number,
            framed: Framed::over(codec, line, tally, timeout),
            tally: shown,
            manners,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.framed.is_closed() || !self.port.is_open(self.number)
    }

    pub(super) fn abort(&self) {
        self.framed.abort();
    }

    /// One request on a line that is quiet. The caller has the turn.
    pub(super) async fn call(&mut self, ident: u16, ask: &Ask) -> Called {
        let mut guard = DoubtUnlessMatched {
            port: &self.port,
            tally: &self.tally,
            manners: &self.manners,
            end: Some(Doubt::Unsent),
            order: ask.is_order(),
        };
        let called = self.framed.call(ident, ask).await;
        guard.end = match &called.end {
            End::NotSent(_) => None,
            // Nobody answers; whoever does all the same must find nobody waiting.
            End::Unconfirmable(_) => Some(Doubt::Leaving),
            end => (!end.is_matched()).then_some(Doubt::Unsent),
        };
        if called.end.is_matched() {
            self.port.state().unanswered = 0;
        }
        called
    }
}

/// How a request is left that nothing matched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// What the system still holds of it is not to go any more.
    Unsent,
    /// All of it is still to leave.
    Leaving,
}

struct DoubtUnlessMatched<'a> {
    port: &'a Port,
    tally: &'a Tally,
    manners: &'a Manners,
    end: Option<Doubt>,
    /// Whether it could change the device.
    order: bool,
}

impl Drop for DoubtUnlessMatched<'_> {
    fn drop(&mut self) {
        if let Some(doubt) = self.end {
            let hidden = self.tally.tap.is_hiding();
            self.port.doubt(doubt, self.order, self.manners, hidden);
        }
    }
}

#[cfg(test)]
#[path = "port_tests.rs"]
mod tests;
