//! Owns: which searches are made, what each must have reached, and which deliberate fault each must find.
//! May call: the rest of this test.
//! Never: accept a search that left something out, or did not reach what it is for.

use crate::explore::{Found, explore};
use crate::plan::Rare::*;
use crate::plan::{Plan, Wish};
use crate::world::World;
use holdfast::seeded::{self, Fault};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The search ends by itself long before; the long run may be cut by `HOLDFAST_MODEL_DEPTH`.
const DEPTH_MAX: usize = 100;

/// A set value, people, and a link that fails: no restart.
const SET_AND_PEOPLE: Plan = Plan {
    name: "one set value: people, link, replies, deadline",
    wishes: &[Wish::Set],
    may: &[
        (Person, 1),
        (Link, 1),
        (Failed, 1),
        (Refused, 1),
        (Doubled, 1),
        (Time, 1),
    ],
    long: &[
        (Person, 1),
        (Link, 1),
        (Failed, 1),
        (Refused, 1),
        (Doubled, 1),
        (Version, 1),
        (Time, 2),
    ],
};
/// A set value over every restart there is, with the configuration moving on.
const SET_AND_RESTARTS: Plan = Plan {
    name: "one set value: restarts, version, deadline",
    wishes: &[Wish::Set],
    may: &[(Person, 1), (Link, 1), (Version, 1), (Time, 1), (Reboot, 1)],
    long: &[
        (Person, 1),
        (Link, 1),
        (Version, 1),
        (Time, 1),
        (Crash, 1),
        (Reboot, 1),
    ],
};
/// Two, of which the second takes the place of the first.
const REPLACED: Plan = Plan {
    name: "a set value and its replacement",
    wishes: &[Wish::Set, Wish::SetInstead],
    may: &[(Again, 1), (Person, 1), (Link, 1), (Failed, 1)],
    long: &[(Again, 1), (Person, 1), (Link, 1), (Failed, 1), (Time, 1)],
};
/// A relative action without a mailbox.
const KICKED: Plan = Plan {
    name: "one relative action that the device can be asked about",
    wishes: &[Wish::Kick],
    may: &[
        (Person, 1),
        (Failed, 1),
        (Refused, 1),
        (Time, 1),
        (Reboot, 1),
    ],
    long: &[
        (Person, 1),
        (Failed, 1),
        (Refused, 1),
        (Time, 1),
        (Crash, 1),
        (Reboot, 1),
    ],
};
/// Three operations in each other's way.
const THREE: Plan = Plan {
    name: "three operations",
    wishes: &[Wish::Set, Wish::SetInstead, Wish::Kick],
    may: &[(Link, 1), (Failed, 1), (Crash, 1)],
    long: &[(Link, 1), (Failed, 1), (Time, 1), (Crash, 1)],
};
/// The mailbox, its frames held up and doubled, the gateway killed.
const MAIL_LATE: Plan = Plan {
    name: "mailbox: late and doubled frames, restarts",
    wishes: &[Wish::Eject],
    may: &[(Failed, 1), (Doubled, 1), (Crash, 1)],
    long: &[
        (Link, 1),
        (Failed, 1),
        (Doubled, 1),
        (Crash, 1),
        (PlcRestart, 1),
    ],
};
/// The mailbox of a machine that takes its time.
const MAIL_SLOW: Plan = Plan {
    name: "mailbox: slow execution, timeouts, deadline, version, PLC restart",
    wishes: &[Wish::Eject],
    may: &[
        (Failed, 1),
        (Slow, 1),
        (Version, 1),
        (Time, 1),
        (PlcRestart, 1),
        (PlcCold, 1),
    ],
    long: &[
        (Failed, 1),
        (Slow, 1),
        (Doubled, 1),
        (Time, 1),
        (Crash, 1),
        (PlcRestart, 1),
    ],
};
/// One mailbox, two operations: an id that is open, or being given up, lets no other pass.
const MAIL_TWO: Plan = Plan {
    name: "mailbox: two operations",
    wishes: &[Wish::Eject, Wish::Eject],
    may: &[(Failed, 2), (Doubled, 1)],
    long: &[(Failed, 2), (Doubled, 1), (Crash, 1)],
};

/// The fault is one for the whole process, so one search at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the long run is cut; `None`: this is the short one.
fn long_run() -> Option<usize> {
    let depth = std::env::var("HOLDFAST_MODEL_DEPTH").ok()?;
    Some(
        depth
            .parse()
            .expect("HOLDFAST_MODEL_DEPTH: a number of actions"),
    )
}

fn search(plan: &Plan, depth_max: usize) -> Found {
    let found = explore(&World::new(plan), depth_max);
    println!(
        "{}; at most {:?}: {} states, {} transitions, depth {}, {}, {:.1} s",
        plan.name,
        plan.may,
        found.states,
        found.transitions,
        found.depth,
        if found.whole { "whole" } else { "not whole" },
        found.took.as_secs_f64(),
    );
    found
}

/// Nothing is broken, nothing was left out, and every branch on the list was reached.
fn holds(plan: &Plan, must_reach: &[&str]) {
    let _alone = alone();
    let mut plan = *plan;
    if long_run().is_some() {
        plan.may = plan.long;
    }
    let found = search(&plan, long_run().unwrap_or(DEPTH_MAX));
    for (branch, times) in &found.reached {
        println!("  {times:>9} {branch}");
    }
    assert_eq!(told(&found), None);
    assert!(
        found.whole || long_run().is_some(),
        "the search was cut short"
    );
    let missed: Vec<_> = must_reach
        .iter()
        .filter(|branch| !found.reached.contains_key(*branch))
        .collect();
    assert!(missed.is_empty(), "never reached: {missed:?}");
}

/// What was broken, and how, as a short trace.
fn told(found: &Found) -> Option<String> {
    let (promise, way) = found.broken.as_ref()?;
    Some(format!("{promise}\n    {}", way.join("\n    ")))
}

/// With the fault there is a way to break `promise`.
fn catches(fault: Fault, plan: &Plan, promise: &str) {
    let _alone = alone();
    seeded::set(Some(fault));
    let found = search(plan, DEPTH_MAX);
    seeded::set(None);
    let told = told(&found).unwrap_or_else(|| panic!("{fault:?} was not found"));
    println!("{fault:?}: {told}");
    assert!(
        told.contains(promise),
        "{fault:?} was found by another promise: {told}"
    );
}

// covers: REL-03, ST-05, CAN-01, CAN-02, SEND-03, SEND-05, TIME-02, VER-02
#[test]
fn a_set_value_among_people_replies_and_deadlines() {
    holds(
        &SET_AND_PEOPLE,
        &[
            "queued",
            "sending",
            "completed",
            "failed",
            "outcome_unknown",
            "not_executed",
            "expired",
            "cancelled",
            "compensated",
            "cancelled in time",
            "cancelled too late",
            "late reply proves",
            "a late frame acts",
            "busy, back to the queue",
            "partly sent",
            "not sent",
            "too late at the link",
            "reply lost",
            "decided over an earlier connection",
        ],
    );
}

// covers: REL-03, REC-02, TIME-02, TIME-03, TIME-04, POL-07
#[test]
fn a_set_value_over_crash_reboot_and_a_new_version() {
    holds(
        &SET_AND_RESTARTS,
        &[
            "held",
            "expired",
            "outcome_unknown",
            "recovered as unknown",
            "held after a reboot",
            "expired by recovery",
            "approved after a reboot",
            "too late at the link",
            "a late frame acts",
        ],
    );
}

// covers: REL-03, CMD-02, POL-05
#[test]
fn a_replacement_and_a_second_submission_never_act_twice() {
    holds(
        &REPLACED,
        &[
            "superseded",
            "rejected",
            "submitted again",
            "completed",
            "cancelled in time",
        ],
    );
}

// covers: REL-03, ST-04, ST-05, REC-02, POL-09
#[test]
fn a_relative_action_without_a_mailbox() {
    holds(
        &KICKED,
        &[
            "accepted",
            "outcome_unknown",
            "completed",
            "failed",
            "not_executed",
            "rejected",
            "completion timed out",
            "recovered as unknown",
            "accepted, then rebooted",
            "unknown, then seen under way",
            "verification proves",
        ],
    );
}

// covers: REL-03, SEND-07
#[test]
fn three_operations_in_each_others_way() {
    holds(
        &THREE,
        &[
            "superseded",
            "rejected",
            "rejected by recovery",
            "recovered as unknown",
            "completed",
            "outcome_unknown",
            "late reply proves",
        ],
    );
}

// covers: REL-03, VER-03, ST-05
#[test]
fn the_mailbox_with_late_and_doubled_frames() {
    holds(
        &MAIL_LATE,
        &[
            "an id is given up by a no-op",
            "not_executed",
            "completed",
            "recovered as unknown",
            "a late commit",
            "a block is held up",
            "a request that was given up arrives",
            "a copy arrives after the effect",
            "verification proves",
        ],
    );
}

// covers: REL-03, VER-03, ST-04, TIME-02
#[test]
fn the_mailbox_of_a_slow_machine() {
    holds(
        &MAIL_SLOW,
        &[
            "accepted",
            "completion timed out",
            "unknown, then seen under way",
            "verification proves",
            "failed",
            "too late at the link",
            "a request that was given up arrives",
            "expired",
            "the device is still at another request",
            "not_executed",
        ],
    );
}

// covers: REL-03, VER-03, SEND-07
#[test]
fn the_mailbox_with_two_operations() {
    holds(
        &MAIL_TWO,
        &[
            "an id is given up by a no-op",
            "not_executed",
            "a request that was given up arrives",
            "a copy arrives after the effect",
        ],
    );
}

#[test]
fn finds_a_lost_reply_that_is_called_failed() {
    catches(
        Fault::UnknownAsFailed,
        &SET_AND_PEOPLE,
        "to failed without evidence",
    );
}

#[test]
fn finds_a_byte_at_the_deadline() {
    catches(
        Fault::DeadlineIncluded,
        &SET_AND_PEOPLE,
        "left at or after its deadline",
    );
}

#[test]
fn finds_an_order_that_rests_on_the_gate_of_an_earlier_connection() {
    catches(
        Fault::StaleGateAccepted,
        &SET_AND_PEOPLE,
        "by the gate of an earlier connection",
    );
}

#[test]
fn finds_a_cancellation_after_the_send_boundary() {
    catches(
        Fault::CancelAfterSend,
        &SET_AND_PEOPLE,
        "to cancelled without evidence",
    );
}

#[test]
fn finds_a_stale_reply_that_is_accepted() {
    catches(Fault::StaleReplyAccepted, &SET_AND_PEOPLE, "OP0");
}

#[test]
fn finds_a_readback_that_is_taken_for_proof() {
    catches(
        Fault::ReadbackAsProof,
        &SET_AND_PEOPLE,
        "is called completed, and had 0",
    );
}

#[test]
fn finds_a_second_sending_after_a_crash() {
    catches(
        Fault::ResendAfterDoubt,
        &SET_AND_RESTARTS,
        "to queued without evidence",
    );
}

#[test]
fn finds_a_version_that_is_not_compared() {
    catches(
        Fault::VersionUnchecked,
        &SET_AND_RESTARTS,
        "for another configuration version",
    );
}

#[test]
fn finds_a_validity_that_a_reboot_refills() {
    catches(
        Fault::ValidityRefilled,
        &SET_AND_RESTARTS,
        "left at or after its deadline",
    );
}

#[test]
fn finds_a_request_id_that_is_used_before_it_is_durable() {
    catches(
        Fault::RequestIdNotDurable,
        &MAIL_LATE,
        "was given out twice",
    );
}

#[test]
fn finds_a_request_called_not_executed_that_executes_later() {
    catches(
        Fault::NotTakenAsNotExecuted,
        &MAIL_LATE,
        "is called not_executed, and had 1",
    );
}

#[test]
fn finds_a_device_without_memory_that_is_believed() {
    catches(
        Fault::PlcRestartIgnored,
        &MAIL_SLOW,
        "is called not_executed, and had 1",
    );
}
