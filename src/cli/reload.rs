//! Owns: `reload`: the configuration, all or nothing (CFG-03).
//! May call: client, text.
//! Never: read the configuration itself.

use super::client::Client;
use super::exit::{Exit, Failure};
use super::text::{Out, complain, tell};
use serde_json::Value as Json;

pub(super) async fn run(client: &Client, out: &mut Out) -> Result<Exit, Failure> {
    let asked = client.post("/v1/reload", "{}".into(), 0).await;
    let raw = match asked {
        Err(Failure::Problem { body, .. }) if !out.json() && refused(&body) => {
            // As `check` prints it: one problem a line, the place first.
            let detail = body["detail"].as_str().unwrap_or_default();
            let problems = detail.strip_prefix("nothing was changed: ");
            tell(problems.unwrap_or(detail));
            complain("the configuration was refused, nothing was changed [configuration_refused]");
            return Ok(Exit::Configuration);
        }
        other => other?,
    };
    if out.json() {
        out.raw(&raw.text);
    } else {
        let answer: Json = raw.parse()?;
        out.line(answer["detail"].as_str().unwrap_or("reloaded"));
    }
    Ok(Exit::Done)
}

fn refused(problem: &Json) -> bool {
    problem["code"] == "configuration_refused"
}
