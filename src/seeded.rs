//! Owns: the list of deliberate faults that the proofs must catch, and which one of them is switched on.
//! May call: nothing.
//! Never: a fault in a build without `test-hooks`: there [`is_on`] is the constant `false`.

/// A deliberate fault. `docs/proof.md` says which test catches which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A command is acknowledged before its block is durable.
    AcknowledgeBeforeSync = 1,
    /// A write whose reply was lost is called failed.
    UnknownAsFailed,
    /// The deadline itself counts as in time.
    DeadlineIncluded,
    /// What is still under way to a sink counts as finished in its cursor.
    CursorBeforeAnswer,
    /// An id of which only a tombstone is left is taken for new.
    ReplayAfterTombstone,
    /// A start gives out its keys in the epoch of the start before.
    EpochNotAdvanced,
    /// A validity is measured by the wall clock, also within a boot.
    WallClockValidity,
    /// How far a source is taken is not written down with its event.
    BaselineNotDurable,
    /// A mailbox request that is not taken so far is called not executed, without a no-op that bars it.
    NotTakenAsNotExecuted,
    /// A cancellation that comes after the send boundary wins.
    CancelAfterSend,
    /// The reply to an earlier attempt is taken for the reply to the one under way.
    StaleReplyAccepted,
    /// What a crash left half sent goes back to the queue.
    ResendAfterDoubt,
    /// The gate does not compare configuration versions.
    VersionUnchecked,
    /// A reboot refills a validity.
    ValidityRefilled,
    /// A request id is used before it is written down.
    RequestIdNotDurable,
    /// A request of which a restarted device shows no trace is given up like any other.
    PlcRestartIgnored,
    /// A value read back completes an unknown outcome.
    ReadbackAsProof,
    /// Names of the journal's files are not made durable.
    DirectoryNotSynced,
    /// What a device repeats of a write is not compared with the write.
    EchoUnchecked,
    /// A Modbus reply of another transaction is taken.
    TransactionUnchecked,
    /// The sum of a serial MC frame is not compared.
    SumUnchecked,
    /// Another device is taken for the configured one.
    IdentityUnchecked,
    /// What was decided by the gate of an earlier connection is sent.
    StaleGateAccepted,
}

impl Fault {
    /// Every fault.
    pub const ALL: &'static [Fault] = &[
        Fault::AcknowledgeBeforeSync,
        Fault::UnknownAsFailed,
        Fault::DeadlineIncluded,
        Fault::CursorBeforeAnswer,
        Fault::ReplayAfterTombstone,
        Fault::EpochNotAdvanced,
        Fault::WallClockValidity,
        Fault::BaselineNotDurable,
        Fault::NotTakenAsNotExecuted,
        Fault::CancelAfterSend,
        Fault::StaleReplyAccepted,
        Fault::ResendAfterDoubt,
        Fault::VersionUnchecked,
        Fault::ValidityRefilled,
        Fault::RequestIdNotDurable,
        Fault::PlcRestartIgnored,
        Fault::ReadbackAsProof,
        Fault::DirectoryNotSynced,
        Fault::EchoUnchecked,
        Fault::TransactionUnchecked,
        Fault::SumUnchecked,
        Fault::IdentityUnchecked,
        Fault::StaleGateAccepted,
    ];

    /// As `HOLDFAST_FAULT` names it: `AcknowledgeBeforeSync`.
    pub fn named(name: &str) -> Option<Fault> {
        Fault::ALL
            .iter()
            .copied()
            .find(|fault| format!("{fault:?}") == name)
    }
}

#[cfg(feature = "test-hooks")]
mod switch {
    use super::Fault;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// Not looked at yet: the environment decides at the first question.
    const UNSET: u8 = u8::MAX;
    static ON: AtomicU8 = AtomicU8::new(UNSET);

    /// Whether this fault is switched on, by [`set`] or by `HOLDFAST_FAULT`.
    pub fn is_on(fault: Fault) -> bool {
        let on = ON.load(Ordering::Relaxed);
        let on = if on == UNSET { from_environment() } else { on };
        on == fault as u8
    }

    /// Switches one fault on, or all off.
    pub fn set(fault: Option<Fault>) {
        ON.store(fault.map_or(0, |fault| fault as u8), Ordering::Relaxed);
    }

    fn from_environment() -> u8 {
        let name = std::env::var("HOLDFAST_FAULT").ok();
        let fault = name.filter(|name| !name.is_empty()).map(|name| {
            Fault::named(&name)
                .unwrap_or_else(|| panic!("HOLDFAST_FAULT: no fault is named {name}"))
        });
        set(fault);
        ON.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "test-hooks")]
pub use switch::{is_on, set};

/// Whether this fault is switched on: never in this build.
#[cfg(not(feature = "test-hooks"))]
pub const fn is_on(_fault: Fault) -> bool {
    false
}
