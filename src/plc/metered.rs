//! Owns: the wire under the codec: bytes the kernel took, the frame that fits, the end of all writing.
//! May call: core time; the socket.
//! Never: pass on a byte that was not compared with the request; write after an abort.

use super::tap::{Tap, TraceWay};
use crate::core::contract::REPLY_BYTES_MAX;
use crate::core::time::{Now, Stamp};
use crate::sys::LineErrors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The one place that reads the clocks is the shell's; this is how it is handed in.
pub type Clock = Arc<dyn Fn() -> Now + Send + Sync>;

/// Most bytes that are taken from the socket at once.
const READ_BYTES_MAX: usize = 4096;
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// What a frame is to the request that is under way.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Its reply, a refusal included.
    Reply,
    /// Of another request: in plain words, which.
    Stale(String),
    /// Of our request, from another unit or station: in plain words, which.
    WrongUnit(String),
    /// Of our request and unit, and not a possible reply: the line is in doubt.
    Misfit(String),
}

/// What the bytes at the front of those that came are, before a frame is looked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Skip {
    /// A frame may begin here.
    Nothing,
    /// So many bytes are the request's own, given back by the line.
    Echo(usize),
    /// So many bytes belong to no reply: in plain words, what they are.
    Noise(usize, String),
}

/// What a protocol's frames look like on a line.
pub(super) trait Framing: Send {
    /// A request with this identification is next.
    fn begin(&mut self, ident: u16);
    /// Readies a whole request, as a codec made it, for the wire.
    ///
    /// # Errors
    /// In plain words: it is none.
    fn outgoing(&mut self, request: &mut [u8]) -> std::result::Result<(), String>;
    /// What of `bytes` can be no part of a reply, on lines where such bytes are usual.
    ///
    /// # Errors
    /// In plain words: what they are leaves the line in doubt.
    fn skip(&mut self, bytes: &[u8]) -> std::result::Result<Skip, String> {
        let _ = bytes;
        Ok(Skip::Nothing)
    }
    /// Length of the frame that `bytes` begin with; `None`: not known yet.
    ///
    /// # Errors
    /// In plain words: no frame begins so, the frame boundary is lost.
    fn frame_bytes(&self, bytes: &[u8]) -> std::result::Result<Option<usize>, String>;
    /// Compares a whole `frame` with the whole `request`.
    fn fit(&self, request: &[u8], frame: &[u8]) -> Fit;
    /// Readies a frame that fits for the codec.
    fn incoming(&self, frame: &mut [u8]);
    /// Longest frame.
    fn frame_bytes_max(&self) -> usize;
    /// Whether a frame says which request it answers. If not, one that comes unasked leaves the line in doubt.
    fn has_identity(&self) -> bool;
    /// Whether a request changes the device.
    #[cfg(feature = "test-hooks")]
    fn is_write(&self, request: &[u8]) -> bool;
}

/// What can carry frames.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {
    /// Why nothing can be sent any more, if the peer has already said so.
    fn closed_by_peer(&self) -> Option<String>;
    /// Whether the kernel holds bytes that nobody has read. A runtime learns of them only when it looks, and on a busy
    /// computer that is later: that it has nothing to read is not to say that nothing came.
    fn has_unread(&self) -> bool {
        false
    }
    /// What the network has said meanwhile, if it says such things without a connection.
    fn pending_error(&self) -> Option<String> {
        None
    }
    /// Makes the coming close discard what the kernel still holds.
    fn abort_on_close(&self);
    /// What the serial driver has counted on the line.
    fn line_errors(&self) -> Option<LineErrors> {
        None
    }
    /// Has the kernel discard what it has not sent yet, where the line stays open.
    fn discard_unsent(&self) {}
}

/// Whether a socket has something to read.
pub(super) fn is_readable(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&AT_ONCE)).is_ok_and(|ready| ready > 0)
}

impl Wire for TcpStream {
    fn has_unread(&self) -> bool {
        is_readable(self)
    }
    fn closed_by_peer(&self) -> Option<String> {
        let mut fds = [PollFd::new(self, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&AT_ONCE)) {
            Ok(0) => None,
            Ok(_) if fds[0].revents().contains(PollFlags::ERR) => {
                Some("the connection was reset before the request".into())
            }
            Ok(_) => Some("the device had closed the connection before the request".into()),
            Err(e) => Some(format!("the connection cannot be polled: {e}")),
        }
    }
    fn abort_on_close(&self) {
        if let Err(e) = rustix::net::sockopt::set_socket_linger(self, Some(Duration::ZERO)) {
            log::warn!("SO_LINGER could not be set before an abort: {e}");
        }
    }
}

/// Counts that outlive a connection.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) stale_reply: AtomicU64,
    pub(super) wrong_unit: AtomicU64,
    pub(super) misfits: AtomicU64,
    pub(super) noise_bytes: AtomicU64,
    pub(super) exceptions: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) connect_failures: AtomicU64,
    pub(super) aborts: AtomicU64,
    /// Shows the bytes to whoever looks.
    pub(super) tap: Tap,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// What is known of one request and its reply.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// As it goes over the wire; empty until the codec hands it over.
    pub(super) request: Vec<u8>,
    /// How much of it the kernel took.
    pub(super) sent: usize,
    pub(super) sent_at: Option<Stamp>,
    pub(super) replied_at: Option<Stamp>,
    /// The reply that fits, or else the last frame that did not.
    pub(super) reply: Vec<u8>,
    /// What came and was not the reply.
    pub(super) instead: Option<String>,
}

struct State {
    wire: Option<Box<dyn Wire>>,
    clock: Clock,
    tally: Arc<Tally>,
    framing: Box<dyn Framing>,
    meter: Meter,
    /// From the wire, not yet a whole frame.
    raw: Vec<u8>,
    /// Compared, not yet taken by the codec.
    passed: Vec<u8>,
}

/// One connection. All clones share it; the codec owns one, the session another.
#[derive(Clone)]
pub(super) struct Line(Arc<Mutex<State>>);

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

impl Line {
    pub(super) fn new(
        wire: Box<dyn Wire>,
        framing: Box<dyn Framing>,
        clock: Clock,
        tally: Arc<Tally>,
    ) -> Self {
        Self(Arc::new(Mutex::new(State {
            wire: Some(wire),
            clock,
            tally,
            framing,
            meter: Meter::default(),
            raw: Vec::new(),
            passed: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readies the line for one request.
    ///
    /// # Errors
    /// Why no byte can be sent: known before the first one.
    pub(super) fn begin(&self, ident: u16) -> std::result::Result<(), String> {
        let mut state = self.state();
        let Some(wire) = &state.wire else {
            return Err("the connection is closed".into());
        };
        if let Some(why) = wire.closed_by_peer() {
            return Err(why);
        }
        state.framing.begin(ident);
        state.meter = Meter::default();
        state.passed.clear();
        state.drop_unasked()
    }

    /// What is known so far; a reply that broke off is part of it.
    pub(super) fn meter(&self) -> Meter {
        let state = self.state();
        let mut meter = state.meter.clone();
        if meter.reply.is_empty() {
            meter.reply = bounded(&state.raw);
        }
        meter
    }

    /// The next whole frame that fits.
    pub(super) async fn frame(&mut self) -> Result<Vec<u8>> {
        std::future::poll_fn(|cx| {
            let mut state = self.state();
            ready!(state.poll_passed(cx))?;
            Poll::Ready(Ok(std::mem::take(&mut state.passed)))
        })
        .await
    }

    /// See [`Wire::pending_error`].
    pub(super) fn pending_error(&self) -> Option<String> {
        self.state().wire.as_ref()?.pending_error()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().wire.is_none()
    }

    /// Ends all writing, for ever, and has the kernel discard what it has not sent yet (F060).
    pub(super) fn abort(&self) {
        let mut state = self.state();
        if let Some(wire) = state.wire.take() {
            count(&state.tally.aborts);
            wire.abort_on_close();
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::BrokenPipe, "the connection is closed")
}

impl State {
    /// Whole frames that came unasked are dropped and counted; anything else leaves the line in doubt,
    /// and then nothing is written on it (SEND-06).
    fn drop_unasked(&mut self) -> std::result::Result<(), String> {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(read) = self.poll_fill(&mut cx) {
            read.map_err(|e| format!("{e} before the request"))?;
            while self.take_frame().map_err(|e| e.to_string())? {}
            if self.raw.len() > self.framing.frame_bytes_max() {
                return Err("the device talks without being asked".into());
            }
        }
        while self.take_frame().map_err(|e| e.to_string())? {}
        if !self.raw.is_empty() {
            return Err(stray(&self.raw));
        }
        let unread = self.wire.as_ref().is_some_and(|wire| wire.has_unread());
        match unread && !self.framing.has_identity() {
            true => Err("stray bytes stood on the line before the request, not read yet".into()),
            false => Ok(()),
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(wire) = &mut self.wire else {
            return Poll::Ready(Err(gone()));
        };
        let mut room = [0; READ_BYTES_MAX];
        let mut room = ReadBuf::new(&mut room);
        ready!(Pin::new(wire.as_mut()).poll_read(cx, &mut room))?;
        if room.filled().is_empty() {
            let what = "the device closed the connection";
            return Poll::Ready(Err(Error::new(ErrorKind::UnexpectedEof, what)));
        }
        let way = match self.meter.request.is_empty() {
            true => TraceWay::Unasked,
            false => TraceWay::Received,
        };
        self.tally.tap.note(way, &(self.clock)(), room.filled());
        self.raw.extend_from_slice(room.filled());
        Poll::Ready(Ok(()))
    }

    fn take_request(&mut self, bytes: &[u8]) -> Result<()> {
        let mut request = bytes.to_vec();
        let readied = self.framing.outgoing(&mut request);
        readied.map_err(|why| Error::new(ErrorKind::InvalidInput, why))?;
        self.meter.request = request;
        Ok(())
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        if self.wire.is_none() {
            return Poll::Ready(Err(gone()));
        }
        if self.meter.request.is_empty() {
            self.take_request(bytes)?;
        }
        let rest = &self.meter.request[self.meter.sent..];
        if rest.is_empty() || rest.len() != bytes.len() {
            return Poll::Ready(Err(Error::new(ErrorKind::InvalidInput, "a second request")));
        }
        #[cfg(feature = "test-hooks")]
        let rest =
            match hooks::break_after(self.framing.is_write(&self.meter.request), self.meter.sent) {
                Some(0) => return Poll::Ready(Err(Error::from(ErrorKind::ConnectionReset))),
                Some(most) => &rest[..rest.len().min(most)],
                None => rest,
            };
        let Some(wire) = &mut self.wire else {
            return Poll::Ready(Err(gone()));
        };
        let at = (self.clock)();
        let taken = ready!(Pin::new(wire.as_mut()).poll_write(cx, rest))?;
        if taken > 0 {
            self.meter.sent_at.get_or_insert(at);
            self.meter.sent += taken;
            self.tally.tap.note(TraceWay::Sent, &at, &rest[..taken]);
        }
        Poll::Ready(Ok(taken))
    }

    /// Until a frame that fits stands whole.
    fn poll_passed(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while self.passed.is_empty() {
            if self.take_frame()? {
                continue;
            }
            ready!(self.poll_fill(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        ready!(self.poll_passed(cx))?;
        let length = self.passed.len().min(out.remaining());
        out.put_slice(&self.passed[..length]);
        self.passed.drain(..length);
        Poll::Ready(Ok(()))
    }

    /// Drops and counts what can be no part of a reply.
    fn skip_noise(&mut self) -> Result<()> {
        loop {
            match self.framing.skip(&self.raw) {
                Ok(Skip::Nothing) => return Ok(()),
                Ok(Skip::Echo(bytes)) => drop(self.raw.drain(..bytes)),
                Ok(Skip::Noise(bytes, what)) => {
                    let noise: Vec<u8> = self.raw.drain(..bytes).collect();
                    self.tally.noise_bytes.fetch_add(bytes as u64, Relaxed);
                    if !self.meter.request.is_empty() {
                        self.meter.reply = bounded(&noise);
                        self.meter.instead = Some(what);
                    }
                }
                Err(why) => return Err(self.misfit(self.raw.clone(), why)),
            }
        }
    }

    /// Compares the next whole frame; `false` if there is none.
    fn take_frame(&mut self) -> Result<bool> {
        self.skip_noise()?;
        let total = match self.framing.frame_bytes(&self.raw) {
            Ok(Some(total)) if self.raw.len() >= total => total,
            Ok(_) => return Ok(false),
            Err(why) => return Err(self.misfit(self.raw.clone(), why)),
        };
        let mut frame: Vec<u8> = self.raw.drain(..total).collect();
        if self.meter.request.is_empty() {
            count(&self.tally.stale_reply);
            if self.framing.has_identity() {
                return Ok(true);
            }
            return Err(Error::new(ErrorKind::InvalidData, stray(&frame)));
        }
        self.meter.reply = bounded(&frame);
        match self.framing.fit(&self.meter.request, &frame) {
            Fit::Stale(what) => {
                count(&self.tally.stale_reply);
                self.meter.instead = Some(what);
            }
            Fit::WrongUnit(what) => {
                count(&self.tally.wrong_unit);
                self.meter.instead = Some(what);
            }
            Fit::Misfit(why) => return Err(self.misfit(frame, why)),
            Fit::Reply => {
                self.meter.replied_at = Some((self.clock)());
                self.meter.instead = None;
                self.framing.incoming(&mut frame);
                self.passed = frame;
            }
        }
        Ok(true)
    }

    fn misfit(&mut self, bytes: Vec<u8>, why: String) -> Error {
        count(&self.tally.misfits);
        self.meter.reply = bounded(&bytes);
        self.meter.instead = Some(why.clone());
        Error::new(ErrorKind::InvalidData, why)
    }
}

fn stray(bytes: &[u8]) -> String {
    let shown = super::matching::hex(&bounded(bytes));
    format!("stray bytes stood on the line before the request: {shown}")
}

fn bounded(bytes: &[u8]) -> Vec<u8> {
    bytes[..bytes.len().min(REPLY_BYTES_MAX)].to_vec()
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, b: &[u8]) -> Poll<Result<usize>> {
        self.state().poll_send(cx, b)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.state().wire {
            Some(wire) => Pin::new(wire.as_mut()).poll_flush(cx),
            None => Poll::Ready(Err(gone())),
        }
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.state().wire {
            Some(wire) => Pin::new(wire.as_mut()).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.state().poll_reply(cx, out)
    }
}

/// A link that breaks within a write, which a kernel's buffer hides for frames this short:
/// `HOLDFAST_BREAK_WRITE=n` has the first write lose its connection after n bytes.
#[cfg(feature = "test-hooks")]
mod hooks {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// How many more bytes may go; 0: the connection breaks now, this once.
    pub(super) fn break_after(write: bool, sent: usize) -> Option<usize> {
        static WANTED: OnceLock<Option<usize>> = OnceLock::new();
        static BROKEN: AtomicBool = AtomicBool::new(false);
        let wanted =
            WANTED.get_or_init(|| std::env::var("HOLDFAST_BREAK_WRITE").ok()?.parse().ok());
        let most = (*wanted)?;
        if !write || BROKEN.load(SeqCst) {
            return None;
        }
        let left = most.saturating_sub(sent);
        if left == 0 {
            BROKEN.store(true, SeqCst);
        }
        Some(left)
    }
}
