//! Owns: `machine`: one machine or all, with what its link counts.
//! May call: client, text, status.
//! Never: decide what a counter means.

use super::client::{Client, encode};
use super::exit::{Exit, Failure};
use super::status::show_machine;
use super::text::{Out, now};
use crate::api::types::MachineView;
use crate::core::intent::nearest;
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Machines {
    machines: Vec<MachineView>,
}

/// Fails where no machine of this name is configured.
pub(super) async fn must_exist(client: &Client, name: &str) -> Result<(), Failure> {
    let all: Machines = client.get("/v1/machines").await?.parse()?;
    let names: Vec<&str> = all.machines.iter().map(|m| m.name.as_str()).collect();
    if names.contains(&name) {
        return Ok(());
    }
    let near = nearest(name, names.iter().copied());
    let mend = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("there are: {}", names.join(", ")),
    };
    let body = json!({
        "code": "unknown_machine",
        "detail": format!("no machine {name:?} here; {mend}"),
        "nearest": near,
    });
    Err(Failure::Problem { status: 404, body })
}

pub(super) async fn run(
    client: &Client,
    out: &mut Out,
    machine: Option<&str>,
) -> Result<Exit, Failure> {
    let raw = match machine {
        Some(name) => {
            client
                .get(&format!("/v1/machines/{}", encode(name)))
                .await?
        }
        None => client.get("/v1/machines").await?,
    };
    if out.json() {
        out.raw(&raw.text);
        return Ok(Exit::Done);
    }
    let now = now();
    if machine.is_none() {
        let all: Machines = raw.parse()?;
        for machine in &all.machines {
            show_machine(machine, &now, out);
        }
        return Ok(Exit::Done);
    }
    let one: MachineView = raw.parse()?;
    show_machine(&one, &now, out);
    out.line(&format!("  commanded by {}", one.owner));
    if let Some(model) = &one.model {
        out.line(&format!("  CPU {model}"));
    }
    for (name, count) in &one.counters {
        out.line(&format!("  {name} {}", count.as_str().unwrap_or("?")));
    }
    Ok(Exit::Done)
}
