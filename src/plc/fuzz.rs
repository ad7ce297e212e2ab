//! Owns: one exchange over a wire whose far end is a function, for proofs: every framing and codec as links use them.
//! May call: exchange, metered, modbus, port, melsec of this room; core's links.
//! Never: be part of a release.

use super::exchange::{Ask, Called, End, Framed, Session};
use super::metered::{Clock, Line, Tally, Wire};
use super::plan::Span;
use super::{melsec, modbus, port};
use crate::core::ids::BootId;
use crate::core::spec::{Address, LinkSpec};
use crate::core::time::Now;
use std::io::Result;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Read { at: Address, count: u16 },
    Write { at: Address, words: Vec<u16> },
}

/// What was taken for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Words(Vec<u16>),
    Done,
    Code(u32),
    /// Nothing: not sent, or in doubt.
    Doubt(String),
}

/// One exchange: `answer` sees the request as it is on the wire, and its bytes come back `chunk` at a time, and then
/// the end of the connection.
pub(crate) async fn exchange(
    link: &LinkSpec,
    order: &Order,
    chunk: usize,
    answer: impl FnMut(&[u8]) -> Vec<u8> + Send + 'static,
) -> Heard {
    let ask = match order {
        Order::Read { at, count } => Ask::Read(Span {
            area: at.area(),
            start: at.number(),
            count: *count,
        }),
        Order::Write { at, words } => Ask::Write {
            start: *at,
            words: words.clone(),
        },
    };
    let wire = Box::new(Far {
        answer: Box::new(answer),
        chunk: chunk.max(1),
        asked: false,
        coming: Vec::new(),
    });
    let called = session(link, wire).call(7, &ask).await;
    judge(&ask, called)
}

fn session(link: &LinkSpec, wire: Box<dyn Wire>) -> Session {
    let clock: Clock = Arc::new(|| Now {
        boot_id: BootId::default(),
        boottime_ns: 1,
        wall_us: 1,
        wall_trusted: true,
    });
    let tally: Arc<Tally> = Arc::default();
    match link {
        LinkSpec::ModbusTcp(link) => {
            Session::Modbus(modbus::Session::over(wire, link, clock, tally))
        }
        LinkSpec::Mc(link) => Session::Framed(melsec::over(wire, link, clock, tally)),
        LinkSpec::ModbusRtu(_) | LinkSpec::C24(_) => {
            let spoken = port::spoken(link);
            let (framing, codec) = spoken.expect("a serial link has its own frames");
            let line = Line::new(wire, framing, clock, Arc::clone(&tally));
            Session::Framed(Framed::over(codec, line, tally, Duration::from_secs(60)))
        }
    }
}

/// What holds of every answer, whatever came.
fn judge(ask: &Ask, called: Called) -> Heard {
    let meter = &called.meter;
    assert!(
        !called.end.is_matched() || meter.sent == meter.request.len(),
        "an answer to what was never sent whole"
    );
    match (called.end, ask) {
        (End::Words(words), Ask::Read(span)) => {
            assert_eq!(words.len(), usize::from(span.count), "not what was asked");
            let bits = span.area.is_bits();
            assert!(
                !bits || words.iter().all(|word| *word <= 1),
                "a bit is 0 or 1: {words:?}"
            );
            Heard::Words(words)
        }
        (End::Echo, Ask::Write { .. }) => Heard::Done,
        (End::Code(coded), _) => Heard::Code(coded.code.code),
        (end @ (End::Words(_) | End::Echo | End::Model(..) | End::Unconfirmable(_)), _) => {
            panic!("{end:?} was taken for the answer to {ask:?}")
        }
        (End::NotSent(why) | End::PartlySent(why) | End::NoReply(why), _) => Heard::Doubt(why),
    }
}

/// The far end: the bytes of a request in, the bytes that come back out.
type Answer = dyn FnMut(&[u8]) -> Vec<u8> + Send;

struct Far {
    answer: Box<Answer>,
    chunk: usize,
    asked: bool,
    coming: Vec<u8>,
}

impl AsyncRead for Far {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        if !self.asked {
            return Poll::Pending;
        }
        let length = self.chunk.min(self.coming.len()).min(out.remaining());
        out.put_slice(&self.coming[..length]);
        self.coming.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Far {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        self.asked = true;
        let coming = (self.answer)(bytes);
        self.coming.extend_from_slice(&coming);
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Wire for Far {
    fn closed_by_peer(&self) -> Option<String> {
        None
    }
    fn abort_on_close(&self) {}
}
