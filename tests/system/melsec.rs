//! The gateway with a MELSEC CPU at its link, over MC protocol.

use super::harness::{PRESS, PRESS_SIM, Rig};
use super::link_kind::LinkKind;
use super::smoke;
use holdfast::simulator::{Act, Cause, Fault, Matching};
use serde_json::json;

const fn mc(frame: &'static str, ascii: bool, udp: bool) -> LinkKind {
    LinkKind::Mc { frame, ascii, udp }
}

const C24: LinkKind = LinkKind::C24 {
    frame: "4c",
    format: 5,
};

const KINDS: [LinkKind; 6] = [
    mc("3e", false, false),
    mc("3e", false, true),
    mc("4e", true, false),
    mc("4e", false, true),
    C24,
    LinkKind::C24 {
        frame: "3c",
        format: 1,
    },
];

// covers: CMD-02, SEND-01, EVT-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_goes_through_every_room_over_mc_protocol() {
    for kind in KINDS {
        let rig = Rig::over(kind, PRESS, PRESS_SIM).await;
        smoke::through_every_room(rig).await;
    }
}

// covers: SEND-03, VER-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_lost_after_execution_is_unknown_until_the_mailbox_proves_it() {
    for kind in KINDS {
        let mut rig = Rig::over(kind, PRESS, PRESS_SIM).await;
        rig.start_up().await;
        // What no verifier can prove stays unknown, and is not done again.
        rig.device
            .set_fault(Fault::next(Matching::Writes, Act::DropReply));
        let (_, nudged) = rig
            .submit_wait(&rig.request("N1", "nudge", json!({ "by": 2 })))
            .await;
        assert_eq!(nudged["state"], "outcome_unknown", "{kind:?} {nudged}");
        assert_eq!(rig.device.effects_of_register(150), 1, "{kind:?}");
        rig.until_link("up").await;
        rig.device
            .set_fault(Fault::next(Matching::Commit, Act::DropReply));
        let ejected = rig.request("E1", "eject_one", json!({}));
        rig.submit(&ejected).await;
        let operation = rig.until_state("E1", "completed").await;
        assert_eq!(rig.device.holding(200), 1, "{kind:?} {operation}");
        assert_eq!(rig.device.effects_of_register(150), 1, "{kind:?}");
    }
}

// covers: SEND-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_stop_is_a_mode_change_that_sd203_confirms() {
    let commands = "[[command]]\nname = \"halt\"\nclass = \"mode_change\"\nremote = \"stop\"\n\
         [[command]]\nname = \"go\"\nclass = \"mode_change\"\nremote = \"run\"\n";
    let machine = format!("{PRESS}{commands}");
    let cases = [
        (mc("4e", false, false), false),
        (mc("4e", false, false), true),
        (C24, false),
        (C24, true),
    ];
    for (kind, switch_stop) in cases {
        let mut rig = Rig::over(kind, &machine, PRESS_SIM).await;
        if switch_stop {
            let sim = format!("{}switch_stop = true\n", kind.simulator(PRESS_SIM));
            rig = Rig::over_as_is(&kind.machine(&machine), &sim).await;
        }
        rig.start_up().await;
        let (_, halted) = rig.submit_wait(&rig.request("H1", "halt", json!({}))).await;
        assert_eq!(halted["state"], "completed", "{halted}");
        let proof = "SD203 read back 2 (STOP)";
        assert!(halted.to_string().contains(proof), "{halted}");
        assert_eq!(rig.device.operating_state(), 2);
        let (_, running) = rig.submit_wait(&rig.request("G1", "go", json!({}))).await;
        let expected = if switch_stop {
            "outcome_unknown"
        } else {
            "completed"
        };
        assert_eq!(running["state"], expected, "{running}");
        assert_eq!(
            rig.device.operating_state(),
            if switch_stop { 2 } else { 0 }
        );
        let orders = rig
            .device
            .ledger()
            .into_iter()
            .filter_map(|effect| match effect.cause {
                Cause::Remote { order } => Some(order),
                _ => None,
            });
        let orders: Vec<u16> = orders.collect();
        let expected: &[u16] = if switch_stop {
            &[0x1002]
        } else {
            &[0x1002, 0x1001]
        };
        assert_eq!(orders, expected);
    }
}
