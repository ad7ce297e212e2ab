//! Owns: `machine`: one machine or all, with what its link counts.
//! May call: client, text, status.
//! Never: decide what a counter means.

use super::client::{Client, encode};
use super::exit::{Exit, Failure};
use super::status::show_machine;
use super::text::{Out, now};
use crate::api::types::MachineView;
use serde::Deserialize;

#[derive(Deserialize)]
struct Machines {
    machines: Vec<MachineView>,
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
    for (name, count) in &one.counters {
        out.line(&format!("  {name} {}", count.as_str().unwrap_or("?")));
    }
    Ok(Exit::Done)
}
