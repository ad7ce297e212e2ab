//! Owns: `holdfast upstream init` and `holdfast upstream check`.
//! May call: config, secret, upstream, the command line's printer.
//! Never: print a password; decide what a database must be like (`upstream` does).

use super::run::BOARDS_DIR;
use holdfast::cli::exit::Exit;
use holdfast::cli::text::{Out, complain, tell};
use holdfast::cli::{Global, UpstreamArgs, UpstreamCommand, UpstreamInitArgs};
use holdfast::config::{self, SinkKind};
use holdfast::secret;
use holdfast::upstream::check::{Level, Report, check};
use holdfast::upstream::schema::{Step, steps_from_nothing};
use holdfast::upstream::{Roles, Target, UpstreamError, init};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Does what is asked.
pub(crate) fn upstream(global: &Global, command: &UpstreamCommand) -> Exit {
    let done = match command {
        UpstreamCommand::Init(args) => run_init(global, args),
        UpstreamCommand::Check(args) => run_check(global, args),
    };
    done.unwrap_or_else(|(exit, text)| {
        complain(&text);
        exit
    })
}

type Failed = (Exit, String);

fn run_init(global: &Global, args: &UpstreamInitArgs) -> Result<Exit, Failed> {
    let roles = Roles {
        owner: args.owner.clone(),
        writer: args.writer.clone(),
        reader: args.reader.clone(),
        writer_password: args
            .writer_password_file
            .as_deref()
            .map(read_secret)
            .transpose()?,
    };
    let (steps, verb) = if args.print_sql {
        (steps_from_nothing(&roles).map_err(failed)?, "")
    } else {
        let target = target(global, &args.target)?;
        let steps = wait_for(init(&target, &roles, args.dry_run))?;
        (steps, if args.dry_run { "would be: " } else { "" })
    };
    let mut out = Out::stdout(global.json);
    if args.print_sql {
        print_sql(&steps, &mut out);
    } else if global.json {
        let says: Vec<_> = steps.iter().map(|step| &step.says).collect();
        out.raw(&json!({"ok": true, "dry_run": args.dry_run, "steps": says}).to_string());
    } else {
        for step in steps
            .iter()
            .filter(|step| !step.says.starts_with("acting as"))
        {
            out.line(&format!("{verb}{}", step.says));
        }
    }
    out.flush();
    Ok(Exit::Done)
}

fn print_sql(steps: &[Step], out: &mut Out) {
    out.raw("BEGIN;\n");
    for step in steps {
        out.raw(&format!(
            "-- {}\n{};\n",
            step.says,
            step.sql.trim_end().trim_end_matches(';')
        ));
    }
    out.raw("COMMIT;\n");
}

fn run_check(global: &Global, args: &UpstreamArgs) -> Result<Exit, Failed> {
    let target = target(global, args)?;
    let report = wait_for(check(&target)).map_err(never_made)?;
    let mut out = Out::stdout(global.json);
    if global.json {
        out.raw(&view(&report).to_string());
    } else {
        show(&report, &mut out);
    }
    out.flush();
    Ok(if report.is_good() {
        Exit::Done
    } else {
        Exit::Configuration
    })
}

/// A server does not tell a stranger whether the role is there, so both are said.
fn never_made((exit, text): Failed) -> Failed {
    let hint = match text.contains("SQLSTATE 28") {
        true => "; if this role was never made: holdfast upstream init first",
        false => "",
    };
    (exit, format!("{text}{hint}"))
}

fn view(report: &Report) -> serde_json::Value {
    let findings = report.findings.iter().map(|finding| {
        json!({
            "level": finding.level.name(),
            "code": finding.code,
            "text": finding.text,
            "do": finding.mend,
        })
    });
    json!({"ok": report.is_good(), "place": report.place, "findings": findings.collect::<Vec<_>>()})
}

fn show(report: &Report, out: &mut Out) {
    out.line(&report.place);
    for finding in &report.findings {
        out.line(&format!("{:<8} {}", finding.level.name(), finding.text));
        if let Some(mend) = finding.mend.filter(|_| finding.level != Level::Ok) {
            out.line(&format!("         do: {mend}"));
        }
    }
}

fn failed(error: UpstreamError) -> Failed {
    let exit = match &error {
        UpstreamError::Passing(_) => Exit::NotReachable,
        UpstreamError::Mend(text)
            if text.contains("SQLSTATE 28") || text.contains("SQLSTATE 42501") =>
        {
            Exit::NotPermitted
        }
        UpstreamError::Mend(_) => Exit::Configuration,
    };
    (exit, error.to_string())
}

fn wait_for<T>(work: impl Future<Output = Result<T, UpstreamError>>) -> Result<T, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| {
        (
            Exit::NotReachable,
            format!("the system gives no event loop: {error}"),
        )
    })?;
    runtime.block_on(work).map_err(failed)
}

/// From the arguments, else from the sink that is named, else from the only `postgres` sink there is.
fn target(global: &Global, args: &UpstreamArgs) -> Result<Target, Failed> {
    let (url, password_file, ca_file) = match &args.url {
        Some(url) => (url.clone(), None, None),
        None => of_sink(global, args.sink.as_deref())?,
    };
    let password = args.password_file.clone().or(password_file);
    let ca_file = args.ca_file.clone().or(ca_file);
    let ca_pem = ca_file.map(|path| {
        std::fs::read(&path).map_err(|error| {
            (
                Exit::Configuration,
                format!("ca_file {}: {error}", path.display()),
            )
        })
    });
    Ok(Target {
        url,
        password: password.as_deref().map(read_secret).transpose()?,
        ca_pem: ca_pem.transpose()?,
    })
}

type Place = (String, Option<PathBuf>, Option<PathBuf>);

fn of_sink(global: &Global, name: Option<&str>) -> Result<Place, Failed> {
    let loaded = config::load(&global.config, Path::new(BOARDS_DIR)).map_err(|problems| {
        for problem in &problems {
            tell(&problem.to_string());
        }
        let text = format!(
            "{}: {} problem(s); or name the database with --url",
            global.config.display(),
            problems.len()
        );
        (Exit::Configuration, text)
    })?;
    let mut places: Vec<(String, Place)> = Vec::new();
    for sink in loaded.sinks {
        if let SinkKind::Postgres {
            url,
            password_file,
            ca_file,
            ..
        } = sink.kind
            && name.is_none_or(|name| name == sink.name)
        {
            places.push((sink.name, (url, password_file, ca_file)));
        }
    }
    let names: Vec<_> = places.iter().map(|(name, _)| name.clone()).collect();
    match places.pop() {
        Some((_, place)) if places.is_empty() => Ok(place),
        Some(_) => Err((
            Exit::Usage,
            format!(
                "several postgres sinks: {}; say which: --sink NAME",
                names.join(", ")
            ),
        )),
        None => {
            let file = global.config.display();
            let found = name.map_or_else(
                || format!("no postgres sink in {file}"),
                |name| format!("no postgres sink {name:?} in {file}"),
            );
            Err((
                Exit::Usage,
                format!("{found}; name the database with --url"),
            ))
        }
    }
}

fn read_secret(path: &Path) -> Result<String, Failed> {
    let secret = secret::read(path).map_err(|error| (Exit::Configuration, error.to_string()))?;
    Ok(secret.reveal().to_owned())
}
