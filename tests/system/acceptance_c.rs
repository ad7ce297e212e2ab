//! Owns: rows C1 to C12 of the acceptance: what becomes of commands while the link is away.
//! May call: the harness, the scene.
//! Never: count an effect anywhere but at the device.

use super::harness::{PRESS, PRESS_SIM, Rig};
use super::scene_c::{Scene, entered_ns};
use serde_json::json;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

/// Readings after the first, as the article has it.
const MANY: usize = 300;
/// Enough to see that they are superseded.
const FEW: usize = 3;
/// A day, in milliseconds.
const DAY_MS: i64 = 24 * 3600 * 1000;

// covers: C1, POL-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_back_too_late_one_reading_and_nothing_else() {
    let mut scene = Scene::new(MANY).await;
    scene.at_ms(13_000);
    let set = scene.set_never_sent("expired").await;
    assert_eq!(entered_ns(&set, "expired"), scene.t_ns(13_000), "{set}");
    assert_eq!(scene.readings_at_device(), 0);
    scene.back_at_ms(15_000).await;
    scene.read_and_relative().await;
    scene.set_never_sent("expired").await;
    assert_eq!(scene.rig.device.effects(), 0);
}

// covers: C2, POL-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_another_version_holds_it_for_a_person() {
    let mut scene = Scene::new(MANY).await;
    scene.rig.device.set_version(8);
    scene.back_at_ms(8_000).await;
    let set = scene.set_never_sent("held").await;
    assert_eq!(set["code"], "version_conflict");
    let versions = (&set["expected_config_version"], &set["version_found"]);
    assert_eq!(versions, (&json!(7), &json!(8)), "{set}");
    let reason = set["reason"].as_str().unwrap();
    assert!(
        reason.contains("version 8") && reason.contains("version 7"),
        "{reason}"
    );
    scene.read_and_relative().await;
    let (status, approved) = scene
        .rig
        .post("/v1/operations/SET50/approve", json!({}))
        .await;
    assert_eq!(status, 200, "{approved}");
    scene.set_done_once().await;
}

// covers: C3, POL-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_an_open_interlock_holds_it() {
    let mut scene = Scene::new(MANY).await;
    scene.rig.device.set_interlock(0, false);
    scene.back_at_ms(8_000).await;
    let set = scene.set_never_sent("held").await;
    assert_eq!(set["code"], "interlock_open");
    assert!(
        set["reason"].as_str().unwrap().contains("door closed"),
        "{set}"
    );
    scene.read_and_relative().await;
}

// covers: C4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_back_in_time_it_is_done_once_and_both_moments_are_told_apart() {
    let mut scene = Scene::new(MANY).await;
    scene.back_at_ms(8_000).await;
    let set = scene.set_done_once().await;
    assert_eq!(entered_ns(&set, "queued"), scene.t_ns(3_000));
    assert!(entered_ns(&set, "completed") >= scene.t_ns(8_000));
    assert_eq!(set["evidence"]["method"], "reply");
    assert_ne!(set["created_at"], set["evidence"]["at"]);
    assert!(set["disconnected_at"].is_string(), "{set}");
    scene.read_and_relative().await;
}

// covers: C5, TIME-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_the_edge_of_the_validity_is_one_nanosecond_wide() {
    for at_the_edge in [false, true] {
        let mut scene = Scene::new(FEW).await;
        scene.at_ms(12_900);
        scene.rig.restore().await;
        // The pace of the recovery is all that it still waits for: at most 20 ms, then 30 ms more.
        assert_eq!(scene.rig.state("SET50").await, "queued");
        scene.at_ms(12_920);
        scene.one_fresh_reading().await;
        assert_eq!(scene.rig.state("SET50").await, "queued");
        if at_the_edge {
            scene.at_ns(13_000_000_000);
            let set = scene.set_never_sent("expired").await;
            assert_eq!(entered_ns(&set, "expired"), scene.t_ns(13_000));
        } else {
            scene.at_ns(12_999_999_999);
            let set = scene.set_done_once().await;
            assert_eq!(entered_ns(&set, "sending"), scene.t_ns(13_000) - 1);
        }
        scene.relative_refused_at_2().await;
    }
}

// covers: C6, F055
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_another_device_gets_nothing() {
    let mut scene = Scene::new(MANY).await;
    scene.rig.device.set_identity(4712);
    scene.at_ms(8_000);
    scene.rig.device.restore();
    scene.rig.clock.run_on();
    let set = scene.set_never_sent("held").await;
    assert_eq!(set["code"], "identity_mismatch");
    let reason = set["reason"].as_str().unwrap();
    assert!(
        reason.contains("4711") && reason.contains("4712"),
        "{reason}"
    );
    assert_eq!(scene.rig.link().await, "gate");
    let newest = scene.newest();
    assert_eq!(scene.rig.state(&newest).await, "queued");
    assert_eq!(
        (scene.readings_at_device(), scene.rig.device.effects()),
        (0, 0)
    );
    scene.relative_refused_at_2().await;
}

// covers: C7, POL-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_the_same_operator_replaces_it() {
    let mut scene = Scene::new(MANY).await;
    scene.at_ms(5_000);
    let mut other = scene.rig.set_speed("SET60", 60);
    other["replaces"] = "SET50".into();
    let (status, queued) = scene.rig.submit(&other).await;
    assert_eq!(
        (status, queued["state"].as_str()),
        (201, Some("queued")),
        "{queued}"
    );
    scene.back_at_ms(8_000).await;
    let done = scene.rig.until_state("SET60", "completed").await;
    assert_eq!(done["links"]["replaces"], "SET50");
    let set = scene.rig.operation("SET50").await;
    assert_eq!(set["state"], "superseded", "{set}");
    assert!(set["reason"].as_str().unwrap().contains("SET60"), "{set}");
    assert_eq!(
        (scene.rig.device.holding(100), scene.rig.speed_writes()),
        (60, 1)
    );
    scene.read_and_relative().await;
}

/// A command line of another user, who may reach the socket.
fn as_operator(rig: &Rig, args: &[&str]) -> std::process::Output {
    let mut command = rig.command(args);
    command.uid(12_345).gid(rustix::process::getegid().as_raw());
    command
        .output()
        .expect("only root can act as another user here: run this test as root")
}

// covers: C8, POL-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c8_another_operator_cannot_replace_it() {
    let mut rig = Rig::with(PRESS, PRESS_SIM).await;
    std::fs::set_permissions(rig.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let roles = format!(
        "[[api.role]]\nuid = {own}\nrole = \"admin\"\n[[api.role]]\nuid = 12345\nrole = \"operator\"\n[[sink]]"
    );
    rig.gateway_toml = rig.gateway_toml.replacen("[[sink]]", &roles, 1);
    let mut scene = Scene::of(rig, MANY).await;
    scene.at_ms(5_000);
    let args = [
        "submit",
        "press-1",
        "set_speed",
        "speed=60rpm",
        "--id",
        "SET60",
        "--expect-version",
        "7",
        "--replaces",
        "SET50",
    ];
    let output = as_operator(&scene.rig, &args);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let refused = scene.rig.operation("SET60").await;
    assert_eq!(
        (refused["state"].as_str(), refused["code"].as_str()),
        (Some("rejected"), Some("replace_refused")),
        "{refused}"
    );
    assert_eq!(refused["actor"], "uid:12345");
    assert_eq!(scene.rig.state("SET50").await, "queued");
    scene.back_at_ms(8_000).await;
    scene.set_done_once().await;
    scene.read_and_relative().await;
}

// covers: C9, POL-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c9_a_second_candidate_finds_the_queue_full() {
    let mut scene = Scene::new(MANY).await;
    scene.at_ms(5_000);
    let (status, problem) = scene.rig.submit(&scene.rig.set_speed("SET60", 60)).await;
    assert_eq!(
        (status, problem["code"].as_str()),
        (409, Some("queue_full")),
        "{problem}"
    );
    assert_eq!(scene.rig.state("SET60").await, "rejected");
    scene.back_at_ms(8_000).await;
    scene.set_done_once().await;
    scene.read_and_relative().await;
}

// covers: C10, TIME-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_a_restart_is_no_refill() {
    for in_time in [true, false] {
        let mut scene = Scene::new(FEW).await;
        scene.at_ms(5_000);
        scene.rig.kill();
        scene.rig.start().await;
        assert_eq!(scene.rig.state("SET50").await, "queued");
        if in_time {
            scene.back_at_ms(8_000).await;
            scene.set_done_once().await;
        } else {
            // Ten seconds from t=3, not from the restart at t=5.
            scene.at_ns(12_999_999_999);
            assert_eq!(scene.rig.state("SET50").await, "queued");
            scene.at_ms(13_000);
            let set = scene.set_never_sent("expired").await;
            assert_eq!(entered_ns(&set, "expired"), scene.t_ns(13_000));
        }
    }
}

// covers: C11, TIME-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_a_reboot_is_judged_by_trusted_wall_time_or_by_the_row() {
    let expire = PRESS.replace("on_restart = \"hold\"", "on_restart = \"expire\"");
    assert_ne!(expire, PRESS);
    for (row, trusted, off_ms, state) in [
        (PRESS, true, 0, "completed"),
        (PRESS, true, 0, "expired"),
        (PRESS, true, 9_000, "expired"),
        (PRESS, false, 0, "held"),
        (expire.as_str(), false, 0, "expired"),
        (expire.as_str(), true, 0, "completed"),
    ] {
        let mut scene = Scene::with(row, FEW).await;
        scene.at_ms(5_000);
        scene.rig.kill();
        scene.rig.clock.step_wall(off_ms);
        scene.reboot_at_5(trusted);
        scene.rig.start().await;
        if state == "completed" {
            scene.back_at_ms(8_000).await;
            scene.set_done_once().await;
            continue;
        }
        if trusted && off_ms == 0 {
            // At least the 5 s of this boot have gone of the 10 s: 5 s are left, and no more.
            scene.at_ms(9_990);
            assert_eq!(scene.rig.state("SET50").await, "queued");
            scene.at_ms(10_000);
        }
        let set = scene.set_never_sent(state).await;
        if state == "held" {
            assert_eq!(set["code"], "validity_unprovable", "{set}");
        }
        scene.at_ms(11_000);
        scene.rig.restore().await;
        // Whatever was to go with the link's return has gone before this.
        let later = scene.rig.request("LATER", "read_status", json!({}));
        let (_, read) = scene.rig.submit_wait(&later).await;
        assert_eq!(read["state"], "completed", "{read}");
        scene.set_never_sent(state).await;
    }
}

// covers: C12, TIME-01, TIME-05, F123
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c12_a_step_of_the_wall_clock_changes_nothing() {
    for step_ms in [-DAY_MS, DAY_MS] {
        let mut scene = Scene::new(FEW).await;
        scene.at_ms(5_000);
        scene.rig.clock.step_wall(step_ms);
        scene.back_at_ms(8_000).await;
        scene.set_done_once().await;
        scene.read_and_relative().await;

        let mut scene = Scene::new(FEW).await;
        scene.at_ms(5_000);
        scene.rig.clock.step_wall(step_ms);
        scene.at_ns(12_999_999_999);
        assert_eq!(scene.rig.state("SET50").await, "queued");
        scene.at_ms(13_000);
        scene.set_never_sent("expired").await;
    }
}
