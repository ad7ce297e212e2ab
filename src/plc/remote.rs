//! Owns: telling a CPU to run, stop or pause, and seeing whether it did.
//! May call: link, exchange of this room; core melsec.
//! Never: call the order done because it was answered: with the switch on STOP a RUN is answered and ignored.

use super::exchange::Ask;
use super::link::{Link, write_outcome};
use super::plan::Span;
use crate::core::contract::{DeviceCode, Exchange, Outcome, Reply};
use crate::core::melsec::{Device, Family, Kind, Remote};
use crate::core::spec::Area;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two looks at the operating state, in milliseconds.
const LOOK_MS: u64 = 50;
/// The operating state of the CPU: low four bits of SD203.
const OPERATING_STATE: u32 = 203;

impl Link {
    pub(super) async fn run_remote(&mut self, order: Remote) -> Exchange {
        let called = self.call(&Ask::Remote(order)).await;
        let outcome = match write_outcome(&called.end) {
            Outcome::DeviceReplied(_) => self.await_state(order).await,
            other => other,
        };
        called.exchange(outcome)
    }

    /// Looks at SD203 until it says so or the timeout is over.
    async fn await_state(&mut self, order: Remote) -> Outcome {
        let until = Instant::now() + Duration::from_millis(self.spec.timeout_ms());
        let span = Span {
            // Decimal in every family.
            area: Area::Melsec(Device::of(Kind::Sd, Family::Q)),
            start: OPERATING_STATE,
            count: 1,
        };
        loop {
            let found = match self.read_spans(&[span]).await {
                Ok(words) => words
                    .0
                    .first()
                    .and_then(|(_, words)| words.first().copied()),
                Err(called) => {
                    let why = self.error(&called, "SD203").to_string();
                    return unclear(order, &format!("the operating state was not read: {why}"));
                }
            };
            let state = found.map(|word| word & 0xF);
            if state == Some(order.operating_state()) {
                let (state, name) = (order.operating_state(), order.name().to_uppercase());
                let by = format!("SD203 read back {state} ({name})");
                return Outcome::DeviceReplied(Reply::Confirmed { by });
            }
            if Instant::now() >= until {
                let says = state.map_or_else(|| "nothing".to_owned(), |state| state.to_string());
                let expected = order.operating_state();
                return unclear(
                    order,
                    &format!(
                        "SD203 says {says}, expected {expected}; is the CPU's switch on STOP?"
                    ),
                );
            }
            sleep(Duration::from_millis(LOOK_MS)).await;
        }
    }
}

fn unclear(order: Remote, why: &str) -> Outcome {
    Outcome::DeviceUnclear(DeviceCode {
        family: "mc".into(),
        code: 0,
        meaning: format!("remote {} was answered, but {why}", order.name()),
    })
}
