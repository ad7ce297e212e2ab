//! Owns: what is read before a command may go (POL-06), and after one whose outcome is unknown (VER-01).
//! May call: link, exchange, plan of this room; core mailbox.
//! Never: write (VER-04); put anything in the place of a value that was not read.

use super::exchange::{Called, End, Proof};
use super::link::{Link, LinkError, Words};
use super::plan::merge;
use crate::core::contract::{GateReading, MailboxBlocks, Probe, ProbeAnswer};
use crate::core::mailbox::{COMMAND_WORDS, STATUS_WORDS, decode_status};
use crate::core::spec::{DoneSpec, GateSpec, Quality, Scalar};

impl Link {
    /// Reads everything that must be known before a command (POL-06).
    ///
    /// A part that the device refuses to give is missing, and the quality bad.
    ///
    /// # Errors
    /// [`LinkError`]: the link failed, or the unit is offline.
    pub async fn read_gate(&mut self) -> Result<GateReading, LinkError> {
        let places = gate_places(&self.gate);
        let mut words = Words(Vec::new());
        for span in merge(&places, self.limits.without_gaps()) {
            match self.read_spans(&[span]).await {
                Ok(read) => words.0.extend(read.0),
                Err(called) => self.tolerate_exception(&called, &span.to_string())?,
            }
        }
        let mailbox = match self.mailbox.is_some() {
            true => match self.read_blocks().await {
                Ok(blocks) => Some(blocks),
                Err(called) => {
                    self.tolerate_exception(&called, "the mailbox")?;
                    None
                }
            },
            false => None,
        };
        Ok(self.gate_reading(&words, mailbox))
    }

    fn gate_reading(&self, words: &Words, mailbox: Option<MailboxBlocks>) -> GateReading {
        let value = |at: &Scalar| words.value(at).ok();
        let int = |at: &Scalar| i64::try_from(value(at)?.as_int()?).ok();
        let gate = &self.gate;
        let interlocks = gate.interlocks.iter();
        let reading = GateReading {
            at: (self.clock)(),
            identity: gate.identity.as_ref().and_then(|check| value(&check.at)),
            config_version: gate.config_version.as_ref().and_then(int),
            mode: gate.mode.as_ref().and_then(|check| int(&check.at)),
            interlocks: interlocks
                .filter_map(|lock| Some((lock.name.clone(), value(&lock.at)?)))
                .collect(),
            quality: Quality::Good,
            mailbox,
        };
        let complete = reading.identity.is_some() == gate.identity.is_some()
            && reading.config_version.is_some() == gate.config_version.is_some()
            && reading.mode.is_some() == gate.mode.is_some()
            && reading.interlocks.len() == gate.interlocks.len()
            && reading.mailbox.is_some() == self.mailbox.is_some();
        let status = self.mailbox.as_ref().zip(reading.mailbox.as_ref());
        let vouched = status.is_none_or(|(spec, blocks)| {
            decode_status(&blocks.status, spec.word_order).is_ok_and(|s| s.quality == 1)
        });
        let quality = match (complete, vouched) {
            (false, _) => Quality::Bad,
            (true, false) => Quality::Uncertain,
            (true, true) => Quality::Good,
        };
        GateReading { quality, ..reading }
    }

    fn tolerate_exception(&self, called: &Called, what: &str) -> Result<(), LinkError> {
        match &called.end {
            End::Code(coded) if coded.proof != Proof::Offline => Ok(()),
            _ => Err(self.error(called, what)),
        }
    }

    /// Asks the device; only reads (VER-04).
    pub async fn probe(&mut self, probe: &Probe) -> ProbeAnswer {
        if !self.is_open() {
            return ProbeAnswer::Failed(LinkError::NotConnected.to_string());
        }
        match probe {
            Probe::Mailbox if self.mailbox.is_none() => {
                ProbeAnswer::Failed(LinkError::NoMailbox.to_string())
            }
            Probe::Mailbox => match self.read_blocks().await {
                Ok(blocks) => ProbeAnswer::Mailbox(blocks),
                Err(called) => self.probe_failed(&called, "the mailbox"),
            },
            Probe::Done(done) => self.probe_done(done).await,
            Probe::Readback { points } => {
                let places: Vec<Scalar> = points.iter().map(|(_, at)| *at).collect();
                let spans = merge(&places, self.limits.without_gaps());
                match self.read_apart(&spans).await {
                    Ok((words, _)) => words
                        .values(points)
                        .map_or_else(ProbeAnswer::Failed, ProbeAnswer::Values),
                    Err(called) => self.probe_failed(&called, "the values"),
                }
            }
        }
    }

    async fn probe_done(&mut self, done: &DoneSpec) -> ProbeAnswer {
        let places: Vec<Scalar> = [Some(done.id), done.result].into_iter().flatten().collect();
        let spans = merge(&places, self.limits.over_gaps());
        if spans.len() > 1 {
            let what = "id and result do not fit one request, so they may be of two moments";
            return ProbeAnswer::Failed(what.into());
        }
        let words = match self.read_spans(&spans).await {
            Ok(words) => words,
            Err(called) => return self.probe_failed(&called, "id and result"),
        };
        let int = |at: &Scalar| {
            let number = words.value(at)?.as_int();
            number.ok_or_else(|| format!("{} is not a whole number", at.address))
        };
        let found = || -> Result<(u32, i64), String> {
            let id = u32::try_from(int(&done.id)?);
            let result = i64::try_from(done.result.as_ref().map_or(Ok(0), int)?);
            Ok((
                id.map_err(|e| e.to_string())?,
                result.map_err(|e| e.to_string())?,
            ))
        };
        match found() {
            Ok((id, result)) => ProbeAnswer::Done { id, result },
            Err(why) => ProbeAnswer::Failed(why),
        }
    }

    fn probe_failed(&self, called: &Called, what: &str) -> ProbeAnswer {
        ProbeAnswer::Failed(self.error(called, what).to_string())
    }

    async fn read_blocks(&mut self) -> Result<MailboxBlocks, Called> {
        let Some(spec) = self.mailbox.clone() else {
            return Err(Called::not_sent(LinkError::NoMailbox.to_string()));
        };
        Ok(MailboxBlocks {
            command: self.read_block(spec.command, COMMAND_WORDS).await?.0,
            status: self.read_block(spec.status, STATUS_WORDS).await?.0,
        })
    }
}

pub(super) fn gate_places(gate: &GateSpec) -> Vec<Scalar> {
    let identity = gate.identity.iter().map(|check| check.at);
    let mode = gate.mode.iter().map(|check| check.at);
    let interlocks = gate.interlocks.iter().map(|lock| lock.at);
    identity
        .chain(gate.config_version)
        .chain(mode)
        .chain(interlocks)
        .collect()
}
