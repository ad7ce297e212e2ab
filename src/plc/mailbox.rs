//! Owns: handing one command to a mailbox: block, read back, commit, then the device's record of it.
//! May call: link and exchange of this room; core mailbox.
//! Never: commit a block that was not read back as written; call anything sent before the commit frame.

use super::exchange::{Ask, Called, End};
use super::link::{Link, TOO_LATE, not_sent, write_outcome};
use crate::core::contract::{Exchange, MailboxBlocks, MailboxEcho, MailboxRequest, Outcome, Reply};
use crate::core::mailbox::{
    COMMAND_CRC_WORD, COMMAND_WORDS, COMMIT_WORD, PARAMETER_WORDS_MAX, STATUS_WORDS, State, Status,
    Verdict, decode_status, encode_command, is_committed, judge, refusal,
};
use crate::core::spec::MailboxSpec;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two looks at the PLC's block, in milliseconds.
const LOOK_MS: u64 = 20;
/// Most readings of a block whose CRC does not hold, before a command is given back.
const CORRUPT_READS_MAX: usize = 3;

/// What the device's final record of our id means.
fn recorded(echo: MailboxEcho) -> Outcome {
    match refusal(echo.result) {
        Some(code) => Outcome::DeviceRefused(code),
        None => Outcome::DeviceReplied(Reply::Mailbox(echo)),
    }
}

/// The words of the block under way, and the PLC's block before it.
struct Handover<'a> {
    spec: &'a MailboxSpec,
    id: u32,
    words: [u16; COMMAND_WORDS],
    before: Status,
}

impl Link {
    pub(super) async fn run_mailbox(&mut self, request: &MailboxRequest) -> Exchange {
        let Some(spec) = self.mailbox.clone() else {
            return not_sent("this machine has no mailbox".into());
        };
        if request.parameters.len() > PARAMETER_WORDS_MAX {
            let found = request.parameters.len();
            return not_sent(format!(
                "{found} parameter words, at most {PARAMETER_WORDS_MAX} fit"
            ));
        }
        if request.request_id == 0 {
            return not_sent("request id 0 is none: an empty mailbox shows it".into());
        }
        let before = match self.status_before(&spec).await {
            Ok(before) => before,
            Err(why) => return not_sent(format!("before the commit: {why}")),
        };
        let id = request.request_id;
        // The device answers an id in its ring again and does not execute it; so does this.
        if let Some(echo) = before.record_of(id) {
            let why = "the device's record stands already".to_owned();
            return Called::not_sent(why).exchange(recorded(echo));
        }
        let handover = Handover {
            spec: &spec,
            id,
            words: encode_command(request, spec.word_order),
            before,
        };
        if handover.before.last_accepted == id {
            let taken = Called::not_sent("the device has taken this id already");
            return self.await_record(&handover, taken).await;
        }
        if handover.before.state.is_busy() {
            let busy = handover.before.last_accepted;
            return not_sent(format!(
                "before the commit: the device is still at id {busy}"
            ));
        }
        if let Err(why) = self.lay_block(&handover).await {
            return not_sent(format!("before the commit: {why}"));
        }
        self.commit(&handover).await
    }

    async fn status_before(&mut self, spec: &MailboxSpec) -> Result<Status, String> {
        let mut last = String::new();
        for _ in 0..CORRUPT_READS_MAX {
            let (words, _) = self
                .read_block(spec.status, STATUS_WORDS)
                .await
                .map_err(|called| format!("the PLC's block was not read: {}", told(&called.end)))?;
            match decode_status(&words, spec.word_order) {
                Ok(status) => return Ok(status),
                Err(corrupt) => last = corrupt.to_string(),
            }
        }
        Err(last)
    }

    /// Words 0 to 17, read back and compared. Without a commit the device acts on none of it.
    async fn lay_block(&mut self, handover: &Handover<'_>) -> Result<(), String> {
        let block = &handover.words[..=COMMAND_CRC_WORD];
        let write = Ask::Write {
            start: handover.spec.command,
            words: block.to_vec(),
        };
        let wrote = self.call(&write).await;
        if wrote.end != End::Echo {
            return Err(format!("the block was not written: {}", told(&wrote.end)));
        }
        let (found, _) = self
            .read_block(handover.spec.command, block.len())
            .await
            .map_err(|called| format!("the block was not read back: {}", told(&called.end)))?;
        match found.iter().zip(block).position(|(a, b)| a != b) {
            None => Ok(()),
            // Without the words themselves: one may be a secret argument (CMD-10).
            Some(at) => Err(format!(
                "word {at} of the block reads back other than it was written; is there a second writer?"
            )),
        }
    }

    async fn commit(&mut self, handover: &Handover<'_>) -> Exchange {
        let words = vec![handover.words[COMMIT_WORD]];
        let Some(start) = handover.spec.command.plus(COMMIT_WORD as u32) else {
            return not_sent("the block goes past the last place".into());
        };
        if self.is_too_late() {
            return not_sent(TOO_LATE.into());
        }
        let committed = self.call(&Ask::Write { start, words }).await;
        match write_outcome(&committed.end) {
            Outcome::DeviceReplied(_) | Outcome::DeviceAccepted => {
                self.await_record(handover, committed).await
            }
            outcome => committed.exchange(outcome),
        }
    }

    /// Looks at the PLC's block until it is final or the timeout is over.
    async fn await_record(&mut self, handover: &Handover<'_>, mut last: Called) -> Exchange {
        let until = Instant::now() + Duration::from_millis(self.spec.timeout_ms());
        let mut taken = false;
        loop {
            let looked = self.look(handover).await;
            let why = match looked {
                Ok((Look::Final(outcome), evidence)) => {
                    last.meter.replied_at = evidence.meter.replied_at;
                    last.meter.reply = evidence.meter.reply;
                    return last.exchange(outcome);
                }
                Ok((Look::Taken, _)) => {
                    taken = true;
                    None
                }
                Ok((Look::Open, _)) => None,
                Ok((Look::Lost(why), _)) | Err(why) => Some(why),
            };
            if let Some(why) = why {
                return last.exchange(Outcome::SentNoReply { why });
            }
            if Instant::now() >= until {
                break;
            }
            sleep(Duration::from_millis(LOOK_MS)).await;
        }
        last.exchange(if taken {
            Outcome::DeviceAccepted
        } else {
            let waited = self.spec.timeout_ms();
            Outcome::SentNoReply {
                why: format!("committed; the device has not taken it within {waited} ms"),
            }
        })
    }

    async fn look(&mut self, handover: &Handover<'_>) -> Result<(Look, Called), String> {
        let spec = handover.spec;
        let failed = |called: Called| format!("after the commit: {}", told(&called.end));
        let (status, evidence) = self
            .read_block(spec.status, STATUS_WORDS)
            .await
            .map_err(failed)?;
        let mut blocks = MailboxBlocks {
            command: Vec::new(),
            status,
        };
        let boot = Some(handover.before.boot_counter);
        let look = match judge(&blocks, spec.word_order, handover.id, boot) {
            Verdict::Done(echo) => Look::Final(recorded(echo)),
            Verdict::Pending => Look::Taken,
            Verdict::CutOff => {
                Look::Lost("the PLC took it and restarted before it said that it was done".into())
            }
            Verdict::Rebooted => Look::Lost("the PLC restarted after the commit".into()),
            Verdict::Forgotten => Look::Lost("the PLC's ring has moved on past this id".into()),
            Verdict::Corrupt(_) => Look::Open,
            Verdict::NotTaken => match handover.refused_since(&blocks) {
                None => Look::Open,
                Some(code) => {
                    let block = self.read_block(spec.command, COMMAND_WORDS).await;
                    blocks.command = block.map_err(failed)?.0;
                    if is_committed(&blocks.command, spec.word_order, handover.id) {
                        Look::Final(Outcome::DeviceRefused(code))
                    } else {
                        Look::Open
                    }
                }
            },
        };
        Ok((look, evidence))
    }
}

impl Handover<'_> {
    /// A refusal that was not there before our commit is the answer to it: there is one writer, and no
    /// other commit since. One that was there before may be the old one still.
    fn refused_since(&self, blocks: &MailboxBlocks) -> Option<crate::core::contract::DeviceCode> {
        let now = decode_status(&blocks.status, self.spec.word_order).ok()?;
        let new = now.state == State::Rejected && self.before.state != State::Rejected;
        new.then(|| refusal(now.result)).flatten()
    }
}

/// One look at the PLC's block after the commit.
enum Look {
    Final(Outcome),
    Taken,
    Open,
    Lost(String),
}

fn told(end: &End) -> String {
    match end {
        End::NotSent(why) | End::PartlySent(why) | End::NoReply(why) => why.clone(),
        End::Code(coded) => coded.code.to_string(),
        End::Words(_) | End::Model(..) | End::Echo | End::Unconfirmable(_) => {
            "not what was asked for".into()
        }
    }
}
