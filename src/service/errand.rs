//! Owns: what is wanted of a machine's task, and what is said where it was not done.
//! May call: core types.
//! Never: do anything.

use crate::core::contract::{Exchange, Job, MailboxRequest, Outcome, Probe, ProbeAnswer};
use crate::core::gateway::{Effect, Input};
use crate::core::ids::{AttemptId, ConnectionNo, OperationId};
use crate::core::spec::{Scalar, Value};
use crate::core::time::Deadline;
use crate::seeded::{self, Fault};
use tokio::sync::oneshot;

/// What the engine, or a reader, wants of the machine.
pub enum Errand {
    /// Hand a job over; the answer is [`Input::Exchanged`].
    Run {
        /// The only connection that it may go out over.
        connection: ConnectionNo,
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
        /// See [`Errand::Run`].
        connection: ConnectionNo,
        /// For which operation.
        operation: OperationId,
        /// What to read.
        probe: Probe,
    },
    /// Give a mailbox id up; the answer is [`Input::Burned`].
    Burn {
        /// See [`Errand::Run`].
        connection: ConnectionNo,
        /// The no-op.
        request: MailboxRequest,
    },
    /// Set or clear a handshake's acknowledgement; nothing answers.
    Acknowledge {
        /// See [`Errand::Run`].
        connection: ConnectionNo,
        /// Which source.
        event_type: String,
        /// While the device presents this item; `None`: clear it.
        item: Option<u32>,
    },
    /// Read entries of a ring; the answer is [`Input::RingRead`].
    ReadRing {
        /// See [`Errand::Run`].
        connection: ConnectionNo,
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
    /// Why it may not be done over the connection that stands (POL-06); `identified`: whether the configured device
    /// answers there. It may have been decided by the gate of an earlier one: a commit is slow, a link is back soon.
    #[must_use]
    pub fn barred(&self, stands: ConnectionNo, identified: Option<bool>) -> Option<&'static str> {
        let decided_over = match self {
            Self::Run { connection, .. }
            | Self::Probe { connection, .. }
            | Self::Burn { connection, .. }
            | Self::Acknowledge { connection, .. }
            | Self::ReadRing { connection, .. } => *connection,
            // No gate was asked about these.
            Self::ReadGate | Self::Read { .. } => return None,
        };
        if decided_over != stands && !seeded::is_on(Fault::StaleGateAccepted) {
            return Some("it was decided over an earlier connection");
        }
        (identified != Some(true)).then_some("another device answers, or who does is not known")
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
                connection,
                operation,
                attempt,
                job,
                deadline,
            } => (
                machine,
                Self::Run {
                    connection,
                    operation,
                    attempt,
                    job,
                    deadline,
                },
            ),
            Effect::ReadGate { machine } => (machine, Self::ReadGate),
            Effect::Probe {
                machine,
                connection,
                operation,
                probe,
            } => (
                machine,
                Self::Probe {
                    connection,
                    operation,
                    probe,
                },
            ),
            Effect::Burn {
                machine,
                connection,
                request,
            } => (
                machine,
                Self::Burn {
                    connection,
                    request,
                },
            ),
            Effect::Acknowledge {
                machine,
                connection,
                event_type,
                item,
            } => (
                machine,
                Self::Acknowledge {
                    connection,
                    event_type,
                    item,
                },
            ),
            Effect::ReadRing {
                machine,
                connection,
                event_type,
                first,
                count,
            } => (
                machine,
                Self::ReadRing {
                    connection,
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
