//! Owns: what `[[sink]]` may say, and what it is told where it is wrong: line, column, what to do.
//! May call: the crate's config.
//! Never: need a place to send to.

use holdfast::config::{GatewayConfig, Problem, SinkKind, load};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::TempDir;

const MACHINE: &str = r#"schema = 1
name = "press-1"
[link]
protocol = "modbus-tcp"
address = "127.0.0.1:1502"
unit = 1
[[tag]]
name = "speed"
read = "holding:100"
type = "u16"
"#;

fn load_sink(dir: &TempDir, sink: &str) -> (String, Result<GatewayConfig, Vec<Problem>>) {
    let gateway = format!(
        "schema = 1\ngateway = \"gw-line3\"\nmachines = [\"press-1.toml\"]\n[[sink]]\nname = \"mes\"\n{sink}"
    );
    fs::write(dir.path().join("holdfast.toml"), &gateway).unwrap();
    fs::write(dir.path().join("press-1.toml"), MACHINE).unwrap();
    let loaded = load(&dir.path().join("holdfast.toml"), Path::new("/nonexistent"));
    (gateway, loaded)
}

fn accepted(dir: &TempDir, sink: &str) -> (SinkKind, Vec<String>) {
    let (_, loaded) = load_sink(dir, sink);
    let config = loaded.unwrap_or_else(|problems| panic!("{sink}: {problems:#?}"));
    (config.sinks[0].kind.clone(), config.warnings)
}

/// The problem stands where `at` stands last, and says all of `says`.
fn refused(sink: &str, at: &str, says: &[&str]) {
    refused_in(&TempDir::new().unwrap(), sink, at, says);
}

fn refused_in(dir: &TempDir, sink: &str, at: &str, says: &[&str]) {
    let (text, loaded) = load_sink(dir, sink);
    let problems = loaded.expect_err(sink);
    let offset = text.rfind(at).unwrap_or_else(|| panic!("no {at:?}"));
    let line = text[..offset].matches('\n').count() + 1;
    let column = offset - text[..offset].rfind('\n').map_or(0, |n| n + 1) + 1;
    let found = problems.iter().any(|problem| {
        let shown = problem.to_string();
        (problem.line, problem.column) == (line, column)
            && says.iter().all(|part| shown.contains(part))
    });
    assert!(found, "no {line}:{column} with {says:?} in {problems:#?}");
}

fn secret(dir: &TempDir, name: &str, mode: u32) -> String {
    let path = dir.path().join(name);
    fs::write(&path, "s3cret\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
}

// covers: CFG-01, CFG-04, FWD-07
#[test]
fn each_kind_loads_with_its_secrets_in_files() {
    let dir = TempDir::new().unwrap();
    let token = secret(&dir, "token", 0o640);
    let ca = secret(&dir, "ca.pem", 0o644);
    let http = format!(
        "kind = \"http\"\nurl = \"https://mes.plant:8443/in/\"\ntoken_file = {token:?}\nca_file = {ca:?}\n"
    );
    let (kind, warnings) = accepted(&dir, &http);
    let SinkKind::Http {
        url,
        token_file,
        ca_file,
    } = kind
    else {
        panic!("{kind:?}");
    };
    assert_eq!(url, "https://mes.plant:8443/in");
    assert_eq!(token_file.unwrap().to_str(), Some(token.as_str()));
    assert_eq!(ca_file.unwrap().to_str(), Some(ca.as_str()));
    assert!(warnings.is_empty(), "{warnings:?}");

    let postgres = "kind = \"postgres\"\nurl = \"postgres://writer@db.plant/books\"\nlanes = 4\n";
    let (kind, _) = accepted(&dir, postgres);
    assert!(matches!(
        kind,
        SinkKind::Postgres {
            lanes: 4,
            password_file: None,
            ..
        }
    ));

    let mqtt = "kind = \"mqtt\"\nurl = \"mqtts://gw@broker.plant:8883\"\ntopic = \"plant/{gateway}/{source}/{type}\"\n\
        ack_topic = \"plant/{gateway}/acks\"\nclient_id = \"gw-line3-mes\"\n";
    let (kind, warnings) = accepted(&dir, mqtt);
    let SinkKind::Mqtt {
        ack_topic,
        client_id,
        ..
    } = kind
    else {
        panic!("{kind:?}");
    };
    assert_eq!(ack_topic.as_deref(), Some("plant/{gateway}/acks"));
    assert_eq!(client_id.as_deref(), Some("gw-line3-mes"));
    assert!(warnings.is_empty(), "{warnings:?}");
    // Without a receiver's acknowledgement it is said what that means.
    let bare = "kind = \"mqtt\"\nurl = \"mqtt://127.0.0.1\"\ntopic = \"events\"\n";
    let (_, warnings) = accepted(&dir, bare);
    assert!(warnings[0].contains("broker-acked"), "{warnings:?}");
}

// covers: CFG-04
#[test]
fn nothing_travels_in_clear_to_another_computer_unless_the_file_says_so() {
    let dir = TempDir::new().unwrap();
    let kinds = [
        ("http", "http://HOST:8080", "", "https://"),
        (
            "postgres",
            "postgres://w@HOST/books?sslmode=disable",
            "",
            "sslmode=verify-full",
        ),
        (
            "mqtt",
            "mqtt://HOST:1883",
            "topic = \"t\"\nack_topic = \"a\"\n",
            "mqtts://",
        ),
    ];
    for (kind, url, more, mend) in kinds {
        let sink = |host: &str| {
            format!(
                "kind = {kind:?}\nurl = \"{}\"\n{more}",
                url.replace("HOST", host)
            )
        };
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            accepted(&dir, &sink(host));
        }
        let far = sink("mes.plant");
        refused(
            &far,
            &format!("\"{}", &url[..6]),
            &["TLS to another computer", mend, "allow_plaintext = true"],
        );
        accepted(&dir, &format!("{far}allow_plaintext = true\n"));
        refused(
            &format!("{far}allow_plaintext = \"yes\"\n"),
            "\"yes\"",
            &["write true, without quotes"],
        );
    }
}

// covers: CFG-04
#[test]
fn a_secret_that_everybody_can_read_is_refused_and_a_missing_one_is_said() {
    let dir = TempDir::new().unwrap();
    let open = secret(&dir, "token", 0o644);
    let url = "kind = \"http\"\nurl = \"https://mes\"\n";
    let sink = format!("{url}token_file = {open:?}\n");
    refused_in(
        &dir,
        &sink,
        &format!("{open:?}"),
        &["mode 0644", "chmod o="],
    );
    let missing = dir.path().join("missing");
    let (_, warnings) = accepted(&dir, &format!("{url}token_file = {missing:?}\n"));
    assert!(
        warnings[0].contains("missing: the secret cannot be read"),
        "{warnings:?}"
    );
    refused_in(
        &dir,
        &format!("{url}token_file = {:?}\n", dir.path()),
        &format!("{:?}", dir.path()),
        &["a file that holds"],
    );
    // Never in the file itself, under whatever name.
    refused(
        &format!("{url}token = \"abc\"\n"),
        "token =",
        &["token_file = "],
    );
    for secret_url in ["https://me:hunter2@mes", "https://mes/?password=hunter2"] {
        let sink = format!("kind = \"http\"\nurl = {secret_url:?}\n");
        refused(
            &sink,
            &format!("{secret_url:?}"),
            &["a URL with a password in it"],
        );
        let (_, loaded) = load_sink(&dir, &sink);
        assert!(!format!("{:?}", loaded.unwrap_err()).contains("hunter2"));
    }
}

// covers: CFG-04
#[test]
fn a_credential_of_the_service_is_named_and_found_in_its_directory() {
    let dir = TempDir::new().unwrap();
    let url = "kind = \"http\"\nurl = \"https://mes\"\n";
    let (kind, _) = accepted(
        &dir,
        &format!("{url}token_file = \"credential:mes-token\"\n"),
    );
    let SinkKind::Http {
        token_file: Some(path),
        ..
    } = kind
    else {
        panic!("{kind:?}");
    };
    assert!(
        path.ends_with("mes-token") && path.is_absolute(),
        "{path:?}"
    );
    for name in [
        "credential:",
        "credential:../x",
        "credential:a/b",
        "mes-token",
    ] {
        refused(
            &format!("{url}token_file = {name:?}\n"),
            &format!("{name:?}"),
            &["expected"],
        );
    }
}

// covers: CFG-01
#[test]
fn each_wrong_value_is_named_at_its_place() {
    let cases = [
        (
            "kind = \"http\"\nurl = \"mes:8443\"\n",
            "\"mes",
            "it has no ://",
        ),
        (
            "kind = \"http\"\nurl = \"ftp://mes\"\n",
            "\"ftp",
            "begins with http:// or https://",
        ),
        (
            "kind = \"http\"\nurl = \"https://me@mes\"\n",
            "\"https",
            "token_file = ",
        ),
        (
            "kind = \"http\"\nurl = \"https://mes/?a=b\"\n",
            "\"https",
            "without a query",
        ),
        (
            "kind = \"http\"\nurl = \"https://mes:0\"\n",
            "\"https",
            "1 to 65535",
        ),
        ("kind = \"http\"\nurl = 7\n", "7\n", "a string"),
        (
            "kind = \"http\"\nurl = \"https://mes\"\ntokn_file = \"/x\"\n",
            "tokn",
            "did you mean \"token_file\"",
        ),
        (
            "kind = \"postgres\"\nurl = \"postgres://db/books\"\n",
            "\"postgres://",
            "with a user",
        ),
        (
            "kind = \"postgres\"\nurl = \"postgres://w@db\"\n",
            "\"postgres://",
            "a database",
        ),
        (
            "kind = \"postgres\"\nurl = \"postgres://w@db/b?sslmode=prefer\"\n",
            "\"postgres://",
            "verify-full",
        ),
        (
            "kind = \"postgres\"\nurl = \"postgres://w@db/b\"\nlanes = 17\n",
            "17",
            "1 to 16",
        ),
        (
            "kind = \"mqtt\"\nurl = \"tcp://b\"\ntopic = \"t\"\n",
            "\"tcp",
            "mqtt:// or mqtts://",
        ),
        (
            "kind = \"mqtt\"\nurl = \"mqtts://b\"\ntopic = \"a/#\"\n",
            "\"a/#",
            "without + or #",
        ),
        (
            "kind = \"mqtt\"\nurl = \"mqtts://b\"\ntopic = \"a/{machine}\"\n",
            "\"a/{",
            "{source}",
        ),
        (
            "kind = \"mqtt\"\nurl = \"mqtts://b\"\ntopic = \"t\"\nack_topic = \"t\"\n",
            "\"t\"",
            "apart from the events'",
        ),
        (
            "kind = \"mqtt\"\nurl = \"mqtts://b\"\ntopic = \"t\"\nclient_id = \"\"\n",
            "\"\"",
            "1 to 128",
        ),
        ("kind = \"htp\"\n", "\"htp\"", "did you mean \"http\""),
    ];
    for (sink, at, says) in cases {
        refused(sink, at, &[says]);
    }
    for kind in ["http", "postgres", "mqtt"] {
        refused(
            &format!("kind = {kind:?}\n"),
            "[[sink]]",
            &["url", "expected"],
        );
    }
}

// covers: CFG-04
#[test]
fn a_receiver_at_a_broker_is_read_or_refused_with_the_place() {
    let dir = TempDir::new().unwrap();
    let load = |mqtt: &str| {
        let path = dir.path().join("receiver.toml");
        let head = "schema = 1\nlisten = \"127.0.0.1:8443\"\n[database]\nurl = \"postgres://w@127.0.0.1/books\"\n[mqtt]\n";
        std::fs::write(&path, format!("{head}{mqtt}")).unwrap();
        holdfast::config::load_receiver(&path)
    };
    let topics = "topic = \"plant/{gateway}/events\"\nack_topic = \"plant/{gateway}/acks\"\n";
    let good = load(&format!(
        "url = \"mqtts://r@broker.plant\"\n{topics}group = \"books\"\nsession = \"1h\"\n"
    ));
    let good = good.unwrap_or_else(|problems| panic!("{problems:?}"));
    assert!(
        good.gateways.is_empty(),
        "who comes over the broker needs no token here"
    );
    let mqtt = good.mqtt.unwrap();
    assert_eq!(
        (mqtt.group.as_deref(), mqtt.session_s),
        (Some("books"), 3_600)
    );
    for (text, says) in [
        (topics.to_owned(), "url"),
        (
            format!("url = \"mqtt://broker.plant\"\n{topics}"),
            "TLS to another computer",
        ),
        (
            format!("url = \"mqtts://r:hunter2@broker.plant\"\n{topics}"),
            "password",
        ),
        (
            "url = \"mqtts://b\"\ntopic = \"plant/events\"\nack_topic = \"plant/{gateway}/acks\"\n"
                .into(),
            "{gateway}",
        ),
        (
            "url = \"mqtts://b\"\ntopic = \"plant/{gateway}\"\nack_topic = \"plant/{gateway}\"\n"
                .into(),
            "apart",
        ),
        (format!("url = \"mqtts://b\"\n{topics}qos = 2\n"), "qos"),
    ] {
        let problems = load(&text).expect_err(&text);
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(
            said.iter().any(|line| line.contains(says)),
            "{text}: {said:?}"
        );
        assert!(
            said.iter().all(|line| line.contains("receiver.toml")),
            "{said:?}"
        );
        assert!(
            said.iter().all(|line| !line.contains("hunter2")),
            "{said:?}"
        );
    }
}
