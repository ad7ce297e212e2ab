//! Owns: one request and its answer: verdicts, refusals.
//! May call: stage.
//! Never: look at how it is done.

use crate::stage::{OTHER_TOKEN, Stage, TOKEN, batch, changed, counts, event, good};
use holdfast::core::event::{digest, sha256_text, to_json};
use holdfast::core::outbox::Verdict;
use holdfast::upstream::UpstreamError;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn every_index_has_its_result_and_one_malformed_event_harms_no_other() {
    let stage = Stage::new().await;
    let events = [
        to_json(&event(1, 1)),
        changed(2, |event| event["qty"] = 2.into()),
        to_json(&event(3, 1)),
        // The same key twice in one batch, and once more with other content.
        to_json(&event(1, 1)),
        to_json(&event(1, 5)),
        changed(4, |event| event["source"] = "".into()),
        "\"no event at all\"".into(),
        changed(5, |event| event["sequence"] = "9223372036854775808".into()),
        to_json(&event(6, 1)),
    ];
    let answer = stage.post(&batch(&events)).await;
    assert_eq!(
        answer.statuses(),
        [
            "accepted",
            "malformed",
            "accepted",
            "duplicate",
            "conflict",
            "malformed",
            "malformed",
            "malformed",
            "accepted"
        ]
    );
    let json = answer.json();
    assert_eq!(json["batch_id"], "b-1");
    assert_eq!(json["counts"], counts(9, 3, 1, 1, 4, 0));
    let line = |index: usize| &json["results"][index];
    assert_eq!(
        (&line(1)["key"], &line(1)["code"]),
        (&json!("press-1/7/2"), &json!("digest_mismatch"))
    );
    assert_eq!(
        (&line(4)["key"], &line(4)["kept"]),
        (&json!("press-1/7/1"), &json!("{\"first\":true}"))
    );
    assert_eq!(line(5)["code"], "invalid_source");
    assert_eq!(
        (&line(6)["key"], &line(6)["code"]),
        (&json!(null), &json!("malformed"))
    );
    assert!(
        line(7)["reason"]
            .as_str()
            .unwrap()
            .contains("9223372036854775807")
    );
    assert!(line(0).get("kept").is_none());
    // As they came, into the books' dead letters.
    let dead = stage.memory.dead.lock().unwrap();
    assert_eq!(dead.len(), 4);
    assert_eq!(dead[0].1, events[1]);
    assert_eq!(
        stage.memory.calls.lock().unwrap()[0],
        ("gw-line3".into(), "b-1".into())
    );
    assert_eq!(
        *stage.memory.events.lock().unwrap(),
        [1, 3, 6]
            .map(|n| (event(n, 1).key.to_string(), digest(&event(n, 1))))
            .into()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_a_false_name_and_a_foreign_source_take_nothing_in() {
    let stage =
        Stage::with(|settings| settings.gateways[1].sources = Some(["press-4".to_owned()].into()))
            .await;
    let json = "application/json";
    let body = good(1..=2);
    for token in [
        "",
        "x",
        &TOKEN[1..],
        &format!("{TOKEN}x"),
        &TOKEN.to_uppercase(),
    ] {
        let answer = stage.call().await.post(token, json, &body).await;
        answer.refused(401, "unauthorized");
        assert!(answer.head.contains("www-authenticate: Bearer"));
    }
    let mut caller = stage.call().await;
    caller.send(&format!("POST /v1/events:batch HTTP/1.1\r\nhost: x\r\nauthorization: Basic {TOKEN}\r\ncontent-length: 0\r\n\r\n")).await;
    caller.answer().await.unwrap().refused(401, "unauthorized");
    // The right token of another gateway.
    let answer = stage.call().await.post(OTHER_TOKEN, json, &body).await;
    let detail = answer.refused(403, "wrong_gateway");
    assert!(
        detail["detail"]
            .as_str()
            .unwrap()
            .contains("this token is of \"gw-line4\"")
    );
    let theirs = body.replace("gw-line3", "gw-line4");
    let answer = stage.call().await.post(OTHER_TOKEN, json, &theirs).await;
    assert!(
        answer.refused(403, "source_not_permitted")["detail"]
            .as_str()
            .unwrap()
            .contains("\"press-1\"")
    );
    assert!(stage.memory.events.lock().unwrap().is_empty());
    assert!(stage.memory.calls.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_batch_is_refused_with_what_was_expected() {
    let stage = Stage::with(|settings| {
        settings.limits.body_bytes = 64 * 1024;
        settings.limits.events = 10;
    })
    .await;
    let one = good(1..=1);
    for (body, says) in [
        ("", "not a batch"),
        ("[]", "not a batch"),
        (
            "{\"gateway\":\"gw-line3\",\"batch_id\":\"b\"}",
            "missing field `events`",
        ),
        (
            "{\"gateway\":\"gw-line3\",\"batch_id\":\"b\",\"events\":[]}",
            "found no events",
        ),
        (&one.replace("b-1", ""), "batch_id"),
        (&one.replace("b-1", "a b"), "batch_id"),
        (&one.replace("b-1", &"x".repeat(65)), "batch_id"),
        (&one.replace("]}", "]"), "not a batch"),
        (&one.replace("press-1", "press\u{1}"), "not a batch"),
    ] {
        let detail = stage.post(body).await.refused(400, "malformed");
        assert!(
            detail["detail"].as_str().unwrap().contains(says),
            "{body}: {detail}"
        );
    }
    let mut caller = stage.call().await;
    for (media, ok) in [
        ("text/plain", false),
        ("application/json; charset=utf-8", true),
        ("application/jsonx", false),
        ("application/json\r\ncontent-encoding: gzip", false),
    ] {
        let answer = caller.post(TOKEN, media, &one).await;
        if ok {
            answer.statuses();
        } else {
            answer.refused(415, "unsupported_media_type");
        }
    }
    // The connection has carried a refusal, and carries on.
    caller
        .post(TOKEN, "application/json", &good(1..=11))
        .await
        .refused(413, "too_many_events");
    let large = one.replace("1.50", &format!("1.{}", "5".repeat(70_000)));
    caller
        .post(TOKEN, "application/json", &large)
        .await
        .refused(413, "too_large");
    assert_eq!(
        caller
            .post(TOKEN, "application/json", &one)
            .await
            .statuses(),
        ["duplicate"]
    );
    // Without a length declared.
    let chunked = format!(
        "POST /v1/events:batch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n",
        large.len()
    );
    caller.send(&chunked).await;
    caller.answer().await.unwrap().refused(413, "too_large");
    // Not UTF-8.
    let mut caller = stage.call().await;
    caller.send(&format!("POST /v1/events:batch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n")).await;
    tokio::io::AsyncWriteExt::write_all(&mut caller.0, b"\xff\xfe")
        .await
        .unwrap();
    caller.answer().await.unwrap().refused(400, "malformed");
    for (request, status, code) in [
        ("GET /v1/events:batch", 405, "method_not_allowed"),
        ("DELETE /healthz", 405, "method_not_allowed"),
        ("GET /v1/status", 404, "not_found"),
    ] {
        let mut caller = stage.call().await;
        caller
            .send(&format!("{request} HTTP/1.1\r\nhost: x\r\n\r\n"))
            .await;
        caller.answer().await.unwrap().refused(status, code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn books_that_are_away_are_a_503_and_never_a_result() {
    let stage = Stage::new().await;
    let body = good(1..=3);
    let away = |error| *stage.memory.away.lock().unwrap() = error;
    away(Some(UpstreamError::Passing("connection refused".into())));
    let answer = stage.post(&body).await;
    assert!(
        answer.refused(503, "store_unavailable")["detail"]
            .as_str()
            .unwrap()
            .contains("connection refused")
    );
    assert!(answer.head.contains("retry-after: 2"), "{answer:?}");
    stage
        .call()
        .await
        .get("/readyz", "")
        .await
        .refused(503, "store_unavailable");
    assert_eq!(stage.call().await.get("/healthz", "").await.status, 200);
    away(Some(UpstreamError::Mend("relation does not exist".into())));
    let answer = stage.post(&body).await;
    answer.refused(503, "store_needs_attention");
    assert!(answer.head.contains("retry-after: 30"), "{answer:?}");
    away(None);
    assert_eq!(stage.post(&body).await.statuses(), ["accepted"; 3]);
    // What they answer for all of a batch.
    let answers = |verdict| *stage.memory.verdict.lock().unwrap() = verdict;
    answers(Some(Verdict::Retry {
        reason: "deadlock".into(),
        after_ms: Some(4_500),
    }));
    let answer = stage.post(&body).await;
    answer.refused(503, "store_unavailable");
    assert!(answer.head.contains("retry-after: 5"), "{answer:?}");
    answers(None);
    assert_eq!(stage.post(&body).await.statuses(), ["duplicate"; 3]);
}

// covers: ING-04
#[tokio::test(flavor = "multi_thread")]
async fn cloud_events_are_the_same_events() {
    let stage = Stage::new().await;
    assert_eq!(stage.post(&good(1..=1)).await.statuses(), ["accepted"]);
    let cloud = |n: u64, digest: &str| {
        format!(
            "{{\"specversion\":\"1.0\",\"source\":\"press-1\",\"id\":\"7-{n}\",\"type\":\"piece.good\",\
             \"time\":\"2026-11-30T08:00:00Z\",\"data\":{}{digest}}}",
            event(n, 1).body
        )
    };
    let with = format!(",\"digest\":\"{}\"", sha256_text(&digest(&event(2, 1))));
    let wrong = ",\"digest\":\"sha256:00\"";
    let body = format!(
        "[{},{},{},{{\"id\":5}}]",
        cloud(1, ""),
        cloud(2, &with),
        cloud(3, wrong)
    );
    let mut caller = stage.call().await;
    let answer = caller
        .post(TOKEN, "application/cloudevents-batch+json", &body)
        .await;
    assert_eq!(
        answer.statuses(),
        ["duplicate", "accepted", "malformed", "malformed"]
    );
    let json = answer.json();
    assert_eq!(json["results"][2]["code"], "digest_mismatch");
    assert!(
        json["batch_id"]
            .as_str()
            .unwrap()
            .starts_with("cloudevents-")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_counted_is_shown_to_those_who_may_see_it() {
    let stage = Stage::new().await;
    stage.post(&good(1..=3)).await;
    stage.post(&good(3..=4)).await;
    stage.post("").await;
    let text = stage.call().await.get("/metrics", "").await.text;
    for line in [
        "holdfast_receiver_events_total{gateway=\"gw-line3\",status=\"accepted\"} 4",
        "holdfast_receiver_events_total{gateway=\"gw-line3\",status=\"duplicate\"} 1",
        "holdfast_receiver_requests_total{status=\"200\"} 2",
        "holdfast_receiver_requests_total{status=\"400\"} 1",
        "holdfast_receiver_in_flight 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let with = Stage::with(|settings| {
        let path = settings.gateways[0].token_file.with_file_name("metrics");
        std::fs::write(&path, "token-of-prometheus").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        settings.metrics_token_file = Some(path);
    })
    .await;
    with.call()
        .await
        .get("/metrics", "")
        .await
        .refused(403, "forbidden");
    let theirs = format!("authorization: Bearer {TOKEN}\r\n");
    with.call()
        .await
        .get("/metrics", &theirs)
        .await
        .refused(403, "forbidden");
    let own = "authorization: Bearer token-of-prometheus\r\n";
    assert_eq!(with.call().await.get("/metrics", own).await.status, 200);
}
