//! Owns: clocks that were wrong when something was recorded, or are wrong for a moment: no effect comes twice.
//! May call: the harness.
//! Never: take the gateway's word for an effect.

use super::harness::Rig;
use serde_json::Value as Json;

const YEARS_MS: i64 = 365 * 24 * 3600 * 1000;

/// Waits until the journal has swept `id` away.
async fn forgets(rig: &mut Rig, id: &str) {
    let what = format!("the journal forgets {id}");
    rig.until(&what, async |rig| {
        let list = rig.client.get("/v1/operations?limit=10").await;
        list.is_ok_and(|raw| !raw.text.contains(id))
    })
    .await;
}

async fn again(rig: &mut Rig, request: &Json) {
    let before = rig.speed_writes();
    let (_, answer) = rig.submit_wait(request).await;
    assert_eq!(rig.speed_writes(), before, "{answer}");
    let fresh = rig.set_speed("NEW", 70);
    let (_, fresh) = rig.submit_wait(&fresh).await;
    assert_eq!(fresh["state"], "completed", "{fresh}");
}

// covers: CMD-02, TIME-05, CAP-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_half_a_century_ahead_forgets_nobody() {
    let mut rig = Rig::new().await;
    let request = rig.set_speed("OP7", 50);
    rig.clock.trusted = Some(false);
    rig.clock.step_wall(-56 * YEARS_MS);
    rig.start_up().await;
    let (_, first) = rig.submit_wait(&request).await;
    assert_eq!(first["state"], "completed", "{first}");
    let request_of_1970 = rig.set_speed("OLD", 40);
    rig.submit_wait(&request_of_1970).await;
    rig.clock.trusted = Some(true);
    rig.clock.step_wall(56 * YEARS_MS);
    forgets(&mut rig, "OLD").await;
    assert!(rig.stop().await.success());
    rig.start_up().await;
    assert_eq!(rig.state("OP7").await, "completed");
    again(&mut rig, &request).await;
}

// covers: CMD-02, TIME-05, TIME-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_far_ahead_for_a_moment_brings_no_request_back_to_life() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let request = rig.set_speed("OP7", 50);
    let (_, first) = rig.submit_wait(&request).await;
    assert_eq!(first["state"], "completed", "{first}");
    rig.clock.step_wall(20 * YEARS_MS);
    forgets(&mut rig, "OP7").await;
    rig.clock.step_wall(-20 * YEARS_MS);
    assert!(rig.stop().await.success());
    rig.start_up().await;
    again(&mut rig, &request).await;
}
