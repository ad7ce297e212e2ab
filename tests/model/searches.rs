//! Owns: which searches are made, what each must have reached, and which deliberate fault each must find.
//! May call: the rest of this test.
//! Never: accept a search that did not reach what it is for.

use crate::explore::{Found, explore};
use crate::plan::Rare::*;
use crate::plan::{Plan, Wish};
use crate::world::World;

fn run(plan: &Plan) -> Found {
    let found = explore(&World::new(plan), plan.depth);
    println!(
        "{}: {} states, {} transitions, depth {}{}, {:.1} s",
        plan.name,
        found.states,
        found.transitions,
        found.depth,
        if found.whole { " (whole)" } else { "" },
        found.took.as_secs_f64(),
    );
    for (branch, times) in &found.reached {
        println!("  {times:>9} {branch}");
    }
    if let Some((promise, way)) = &found.broken {
        println!("  broken: {promise}");
        way.iter().for_each(|action| println!("    {action}"));
    }
    found
}

#[test]
fn probe() {
    let depth = std::env::var("HOLDFAST_MODEL_DEPTH")
        .ok()
        .and_then(|d| d.parse().ok())
        .unwrap_or(7);
    let plain = Plan {
        name: "plain",
        wishes: &[Wish::Set, Wish::SetInstead],
        may: &[
            (Again, 1),
            (Person, 2),
            (Link, 1),
            (Failed, 2),
            (Refused, 1),
            (Doubled, 1),
            (Version, 1),
            (Time, 2),
            (Crash, 1),
            (Reboot, 1),
        ],
        depth,
    };
    run(&plain);
    let mail = Plan {
        name: "mailbox",
        wishes: &[Wish::Eject, Wish::Eject],
        may: &[
            (Link, 1),
            (Failed, 2),
            (Slow, 1),
            (Doubled, 1),
            (Time, 2),
            (Crash, 1),
            (PlcRestart, 1),
        ],
        depth,
    };
    run(&mail);
}
