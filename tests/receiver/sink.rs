//! Owns: the http sink against the receiver itself, with and without TLS.
//! May call: stage, the http sink.
//! Never: look at how it is done.

use crate::stage::{Stage, TOKEN, event, secret_file};
use holdfast::core::ids::{BootId, CommitNo};
use holdfast::core::outbox::{Outbox, OutboxConfig, Verdict};
use holdfast::core::record::{CursorRecord, EventRecord, Position, SinkRecord};
use holdfast::core::time::Now;
use holdfast::receiver::TlsFiles;
use holdfast::sink::Sink;
use holdfast::sink::http::{HttpSinkConfig, sink};
use holdfast::upstream::UpstreamError;
use std::path::Path;
use std::process::Command;

fn events(range: std::ops::RangeInclusive<u64>) -> Vec<(Position, EventRecord)> {
    let at = |n| Position {
        no: CommitNo(n),
        index: 0,
    };
    range.map(|n| (at(n), event(n, 1))).collect()
}

fn to(stage: &Stage, url: &str) -> Sink {
    sink(HttpSinkConfig {
        token_file: Some(stage.dir.path().join("gw-line3")),
        ..HttpSinkConfig::new("gw-line3", url)
    })
}

async fn deliver(sink: &mut Sink, batch: &[(Position, EventRecord)]) -> Vec<Verdict> {
    sink.lanes[0].deliver(batch).await
}

// covers: FWD-02, FWD-03
#[tokio::test(flavor = "multi_thread")]
async fn what_the_books_say_of_an_event_is_what_the_gateway_hears() {
    let stage = Stage::with(|settings| settings.limits.events = 400).await;
    let mut sink = to(&stage, &format!("http://{}", stage.address));
    assert_eq!(
        deliver(&mut sink, &events(1..=1)).await,
        [Verdict::Accepted]
    );
    // More than a request of this receiver holds.
    let mut batch = events(1..=1000);
    batch[4].1.qty = 9;
    batch[5].1.event_type = "x".repeat(200);
    assert_eq!(deliver(&mut sink, &batch[3..6]).await[0], Verdict::Accepted);
    stage
        .memory
        .events
        .lock()
        .unwrap()
        .insert("press-1/7/5".into(), [0; 32]);
    let verdicts = deliver(&mut sink, &batch).await;
    assert_eq!(verdicts[0], Verdict::Duplicate);
    assert!(
        matches!(&verdicts[4], Verdict::Conflict { kept: Some(_), .. }),
        "{:?}",
        verdicts[4]
    );
    assert!(
        matches!(&verdicts[5], Verdict::Malformed { reason } if reason.contains("invalid_type")),
        "{:?}",
        verdicts[5]
    );
    assert_eq!(
        verdicts.iter().filter(|v| **v == Verdict::Accepted).count(),
        996
    );
    // Away, and back.
    *stage.memory.away.lock().unwrap() = Some(UpstreamError::Passing("gone".into()));
    let away = deliver(&mut sink, &events(2000..=2001)).await;
    assert!(
        away.iter().all(|v| matches!(
            v,
            Verdict::Retry {
                after_ms: Some(2_000),
                ..
            }
        )),
        "{away:?}"
    );
    *stage.memory.away.lock().unwrap() = None;
    assert_eq!(
        deliver(&mut sink, &events(2000..=2001)).await,
        [Verdict::Accepted, Verdict::Accepted]
    );
    // A token that is not known there.
    secret_file(stage.dir.path(), "gw-line3", "not-the-token-0123456789");
    stage.reloader.reload(&stage.settings).unwrap();
    secret_file(stage.dir.path(), "gw-line3", TOKEN);
    let stopped = deliver(&mut sink, &events(2002..=2002)).await;
    assert!(
        matches!(&stopped[0], Verdict::Stop { reason } if reason.contains("does not know this gateway")),
        "{stopped:?}"
    );
}

// covers: F111
#[tokio::test(flavor = "multi_thread")]
async fn what_is_quarantined_is_counted_as_that_and_as_nothing_else() {
    let stage = Stage::new().await;
    let mut sink = to(&stage, &format!("http://{}", stage.address));
    let mut all = events(1..=250);
    for (_, event) in all.iter_mut().take(200) {
        event.event_type = "x".repeat(200);
    }
    let cursor = CursorRecord {
        sink: "mes".into(),
        ..CursorRecord::default()
    };
    let mut outbox = Outbox::new(cursor, SinkRecord::default(), OutboxConfig::default(), 7);
    let head = CommitNo(250);
    let now = Now {
        wall_us: 0,
        wall_trusted: true,
        boottime_ns: 1,
        boot_id: BootId::default(),
    };
    let mut dead = 0;
    for _ in 0..100 {
        while let Some(want) = outbox.want(head) {
            let behind = all.iter().filter(|(at, _)| *at > want.after);
            let read: Vec<_> = behind.take(want.events_max).cloned().collect();
            let whole = read.last().is_none_or(|(at, _)| at.no == head);
            outbox.offer(&want, read, whole.then_some(head));
        }
        let Some(batch) = outbox.next_batch(&now) else {
            break;
        };
        let verdicts = deliver(&mut sink, &batch.events).await;
        dead += outbox.answered(&now, batch, verdicts).len() as u64;
        let (cursor, _) = outbox.record();
        let pending = 250 - stage.memory.events.lock().unwrap().len() as u64 - dead;
        assert_eq!(cursor.accepted + dead + pending, 250);
        assert_eq!(
            (cursor.malformed, cursor.duplicates, cursor.retries),
            (dead, 0, 0)
        );
    }
    let (cursor, _) = outbox.record();
    assert_eq!((cursor.accepted, cursor.malformed, dead), (50, 200, 200));
    assert_eq!(outbox.through(), all[249].0);
    assert_eq!(stage.memory.dead.lock().unwrap().len(), 200);
}

/// An authority and a certificate of it for `localhost`.
fn certificates(dir: &Path) {
    let script = "set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=plant-ca -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=mes -keyout server.key -out server.csr
printf 'subjectAltName=DNS:localhost\\nbasicConstraints=CA:FALSE\\n' > ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out server.pem
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=stranger -keyout other.key -out other.pem
chmod 600 server.key";
    let made = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "openssl is needed: {}",
        String::from_utf8_lossy(&made.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_the_server_is_verified_by_authority_and_name() {
    let files = tempfile::tempdir().unwrap();
    certificates(files.path());
    let path = |name: &str| files.path().join(name);
    let stage = Stage::with(|settings| {
        settings.tls = Some(TlsFiles {
            certificate_file: path("server.pem"),
            key_file: path("server.key"),
        });
    })
    .await;
    let port = stage.address.port();
    let to = |scheme: &str, host: &str, ca: Option<&str>| {
        sink(HttpSinkConfig {
            token_file: Some(stage.dir.path().join("gw-line3")),
            ca_file: ca.map(path),
            ..HttpSinkConfig::new("gw-line3", format!("{scheme}://{host}:{port}"))
        })
    };
    let mut good = to("https", "localhost", Some("ca.pem"));
    assert_eq!(
        deliver(&mut good, &events(1..=3)).await,
        vec![Verdict::Accepted; 3]
    );
    assert_eq!(
        deliver(&mut good, &events(1..=3)).await,
        vec![Verdict::Duplicate; 3]
    );
    // Another name, another authority, this computer's own authorities.
    for (host, ca) in [
        ("127.0.0.1", Some("ca.pem")),
        ("localhost", Some("other.pem")),
        ("localhost", None),
    ] {
        let verdicts = deliver(&mut to("https", host, ca), &events(4..=4)).await;
        assert!(
            matches!(&verdicts[0], Verdict::Stop { .. }),
            "{host} {ca:?}: {verdicts:?}"
        );
    }
    for (ca, says) in [
        ("ca.key", "no certificate"),
        ("missing", "expected certificates as PEM"),
    ] {
        let verdicts = deliver(&mut to("https", "localhost", Some(ca)), &events(4..=4)).await;
        assert!(
            matches!(&verdicts[0], Verdict::Stop { reason } if reason.contains(says)),
            "{verdicts:?}"
        );
    }
    // In clear to a port that speaks TLS.
    let verdicts = deliver(&mut to("http", "localhost", None), &events(4..=4)).await;
    assert!(
        matches!(&verdicts[0], Verdict::Retry { .. }),
        "{verdicts:?}"
    );
    assert_eq!(stage.memory.events.lock().unwrap().len(), 3);
    // A key that everybody can read is refused.
    std::fs::set_permissions(
        path("server.key"),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    let error = stage.reloader.reload(&stage.settings).unwrap_err();
    assert!(error.to_string().contains("chmod o="), "{error}");
}
