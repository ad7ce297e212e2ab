//! Owns: how raw bytes of a link are shown, and asking a running gateway for them.
//! May call: client, text.
//! Never: print what was hidden as if nothing had been there.

use super::client::{Client, encode};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone};
use crate::api::types::{TraceLine, parse_duration_ms};
use serde::Deserialize;
use serde_json::json;

/// Bytes on one line of output.
const ROW_BYTES: usize = 16;

#[derive(Deserialize)]
struct Trace {
    trace: Vec<TraceLine>,
    left_out: u64,
}

/// Prints the bytes, 16 a line, as a monitor on the line would.
pub fn show_trace(lines: &[TraceLine], left_out: u64, out: &mut Out) {
    for line in lines {
        let arrow = match line.way.as_str() {
            "sent" => ">",
            "received" => "<",
            _ => "?",
        };
        let time = line.at.get(11..23).unwrap_or(&line.at);
        let head = format!("  {time} {arrow} {} bytes", line.length);
        if line.hidden {
            out.line(&format!("{head}, hidden: they may carry a secret argument"));
            continue;
        }
        out.line(&head);
        let hex: Vec<&str> = line.hex.split(' ').collect();
        let ascii: Vec<char> = line.ascii.chars().collect();
        for (row, text) in hex.chunks(ROW_BYTES).zip(ascii.chunks(ROW_BYTES)) {
            let text: String = text.iter().collect();
            let hex = row.join(" ");
            out.toned(Tone::Faint, &format!("    {hex:<47}  {text}"));
        }
    }
    if left_out > 0 {
        out.line(&format!("  {left_out} more entries were not kept"));
    }
}

/// The bytes of a machine's link, as a running gateway exchanges them from now on for so long.
pub(super) async fn run(
    client: &Client,
    out: &mut Out,
    machine: &str,
    time: &str,
) -> Result<Exit, Failure> {
    let wait_ms = parse_duration_ms(time).ok_or_else(|| {
        Failure::Usage(format!("--trace {time:?}: expected a duration such as 5s"))
    })?;
    let body = json!({ "for": time }).to_string();
    let path = format!("/v1/machines/{}/trace", encode(machine));
    let raw = client.post(&path, body, wait_ms).await?;
    let found: Trace = raw.parse()?;
    if out.json() {
        out.raw(&raw.text);
        return Ok(Exit::Done);
    }
    if found.trace.is_empty() {
        out.line("no byte went either way in that time");
    }
    show_trace(&found.trace, found.left_out, out);
    Ok(Exit::Done)
}
