//! `holdfast upstream init` and `check`, on PostgreSQL 15 and 18: what they change, what they refuse, how they end.

use crate::harness::HOLDFAST;
use crate::postgres_server::{PostgresServer, SECRET_ROLE, VERSIONS, Version};
use serde_json::Value as Json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit code, standard output, standard error. No configuration file is there.
fn upstream(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(HOLDFAST)
        .args(["--config", "/nonexistent/holdfast.toml", "upstream"])
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The findings of `check --json`, as (level, code), without those that are good.
fn findings(url: &str) -> (i32, Vec<(String, String)>) {
    let (code, out, err) = upstream(&["check", "--url", url, "--json"]);
    let report: Json = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!(report["ok"], Json::from(code == 0));
    let text = |finding: &Json, key: &str| finding[key].as_str().unwrap().to_owned();
    let all = report["findings"].as_array().unwrap().iter();
    let found = all.map(|f| (text(f, "level"), text(f, "code")));
    (code, found.filter(|(level, _)| level != "ok").collect())
}

pub(crate) fn secret_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, format!("{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

// covers: ING-01
#[tokio::test]
async fn init_makes_a_schema_once_and_a_writer_that_can_call_ingest_alone() {
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.empty_database().await;
        let url = database.admin().url;
        let (code, out, err) = upstream(&["init", "--url", &url, "--dry-run"]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("would be: schema version 1: applied"), "{out}");
        assert_eq!(
            database.value("SELECT to_regnamespace('holdfast')").await,
            ""
        );
        // Two at once: one makes it, the other finds it.
        let twice = [url.clone(), url.clone()].map(|url| {
            std::thread::spawn(move || {
                upstream(&["init", "--url", &url, "--reader", "plant_reader"])
            })
        });
        let mut said: Vec<_> = twice
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        said.sort_by_key(|(_, out, _)| out.contains("there already"));
        assert_eq!((said[0].0, said[1].0), (0, 0), "{said:?}");
        assert!(said[0].1.contains("schema version 1: applied"), "{said:?}");
        assert!(
            said[1].1.contains("schema version 1: there already"),
            "{said:?}"
        );
        // The writer: nothing but the one function.
        let roles = "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls FROM pg_roles WHERE rolname = 'holdfast_writer'";
        assert_eq!(database.value(roles).await, "f");
        let functions = "SELECT string_agg(proname, ',') FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND has_function_privilege('holdfast_writer', oid, 'EXECUTE')";
        assert_eq!(database.value(functions).await, "ingest");
        for sql in [
            "SELECT count(*) FROM holdfast.event",
            "INSERT INTO holdfast.total VALUES ('A', 't', 1, 1)",
            "DELETE FROM holdfast.conflict",
            "CALL holdfast.archive_before(now())",
            "CREATE TABLE holdfast.mine ()",
        ] {
            let refused = database
                .try_query(&format!("SET ROLE holdfast_writer; {sql}"))
                .await;
            assert_eq!(
                refused.unwrap_err().code().unwrap().code(),
                "42501",
                "{sql}"
            );
        }
        let reads = database
            .try_query("SET ROLE plant_reader; SELECT count(holdfast.member(body, 'x')) FROM holdfast.events")
            .await;
        assert!(reads.is_ok());
        // As the sink would see it.
        assert_eq!(findings(&database.writer_url()), (0, vec![]));
        // A newer schema is left alone.
        database
            .query("INSERT INTO holdfast.schema_version (version, program) VALUES (99, 'later')")
            .await;
        let (code, _, err) = upstream(&["init", "--url", &url]);
        assert_eq!(code, 78);
        assert!(
            err.contains("version 99") && err.contains("newer program"),
            "{err}"
        );
    }
}

// covers: ING-01
#[tokio::test]
async fn what_init_prints_can_be_applied_by_hand() {
    let (code, sql, _) = upstream(&[
        "init",
        "--print-sql",
        "--writer",
        "plant_writer",
        "--owner",
        "plant_owner",
    ]);
    assert_eq!(code, 0);
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.empty_database().await;
        database.query(&sql).await;
        let url = server.url("plant_writer", &database.name);
        assert_eq!(findings(&url), (0, vec![]));
        // Who owns the schema need not be a superuser, and may bring it up to date.
        database.query("ALTER ROLE plant_owner LOGIN").await;
        let (code, out, err) = upstream(&[
            "init",
            "--url",
            &server.url("plant_owner", &database.name),
            "--writer",
            "plant_writer",
        ]);
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("there already"), "{out}");
    }
}

#[tokio::test]
async fn check_says_what_stands_in_the_way_and_ends_accordingly() {
    for version in VERSIONS {
        let server = PostgresServer::shared(version).await;
        let database = server.database().await;
        let error = |code: &str| ("error".to_owned(), code.to_owned());
        let warning = |code: &str| ("warning".to_owned(), code.to_owned());
        let empty = server.empty_database().await;
        assert_eq!(
            findings(&empty.writer_url()),
            (78, vec![error("schema"), error("execute")])
        );
        assert_eq!(
            findings(&database.admin().url),
            (0, vec![warning("least_privilege")])
        );
        database.query("ALTER TABLE holdfast.total SET UNLOGGED; GRANT SELECT ON holdfast.event TO holdfast_writer").await;
        assert_eq!(
            findings(&database.writer_url()),
            (78, vec![error("unlogged"), warning("least_privilege")])
        );
        database.query("ALTER TABLE holdfast.total SET LOGGED; ALTER TABLE holdfast.event DROP CONSTRAINT event_key").await;
        let (code, found) = findings(&database.writer_url());
        assert!(code == 78 && found.contains(&error("unique")), "{found:?}");
        let (code, _, err) = upstream(&["check", "--url", "postgres://w@127.0.0.1:1/books"]);
        assert_eq!(code, 8, "{err}");
        let (code, _, err) =
            upstream(&["check", "--url", &server.url("nobody_here", &database.name)]);
        assert!(
            code == 77 && err.contains("holdfast upstream init first"),
            "{code} {err}"
        );
        let (code, _, err) = upstream(&["check", "--url", "postgres://w:pw@127.0.0.1/books"]);
        assert!(
            code == 78 && err.contains("password_file") && !err.contains("pw@"),
            "{err}"
        );
    }
}

// covers: CFG-04
#[tokio::test]
async fn a_password_is_given_and_used_over_tls() {
    let server = PostgresServer::shared(Version::V15).await;
    let database = server.empty_database().await;
    let dir = tempfile::tempdir().unwrap();
    let password = secret_file(dir.path(), "password", "correct horse");
    let wrong = secret_file(dir.path(), "wrong", "battery staple");
    let ca = dir.path().join("ca.pem");
    fs::write(&ca, server.ca_pem()).unwrap();
    let (password, wrong, ca) = (
        password.to_str().unwrap(),
        wrong.to_str().unwrap(),
        ca.to_str().unwrap(),
    );
    let (code, out, err) = upstream(&[
        "init",
        "--url",
        &database.admin().url,
        "--writer",
        SECRET_ROLE,
        "--writer-password-file",
        password,
    ]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("its password was set") && !out.contains("horse"),
        "{out}"
    );
    let stored = format!("SELECT rolpassword FROM pg_authid WHERE rolname = '{SECRET_ROLE}'");
    assert!(database.value(&stored).await.starts_with("SCRAM-SHA-256$"));
    let url = format!(
        "postgres://{SECRET_ROLE}@localhost:{}/{}",
        server.port, database.name
    );
    let check = |password: &str, ca: &str| {
        upstream(&[
            "check",
            "--url",
            &url,
            "--password-file",
            password,
            "--ca-file",
            ca,
        ])
    };
    let (code, out, err) = check(password, ca);
    assert!(
        code == 0 && out.contains("encrypted, the server verified"),
        "{out}{err}"
    );
    let (code, _, err) = check(wrong, ca);
    assert!(code == 77 && err.contains("28P01"), "{code} {err}");
    // Signed by somebody else.
    let other = dir.path().join("other.pem");
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=other",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-keyout", "/dev/null", "-out"])
        .arg(&other)
        .output()
        .unwrap();
    assert!(made.status.success());
    let (code, _, err) = check(password, other.to_str().unwrap());
    assert!(code == 78 && err.contains("ca_file"), "{code} {err}");
    // A server that has no TLS is not spoken to in clear.
    let plain = PostgresServer::shared(Version::V18).await;
    let url = format!(
        "postgres://holdfast_writer@localhost:{}/postgres?sslmode=verify-full",
        plain.port
    );
    let (code, _, err) = upstream(&["check", "--url", &url, "--ca-file", ca]);
    assert!(
        code == 78 && err.contains("does not speak TLS"),
        "{code} {err}"
    );
}
