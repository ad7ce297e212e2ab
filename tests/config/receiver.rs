//! Owns: what `receiver.toml` may say, and what it is told where it is wrong: line, column, what to do.
//! May call: the crate's config.
//! Never: need a database.

use holdfast::config::{Problem, ReceiverConfig, load_receiver};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::TempDir;

const GOOD: &str = r#"schema = 1
listen = "0.0.0.0:8443"
metrics_token_file = "DIR/token"
[tls]
certificate_file = "DIR/cert.pem"
key_file = "DIR/key.pem"
[database]
url = "postgres://writer@127.0.0.1/books"
password_file = "DIR/password"
connections = 8
[limits]
body = "1MiB"
events = 500
in_flight = 16
header_timeout = "5s"
[[gateway]]
name = "gw-line3"
token_file = "DIR/token"
[[gateway]]
name = "gw-line4"
token_file = "credential:gw-line4"
sources = ["press-4", "gw-line4"]
"#;

fn load(text: &str) -> (String, Result<ReceiverConfig, Vec<Problem>>) {
    let dir = TempDir::new().unwrap();
    for (name, mode) in [
        ("token", 0o600),
        ("password", 0o640),
        ("key.pem", 0o600),
        ("cert.pem", 0o644),
        ("open", 0o644),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, "s3cret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let text = text.replace("DIR", dir.path().to_str().unwrap());
    let path = dir.path().join("receiver.toml");
    fs::write(&path, &text).unwrap();
    (text, load_receiver(&path))
}

// covers: CFG-01, CFG-04
#[test]
fn a_good_file_loads_and_says_what_it_means() {
    let config = load(GOOD).1.unwrap();
    assert_eq!(config.listen.to_string(), "0.0.0.0:8443");
    assert!(config.tls.unwrap().1.ends_with("key.pem"));
    assert_eq!(
        (config.connections, config.database.url.as_str()),
        (8, "postgres://writer@127.0.0.1/books")
    );
    assert_eq!(
        (config.limits.body_bytes, config.limits.events),
        (Some(1 << 20), Some(500))
    );
    assert_eq!(
        (config.limits.header_ms, config.limits.body_ms),
        (Some(5_000), None)
    );
    assert_eq!(config.gateways[0].sources, None);
    assert!(
        config.gateways[1]
            .sources
            .as_ref()
            .unwrap()
            .contains("press-4")
    );
    // Not there on the computer that checks, which is no reason to refuse it.
    assert!(
        config.warnings.iter().any(|w| w.contains("gw-line4")),
        "{:?}",
        config.warnings
    );
    let local = GOOD.replace("0.0.0.0", "127.0.0.1");
    let without_tls: String = local
        .split_inclusive('\n')
        .filter(|l| !l.contains("tls") && !l.contains(".pem"))
        .collect();
    assert_eq!(load(&without_tls).1.unwrap().tls, None);
}

#[test]
fn the_example_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/receiver.toml");
    let config = load_receiver(&path).unwrap();
    assert_eq!(
        (config.limits.events, config.limits.in_flight_per_gateway),
        (Some(1000), Some(8))
    );
    assert_eq!(config.gateways[0].name, "gw-line3");
}

// covers: CFG-01, CFG-04
#[test]
fn each_wrong_value_is_named_at_its_place() {
    let tls = "[tls]\ncertificate_file = \"DIR/cert.pem\"\nkey_file = \"DIR/key.pem\"\n";
    let cases = [
        (
            "\"0.0.0.0:8443\"",
            "\"0.0.0.0\"",
            "\"0.0.0.0\"",
            "address and port",
        ),
        (tls, "", "\"0.0.0.0:8443\"", "allow_plaintext = true"),
        ("DIR/key.pem", "DIR/open", "\"DIR/open\"", "chmod o="),
        ("key_file = \"DIR/key.pem\"\n", "", "[tls]", "add key_file"),
        ("[limits]", "[limts]", "limts]", "did you mean \"limits\""),
        ("events = 500", "events = 5001", "5001", "1 to 5000"),
        ("\"1MiB\"", "\"1KiB\"", "\"1KiB\"", "a size"),
        ("\"5s\"", "5", "5\n[[", "write a unit"),
        (
            "\"gw-line4\"\n",
            "\"gw-line3\"\n",
            "\"gw-line3\"\ntoken_file = \"cred",
            "not used above",
        ),
        (
            "token_file = \"credential",
            "token = \"credential",
            "token = ",
            "no secret in this file",
        ),
        (
            "[\"press-4\", \"gw-line4\"]",
            "[]",
            "[]",
            "without the key, all sources",
        ),
        (
            "127.0.0.1/books",
            "db.plant/books?sslmode=disable",
            "\"postgres://",
            "allow_plaintext = true",
        ),
        (
            "writer@",
            "writer:hunter2@",
            "\"postgres://",
            "password_file",
        ),
        ("schema = 1", "schema = 2", "2\nlisten", "write schema = 1"),
    ];
    for (from, to, at, says) in cases {
        assert!(GOOD.contains(from), "{from}");
        let (text, loaded) = load(&GOOD.replacen(from, to, 1));
        let dir = text
            .lines()
            .find_map(|line| line.strip_prefix("metrics_token_file = \""))
            .unwrap();
        let at = at.replace("DIR", dir.trim_end_matches("/token\""));
        let problems = loaded.expect_err(to);
        let offset = text
            .find(&at)
            .unwrap_or_else(|| panic!("no {at:?} in {text}"));
        let line = text[..offset].matches('\n').count() + 1;
        let column = offset - text[..offset].rfind('\n').map_or(0, |n| n + 1) + 1;
        let found = problems.iter().any(|problem| {
            (problem.line, problem.column) == (line, column) && problem.to_string().contains(says)
        });
        assert!(found, "no {line}:{column} with {says:?} in {problems:#?}");
        assert!(!format!("{problems:?}").contains("hunter2"));
    }
    let nobody = GOOD.split("[[gateway]]").next().unwrap();
    let problems = load(nobody).1.unwrap_err();
    assert!(
        problems[0].to_string().contains("at least one [[gateway]]"),
        "{problems:?}"
    );
}
