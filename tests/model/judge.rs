//! Owns: the promises, checked after every action against the device's ledger and the journal.
//! May call: the world.
//! Never: ask the gateway whether it was right.

use crate::step::Action;
use crate::world::{World, id_of, index_of};
use holdfast::core::gateway::Input;
use holdfast::core::ids::OperationId;
use holdfast::core::lifecycle::{Family, State};
use holdfast::core::record::Operation;
use holdfast::core::time::Now;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

type Disk = BTreeMap<OperationId, Arc<Operation>>;

/// Every promise, after one action.
pub(crate) fn judge(world: &mut World, action: &Action, before: &Disk) {
    conservation(world);
    for (id, kept) in world.disk.clone() {
        let was = before.get(&id).map(|kept| &kept.state);
        if was != Some(&kept.state) {
            world.mark(kept.state.name());
            if let Some(was) = was {
                passage(world, action, &id, was, &kept.state);
            }
        }
        ledger(world, &id, &kept.state);
    }
}

/// What was taken is on record: ended or open, and the gateway knows the open ones as they are written down.
fn conservation(world: &mut World) {
    for operation in 0..world.submitted {
        let id = id_of(operation);
        let kept = world
            .disk
            .get(&id)
            .map(|kept| (&kept.state, kept.request_id));
        let known = world
            .gateway
            .operation(&id)
            .map(|known| (&known.state, known.request_id));
        let ended = kept.is_some_and(|(state, _)| state.is_ended());
        let same = kept.is_some() && (kept == known || (ended && known.is_none()));
        let say = format!("{id} is on disk as {kept:?}, in memory as {known:?}");
        world.promise(same, || say);
    }
}

fn ledger(world: &mut World, id: &OperationId, state: &State) {
    let effects = world.effects_of(index_of(id));
    world.promise(effects <= 1, || format!("{id}: {effects} effects"));
    let expected = match state {
        State::Completed(_) => Some(1),
        State::Queued
        | State::Held(_)
        | State::Rejected(_)
        | State::Expired
        | State::Cancelled { .. }
        | State::Superseded { .. }
        | State::Failed { .. }
        | State::NotExecuted { .. } => Some(0),
        State::Sending { .. }
        | State::Accepted { .. }
        | State::OutcomeUnknown(_)
        | State::Compensated { .. } => None,
    };
    let honest = expected.is_none_or(|expected| expected == effects);
    world.promise(honest, || {
        format!(
            "{id} is called {}, and had {effects} effect(s)",
            state.name()
        )
    });
}

/// Doubt ends by evidence only, and an end is an end.
fn passage(world: &mut World, action: &Action, id: &OperationId, was: &State, is: &State) {
    let proven = matches!(
        is,
        State::Completed(_)
            | State::Failed { .. }
            | State::NotExecuted { .. }
            | State::Compensated { .. }
    );
    // Evidence comes from the device or from a person; time, a crash or a lost link bring none.
    let told = matches!(
        action,
        Action::Told | Action::Reply(_) | Action::ReplyTwice(_) | Action::Look | Action::Resolve(_)
    );
    // `Sending` goes back only by the adapter's word that nothing left, or the device's that it was busy.
    let returned = matches!(was, State::Sending { .. })
        && matches!(
            action,
            Action::Serve
                | Action::ServeFails
                | Action::BlockHeldUp
                | Action::Commit
                | Action::LinkDown
                | Action::Reply(_)
                | Action::ReplyTwice(_)
        );
    let fair = match was.family() {
        _ if was.is_ended() => {
            matches!((was, is), (State::Completed(_), State::Compensated { .. }))
        }
        Family::InDoubt => is.family() == Family::InDoubt || (proven && told) || returned,
        Family::NotSent | Family::Known => {
            !matches!(is, State::Completed(_) | State::NotExecuted { .. })
        }
    };
    let (was, is) = (was.name(), is.name());
    world.promise(fair, || {
        format!("{id} went from {was} to {is} without evidence")
    });
    match (was, is, action) {
        ("sending", "outcome_unknown", Action::Crash | Action::Reboot { .. }) => {
            world.mark("recovered as unknown")
        }
        ("queued", "held", Action::Reboot { .. }) => world.mark("held after a reboot"),
        ("queued", "expired", Action::Crash | Action::Reboot { .. }) => {
            world.mark("expired by recovery")
        }
        ("queued", "rejected", Action::Crash | Action::Reboot { .. }) => {
            world.mark("rejected by recovery")
        }
        ("accepted", "outcome_unknown", Action::Reboot { .. }) => {
            world.mark("accepted, then rebooted")
        }
        ("accepted", "outcome_unknown", Action::Tick) => world.mark("completion timed out"),
        ("outcome_unknown", "accepted", _) => world.mark("unknown, then seen under way"),
        ("outcome_unknown", "completed", Action::Reply(_) | Action::ReplyTwice(_)) => {
            world.mark("late reply proves")
        }
        ("outcome_unknown", "completed", Action::Told) => world.mark("verification proves"),
        ("sending", "queued", Action::Reply(_)) => world.mark("busy, back to the queue"),
        _ => {}
    }
}

/// A reading on its way, for the fingerprint: its content, and how old it is.
pub(crate) fn reading(reading: &Input, now: &Now, into: &mut impl Hasher) {
    match reading {
        Input::Gate {
            reading: Ok(gate), ..
        } => {
            (
                4,
                now.boottime_ns - gate.at.boottime_ns,
                gate.config_version,
            )
                .hash(into);
            format!("{:?}", gate.mailbox).hash(into);
        }
        other => (5, format!("{other:?}")).hash(into),
    }
}
