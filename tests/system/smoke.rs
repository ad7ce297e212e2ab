//! The thin thread through every room.

use super::harness::Rig;
use serde_json::json;

// covers: CMD-02, SEND-01, EVT-01, IF-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_goes_through_every_room_and_survives_a_kill() {
    through_every_room(Rig::new().await).await;
}

/// Whatever the link is.
pub(crate) async fn through_every_room(mut rig: Rig) {
    rig.start_up().await;
    let request = rig.set_speed("OP7", 50);
    let (status, operation) = rig.submit_wait(&request).await;
    assert_eq!(
        (status, operation["state"].as_str()),
        (201, Some("completed")),
        "{operation}"
    );
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (50, 1));
    rig.kill();
    rig.start_up().await;
    let (status, again) = rig.submit(&request).await;
    assert_eq!(status, 200, "{again}");
    assert_eq!(again["result_id"], operation["result_id"]);
    let eject = rig.request("OP8", "eject_one", json!({}));
    let (_, ejected) = rig.submit_wait(&eject).await;
    assert_eq!(ejected["state"], "completed", "{ejected}");
    assert_eq!((rig.speed_writes(), rig.device.holding(200)), (1, 1));
    assert!(rig.stop().await.success());
    let keys: Vec<String> = rig
        .sink_lines()
        .iter()
        .map(|event| event["type"].to_string())
        .collect();
    assert!(
        keys.iter()
            .any(|kind| kind.contains("operation.transition")),
        "{keys:?}"
    );
}
