//! Owns: many callers at once, slow ones, stopping, changed files.
//! May call: stage.
//! Never: look at how it is done.

use crate::client::Caller;
use crate::stage::{OTHER_TOKEN, Stage, TOKEN, good, secret_file, settings, until};
use holdfast::receiver::{Connect, Receiver, ReceiverError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tempfile::TempDir;

fn request(token: &str, body: &str) -> String {
    format!(
        "POST /v1/events:batch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn one_gateway_with_too_much_under_way_does_not_keep_the_others_out() {
    let stage = Stage::with(|settings| {
        settings.limits.in_flight = 3;
        settings.limits.in_flight_per_gateway = 2;
        settings.books = 3;
    })
    .await;
    stage.memory.shut.store(true, Ordering::SeqCst);
    let mut first = Vec::new();
    for n in 1..=2 {
        let mut caller = stage.call().await;
        caller.send(&request(TOKEN, &good(n..=n))).await;
        first.push(caller);
    }
    until("both are under way", || {
        stage.memory.waiting.load(Ordering::SeqCst) == 2
    })
    .await;
    let answer = stage.post(&good(3..=3)).await;
    assert!(
        answer.refused(429, "too_many_requests")["detail"]
            .as_str()
            .unwrap()
            .contains("one gateway")
    );
    assert!(answer.head.contains("retry-after: 1"));
    let mut other = stage.call().await;
    other
        .send(&request(
            OTHER_TOKEN,
            &good(4..=4).replace("gw-line3", "gw-line4"),
        ))
        .await;
    until("the other gateway's is under way", || {
        stage.memory.waiting.load(Ordering::SeqCst) == 3
    })
    .await;
    stage.memory.let_go();
    for mut caller in first {
        assert_eq!(caller.answer().await.unwrap().statuses(), ["accepted"]);
    }
    assert_eq!(other.answer().await.unwrap().statuses(), ["accepted"]);
    assert_eq!(stage.post(&good(3..=3)).await.statuses(), ["accepted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_gateway_never_holds_every_connection_to_the_books() {
    let stage = Stage::with(|settings| settings.books = 2).await;
    stage.memory.shut.store(true, Ordering::SeqCst);
    let mut first = Vec::new();
    for n in 1..=4 {
        let mut caller = stage.call().await;
        caller.send(&request(TOKEN, &good(n..=n))).await;
        first.push(caller);
    }
    let waiting = || stage.memory.waiting.load(Ordering::SeqCst);
    until("the books are called", || waiting() == 1).await;
    let mut other = stage.call().await;
    let of_other = good(5..=5).replace("gw-line3", "gw-line4");
    other.send(&request(OTHER_TOKEN, &of_other)).await;
    until("the other gateway's call", || waiting() == 2).await;
    let calls = stage.memory.calls.lock().unwrap().clone();
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!(calls[1].0, "gw-line4");
    stage.memory.let_go();
    for mut caller in first {
        assert_eq!(caller.answer().await.unwrap().statuses(), ["accepted"]);
    }
    assert_eq!(other.answer().await.unwrap().statuses(), ["accepted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_senders_are_left_and_others_are_served_meanwhile() {
    let stage = Stage::with(|settings| {
        settings.limits.header_ms = 300;
        settings.limits.body_ms = 300;
        settings.limits.in_flight = 2;
    })
    .await;
    // A head that does not end, one that does not begin, a body that does not end.
    let mut head = stage.call().await;
    head.send("POST /v1/events:batch HTTP/1.1\r\nhost: x\r\nx-slow: ")
        .await;
    let mut silent = stage.call().await;
    let mut body = stage.call().await;
    let whole = request(TOKEN, &good(1..=1));
    body.send(&whole[..whole.len() - 1]).await;
    assert_eq!(stage.post(&good(2..=2)).await.statuses(), ["accepted"]);
    body.answer().await.unwrap().refused(408, "slow_body");
    assert!(body.answer().await.is_none(), "closed");
    let ended = head.answer().await;
    assert!(
        ended.as_ref().is_none_or(|answer| answer.status == 408),
        "{ended:?}"
    );
    assert!(silent.answer().await.is_none());
    assert_eq!(stage.memory.events.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_goes_away_leaves_no_call_half_done() {
    let stage = Stage::new().await;
    stage.memory.shut.store(true, Ordering::SeqCst);
    let mut caller = stage.call().await;
    caller.send(&request(TOKEN, &good(1..=2))).await;
    until("it is under way", || {
        stage.memory.waiting.load(Ordering::SeqCst) == 1
    })
    .await;
    drop(caller);
    stage.memory.let_go();
    until("both are in the books", || {
        stage.memory.events.lock().unwrap().len() == 2
    })
    .await;
    // B5: the reply was lost; the resend says so.
    assert_eq!(stage.post(&good(1..=2)).await.statuses(), ["duplicate"; 2]);
    assert_eq!(
        stage.memory.connected.load(Ordering::SeqCst),
        1,
        "the connection is used again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finishes_what_is_under_way_and_takes_nothing_new() {
    let stage = Stage::with(|settings| settings.books = 3).await;
    stage.memory.shut.store(true, Ordering::SeqCst);
    let mut under_way = stage.call().await;
    under_way.send(&request(TOKEN, &good(1..=1))).await;
    let mut gone = stage.call().await;
    gone.send(&request(TOKEN, &good(2..=2))).await;
    let mut idle = stage.call().await;
    assert_eq!(idle.get("/healthz", "").await.status, 200);
    until("both are under way", || {
        stage.memory.waiting.load(Ordering::SeqCst) == 2
    })
    .await;
    drop(gone);
    stage.stop.send_replace(true);
    assert!(
        idle.answer().await.is_none(),
        "an idle connection is closed"
    );
    until("nobody listens", || {
        std::net::TcpStream::connect(stage.address).is_err()
    })
    .await;
    assert!(!stage.serving.is_finished());
    stage.memory.let_go();
    assert_eq!(under_way.answer().await.unwrap().statuses(), ["accepted"]);
    stage.serving.await.unwrap();
    assert_eq!(
        stage.memory.events.lock().unwrap().len(),
        2,
        "whose caller is gone is finished too"
    );
}

// covers: CFG-04
#[tokio::test(flavor = "multi_thread")]
async fn tokens_change_while_it_serves_all_or_nothing() {
    let stage = Stage::new().await;
    let mut caller = stage.call().await;
    let json = "application/json";
    assert_eq!(
        caller.post(TOKEN, json, &good(1..=1)).await.statuses(),
        ["accepted"]
    );
    let new = "a-new-token-0123456789";
    secret_file(stage.dir.path(), "gw-line3", new);
    stage.reloader.reload(&stage.settings).unwrap();
    assert_eq!(
        caller.post(new, json, &good(1..=1)).await.statuses(),
        ["duplicate"]
    );
    caller
        .post(TOKEN, json, &good(1..=1))
        .await
        .refused(401, "unauthorized");
    // Wrong files change nothing.
    for (text, says) in [
        ("short", "less than 16"),
        (OTHER_TOKEN, "a token of its own"),
        ("", "nothing in it"),
    ] {
        secret_file(stage.dir.path(), "gw-line3", text);
        let error = stage.reloader.reload(&stage.settings).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let mut other = stage.settings.clone();
    other.limits.events = 5;
    let error = stage.reloader.reload(&other).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("[limits] cannot change while running"),
        "{error}"
    );
    let mut caller = Caller::connect(stage.address).await;
    assert_eq!(
        caller.post(new, json, &good(1..=1)).await.statuses(),
        ["duplicate"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_said() {
    let stage = Stage::new().await;
    let dir = TempDir::new().unwrap();
    let mut settings = settings(dir.path());
    settings.listen = stage.address;
    let connect: Connect = Arc::new(|| panic!("nobody connects"));
    let error = Receiver::bind(settings, connect).await.err().unwrap();
    assert!(matches!(error, ReceiverError::Bind { .. }), "{error}");
    assert!(
        error.to_string().contains("is another process there"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn more_callers_than_may_be_wait_their_turn() {
    let stage = Stage::with(|settings| settings.limits.connections = 1).await;
    let mut first = stage.call().await;
    assert_eq!(first.get("/healthz", "").await.status, 200);
    let mut second = stage.call().await;
    second
        .send("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert_eq!(first.get("/healthz", "").await.status, 200);
    drop(first);
    assert_eq!(second.answer().await.unwrap().status, 200);
}
