//! Owns: what a person at a terminal is told, asked and refused.
//! May call: the crate's public items, the told gateway, the real program.
//! Never: look behind the program's output and exit code.

use super::fake::{Gateway, completed, operation, stamp};
use super::{text, unknown};
use holdfast::core::gateway::Answer;
use holdfast::core::record::Finding;
use serde_json::{Value as Json, json};
use std::process::{Command, Output};

/// The real program, wherever its gateway is.
fn holdfast(args: &[&str], socket: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .env("HOLDFAST_SOCKET", socket)
        .args(args)
        .output()
        .unwrap()
}

/// Where no gateway is.
const NOWHERE: &str = "/nonexistent/api.sock";

// covers: IF-02
#[test]
fn what_cannot_be_taken_back_is_not_done_where_nobody_can_be_asked() {
    let gateway = Gateway::start();
    for args in [
        vec!["approve", "A"],
        vec!["resolve", "A", "--as", "completed", "--reason", "seen"],
        vec!["reissue", "A", "--id", "B", "--reason", "wanted"],
        vec!["dead-letters", "mes", "drop", "a/1/1", "--reason", "mine"],
    ] {
        let ran = gateway.cli(&args);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{args:?}: {said}");
        assert!(
            said.contains("not a terminal; add --yes"),
            "{args:?}: {said}"
        );
    }
    assert!(gateway.fake.acts.lock().unwrap().is_empty());
    assert!(gateway.fake.settled.lock().unwrap().is_empty());
}

// covers: VER-05
#[test]
fn a_compensation_without_the_operation_that_made_up_for_it_is_warned_of() {
    let gateway = Gateway::start();
    gateway.fake.answer(
        "resolve B",
        Answer::Done(Box::new(operation("B", completed()))),
    );
    let plain = [
        "resolve",
        "B",
        "--as",
        "compensated",
        "--reason",
        "ejected by hand",
        "--yes",
    ];
    let ran = gateway.cli(&plain);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(text(&ran.stderr).contains("--by ID"), "{ran:?}");
    let ran = gateway.cli(&[&plain[..], &["--by", "C"]].concat());
    assert_eq!(
        (ran.status.code(), text(&ran.stderr)),
        (Some(0), String::new())
    );
}

// covers: IF-02
#[test]
fn a_verification_tells_what_was_found() {
    let gateway = Gateway::start();
    let mut before = operation("B", unknown());
    let found = |says: &str, s| Finding {
        method: "readback".into(),
        at: stamp(s),
        says: says.into(),
        times: 1,
    };
    before.findings.push(found("speed reads 40", 1));
    gateway
        .fake
        .answer("verify B", Answer::Done(Box::new(before.clone())));
    before.findings.push(found("speed reads 50", 2));
    gateway.fake.know(before);
    let ran = gateway.cli(&["verify", "B"]);
    let said = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(5), "{said}");
    assert!(
        said.contains("found: ") && said.contains("speed reads 50"),
        "{said}"
    );
    assert!(!said.contains("speed reads 40"), "{said}");
    assert!(!said.contains("holdfast verify"), "not once more: {said}");
    assert!(said.contains("holdfast resolve B"), "{said}");
}

// covers: IF-02
#[test]
fn a_machine_or_a_state_that_does_not_exist_is_not_an_empty_list() {
    let gateway = Gateway::start();
    let ran = gateway.cli(&["ops", "--machine", "pres-1"]);
    assert_eq!(ran.status.code(), Some(2));
    let said = text(&ran.stderr);
    assert!(said.contains("did you mean \"press-1\"?"), "{said}");
    let ran = gateway.cli(&["--json", "ops", "--machine", "pres-1"]);
    let json: Json = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        (&json["code"], &json["nearest"]),
        (&json!("unknown_machine"), &json!("press-1"))
    );
    let ran = gateway.cli(&["ops", "--machine", "press-1"]);
    assert_eq!(text(&ran.stdout), "no operations\n");
    let ran = gateway.cli(&["ops", "--state", "hold"]);
    assert_eq!(ran.status.code(), Some(2));
    let said = text(&ran.stderr);
    assert!(said.contains("did you mean \"held\"?"), "{said}");
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
}

// covers: IF-02
#[test]
fn a_gateway_that_is_down_is_a_problem_document_too() {
    let ran = holdfast(&["--json", "status"], NOWHERE);
    let json: Json = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(
        (&json["code"], ran.status.code()),
        (&json!("not_reachable"), Some(8))
    );
    assert_eq!(text(&ran.stderr), "");
}

// covers: IF-02
#[test]
fn a_usage_line_names_only_what_was_typed_and_a_version_is_a_number() {
    let ran = holdfast(&["submit", "press-1"], NOWHERE);
    let said = text(&ran.stderr);
    assert!(said.contains("Usage: holdfast submit"), "{said}");
    assert!(!said.contains("--socket"), "{said}");
    let down = holdfast(&["status"], NOWHERE);
    assert!(text(&down.stderr).contains(NOWHERE), "{down:?}");
    let gateway = Gateway::start();
    let ran = gateway.cli(&[
        "submit",
        "press-1",
        "set_speed",
        "--expect-version",
        "seven",
    ]);
    assert_eq!(ran.status.code(), Some(2));
    let said = text(&ran.stderr);
    assert!(said.contains("a whole number"), "{said}");
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
}

fn check(args: &[&str], gateway_toml: &str, machine_toml: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("holdfast.toml");
    std::fs::write(&config, gateway_toml).unwrap();
    std::fs::create_dir(dir.path().join("machines")).unwrap();
    std::fs::write(dir.path().join("machines/press-1.toml"), machine_toml).unwrap();
    let config = config.to_str().unwrap();
    holdfast(&[args, &["--config", config]].concat(), NOWHERE)
}

/// The TOML examples of the contract, in their order.
fn examples() -> Vec<String> {
    let contract = include_str!("../../docs/interfaces.md");
    contract
        .split("```toml\n")
        .skip(1)
        .map(|part| part.split("```").next().unwrap().to_owned())
        .collect()
}

// covers: CFG-02
#[test]
fn the_examples_of_the_contract_pass_the_check() {
    let examples = examples();
    let ran = check(&["check"], &examples[0], &examples[1]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains("set_speed (absolute_set) writes holding:100"));
    let ran = check(&["--json", "check"], &examples[0], &examples[1]);
    let json: Json = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(json["ok"], true);
    assert_eq!(json["machines"][0]["machine"], "press-1");
}

// covers: CFG-01
#[test]
fn a_mistake_is_told_on_one_line_to_an_editor_and_as_json_to_a_script() {
    let examples = examples();
    let wrong = examples[1].replace("max_queued = 1", "max_qeued = 1");
    let ran = check(&["check"], &examples[0], &wrong);
    assert_eq!(ran.status.code(), Some(78));
    let said = text(&ran.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].contains("press-1.toml:"), "{said}");
    assert_eq!(lines[1], "1 problem(s)");
    let ran = check(&["--json", "check"], &examples[0], &wrong);
    assert_eq!(ran.status.code(), Some(78));
    let json: Json = serde_json::from_slice(&ran.stdout).unwrap();
    let problem = &json["problems"][0];
    assert_eq!(json["ok"], false);
    assert!(problem["file"].as_str().unwrap().ends_with("press-1.toml"));
    assert!(problem["line"].as_u64().unwrap() > 1);
    assert!(problem["mend"].as_str().unwrap().contains("max_queued"));
}
