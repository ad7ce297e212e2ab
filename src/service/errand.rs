//! Owns: what is wanted of a machine's task, and what is said where it was not done.
//! May call: core types.
//! Never: do anything.

use crate::core::contract::{Exchange, Job, MailboxRequest, Outcome, Probe, ProbeAnswer};
use crate::core::gateway::{Effect, Input};
use crate::core::ids::{AttemptId, OperationId};
use crate::core::spec::{Scalar, Value};
use crate::core::time::Deadline;
use tokio::sync::oneshot;

/// What the engine, or a reader, wants of the machine.
pub enum Errand {
    /// Hand a job over; the answer is [`Input::Exchanged`].
    Run {
        /// For which operation.
        operation: OperationId,
        /// In which try.
        attempt: AttemptId,
        /// What.
        job: Job,
        /// Not to be handed over at or after this.
        deadline: Option<Deadline>,
    },
    /// Read the gate; the answer is [`Input::Gate`].
    ReadGate,
    /// Look into an outcome; the answer is [`Input::Probed`].
    Probe {
        /// For which operation.
        operation: OperationId,
        /// What to read.
        probe: Probe,
    },
    /// Give a mailbox id up; the answer is [`Input::Burned`].
    Burn {
        /// The no-op.
        request: MailboxRequest,
    },
    /// Set or clear a handshake's acknowledgement; nothing answers.
    Acknowledge {
        /// Which source.
        event_type: String,
        /// While the device presents this item; `None`: clear it.
        item: Option<u32>,
    },
    /// Read entries of a ring; the answer is [`Input::RingRead`].
    ReadRing {
        /// Which source.
        event_type: String,
        /// The first entry's number.
        first: u32,
        /// How many at most.
        count: u16,
    },
    /// Read values now, for somebody who waits.
    Read {
        /// What.
        points: Vec<(String, Scalar)>,
        /// For whom.
        reply: oneshot::Sender<Result<Vec<(String, Value)>, String>>,
    },
}

impl Errand {
    /// Whether the core decides it only behind an open gate. One that was decided while the connection before this
    /// one stood may come late: a commit is slow, a link is back soon (POL-06).
    pub(super) fn wants_gate(&self) -> bool {
        !matches!(self, Self::ReadGate | Self::Read { .. })
    }

    /// Whether it is part of taking events, which gives way to commands (SEND-07).
    pub(super) fn is_of_source(&self) -> bool {
        matches!(self, Self::Acknowledge { .. } | Self::ReadRing { .. })
    }

    /// What an effect wants of whose task; `None`: an answer is for whoever asked.
    #[must_use]
    pub fn of(effect: Effect) -> Option<(String, Self)> {
        Some(match effect {
            Effect::Answer { .. } => return None,
            Effect::Run {
                machine,
                operation,
                attempt,
                job,
                deadline,
            } => (
                machine,
                Self::Run {
                    operation,
                    attempt,
                    job,
                    deadline,
                },
            ),
            Effect::ReadGate { machine } => (machine, Self::ReadGate),
            Effect::Probe {
                machine,
                operation,
                probe,
            } => (machine, Self::Probe { operation, probe }),
            Effect::Burn { machine, request } => (machine, Self::Burn { request }),
            Effect::Acknowledge {
                machine,
                event_type,
                item,
            } => (machine, Self::Acknowledge { event_type, item }),
            Effect::ReadRing {
                machine,
                event_type,
                first,
                count,
            } => (
                machine,
                Self::ReadRing {
                    event_type,
                    first,
                    count,
                },
            ),
        })
    }

    /// It was not done, and no byte was sent for it: what the engine is to hear of that.
    pub fn refused(self, machine: &str, reason: &str) -> Option<Input> {
        let machine = machine.to_owned();
        let why = format!("not connected: {reason}");
        let not_sent = |why| Exchange {
            outcome: Outcome::NotSent { why },
            bytes_sent: 0,
            bytes_total: 0,
            request_ident: String::new(),
            sent_at: None,
            replied_at: None,
            reply: Vec::new(),
        };
        Some(match self {
            Self::Run {
                operation, attempt, ..
            } => Input::Exchanged {
                machine,
                operation,
                attempt,
                exchange: not_sent(why),
            },
            Self::ReadGate => Input::Gate {
                machine,
                reading: Err(why),
            },
            Self::Probe { operation, .. } => Input::Probed {
                machine,
                operation,
                answer: ProbeAnswer::Failed(why),
            },
            Self::Burn { .. } => Input::Burned {
                machine,
                exchange: not_sent(why),
            },
            Self::ReadRing { event_type, .. } => Input::RingRead {
                machine,
                event_type,
                reading: Err(why),
            },
            // It is decided anew at the next look.
            Self::Acknowledge { .. } => return None,
            Self::Read { reply, .. } => {
                let _ = reply.send(Err(why));
                return None;
            }
        })
    }
}
