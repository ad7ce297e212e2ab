//! Owns: the states of an operation, and the one total function by which they change (ST-02).
//! May call: ids, time, contract.
//! Never: know why the caller wants a change; hold a clock; let `Completed` come from anything but
//! [`Evidence`].

use super::contract::{DeviceCode, MailboxEcho, Outcome, Reply};
use super::ids::{AttemptId, OperationId};
use super::spec::Value;
use super::time::Stamp;
use crate::seeded::{self, Fault};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who did something, as it is written into histories.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Actor {
    /// A local user, with the groups it had when it asked.
    Uid {
        /// User id.
        uid: u32,
        /// Group ids, the primary first.
        gids: Vec<u32>,
    },
    /// The holder of a named token.
    Token(String),
    /// The subject of a client certificate.
    Certificate(String),
    /// The gateway itself.
    Gateway,
}

impl Actor {
    /// For histories: who, not what groups they were in.
    #[must_use]
    pub fn without_groups(&self) -> Self {
        match self {
            Self::Uid { uid, .. } => Self::Uid {
                uid: *uid,
                gids: Vec::new(),
            },
            Self::Token(_) | Self::Certificate(_) | Self::Gateway => self.clone(),
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid { uid, .. } => write!(f, "uid:{uid}"),
            Self::Token(name) => write!(f, "token:{name}"),
            Self::Certificate(cn) => write!(f, "cert:{cn}"),
            Self::Gateway => f.write_str("gateway"),
        }
    }
}

/// What brought a change about (CMD-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A request.
    Api,
    /// The command policy table.
    Policy,
    /// The link to the device.
    Link,
    /// The verifier.
    Verifier,
    /// A start after a stop or a crash.
    Recovery,
    /// A person's decision.
    Operator,
}

/// Why an operation was refused: known not to have been sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RejectReason {
    /// The link is down and the row does not let it wait (POL-02, POL-09).
    Disconnected,
    /// As many wait as may (POL-04).
    QueueFull {
        /// The row's limit.
        limit: u32,
    },
    /// The row never lets it wait, and it cannot be sent now.
    NotQueueable,
    /// A stop that could not be delivered (POL-03).
    NotDelivered,
    /// `issued_at` is outside the replay window, or only a tombstone is left (TIME-06, CAP-03).
    OutsideReplayWindow,
    /// The one named in `replaces` cannot be replaced by this caller, or not any more (POL-05).
    ReplaceRefused {
        /// In plain words.
        why: String,
    },
    /// `read_only = true` (OPS-04).
    MachineReadOnly,
    /// A gate check failed and the row's class never waits for a person.
    Gate(HeldReason),
}

impl RejectReason {
    /// The stable code of the API.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::QueueFull { .. } => "queue_full",
            Self::NotQueueable => "not_queueable",
            Self::NotDelivered => "not_delivered",
            Self::OutsideReplayWindow => "outside_replay_window",
            Self::ReplaceRefused { .. } => "replace_refused",
            Self::MachineReadOnly => "machine_read_only",
            Self::Gate(held) => held.code(),
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => {
                f.write_str("the machine cannot be commanded now, and this command never waits")
            }
            Self::QueueFull { limit } => {
                write!(f, "{limit} of this command already wait, the most allowed")
            }
            Self::NotQueueable => f.write_str("this command may not wait"),
            Self::NotDelivered => f.write_str("the stop could not be delivered"),
            Self::OutsideReplayWindow => f.write_str("the replay window of this request is over"),
            Self::ReplaceRefused { why } => write!(f, "replacement refused: {why}"),
            Self::MachineReadOnly => f.write_str("the machine is configured read_only"),
            Self::Gate(held) => held.fmt(f),
        }
    }
}

/// Why a person must decide. The content of the operation is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldReason {
    /// Another device, or another program, answers (POL-06).
    IdentityMismatch {
        /// Configured.
        expected: String,
        /// Read.
        found: String,
    },
    /// The PLC's mode does not allow commands.
    ModeNotAllowed {
        /// Read.
        found: i64,
    },
    /// The gate could not be read whole, or the device calls its data bad.
    Quality {
        /// In plain words.
        why: String,
    },
    /// The device's configuration moved on (POL-07).
    VersionConflict {
        /// What the caller expected.
        expected: u32,
        /// What the device has.
        found: i64,
    },
    /// An interlock is open.
    Interlock {
        /// Its name.
        name: String,
    },
    /// Who submitted it may not submit any more.
    PermissionLost,
    /// A reboot, and no clock to prove that it is still valid (TIME-04).
    ValidityUnprovable,
    /// The configuration no longer has its command, or has it changed so that it no longer fits.
    ConfigurationChanged {
        /// In plain words.
        why: String,
    },
}

impl HeldReason {
    /// The stable code of the API.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::IdentityMismatch { .. } => "identity_mismatch",
            Self::ModeNotAllowed { .. } => "mode_not_allowed",
            Self::Quality { .. } => "bad_quality",
            Self::VersionConflict { .. } => "version_conflict",
            Self::Interlock { .. } => "interlock_open",
            Self::PermissionLost => "permission_lost",
            Self::ValidityUnprovable => "validity_unprovable",
            Self::ConfigurationChanged { .. } => "configuration_changed",
        }
    }
}

impl fmt::Display for HeldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdentityMismatch { expected, found } => write!(
                f,
                "another device answers: its identity is {found}, configured is {expected}"
            ),
            Self::ModeNotAllowed { found } => {
                write!(
                    f,
                    "the machine is in mode {found}, which allows no commands"
                )
            }
            Self::Quality { why } => write!(f, "the machine's data cannot be relied on: {why}"),
            Self::VersionConflict { expected, found } => write!(
                f,
                "the machine's configuration is version {found}, this was meant for version {expected}"
            ),
            Self::Interlock { name } => write!(f, "interlock open: {name}"),
            Self::PermissionLost => f.write_str("its submitter may no longer submit commands"),
            Self::ValidityUnprovable => f.write_str(
                "the computer was restarted, and no trusted clock proves that this is still valid",
            ),
            Self::ConfigurationChanged { why } => write!(f, "the configuration changed: {why}"),
        }
    }
}

/// Why an outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnknownReason {
    /// The gateway stopped while it was being sent (REC-02).
    Restart,
    /// Some bytes were handed over, not all (SEND-03).
    PartlySent {
        /// Handed over.
        sent: u32,
        /// Of so many.
        total: u32,
    },
    /// All bytes were handed over; no matching reply came.
    NoReply {
        /// What was waited for, and what came instead.
        why: String,
    },
    /// The device answered with a code that proves nothing (SEND-04).
    UnclearCode(DeviceCode),
    /// The device took it and never reported completion (ST-04).
    CompletionTimeout,
    /// A broadcast: nobody answers.
    Unconfirmable,
    /// The device took it, and restarted before it reported completion.
    DeviceRestart,
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restart => f.write_str("the gateway stopped while it was being sent"),
            Self::PartlySent { sent, total } => {
                write!(
                    f,
                    "the link broke after {sent} of {total} bytes were handed over"
                )
            }
            Self::NoReply { why } => write!(f, "sent whole, no matching reply: {why}"),
            Self::UnclearCode(code) => write!(
                f,
                "the device answered {} {:#04x} ({}), which does not say whether it acted",
                code.family, code.code, code.meaning
            ),
            Self::CompletionTimeout => {
                f.write_str("the device accepted it and did not report completion in time")
            }
            Self::Unconfirmable => f.write_str("sent as a broadcast, which nobody answers"),
            Self::DeviceRestart => {
                f.write_str("the device accepted it and restarted before it reported completion")
            }
        }
    }
}

/// What proves a known outcome. Its fields are private: it comes only from the constructors here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    method: Method,
    at: Stamp,
    detail: String,
}

/// By what an outcome was proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The matched reply.
    Reply,
    /// A matched reply that came after the outcome had been called unknown.
    LateReply,
    /// The mailbox's record of our request id.
    Mailbox,
    /// The device's answer to a query for its last finished request.
    Query,
    /// A completion event that carries the id.
    Event,
    /// A person, with a written reason.
    Operator,
}

impl Method {
    /// The name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::LateReply => "late_reply",
            Self::Mailbox => "mailbox",
            Self::Query => "query",
            Self::Event => "event",
            Self::Operator => "operator",
        }
    }
}

impl Evidence {
    /// A matched write echo or values read; `late` if the outcome had been called unknown before.
    #[must_use]
    pub fn from_reply(reply: &Reply, at: Stamp, late: bool) -> Self {
        let detail = match reply {
            Reply::WriteEcho => "the device echoed the write".into(),
            Reply::Confirmed { by } => by.clone(),
            Reply::Values(values) => format!("{} value(s) read", values.len()),
            Reply::Mailbox(echo) => return Self::from_mailbox(echo, at),
        };
        let method = match late {
            true => Method::LateReply,
            false => Method::Reply,
        };
        Self { method, at, detail }
    }
    /// The mailbox's record.
    #[must_use]
    pub fn from_mailbox(echo: &MailboxEcho, at: Stamp) -> Self {
        Self {
            method: Method::Mailbox,
            at,
            detail: format!(
                "the device's record: request {}, result {}, effect counter {}",
                echo.request_id, echo.result, echo.effect_counter
            ),
        }
    }
    /// The mailbox's record shows that the id was never taken and, since a higher one was, never will be.
    #[must_use]
    pub fn never_taken(request_id: u32, burned_by: u32, at: Stamp) -> Self {
        Self {
            method: Method::Mailbox,
            at,
            detail: format!(
                "the device never took request {request_id}, and has since done {burned_by}, so it never will"
            ),
        }
    }
    /// The device's own register of the last finished request id.
    #[must_use]
    pub fn from_done(id: u32, result: i64, watched: bool, at: Stamp) -> Self {
        Self {
            method: if watched {
                Method::Event
            } else {
                Method::Query
            },
            at,
            detail: format!("the device reports request {id} finished with result {result}"),
        }
    }
    /// A person's word.
    #[must_use]
    pub fn from_operator(actor: &Actor, reason: &str, at: Stamp) -> Self {
        Self {
            method: Method::Operator,
            at,
            detail: format!("{actor}: {reason}"),
        }
    }
    /// By what.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }
    /// When.
    #[must_use]
    pub fn at(&self) -> &Stamp {
        &self.at
    }
    /// In plain words.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// A completed operation's result. Built only from [`Evidence`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    evidence: Evidence,
    values: Vec<(String, Value)>,
}

impl Completion {
    /// The only way to a completion.
    #[must_use]
    pub fn new(evidence: Evidence, values: Vec<(String, Value)>) -> Self {
        Self { evidence, values }
    }
    /// What proves it.
    #[must_use]
    pub fn evidence(&self) -> &Evidence {
        &self.evidence
    }
    /// What a query read; empty for commands.
    #[must_use]
    pub fn values(&self) -> &[(String, Value)] {
        &self.values
    }
}

/// Where an operation stands (ST-01).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// Waits to be sent.
    Queued,
    /// A person must decide.
    Held(HeldReason),
    /// Refused; not sent.
    Rejected(RejectReason),
    /// Its validity ended before it was sent.
    Expired,
    /// Withdrawn before it was sent.
    Cancelled {
        /// By whom.
        by: Actor,
    },
    /// Another one took its place before it was sent.
    Superseded {
        /// Which.
        by: OperationId,
    },
    /// Bytes may be leaving.
    Sending {
        /// Which try.
        attempt: AttemptId,
    },
    /// The device took it and has not reported completion.
    Accepted {
        /// Since when.
        since: Stamp,
    },
    /// It may have had its effect, or not.
    OutcomeUnknown(UnknownReason),
    /// It had its effect.
    Completed(Completion),
    /// The device refused it: no effect.
    Failed {
        /// The device's code.
        code: DeviceCode,
        /// What proves it.
        evidence: Evidence,
    },
    /// Proven never to have been executed.
    NotExecuted {
        /// What proves it.
        evidence: Evidence,
    },
    /// A person undid or made up for it.
    Compensated {
        /// The operation that did, if one did.
        by_operation: Option<OperationId>,
        /// What proves it.
        evidence: Evidence,
    },
}

/// The three things that are never confused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// No byte left.
    NotSent,
    /// Under way, or unknown.
    InDoubt,
    /// Proven.
    Known,
}

impl Family {
    /// The name used in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::InDoubt => "in_doubt",
            Self::Known => "known",
        }
    }
}

impl State {
    /// The name used in the API.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Held(_) => "held",
            Self::Rejected(_) => "rejected",
            Self::Expired => "expired",
            Self::Cancelled { .. } => "cancelled",
            Self::Superseded { .. } => "superseded",
            Self::Sending { .. } => "sending",
            Self::Accepted { .. } => "accepted",
            Self::OutcomeUnknown(_) => "outcome_unknown",
            Self::Completed(_) => "completed",
            Self::Failed { .. } => "failed",
            Self::NotExecuted { .. } => "not_executed",
            Self::Compensated { .. } => "compensated",
        }
    }
    /// See [`Family`].
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Queued
            | Self::Held(_)
            | Self::Rejected(_)
            | Self::Expired
            | Self::Cancelled { .. }
            | Self::Superseded { .. } => Family::NotSent,
            Self::Sending { .. } | Self::Accepted { .. } | Self::OutcomeUnknown(_) => {
                Family::InDoubt
            }
            Self::Completed(_)
            | Self::Failed { .. }
            | Self::NotExecuted { .. }
            | Self::Compensated { .. } => Family::Known,
        }
    }
    /// Whether nothing will change it any more (but a person's `compensated` on a known outcome).
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match self {
            Self::Queued
            | Self::Held(_)
            | Self::Sending { .. }
            | Self::Accepted { .. }
            | Self::OutcomeUnknown(_) => false,
            Self::Rejected(_)
            | Self::Expired
            | Self::Cancelled { .. }
            | Self::Superseded { .. }
            | Self::Completed(_)
            | Self::Failed { .. }
            | Self::NotExecuted { .. }
            | Self::Compensated { .. } => true,
        }
    }
    /// Why it stands there, in plain words; empty where the name says it all.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Queued => String::new(),
            Self::Held(reason) => reason.to_string(),
            Self::Rejected(reason) => reason.to_string(),
            Self::Expired => "its validity ended before it could be sent".into(),
            Self::Cancelled { by } => format!("cancelled by {by}"),
            Self::Superseded { by } => format!("{by} took its place"),
            Self::Sending { .. } => "handed to the link".into(),
            Self::Accepted { .. } => "the device took it; completion is not reported yet".into(),
            Self::OutcomeUnknown(reason) => reason.to_string(),
            Self::Completed(done) => done.evidence.detail.clone(),
            Self::Failed { code, .. } => format!(
                "the device refused it: {} {:#04x} ({})",
                code.family, code.code, code.meaning
            ),
            Self::NotExecuted { evidence } | Self::Compensated { evidence, .. } => {
                evidence.detail.clone()
            }
        }
    }
    /// What proves it, once it is known.
    #[must_use]
    pub fn evidence(&self) -> Option<&Evidence> {
        match self {
            Self::Completed(done) => Some(&done.evidence),
            Self::Failed { evidence, .. }
            | Self::NotExecuted { evidence }
            | Self::Compensated { evidence, .. } => Some(evidence),
            Self::Queued
            | Self::Held(_)
            | Self::Rejected(_)
            | Self::Expired
            | Self::Cancelled { .. }
            | Self::Superseded { .. }
            | Self::Sending { .. }
            | Self::Accepted { .. }
            | Self::OutcomeUnknown(_) => None,
        }
    }
}

/// What may happen to an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The policy refuses it.
    Reject(RejectReason),
    /// The policy wants a person.
    Hold(HeldReason),
    /// A person lets a held one go on.
    Approve,
    /// Its deadline has come.
    Expire,
    /// Somebody withdraws it.
    Cancel(Actor),
    /// Another one takes its place.
    Supersede(OperationId),
    /// It is handed to the link.
    Begin(AttemptId),
    /// Known not to have been sent, or not to have been executed: back to the policy.
    Return,
    /// The device took it.
    Accept(Stamp),
    /// Nobody knows.
    Doubt(UnknownReason),
    /// Its completion is proven.
    Complete(Completion),
    /// The device's refusal is proven.
    Fail(DeviceCode, Evidence),
    /// It is proven not to have been executed.
    Deny(Evidence),
    /// A person made up for it.
    Compensate(Option<OperationId>, Evidence),
}

impl Step {
    /// Its name, for errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Reject(_) => "reject",
            Self::Hold(_) => "hold",
            Self::Approve => "approve",
            Self::Expire => "expire",
            Self::Cancel(_) => "cancel",
            Self::Supersede(_) => "supersede",
            Self::Begin(_) => "begin",
            Self::Return => "return",
            Self::Accept(_) => "accept",
            Self::Doubt(_) => "doubt",
            Self::Complete(_) => "complete",
            Self::Fail(..) => "fail",
            Self::Deny(_) => "deny",
            Self::Compensate(..) => "compensate",
        }
    }
}

/// A step that a state does not allow. A value, never a panic (ST-02).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step} is not possible while {state}")]
pub struct NotAllowed {
    /// The state's name.
    pub state: &'static str,
    /// The step's name.
    pub step: &'static str,
}

/// The transition table: total over (state, step).
///
/// # Errors
/// [`NotAllowed`] where the table has no arrow.
pub fn next(state: &State, step: Step) -> Result<State, NotAllowed> {
    let refused = Err(NotAllowed {
        state: state.name(),
        step: step.name(),
    });
    match (state, step) {
        // Before the send boundary everything may still be decided.
        (State::Queued, Step::Reject(reason)) => Ok(State::Rejected(reason)),
        (State::Queued, Step::Hold(reason)) => Ok(State::Held(reason)),
        (State::Queued, Step::Begin(attempt)) => Ok(State::Sending { attempt }),
        (State::Queued | State::Held(_), Step::Expire) => Ok(State::Expired),
        (State::Queued | State::Held(_), Step::Cancel(by)) => Ok(State::Cancelled { by }),
        (State::Queued, Step::Supersede(by)) => Ok(State::Superseded { by }),
        (State::Held(_), Step::Approve) => Ok(State::Queued),
        (State::Held(_), Step::Hold(reason)) => Ok(State::Held(reason)),

        // At the boundary only the adapter's word counts.
        (State::Sending { .. }, Step::Cancel(by)) if seeded::is_on(Fault::CancelAfterSend) => {
            Ok(State::Cancelled { by })
        }
        (State::Sending { .. }, Step::Return) => Ok(State::Queued),
        (State::Sending { .. }, Step::Accept(since)) => Ok(State::Accepted { since }),
        (State::Sending { .. } | State::Accepted { .. }, Step::Doubt(why)) => {
            Ok(State::OutcomeUnknown(why))
        }

        // Evidence ends doubt; nothing else does (ST-05).
        (
            State::Sending { .. } | State::Accepted { .. } | State::OutcomeUnknown(_),
            Step::Complete(done),
        ) => Ok(State::Completed(done)),
        (
            State::Sending { .. } | State::Accepted { .. } | State::OutcomeUnknown(_),
            Step::Fail(code, evidence),
        ) => Ok(State::Failed { code, evidence }),
        (State::Accepted { .. } | State::OutcomeUnknown(_), Step::Deny(evidence)) => {
            Ok(State::NotExecuted { evidence })
        }
        (State::OutcomeUnknown(_), Step::Accept(since)) => Ok(State::Accepted { since }),
        (
            State::OutcomeUnknown(_) | State::Completed(_),
            Step::Compensate(by_operation, evidence),
        ) => Ok(State::Compensated {
            by_operation,
            evidence,
        }),

        // What remains has no arrow. Listed whole, so that a new state or step must be placed.
        (
            State::Queued,
            Step::Approve
            | Step::Return
            | Step::Accept(_)
            | Step::Doubt(_)
            | Step::Complete(_)
            | Step::Fail(..)
            | Step::Deny(_)
            | Step::Compensate(..),
        )
        | (
            State::Held(_),
            Step::Reject(_)
            | Step::Supersede(_)
            | Step::Begin(_)
            | Step::Return
            | Step::Accept(_)
            | Step::Doubt(_)
            | Step::Complete(_)
            | Step::Fail(..)
            | Step::Deny(_)
            | Step::Compensate(..),
        )
        | (
            State::Sending { .. },
            Step::Reject(_)
            | Step::Hold(_)
            | Step::Approve
            | Step::Expire
            | Step::Cancel(_)
            | Step::Supersede(_)
            | Step::Begin(_)
            | Step::Deny(_)
            | Step::Compensate(..),
        )
        | (
            State::Accepted { .. },
            Step::Reject(_)
            | Step::Hold(_)
            | Step::Approve
            | Step::Expire
            | Step::Cancel(_)
            | Step::Supersede(_)
            | Step::Begin(_)
            | Step::Return
            | Step::Accept(_)
            | Step::Compensate(..),
        )
        | (
            State::OutcomeUnknown(_),
            Step::Reject(_)
            | Step::Hold(_)
            | Step::Approve
            | Step::Expire
            | Step::Cancel(_)
            | Step::Supersede(_)
            | Step::Begin(_)
            | Step::Return
            | Step::Doubt(_),
        )
        | (
            State::Completed(_),
            Step::Reject(_)
            | Step::Hold(_)
            | Step::Approve
            | Step::Expire
            | Step::Cancel(_)
            | Step::Supersede(_)
            | Step::Begin(_)
            | Step::Return
            | Step::Accept(_)
            | Step::Doubt(_)
            | Step::Complete(_)
            | Step::Fail(..)
            | Step::Deny(_),
        )
        | (
            State::Rejected(_)
            | State::Expired
            | State::Cancelled { .. }
            | State::Superseded { .. }
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. },
            Step::Reject(_)
            | Step::Hold(_)
            | Step::Approve
            | Step::Expire
            | Step::Cancel(_)
            | Step::Supersede(_)
            | Step::Begin(_)
            | Step::Return
            | Step::Accept(_)
            | Step::Doubt(_)
            | Step::Complete(_)
            | Step::Fail(..)
            | Step::Deny(_)
            | Step::Compensate(..),
        ) => refused,
    }
}

/// What an adapter's word means for an operation that is `Sending`, by what it proves (SEND-03, SEND-04).
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    /// No effect, by proof: the policy decides anew.
    NotSent(String),
    /// No effect, by proof: the device was busy.
    Busy(DeviceCode),
    /// A step of the table.
    Step(Step),
    /// A matching reply; the row's completion contract decides what it is worth (POL-10).
    Replied(Reply),
}

/// The one reading of [`Outcome`].
#[must_use]
pub fn meaning(outcome: &Outcome, sent: u32, total: u32, at: Stamp) -> Meaning {
    match outcome {
        Outcome::NotSent { why } => Meaning::NotSent(why.clone()),
        Outcome::PartlySent { .. } => {
            Meaning::Step(Step::Doubt(UnknownReason::PartlySent { sent, total }))
        }
        Outcome::SentNoReply { why } if seeded::is_on(Fault::UnknownAsFailed) => {
            let code = DeviceCode {
                family: "link".into(),
                code: 0,
                meaning: why.clone(),
            };
            let evidence = Evidence::of_refusal(&code, Method::Reply, at);
            Meaning::Step(Step::Fail(code, evidence))
        }
        Outcome::SentNoReply { why } => {
            Meaning::Step(Step::Doubt(UnknownReason::NoReply { why: why.clone() }))
        }
        Outcome::DeviceRefused(code) => Meaning::Step(Step::Fail(
            code.clone(),
            Evidence::from_reply(&Reply::WriteEcho, at, false).refused(code),
        )),
        Outcome::DeviceBusy(code) => Meaning::Busy(code.clone()),
        Outcome::DeviceUnclear(code) => {
            Meaning::Step(Step::Doubt(UnknownReason::UnclearCode(code.clone())))
        }
        Outcome::DeviceAccepted => Meaning::Step(Step::Accept(at)),
        Outcome::DeviceReplied(reply) => Meaning::Replied(reply.clone()),
    }
}

impl Evidence {
    /// The device's own refusal.
    #[must_use]
    fn refused(self, code: &DeviceCode) -> Self {
        Self {
            detail: format!(
                "the device refused: {} {:#04x} ({})",
                code.family, code.code, code.meaning
            ),
            ..self
        }
    }
    /// A refusal that a matched reply or the mailbox carries.
    #[must_use]
    pub fn of_refusal(code: &DeviceCode, method: Method, at: Stamp) -> Self {
        Self {
            method,
            at,
            detail: String::new(),
        }
        .refused(code)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ids::{BootId, Epoch};
    use super::super::time::Now;
    use super::*;

    fn now() -> Now {
        Now {
            boot_id: BootId([1; 16]),
            boottime_ns: 1,
            wall_us: 1,
            wall_trusted: true,
        }
    }
    fn evidence() -> Evidence {
        Evidence::from_operator(&Actor::Gateway, "seen", now())
    }
    fn code() -> DeviceCode {
        DeviceCode {
            family: "modbus".into(),
            code: 2,
            meaning: "illegal data address".into(),
        }
    }
    fn id() -> OperationId {
        OperationId::parse("OP8").unwrap()
    }
    fn attempt() -> AttemptId {
        AttemptId {
            epoch: Epoch(1),
            n: 1,
        }
    }

    fn states() -> Vec<State> {
        vec![
            State::Queued,
            State::Held(HeldReason::PermissionLost),
            State::Rejected(RejectReason::Disconnected),
            State::Expired,
            State::Cancelled { by: Actor::Gateway },
            State::Superseded { by: id() },
            State::Sending { attempt: attempt() },
            State::Accepted { since: now() },
            State::OutcomeUnknown(UnknownReason::Restart),
            State::Completed(Completion::new(evidence(), Vec::new())),
            State::Failed {
                code: code(),
                evidence: evidence(),
            },
            State::NotExecuted {
                evidence: evidence(),
            },
            State::Compensated {
                by_operation: None,
                evidence: evidence(),
            },
        ]
    }

    fn steps() -> Vec<Step> {
        vec![
            Step::Reject(RejectReason::Disconnected),
            Step::Hold(HeldReason::PermissionLost),
            Step::Approve,
            Step::Expire,
            Step::Cancel(Actor::Gateway),
            Step::Supersede(id()),
            Step::Begin(attempt()),
            Step::Return,
            Step::Accept(now()),
            Step::Doubt(UnknownReason::Restart),
            Step::Complete(Completion::new(evidence(), Vec::new())),
            Step::Fail(code(), evidence()),
            Step::Deny(evidence()),
            Step::Compensate(None, evidence()),
        ]
    }

    // covers: ST-01, ST-02
    #[test]
    fn the_table_is_the_one_that_is_written_down() {
        let mut arrows: Vec<String> = Vec::new();
        for state in states() {
            for step in steps() {
                let name = step.name();
                match next(&state, step) {
                    Ok(after) => arrows.push(format!("{} {name} {}", state.name(), after.name())),
                    Err(refused) => {
                        assert_eq!((refused.state, refused.step), (state.name(), name));
                    }
                }
            }
        }
        let expected = "\
queued reject rejected
queued hold held
queued expire expired
queued cancel cancelled
queued supersede superseded
queued begin sending
held hold held
held approve queued
held expire expired
held cancel cancelled
sending return queued
sending accept accepted
sending doubt outcome_unknown
sending complete completed
sending fail failed
accepted doubt outcome_unknown
accepted complete completed
accepted fail failed
accepted deny not_executed
outcome_unknown accept accepted
outcome_unknown complete completed
outcome_unknown fail failed
outcome_unknown deny not_executed
outcome_unknown compensate compensated
completed compensate compensated";
        assert_eq!(arrows.join("\n"), expected);
    }

    // covers: ST-05, CAN-02
    #[test]
    fn after_the_send_boundary_only_proof_leads_back() {
        for state in states() {
            for step in steps() {
                let needs_proof = matches!(
                    step,
                    Step::Complete(_) | Step::Fail(..) | Step::Deny(_) | Step::Compensate(..)
                );
                let is_return = matches!(step, Step::Return);
                let Ok(after) = next(&state, step) else {
                    continue;
                };
                if state.family() == Family::InDoubt && after.family() != Family::InDoubt {
                    assert!(
                        needs_proof || is_return,
                        "{} to {}",
                        state.name(),
                        after.name()
                    );
                    // Back to the queue only by the adapter's word that no byte left.
                    assert!(!is_return || matches!(state, State::Sending { .. }));
                }
                if state.is_ended() {
                    assert_eq!(after.name(), "compensated");
                }
            }
        }
    }

    // covers: SEND-02, SEND-03, SEND-04
    #[test]
    fn each_word_of_an_adapter_means_what_it_proves() {
        let read = |outcome: Outcome| match meaning(&outcome, 5, 12, now()) {
            Meaning::NotSent(_) => "not sent".to_owned(),
            Meaning::Busy(_) => "busy".to_owned(),
            Meaning::Replied(_) => "replied".to_owned(),
            Meaning::Step(step) => step.name().to_owned(),
        };
        let why = || "x".to_owned();
        assert_eq!(read(Outcome::NotSent { why: why() }), "not sent");
        assert_eq!(read(Outcome::PartlySent { why: why() }), "doubt");
        assert_eq!(read(Outcome::SentNoReply { why: why() }), "doubt");
        assert_eq!(read(Outcome::DeviceRefused(code())), "fail");
        assert_eq!(read(Outcome::DeviceBusy(code())), "busy");
        assert_eq!(read(Outcome::DeviceUnclear(code())), "doubt");
        assert_eq!(read(Outcome::DeviceAccepted), "accept");
        assert_eq!(read(Outcome::DeviceReplied(Reply::WriteEcho)), "replied");
    }
}
