//! Commands that write places apart in one frame, through the real binary and over real links: what the device holds,
//! what the reply proves, and what a lost one leaves.

use super::harness::{PRESS, PRESS_SIM, Rig, until};
use super::link_kind::LinkKind;
use holdfast::simulator::{Act, Cause, Fault, Matching};
use serde_json::{Value as Json, json};

const KINDS: [LinkKind; 4] = [
    LinkKind::Mc {
        frame: "3e",
        ascii: false,
        udp: false,
    },
    LinkKind::Mc {
        frame: "4e",
        ascii: false,
        udp: false,
    },
    LinkKind::Mc {
        frame: "4e",
        ascii: true,
        udp: false,
    },
    LinkKind::C24 {
        frame: "4c",
        format: 5,
    },
];

/// What the press takes at once, wherever its program keeps it.
const COMMANDS: &str = r#"
[[command]]
name = "load"
class = "absolute_set"
precondition = "config_version"
verify = "readback"
[command.args]
speed = { write = "D130", type = "u16", unit = "rpm", max = 3000 }
length = { write = "D1500", type = "u32" }
pin = { write = "W1F", type = "u16", secret = true }
name = { write = "D4000", type = "string(6)" }
[[command]]
name = "lamps"
class = "absolute_set"
verify = "readback"
args = { red = { write = "M40", type = "bool" }, green = { write = "Y2F", type = "bool" } }
[[command]]
name = "start_with"
class = "mode_change"
request_id = "D501"
completion = "event"
done = { id = { read = "D510", type = "u32", word_order = "high_first" }, result = "D512" }
completion_timeout = "3s"
args = { cycle = { write = "D600", type = "u16", min = 1, max = 8 }, mould = { write = "D700", type = "u16", word_order = "high_first" } }
"#;

const PIN: u16 = 0x0ABC;

async fn rig(kind: LinkKind) -> Rig {
    let machine = kind.machine(PRESS) + COMMANDS;
    let simulator =
        kind.simulator(&PRESS_SIM.replace("[done]", "[done]\nword_order = \"low_first\""));
    let mut rig = Rig::over_as_is(&machine, &simulator).await;
    rig.start_up().await;
    rig
}

fn load(rig: &Rig, id: &str, version: u32) -> Json {
    let args = json!({ "speed": 1200, "length": 0x1234_5678, "pin": PIN, "name": "ABCDE" });
    let mut request = rig.request(id, "load", args);
    request["expected_config_version"] = json!(version);
    request
}

fn is_loaded(rig: &Rig, kind: LinkKind) {
    let device = &rig.device;
    let found = [130, 1500, 1501, 4000, 4001, 4002].map(|at| device.holding(at));
    // The first character stands in the low byte.
    let expected = [1200, 0x5678, 0x1234, 0x4241, 0x4443, 0x0045];
    assert_eq!((found, device.input(0x1F)), (expected, PIN), "{kind:?}");
}

async fn trace(rig: &Rig, time: &str) -> (u16, Json) {
    rig.post("/v1/machines/press-1/trace", json!({ "for": time }))
        .await
}

fn frames(rig: &Rig) -> Vec<Vec<Cause>> {
    let ledger = rig.device.ledger().into_iter();
    let parts = ledger.filter_map(|effect| match effect.cause {
        Cause::Scattered { parts } => Some(parts),
        _ => None,
    });
    parts.collect()
}

// covers: POL-11, POL-07, SEND-02, CMD-02, CMD-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_frame_writes_every_argument_to_its_place() {
    for kind in KINDS {
        let mut rig = rig(kind).await;
        let traced = async {
            loop {
                match trace(&rig, "2s").await {
                    (503, _) => {}
                    (status, found) => return (status, found),
                }
            }
        };
        let commanded = async {
            // Who looks too is told that somebody does already.
            until("the bytes are looked at", async || {
                trace(&rig, "10ms").await.0 == 503
            })
            .await;
            let request = load(&rig, "L1", 7);
            let done = rig.submit_wait(&request).await.1;
            (done, rig.submit(&request).await)
        };
        let ((looked, traced), (done, (status, again))) = tokio::join!(traced, commanded);
        assert_eq!(done["state"], "completed", "{kind:?} {done}");
        assert_eq!((status, &again["state"]), (200, &json!("completed")));
        is_loaded(&rig, kind);
        assert_eq!(frames(&rig).len(), 1, "{kind:?} {:?}", rig.device.ledger());
        assert_eq!(rig.device.effects(), 1, "{kind:?}");
        // The whole frame carries the secret, and its bytes are shown nowhere.
        assert_eq!(looked, 200, "{traced}");
        let lines = traced["trace"].as_array().unwrap();
        let hidden = |way: &str| lines.iter().any(|l| l["way"] == way && l["hidden"] == true);
        assert!(hidden("sent"), "{kind:?} {traced}");
        let shown = format!("{done}{traced}{}", rig.log());
        for secret in ["BC 0A", "0A BC", "0ABC", "2748"] {
            assert!(!shown.contains(secret), "{kind:?} {secret}: {shown}");
        }
        let read = |place: &str| rig.command(&["read", "press-1", place]).output().unwrap();
        let exits = ["W1F", "D130"].map(|place| read(place).status.code());
        assert_eq!(
            exits,
            [Some(2), Some(0)],
            "only a secret's own place is kept"
        );
        // Another configuration of the device: nothing goes out.
        let (_, held) = rig.submit(&load(&rig, "L2", 8)).await;
        assert_ne!(held["state"], "completed", "{held}");
        rig.until("the version is looked at", async |rig| {
            let found = rig.operation("L2").await;
            found.to_string().contains("version_conflict")
        })
        .await;
        let lamps = json!({ "red": true, "green": true });
        let (_, lit) = rig.submit_wait(&rig.request("L3", "lamps", lamps)).await;
        assert_eq!(lit["state"], "completed", "{kind:?} {lit}");
        assert!(rig.device.coil(40));
        assert_eq!(frames(&rig).len(), 2, "{kind:?}");
        let green = Cause::Device {
            code: 0x9D,
            start: 0x2F,
            words: vec![1],
        };
        assert!(frames(&rig)[1].contains(&green), "{kind:?}");
        assert_eq!(frames(&rig)[1].len(), 2, "{kind:?}");
        assert_eq!(rig.device.effects(), 2, "{kind:?}");
        let (_, policy) = rig.get("/v1/policy").await;
        let policy = policy.to_string();
        for says in [
            "writes D130, D1500, W1F, D4000 in one frame",
            "writes D600, D700 in one frame, the request id to D501",
        ] {
            assert!(policy.contains(says), "{policy}");
        }
    }
}

// covers: SEND-03, VER-02, ST-05, CMD-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_unknown_and_what_is_read_back_is_no_proof() {
    for kind in KINDS {
        let mut rig = rig(kind).await;
        rig.device
            .set_fault(Fault::next(Matching::Writes, Act::DropReply));
        let request = load(&rig, "L1", 7);
        rig.submit(&request).await;
        rig.until_state("L1", "outcome_unknown").await;
        let readback = |operation: &Json| {
            let found = operation["findings"].as_array().unwrap().clone();
            let mut found = found.into_iter().filter(|f| f["method"] == "readback");
            found.next().map(|f| f["says"].to_string())
        };
        rig.until("the places are read back", async |rig| {
            readback(&rig.operation("L1").await).is_some()
        })
        .await;
        let unknown = rig.operation("L1").await;
        let says = readback(&unknown).unwrap();
        for part in [
            "speed reads 1200, as sent",
            "length reads 305419896, as sent",
            "pin reads (secret), as sent",
            "name reads ABCDE, as sent",
            "not proof",
        ] {
            assert!(says.contains(part), "{kind:?} {part}: {says}");
        }
        assert_eq!(unknown["state"], "outcome_unknown", "{unknown}");
        // Asked again it is not done again.
        let (status, again) = rig.submit(&request).await;
        assert_eq!(
            (status, &again["state"]),
            (200, &json!("outcome_unknown")),
            "{again}"
        );
        is_loaded(&rig, kind);
        assert_eq!((frames(&rig).len(), rig.device.effects()), (1, 1));
    }
}

// covers: VER-03, POL-10, SEND-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_id_in_its_own_place_lets_the_device_say_what_it_finished() {
    for kind in KINDS {
        let mut rig = rig(kind).await;
        let args = json!({ "cycle": 3, "mould": 17 });
        let (_, done) = rig
            .submit_wait(&rig.request("C1", "start_with", args.clone()))
            .await;
        assert_eq!(done["state"], "completed", "{kind:?} {done}");
        assert_eq!(done["evidence"]["method"], "event", "{kind:?} {done}");
        assert_eq!([600, 700].map(|at| rig.device.holding(at)), [3, 17]);
        // The same with the reply lost: the device's word settles it.
        rig.device
            .set_fault(Fault::next(Matching::Writes, Act::DropReply));
        rig.submit(&rig.request("C2", "start_with", args)).await;
        let done = rig.until_state("C2", "completed").await;
        assert_eq!(done["evidence"]["method"], "event", "{kind:?} {done}");
        let passed = done["history"].to_string();
        assert!(passed.contains("outcome_unknown"), "{kind:?} {passed}");
        assert_eq!((frames(&rig).len(), rig.device.effects()), (2, 2));
    }
}

// covers: SEND-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_protection_while_the_cpu_runs_is_a_refusal_without_effect() {
    for kind in [KINDS[1], KINDS[3]] {
        let mut rig = rig(kind).await;
        let code = match kind {
            LinkKind::C24 { .. } => 0x7167,
            _ => 0x0055,
        };
        rig.device
            .set_fault(Fault::next(Matching::Writes, Act::EndCode(code)));
        let (_, failed) = rig.submit_wait(&load(&rig, "L1", 7)).await;
        assert_eq!(failed["state"], "failed", "{kind:?} {failed}");
        assert_eq!(rig.device.effects(), 0, "{kind:?}");
        // A place that is not there says nothing of the others.
        rig.device
            .set_fault(Fault::next(Matching::Writes, Act::EndCode(0x4031)));
        rig.submit(&load(&rig, "L2", 7)).await;
        let unknown = rig.until_state("L2", "outcome_unknown").await;
        assert!(
            unknown.to_string().contains("the others written"),
            "{unknown}"
        );
        assert_eq!(rig.device.effects(), 0, "{kind:?}");
    }
}
