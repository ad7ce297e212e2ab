//! Owns: `dead-letters`: list, show, resend, mend, drop (FWD-06).
//! May call: client, text.
//! Never: drop or mend one without a reason; call one settled that the sink did not take.

use super::Settle;
use super::client::{Client, encode, with_params};
use super::exit::{Exit, Failure};
use super::text::{Out, Tone, confirm};
use clap::Args;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use std::io::IsTerminal as _;
use std::path::PathBuf;

/// Most bytes of a mended body.
const BODY_BYTES_MAX: u64 = 64 << 10;

/// Arguments of `dead-letters`.
#[derive(Debug, Args)]
#[allow(missing_docs)]
pub struct DeadLettersArgs {
    /// Of which sink
    pub sink: String,
    /// What to do; without it they are listed
    pub action: Option<Settle>,
    /// Which one: source/epoch/sequence
    pub key: Option<String>,
    /// All of them (resend, drop)
    #[arg(long, conflicts_with = "key")]
    pub all: bool,
    /// mend: a file with the body as it should have been, JSON; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    pub body: Option<PathBuf>,
    /// mend: how many are to be counted with it; needed for a conflict, whose key already counts
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub qty: Option<i64>,
    /// Why, for those who read the history later; needed to drop or to mend one
    #[arg(long)]
    pub reason: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

#[derive(Deserialize)]
struct Letters {
    // As they came: a digest is over these bytes.
    dead_letters: Vec<Box<RawValue>>,
    next: Option<String>,
}

pub(super) async fn run(
    client: &Client,
    out: &mut Out,
    args: DeadLettersArgs,
) -> Result<Exit, Failure> {
    let base = format!("/v1/sinks/{}/dead-letters", encode(&args.sink));
    let action = match args.action {
        None | Some(Settle::Show) => {
            let whole = args.action.is_some();
            return list(client, out, &base, whole, args.key.as_deref()).await;
        }
        Some(action) => action,
    };
    if action != Settle::Resend && args.reason.is_none() {
        let what = "dropping or mending a dead letter takes --reason";
        return Err(Failure::Usage(what.into()));
    }
    match (&args.key, args.all) {
        (Some(key), _) => one(client, out, &base, action, key, &args).await,
        (None, true) if action != Settle::Mend => many(client, out, &base, action, &args).await,
        (None, _) => {
            let what = "name the dead letter by its key, source/epoch/sequence; or --all, to resend or drop";
            Err(Failure::Usage(what.into()))
        }
    }
}

fn name(action: Settle) -> &'static str {
    match action {
        Settle::Show => "show",
        Settle::Resend => "resend",
        Settle::Drop => "drop",
        Settle::Mend => "mend",
    }
}

fn request(action: Settle, args: &DeadLettersArgs) -> Result<String, Failure> {
    if action != Settle::Mend {
        let reason = args.reason.as_ref();
        let body = reason.map_or(json!({}), |reason| json!({ "reason": reason }));
        return Ok(body.to_string());
    }
    let Some(file) = &args.body else {
        let what = "mending takes --body FILE: the body as it should have been, JSON";
        return Err(Failure::Usage(what.into()));
    };
    let text = read(file)?;
    let body: Box<RawValue> = serde_json::from_str(&text).map_err(|error| {
        Failure::Usage(format!("{}: this is not JSON: {error}", file.display()))
    })?;
    let body = json!({"body": body, "qty": args.qty, "reason": args.reason});
    Ok(body.to_string())
}

fn read(file: &std::path::Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let mut text = String::new();
    let done = if file.as_os_str() == "-" {
        std::io::stdin()
            .take(BODY_BYTES_MAX + 1)
            .read_to_string(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|file| file.take(BODY_BYTES_MAX + 1).read_to_string(&mut text))
    };
    done.map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
    if text.len() as u64 > BODY_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "{}: a body has at most {BODY_BYTES_MAX} bytes",
            file.display()
        )));
    }
    Ok(text)
}

async fn one(
    client: &Client,
    out: &mut Out,
    base: &str,
    action: Settle,
    key: &str,
    args: &DeadLettersArgs,
) -> Result<Exit, Failure> {
    let body = request(action, args)?;
    match action {
        Settle::Drop => confirm(&format!("{key} will never reach {}.", args.sink), args.yes)?,
        Settle::Mend => confirm(
            &format!(
                "{key} stays as it is on record. A correction that names it gets a key of its own, and goes to every sink."
            ),
            args.yes,
        )?,
        Settle::Resend | Settle::Show => {}
    }
    let path = format!("{base}/{}/{}", encode(key), name(action));
    let raw = client.post(&path, body, 0).await?;
    if out.json() {
        out.raw(&raw.text);
        return Ok(Exit::Done);
    }
    let answer: Json = raw.parse()?;
    let done = match action {
        Settle::Resend => format!("{} holds it now", args.sink),
        Settle::Mend => format!(
            "mended by {}",
            answer["correction"].as_str().unwrap_or("a correction")
        ),
        Settle::Drop | Settle::Show => "dropped".into(),
    };
    out.line(&format!("{key}: {done}"));
    Ok(Exit::Done)
}

/// One after the other; what the sink does not take stays, and is counted.
async fn many(
    client: &Client,
    out: &mut Out,
    base: &str,
    action: Settle,
    args: &DeadLettersArgs,
) -> Result<Exit, Failure> {
    let mut keys = Vec::new();
    let mut after = None;
    loop {
        let part = part(client, base, after.as_deref()).await?;
        keys.extend(
            part.dead_letters
                .iter()
                .filter_map(|letter| key_of(letter.get())),
        );
        after = part.next;
        if after.is_none() {
            break;
        }
    }
    if action == Settle::Drop && !keys.is_empty() {
        let what = format!("{} events will never reach {}.", keys.len(), args.sink);
        confirm(&what, args.yes)?;
    }
    let body = request(action, args)?;
    let bar = progress(keys.len(), out);
    let (mut settled, mut refused) = (0_usize, Vec::new());
    for key in &keys {
        let path = format!("{base}/{}/{}", encode(key), name(action));
        match client.post(&path, body.clone(), 0).await {
            Ok(_) => settled += 1,
            // The sink's word on this one; anything else ends the whole.
            Err(Failure::Problem { status: 422, body }) => refused.push((key, body)),
            Err(failure) => {
                bar.finish_and_clear();
                return Err(failure);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if out.json() {
        let refused: Vec<Json> = refused
            .iter()
            .map(|(key, body)| json!({"key": key, "why": body["detail"]}))
            .collect();
        out.raw(&json!({"settled": settled, "refused": refused}).to_string());
    } else {
        out.line(&format!("{settled} of {} settled", keys.len()));
        for (key, body) in &refused {
            let why = body["detail"].as_str().unwrap_or("refused");
            out.toned(Tone::Warn, &format!("  {key} stays: {why}"));
        }
    }
    Ok(if refused.is_empty() {
        Exit::Done
    } else {
        Exit::NotSent
    })
}

/// A bar for somebody who watches; nothing for a program.
fn progress(count: usize, out: &Out) -> indicatif::ProgressBar {
    if out.json() || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(count as u64);
    let template = "{bar:30} {pos}/{len} {per_sec}, {eta} left";
    match indicatif::ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn key_of(letter: &str) -> Option<String> {
    let letter: Json = serde_json::from_str(letter).ok()?;
    letter["key"].as_str().map(str::to_owned)
}

async fn part(client: &Client, base: &str, after: Option<&str>) -> Result<Letters, Failure> {
    let params = [("after", after), ("limit", Some("500"))];
    client.get(&with_params(base, &params)).await?.parse()
}

async fn list(
    client: &Client,
    out: &mut Out,
    base: &str,
    whole: bool,
    key: Option<&str>,
) -> Result<Exit, Failure> {
    let mut after = None;
    let mut found = Vec::new();
    let mut any = false;
    loop {
        let part = part(client, base, after.as_deref()).await?;
        for letter in &part.dead_letters {
            if key.is_some() && key_of(letter.get()).as_deref() != key {
                continue;
            }
            any = true;
            if out.json() {
                found.push(letter.get().to_owned());
            } else {
                show(letter.get(), whole, out);
            }
        }
        after = part.next;
        if after.is_none() || !out.flush() {
            break;
        }
    }
    if let (false, Some(key)) = (any, key) {
        return Err(Failure::Usage(format!(
            "no dead letter {key:?} stands here"
        )));
    }
    if out.json() {
        out.raw(&format!("{{\"dead_letters\":[{}]}}", found.join(",")));
    } else if !any {
        out.line("no dead letters");
    }
    Ok(Exit::Done)
}

/// A dead letter, its event as it came: a digest is over those bytes.
#[derive(Deserialize)]
struct Letter {
    key: String,
    status: String,
    reason: String,
    event: Box<RawValue>,
    kept: Option<String>,
}

fn show(letter: &str, whole: bool, out: &mut Out) {
    let Ok(letter) = serde_json::from_str::<Letter>(letter) else {
        out.toned(Tone::Warn, letter);
        return;
    };
    out.toned(Tone::Warn, &format!("{} {}", letter.key, letter.status));
    out.line(&format!("  why: {}", letter.reason));
    if whole {
        out.line(&format!("  ours: {}", letter.event));
        let theirs = letter.kept.as_deref().unwrap_or("-");
        out.line(&format!("  theirs: {theirs}"));
    }
}
