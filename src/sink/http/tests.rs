use super::*;
use crate::core::ids::{Epoch, EventKey, Sequence};
use crate::core::spec::{EventClass, Quality};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn event(n: u64, body: &str) -> (Position, EventRecord) {
    let record = EventRecord {
        key: EventKey {
            source: "press-1".into(),
            epoch: Epoch(7),
            sequence: Sequence(n),
        },
        event_type: "piece.good".into(),
        schema: 1,
        wall_us: 1_796_025_600_000_000,
        boottime_ns: 0,
        quality: Quality::Good,
        class: EventClass::Business,
        qty: 1,
        body: body.into(),
        unsynchronised: None,
    };
    (
        Position {
            no: crate::core::ids::CommitNo(n),
            index: 0,
        },
        record,
    )
}

fn events(range: std::ops::RangeInclusive<u64>) -> Vec<(Position, EventRecord)> {
    range.map(|n| event(n, "{}")).collect()
}

/// What the server read.
#[derive(Clone, Debug)]
struct Asked {
    head: String,
    body: Json,
    /// Which connection, counted from 0.
    connection: usize,
}

impl Asked {
    fn keys(&self) -> Vec<String> {
        let events = self.body["events"].as_array().unwrap();
        let part = |event: &Json, name: &str| event[name].as_str().unwrap().to_owned();
        events
            .iter()
            .map(|e| {
                format!(
                    "{}/{}/{}",
                    part(e, "source"),
                    part(e, "epoch"),
                    part(e, "sequence")
                )
            })
            .collect()
    }
}

/// What it does then: writes these bytes, and closes the connection or not.
struct Act {
    bytes: Vec<u8>,
    close: bool,
}

fn answer(status: u16, content_type: &str, more: &str, body: &str) -> Act {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n{more}\r\n",
        body.len()
    );
    Act {
        bytes: format!("{head}{body}").into_bytes(),
        close: false,
    }
}

fn problem(status: u16, body: Json) -> Act {
    answer(status, "application/problem+json", "", &body.to_string())
}

fn results(asked: &Asked, status: impl Fn(&str) -> &'static str) -> Act {
    let lines: Vec<Json> = asked
        .keys()
        .iter()
        .enumerate()
        .map(|(index, key)| json!({"index": index, "key": key, "status": status(key)}))
        .collect();
    let body = json!({"batch_id": asked.body["batch_id"], "results": lines});
    answer(200, "application/json", "", &body.to_string())
}

/// A server of raw bytes; what it was asked stands in the list.
async fn server(
    mut script: impl FnMut(&Asked) -> Act + Send + 'static,
) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&log);
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            while let Some((head, body)) = read_request(&mut stream).await {
                let asked = Asked {
                    head,
                    body,
                    connection,
                };
                let act = script(&asked);
                seen.lock().unwrap().push(asked);
                if stream.write_all(&act.bytes).await.is_err() || act.close {
                    break;
                }
            }
        }
    });
    (url, log)
}

async fn read_request(stream: &mut TcpStream) -> Option<(String, Json)> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        let head_end = bytes.windows(4).position(|w| w == b"\r\n\r\n");
        if let Some(end) = head_end {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let whole = end + 4 + length.unwrap().parse::<usize>().unwrap();
            if bytes.len() >= whole {
                return Some((
                    head,
                    serde_json::from_slice(&bytes[end + 4..whole]).unwrap(),
                ));
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
        }
    }
}

fn lane(url: &str) -> HttpLane {
    HttpLane::new(HttpSinkConfig {
        reply_ms_max: 5_000,
        ..HttpSinkConfig::new("gw-line3", url)
    })
}

fn retry(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Retry { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn stopped(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Stop { reason } => reason,
        other => panic!("{other:?}"),
    }
}

// covers: FWD-02, FWD-07
#[tokio::test]
async fn each_result_is_for_the_event_it_names_and_the_connection_is_kept() {
    let (url, log) = server(|asked| {
        let mut act = results(asked, |key| match key.rsplit('/').next() {
            Some("1") => "accepted",
            Some("2") => "duplicate",
            Some("3") => "conflict",
            Some("4") => "malformed",
            Some("5") => "retry",
            _ => "done",
        });
        // A result with further members.
        act.bytes = String::from_utf8(act.bytes).unwrap().into_bytes();
        act
    })
    .await;
    let mut lane = lane(&url);
    let batch = events(1..=6);
    let verdicts = lane.deliver(&batch).await;
    assert_eq!(verdicts[..2], [Verdict::Accepted, Verdict::Duplicate]);
    assert!(matches!(verdicts[2], Verdict::Conflict { .. }));
    assert!(matches!(verdicts[3], Verdict::Malformed { .. }));
    assert!(retry(&verdicts[5]).contains("\"done\""));
    assert!(matches!(verdicts[4], Verdict::Retry { .. }));
    lane.deliver(&batch).await;
    let log = log.lock().unwrap();
    assert_eq!((log.len(), log[1].connection), (2, 0));
    assert!(
        log[0]
            .head
            .starts_with("POST /v1/events:batch HTTP/1.1\r\n"),
        "{}",
        log[0].head
    );
    assert_eq!(log[0].body["gateway"], "gw-line3");
    assert_ne!(log[0].body["batch_id"], log[1].body["batch_id"]);
    assert_eq!(
        log[0].body["events"][0],
        serde_json::from_str::<Json>(&to_json(&batch[0].1)).unwrap()
    );
}

// covers: FWD-02, FWD-03
#[tokio::test]
async fn what_is_missing_or_names_another_event_is_not_acknowledged() {
    let lines = |asked: &Asked| {
        let key = asked.keys();
        json!([
            {"index": 0, "key": key[1], "status": "accepted"},
            {"index": 1, "key": key[1], "status": "accepted"},
            {"index": 2, "key": key[2], "status": "accepted"},
            {"index": 2, "key": key[2], "status": "conflict"},
            {"index": 3, "status": "accepted"},
            {"index": 99, "key": key[4], "status": "accepted"},
            {"index": -1, "key": key[4], "status": "accepted"},
            "accepted",
        ])
    };
    let (url, _) = server(move |asked| {
        let body = json!({"batch_id": asked.body["batch_id"], "results": lines(asked)});
        answer(
            200,
            "application/json; charset=utf-8",
            "",
            &body.to_string(),
        )
    })
    .await;
    let batch = events(1..=5);
    let verdicts = lane(&url).deliver(&batch).await;
    assert_eq!(verdicts[1], Verdict::Accepted);
    for index in [0, 2, 3, 4] {
        retry(&verdicts[index]);
    }
}

// covers: FWD-03
#[tokio::test]
async fn an_answer_that_is_none_acknowledges_nothing() {
    let keys = |asked: &Asked, batch: &str| {
        let key = &asked.keys()[0];
        json!({"batch_id": batch, "results": [{"index": 0, "key": key, "status": "accepted"}]})
            .to_string()
    };
    type Script = Box<dyn FnMut(&Asked) -> Act + Send>;
    let cases: Vec<(Script, &str)> = vec![
        (
            Box::new(|_| answer(200, "text/html", "", "<html>Please log in</html>")),
            "Please log in",
        ),
        (
            Box::new(move |asked| {
                answer(
                    200,
                    "text/html",
                    "",
                    &keys(asked, asked.body["batch_id"].as_str().unwrap()),
                )
            }),
            "text/html",
        ),
        (
            Box::new(move |asked| answer(200, "application/json", "", &keys(asked, "another"))),
            "another batch",
        ),
        (
            Box::new(|_| answer(200, "application/json", "", "[]")),
            "not what a receiver answers",
        ),
        (
            Box::new(|_| answer(200, "application/json", "", "")),
            "not what a receiver answers",
        ),
        (
            Box::new(|_| answer(202, "application/json", "", "{\"ok\":true}")),
            "no acknowledgement",
        ),
        (
            Box::new(|asked| Act {
                close: true,
                bytes: {
                    let mut b = results(asked, |_| "accepted").bytes;
                    b.truncate(b.len() - 5);
                    b
                },
            }),
            "did not come whole",
        ),
        (
            Box::new(|_| Act {
                close: true,
                bytes: b"HTTP/1.1 200 OK\r\ncontent-le".to_vec(),
            }),
            "no answer",
        ),
        (
            Box::new(|_| Act {
                close: true,
                bytes: Vec::new(),
            }),
            "no answer",
        ),
        (
            Box::new(|_| Act {
                close: true,
                bytes: b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
            }),
            "no answer",
        ),
    ];
    for (script, says) in cases {
        let (url, _) = server(script).await;
        let verdicts = lane(&url).deliver(&events(1..=1)).await;
        let reason = retry(&verdicts[0]);
        assert!(reason.contains(says), "{says}: {reason}");
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_not_read_for_ever() {
    let (url, _) = server(|_| {
        let mut bytes = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_vec();
        bytes.resize(link::REPLY_BYTES_MAX + 100, b' ');
        Act {
            bytes,
            close: false,
        }
    })
    .await;
    let verdicts = lane(&url).deliver(&events(1..=1)).await;
    assert!(retry(&verdicts[0]).contains("did not come whole"));
    // Nor one that does not begin.
    let (url, _) = server(|_| Act {
        bytes: Vec::new(),
        close: false,
    })
    .await;
    let mut lane = HttpLane::new(HttpSinkConfig {
        reply_ms_max: 50,
        ..HttpSinkConfig::new("gw", &url)
    });
    let verdicts = lane.deliver(&events(1..=2)).await;
    assert!(retry(&verdicts[0]).contains("within 50 ms"));
    assert!(retry(&verdicts[1]).contains("within 50 ms"));
}

#[tokio::test]
async fn a_place_that_is_not_there_is_tried_again_and_a_wrong_one_stops() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    retry(&lane(&url).deliver(&events(1..=1)).await[0]);
    for status in [301, 401, 403, 404, 405, 415] {
        let (url, log) =
            server(move |_| problem(status, json!({"code": "no", "detail": "go away"}))).await;
        let verdicts = lane(&url).deliver(&events(1..=9)).await;
        assert!(
            verdicts.iter().all(|v| stopped(v).contains("no: go away")),
            "{verdicts:?}"
        );
        assert_eq!(log.lock().unwrap().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn it_is_left_alone_for_as_long_as_it_asks() {
    for (status, wait, ms) in [
        (429, "7", Some(7_000)),
        (503, "120", Some(120_000)),
        (500, "x", None),
        (503, "99999999999", Some(900_000)),
        (503, "Sun, 06 Nov 1994 08:49:37 GMT", Some(0)),
    ] {
        let more = format!("retry-after: {wait}\r\n");
        let (url, log) = server(move |_| answer(status, "text/plain", &more, "busy")).await;
        let verdicts = lane(&url).deliver(&events(1..=3)).await;
        for verdict in verdicts {
            assert!(
                matches!(&verdict, Verdict::Retry { after_ms, reason } if *after_ms == ms && reason.contains("busy")),
                "{verdict:?}"
            );
        }
        assert_eq!(log.lock().unwrap().len(), 1);
    }
}

// covers: FWD-02
#[tokio::test]
async fn what_is_too_large_is_halved_down_to_the_one_that_is() {
    let (url, log) = server(|asked| {
        let bytes: usize = asked.body["events"].to_string().len();
        if bytes > 4_000 {
            problem(413, json!({"code": "too_large", "detail": "at most 4000"}))
        } else {
            results(asked, |_| "accepted")
        }
    })
    .await;
    let mut batch = events(1..=40);
    batch[17] = event(18, &format!("\"{}\"", "x".repeat(9_000)));
    let mut lane = lane(&url);
    let verdicts = lane.deliver(&batch).await;
    for (index, verdict) in verdicts.iter().enumerate() {
        if index == 17 {
            assert!(
                matches!(verdict, Verdict::Malformed { reason } if reason.contains("at most 4000")),
                "{verdict:?}"
            );
        } else {
            assert_eq!(*verdict, Verdict::Accepted, "{index}");
        }
    }
    // What was learned of the limit is not asked again.
    log.lock().unwrap().clear();
    let verdicts = lane.deliver(&events(41..=50)).await;
    assert_eq!(verdicts, vec![Verdict::Accepted; 10]);
    assert_eq!(log.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn after_one_413_requests_grow_again() {
    let mut asked_before = 0;
    let (url, _) = server(move |asked| {
        asked_before += 1;
        match asked_before {
            1 => problem(413, json!({"detail": "too large"})),
            _ => results(asked, |_| "accepted"),
        }
    })
    .await;
    let mut lane = lane(&url);
    lane.deliver(&events(1..=10)).await;
    let least = lane.body_bytes_max;
    assert!(least < BODY_BYTES_MAX / 50, "{least}");
    for _ in 0..3 {
        lane.deliver(&events(1..=1)).await;
    }
    assert_eq!(lane.body_bytes_max, least + 3 * BODY_BYTES_MIN);
}

// covers: FWD-02
#[tokio::test]
async fn a_poisoned_event_is_found_and_the_others_are_taken() {
    let poison = |asked: &Asked| asked.keys().iter().any(|key| key.ends_with("/500"));
    let (url, log) = server(move |asked| {
        if poison(asked) {
            problem(
                400,
                json!({"code": "malformed", "detail": "a body that I cannot read"}),
            )
        } else {
            results(asked, |_| "accepted")
        }
    })
    .await;
    let batch = events(1..=1000);
    let mut lane = lane(&url);
    let verdicts = lane.deliver(&batch).await;
    assert_eq!(
        verdicts.iter().filter(|v| **v == Verdict::Accepted).count(),
        999
    );
    assert!(
        matches!(&verdicts[499], Verdict::Malformed { reason } if reason.contains("cannot read"))
    );
    assert!(
        log.lock().unwrap().len() <= 22,
        "{}",
        log.lock().unwrap().len()
    );
    // Alone: whether the place takes others is asked with one that it took before.
    log.lock().unwrap().clear();
    let verdicts = lane.deliver(&events(500..=500)).await;
    assert!(matches!(verdicts[0], Verdict::Malformed { .. }));
    let asked: Vec<Vec<String>> = log.lock().unwrap().iter().map(Asked::keys).collect();
    assert_eq!(asked, [["press-1/7/500"], ["press-1/7/1000"]]);
}

// covers: FWD-02
#[tokio::test]
async fn several_poisoned_events_at_the_head_of_the_very_first_delivery_are_found_too() {
    let (url, _) = server(|asked| {
        if asked
            .keys()
            .iter()
            .any(|key| key.len() == "press-1/7/1".len() && !key.ends_with("/9"))
        {
            problem(422, json!({"detail": "not these"}))
        } else {
            results(asked, |_| "accepted")
        }
    })
    .await;
    let verdicts = lane(&url).deliver(&events(1..=500)).await;
    for (n, verdict) in (1..).zip(&verdicts) {
        if n < 9 {
            assert!(
                matches!(verdict, Verdict::Malformed { .. }),
                "{n}: {verdict:?}"
            );
        } else {
            assert_eq!(*verdict, Verdict::Accepted, "{n}");
        }
    }
}

#[tokio::test]
async fn a_place_that_refuses_everything_makes_no_dead_letters() {
    for status in [400, 413, 422] {
        let (url, log) =
            server(move |_| problem(status, json!({"detail": "this is no receiver"}))).await;
        let mut lane = lane(&url);
        for batch in [events(1..=1000), events(1..=1)] {
            let verdicts = lane.deliver(&batch).await;
            assert_eq!(verdicts.len(), batch.len());
            assert!(
                verdicts
                    .iter()
                    .all(|v| stopped(v).contains("this is no receiver")),
                "{status}"
            );
        }
        assert!(log.lock().unwrap().len() < 20);
    }
}

#[tokio::test]
async fn refused_events_of_a_place_that_goes_away_are_not_given_up() {
    let mut asked_before = 0;
    let (url, _) = server(move |_| {
        asked_before += 1;
        match asked_before {
            1 | 2 => problem(400, json!({"detail": "odd"})),
            _ => answer(502, "text/plain", "", "away"),
        }
    })
    .await;
    let verdicts = lane(&url).deliver(&events(1..=2)).await;
    assert!(
        verdicts.iter().all(|v| retry(v).contains("away")),
        "{verdicts:?}"
    );
}

// covers: FWD-01
#[tokio::test]
async fn a_place_that_has_no_time_for_the_control_event_stops_nothing() {
    let mut asked_before = 0;
    let (url, _) = server(move |asked| {
        asked_before += 1;
        match asked_before {
            1 => results(asked, |_| "accepted"),
            2 => problem(400, json!({"detail": "odd"})),
            _ => answer(503, "text/plain", "Retry-After: 7\r\n", "busy"),
        }
    })
    .await;
    let mut lane = lane(&url);
    assert_eq!(lane.deliver(&events(1..=1)).await, [Verdict::Accepted]);
    let verdicts = lane.deliver(&events(2..=2)).await;
    assert!(
        matches!(
            &verdicts[..],
            [Verdict::Retry {
                after_ms: Some(7_000),
                ..
            }]
        ),
        "{verdicts:?}"
    );
}

// covers: F109, FWD-03
#[tokio::test]
async fn half_stored_then_500_then_409_ends_with_each_stored_once_and_nothing_left() {
    // Three servers of that kind: 409 for the batch; 409 with results; 409 for the batch, the new ones stored.
    for kind in 0..3 {
        let stored: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
        let books = Arc::clone(&stored);
        let mut first = true;
        let (url, _) = server(move |asked| {
            let mut books = books.lock().unwrap();
            let keys = asked.keys();
            if std::mem::take(&mut first) {
                for key in &keys[..6] {
                    *books.entry(key.clone()).or_default() += 1;
                }
                return answer(500, "text/plain", "", "internal error");
            }
            let old: BTreeSet<String> = keys.iter().filter(|k| books.contains_key(*k)).cloned().collect();
            if old.is_empty() || kind > 0 {
                for key in keys.iter().filter(|key| !old.contains(*key)) {
                    *books.entry(key.clone()).or_default() += 1;
                }
            }
            if old.is_empty() {
                return results(asked, |_| "accepted");
            }
            if kind == 1 {
                let lines: Vec<Json> = keys.iter().enumerate().map(|(index, key)| {
                    json!({"index": index, "key": key, "status": if old.contains(key) { "duplicate" } else { "accepted" }})
                }).collect();
                return answer(409, "application/json", "", &json!({"results": lines}).to_string());
            }
            problem(409, json!({"title": "Conflict", "code": "duplicate", "detail": "held already"}))
        })
        .await;
        let mut lane = lane(&url);
        let mut pending = events(1..=10);
        let first = lane.deliver(&pending).await;
        assert!(first.iter().all(|v| retry(v).contains("internal error")));
        for _ in 0..3 {
            let verdicts = lane.deliver(&pending).await;
            let mut verdicts = verdicts.into_iter();
            pending.retain(|_| !is_taken(&verdicts.next().unwrap()));
            if pending.is_empty() {
                break;
            }
        }
        assert!(pending.is_empty(), "kind {kind}: {pending:?}");
        let stored = stored.lock().unwrap();
        assert_eq!(stored.len(), 10, "kind {kind}");
        assert!(
            stored.values().all(|times| *times == 1),
            "kind {kind}: {stored:?}"
        );
    }
}

// covers: FWD-02, FWD-03
#[tokio::test]
async fn a_bare_409_that_is_no_receivers_duplicate_finishes_nothing() {
    let cases = [
        (
            "text/html",
            "<h1>409 Conflict</h1>: duplicate request; already exists",
        ),
        ("text/plain", "duplicate"),
        ("application/json", r#"{"code": "duplicate"}"#),
        (
            "application/problem+json",
            r#"{"title": "Duplicate request", "detail": "duplicate"}"#,
        ),
        ("application/problem+json", r#"{"code": "duplicate_route"}"#),
        (
            "application/problem+json",
            r#"{"code": "idempotency_conflict"}"#,
        ),
        (
            "application/json",
            r#"{"batch_id": "another", "results": []}"#,
        ),
    ];
    for (content_type, body) in cases {
        let mut is_down = false;
        let (url, log) = server(move |asked| {
            if std::mem::replace(&mut is_down, true) {
                answer(409, content_type, "", body)
            } else {
                results(asked, |_| "accepted")
            }
        })
        .await;
        let mut lane = lane(&url);
        assert_eq!(lane.deliver(&events(1..=1)).await, [Verdict::Accepted]);
        for batch in [events(2..=500), events(2..=2)] {
            for verdict in lane.deliver(&batch).await {
                assert!(
                    stopped(&verdict).contains("status 409 says"),
                    "{body}: {verdict:?}"
                );
            }
        }
        assert!(log.lock().unwrap().len() < 20);
    }
}

// covers: FWD-02
#[tokio::test]
async fn an_event_that_alone_is_answered_409_is_a_dead_letter_that_claims_no_other_content() {
    let (url, _) = server(|asked| {
        if asked.keys().iter().any(|key| key.ends_with("/2")) {
            problem(
                409,
                json!({"code": "idempotency_conflict", "detail": "other content"}),
            )
        } else {
            results(asked, |_| "accepted")
        }
    })
    .await;
    let verdicts = lane(&url).deliver(&events(1..=3)).await;
    assert!(
        matches!(&verdicts[1], Verdict::Malformed { reason }
            if reason.contains("status 409 says") && reason.contains("other content")),
        "{verdicts:?}"
    );
    assert_eq!([&verdicts[0], &verdicts[2]], [&Verdict::Accepted; 2]);
}

// covers: F115
#[tokio::test]
async fn a_refusal_and_then_a_duplicate_is_delivered_only_by_the_answer_to_the_resend() {
    let mut times = 0;
    let (url, _) = server(move |asked| {
        times += 1;
        let retried = times == 1;
        results(asked, move |_| if retried { "retry" } else { "duplicate" })
    })
    .await;
    let mut lane = lane(&url);
    retry(&lane.deliver(&events(1..=1)).await[0]);
    assert_eq!(lane.deliver(&events(1..=1)).await, [Verdict::Duplicate]);
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_meanwhile_costs_nothing() {
    let (url, log) = server(|asked| Act {
        close: true,
        ..results(asked, |_| "accepted")
    })
    .await;
    let mut lane = lane(&url);
    for n in 1..=3 {
        assert_eq!(lane.deliver(&events(n..=n)).await, [Verdict::Accepted]);
    }
    let log = log.lock().unwrap();
    assert_eq!(
        log.iter().map(|asked| asked.connection).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

// covers: CFG-04
#[tokio::test]
async fn the_token_is_read_anew_where_the_old_one_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let write = |text: &str| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("first\n");
    let good = Arc::new(Mutex::new("Bearer first".to_owned()));
    let wanted = Arc::clone(&good);
    let (url, log) = server(move |asked| {
        if asked
            .head
            .contains(&format!("authorization: {}\r\n", wanted.lock().unwrap()))
        {
            results(asked, |_| "accepted")
        } else {
            problem(
                401,
                json!({"code": "unknown_token", "detail": "who is this?"}),
            )
        }
    })
    .await;
    let mut lane = HttpLane::new(HttpSinkConfig {
        token_file: Some(path.clone()),
        ..HttpSinkConfig::new("gw", &url)
    });
    assert_eq!(lane.deliver(&events(1..=1)).await, [Verdict::Accepted]);
    // Changed at both ends: no one notices.
    *good.lock().unwrap() = "Bearer second".into();
    write("second\n");
    assert_eq!(lane.deliver(&events(2..=2)).await, [Verdict::Accepted]);
    // Changed at theirs alone: a person must act.
    *good.lock().unwrap() = "Bearer third".into();
    assert!(stopped(&lane.deliver(&events(3..=3)).await[0]).contains("who is this?"));
    assert_eq!(log.lock().unwrap().len(), 4);
    std::fs::remove_file(&path).unwrap();
    assert!(stopped(&lane.deliver(&events(3..=3)).await[0]).contains("cannot be read"));
}

#[tokio::test]
async fn a_batch_larger_than_a_request_goes_in_parts() {
    let (url, log) = server(|asked| results(asked, |_| "accepted")).await;
    let mut batch = events(1..=4);
    for (_, event) in &mut batch {
        event.body = format!("\"{}\"", "x".repeat(BODY_BYTES_MAX * 2 / 5));
    }
    batch[3].1.body = format!("\"{}\"", "x".repeat(BODY_BYTES_MAX * 2));
    assert_eq!(lane(&url).deliver(&batch).await, vec![Verdict::Accepted; 4]);
    let sizes: Vec<usize> = log
        .lock()
        .unwrap()
        .iter()
        .map(|asked| asked.keys().len())
        .collect();
    assert_eq!(sizes, [2, 1, 1]);
}
