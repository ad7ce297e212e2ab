//! Owns: `sinks`: where events go to, how far they are, what was answered; trying again, and going back.
//! May call: client, text, status.
//! Never: call a broker's receipt a commit: the acknowledgement's level is always shown; send again what is
//! finished without a reason.

use super::client::{Client, encode};
use super::exit::{Exit, Failure};
use super::status::show_sink;
use super::text::{Out, confirm, now, since};
use crate::api::types::SinkView;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::io::IsTerminal as _;
use std::time::Duration;

/// How often a followed sink is looked at, in milliseconds.
const FOLLOW_MS: u64 = 1_000;

/// Arguments of `sinks`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct SinksArgs {
    /// Only this one
    pub sink: Option<String>,
    /// What to do with it; without it how it stands is shown
    pub action: Option<SinkAction>,
    /// rewind: from this event on (source/epoch/sequence), or since when (RFC 3339, or how long ago, such as 24h)
    #[arg(long, value_name = "KEY|TIME")]
    pub to: Option<String>,
    /// Why, for those who read the history later; needed to rewind
    #[arg(long)]
    pub reason: Option<String>,
    /// Go on showing how it goes, until interrupted
    #[arg(long, conflicts_with = "action")]
    pub follow: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// What to do with a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SinkAction {
    /// Try again now: what it stood still for is mended
    Resume,
    /// Send again what it has taken before: its database lost rows, such as by a failover
    Rewind,
}

#[derive(Deserialize)]
struct Sinks {
    sinks: Vec<SinkView>,
}

pub(super) async fn run(client: &Client, out: &mut Out, args: SinksArgs) -> Result<Exit, Failure> {
    match (args.action, &args.sink) {
        (Some(action), Some(sink)) => act(client, out, sink, action, &args).await,
        (Some(_), None) => Err(Failure::Usage("name the sink".into())),
        (None, _) if args.follow => follow(client, out, args.sink.as_deref()).await,
        (None, sink) => {
            let found = fetch(client, sink.as_deref()).await?;
            print(&found, out);
            Ok(Exit::Done)
        }
    }
}

/// What was found, as it came and as it is understood.
struct Found {
    raw: Json,
    sinks: Vec<SinkView>,
}

async fn fetch(client: &Client, only: Option<&str>) -> Result<Found, Failure> {
    let answer = client.get("/v1/sinks").await?;
    let mut raw: Json = answer.parse()?;
    let mut all: Sinks = answer.parse()?;
    if let Some(name) = only {
        let known: Vec<&str> = all.sinks.iter().map(|sink| sink.name.as_str()).collect();
        if !known.contains(&name) {
            let known = known.join(", ");
            return Err(Failure::Usage(format!(
                "no sink {name:?} here; there are: {known}"
            )));
        }
        all.sinks.retain(|sink| sink.name == name);
        if let Some(rows) = raw["sinks"].as_array_mut() {
            rows.retain(|row| row["name"] == name);
        }
    }
    Ok(Found {
        raw,
        sinks: all.sinks,
    })
}

fn print(found: &Found, out: &mut Out) {
    if out.json() {
        out.raw(&found.raw.to_string());
        return;
    }
    if found.sinks.is_empty() {
        out.line("no sinks configured: events stay in the journal");
    }
    let now = now();
    for sink in &found.sinks {
        show_sink(sink, &now, out);
        out.line(&format!("  {}", pace(sink)));
        let c = &sink.counters;
        out.line(&format!(
            "  {} attempts: {} accepted, {} duplicates, {} conflicts, {} malformed, {} retries",
            c.attempts, c.accepted, c.duplicates, c.conflicts, c.malformed, c.retries
        ));
        for (count, what) in [
            (&c.resent, "of these answers to dead letters sent again"),
            (
                &c.rewound,
                "events sent again after they were finished (rewind)",
            ),
        ] {
            if !matches!(count.as_str(), "" | "0") {
                out.line(&format!("  {count} {what}"));
            }
        }
        if sink.circuit == "stopped" {
            out.line("  next: mend what it says, then");
            out.command(&format!("holdfast sinks {} resume", sink.name));
        }
    }
}

/// How fast it goes, and how long until the backlog is gone.
pub(super) fn pace(sink: &SinkView) -> String {
    let (Some(new), Some(done)) = (sink.in_per_s, sink.out_per_s) else {
        return "rate not measured yet".into();
    };
    let mut line = format!("in {new:.1}/s, out {done:.1}/s");
    match (sink.trend.as_str(), &sink.drains_in) {
        (_, Some(time)) => line.push_str(&format!(", backlog drains in {}", roughly(time))),
        ("growing", _) => line.push_str(", backlog is growing"),
        ("standing", _) => line.push_str(", backlog stands"),
        _ => {}
    }
    if sink.overtaking {
        line.push_str("; new events do not wait behind it");
    }
    line
}

/// A duration in its two largest units.
fn roughly(text: &str) -> String {
    let Some(ms) = crate::api::types::parse_duration_ms(text) else {
        return text.to_owned();
    };
    let seconds = ms.div_ceil(1_000);
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// On a terminal one line a sink that is written over; elsewhere, and as JSON, a line whenever something moved.
async fn follow(client: &Client, out: &mut Out, only: Option<&str>) -> Result<Exit, Failure> {
    let bars = indicatif::MultiProgress::new();
    let mut lines: Vec<indicatif::ProgressBar> = Vec::new();
    let draw = !out.json() && std::io::stderr().is_terminal();
    let mut last = Json::Null;
    loop {
        let found = fetch(client, only).await?;
        if draw {
            let style = indicatif::ProgressStyle::with_template("{msg}").ok();
            for (index, sink) in found.sinks.iter().enumerate() {
                if lines.len() <= index {
                    let bar = bars.add(indicatif::ProgressBar::no_length());
                    lines.push(match &style {
                        Some(style) => bar.with_style(style.clone()),
                        None => bar,
                    });
                }
                lines[index].set_message(one_line(sink));
            }
        } else if found.raw != last {
            if out.json() {
                out.raw(&found.raw.to_string());
            } else {
                for sink in &found.sinks {
                    out.line(&one_line(sink));
                }
            }
            last = found.raw;
        }
        if !out.flush() {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(Duration::from_millis(FOLLOW_MS)).await;
    }
}

fn one_line(sink: &SinkView) -> String {
    format!(
        "{}: {}, backlog {}, {}",
        sink.name,
        sink.circuit,
        sink.backlog.events,
        pace(sink)
    )
}

async fn act(
    client: &Client,
    out: &mut Out,
    sink: &str,
    action: SinkAction,
    args: &SinksArgs,
) -> Result<Exit, Failure> {
    let (what, body) = match action {
        SinkAction::Resume => ("resume", json!({"reason": args.reason})),
        SinkAction::Rewind => {
            let (Some(to), Some(reason)) = (&args.to, &args.reason) else {
                return Err(Failure::Usage("a rewind takes --to and --reason".into()));
            };
            let to = match crate::core::ids::EventKey::parse(to) {
                Some(key) => key.to_string(),
                None => since(to)?,
            };
            let what = format!(
                "Everything from {to} on is sent to {sink} once more, under the same keys.\n\
                 A sink that tells events apart by their keys takes each only once."
            );
            confirm(&what, args.yes)?;
            ("rewind", json!({"to": to, "reason": reason}))
        }
    };
    let path = format!("/v1/sinks/{}/{what}", encode(sink));
    let raw = client.post(&path, body.to_string(), 0).await?;
    if out.json() {
        out.raw(&raw.text);
    } else {
        let answer: Json = raw.parse()?;
        out.line(&format!(
            "{sink}: {}",
            answer["detail"].as_str().unwrap_or("done")
        ));
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_says_how_long_or_that_it_grows() {
        let mut sink = SinkView {
            in_per_s: Some(1.0),
            out_per_s: Some(42.0),
            trend: "draining".into(),
            drains_in: Some("10805s".into()),
            overtaking: true,
            ..SinkView::default()
        };
        assert_eq!(
            pace(&sink),
            "in 1.0/s, out 42.0/s, backlog drains in 3 h 0 min; new events do not wait behind it"
        );
        (sink.trend, sink.drains_in, sink.overtaking) = ("growing".into(), None, false);
        assert_eq!(pace(&sink), "in 1.0/s, out 42.0/s, backlog is growing");
        sink.in_per_s = None;
        assert_eq!(pace(&sink), "rate not measured yet");
        assert_eq!(roughly("90061s"), "1 d 1 h");
    }
}
