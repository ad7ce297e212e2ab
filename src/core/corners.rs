//! Owns: cases found by attacking the core: rounds that are not durable yet, ids of a restored journal, reloads.
//! May call: every file of this room.
//! Never: wait; a second here is an addition.

use super::contract::*;
use super::gateway::*;
use super::ids::*;
use super::lifecycle::*;
use super::mailbox;
use super::record::*;
use super::scenarios::{Stage, holding, press, recorded, row};
use super::spec::{Completion, *};
use std::sync::Arc;

/// The press, with a relative action written straight to a register and one that is told done by its id.
fn spec() -> MachineSpec {
    let mut spec = press("press-1");
    let start = Address::Modbus {
        area: ModbusArea::Holding,
        offset: 150,
    };
    let write = |request_id| Action::Write { start, request_id };
    let mut nudge = row("nudge", Class::RelativeAction, write(false));
    nudge.completion = Completion::None;
    let mut cycle = row("start_cycle", Class::ModeChange, write(true));
    cycle.verify = Verify::Event;
    cycle.completion = Completion::Event(DoneSpec {
        id: holding(510, DataType::U32),
        result: None,
    });
    spec.commands.extend([nudge, cycle]);
    spec
}

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

fn mailbox_reading(stage: &Stage, identity: i128, request_id: u32, epoch: u32) -> GateReading {
    let request = MailboxRequest {
        session_epoch: epoch,
        opcode: 0,
        request_id,
        parameters: Vec::new(),
        expected_config_version: 0xFFFF,
        validity_ticks: 0,
    };
    GateReading {
        at: stage.now,
        identity: Some(Value::Int(identity)),
        config_version: Some(7),
        mode: None,
        interlocks: vec![("door closed".into(), Value::Bool(true))],
        quality: Quality::Good,
        mailbox: Some(MailboxBlocks {
            command: mailbox::encode_command(&request, WordOrder::HighFirst).to_vec(),
            status: Vec::new(),
        }),
    }
}

fn gate(stage: &mut Stage, reading: GateReading) {
    stage.input(Input::Gate {
        machine: "press-1".into(),
        reading: Ok(reading),
    });
}

fn reload(stage: &mut Stage, specs: Vec<MachineSpec>) {
    stage.specs = specs.into_iter().map(Arc::new).collect();
    let settings = Box::new(super::scenarios::settings());
    stage.input(Input::Reconfigured {
        machines: stage.specs.clone(),
        settings,
        actor: Actor::Gateway,
    });
}

// covers: CMD-02, CMD-05, REC-01
#[test]
fn what_is_not_durable_yet_is_not_forgotten() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    for n in 0..400 {
        let request = stage.request(&format!("N{n}"), "nudge");
        recorded(stage.submit(request, 1000));
    }
    // The link is lost and a retry comes in the same round: nothing of it is on disk, so memory must know.
    let now = stage.now;
    let down = LinkChange::Down {
        reason: "test".into(),
    };
    let machine = "press-1".to_owned();
    stage.core.handle(
        &now,
        Input::Link {
            machine,
            change: down,
        },
    );
    for n in 1..400 {
        let known = stage.core.operation(&id(&format!("N{n}")));
        let state = known.map(|operation| operation.state.name());
        assert_eq!(state, Some("rejected"), "N{n}");
    }
    stage.core.committed();
    assert!(stage.core.operation(&id("N1")).is_none());
    assert!(stage.core.operation(&id("N399")).is_some());
}

// covers: VER-03, CFG-03
#[test]
fn a_machine_that_leaves_the_files_and_comes_back_gives_out_no_request_id_twice() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("C1", "start_cycle");
    recorded(stage.submit(request, 1000));
    stage.echo("C1");
    let first = stage.disk[&id("C1")].request_id.unwrap();
    stage.input(Input::Probed {
        machine: "press-1".into(),
        operation: id("C1"),
        answer: ProbeAnswer::Done {
            id: first,
            result: 0,
        },
    });
    assert_eq!(stage.state("C1").name(), "completed");
    stage.down();
    reload(&mut stage, Vec::new());
    reload(&mut stage, vec![spec()]);
    stage.up(7);
    let request = stage.request("C2", "start_cycle");
    recorded(stage.submit(request, 1000));
    let second = stage.disk[&id("C2")].request_id.unwrap();
    assert!(mailbox::id_after(second, first), "{second} after {first}");
}

// covers: VER-03
#[test]
fn a_new_incarnation_of_the_journal_begins_its_request_ids_anew() {
    let mut stage = Stage::with(vec![spec()]);
    let ids = |stage: &mut Stage, name: &str| {
        stage.up(7);
        let request = stage.request(name, "start_cycle");
        recorded(stage.submit(request, 1000));
        stage.echo(name);
        stage.disk[&id(name)].request_id.unwrap()
    };
    ids(&mut stage, "C0");
    let old_copy = stage.machines.clone();
    let first = ids(&mut stage, "C1");
    stage.restart(true, true);
    let second = ids(&mut stage, "C2");
    assert_eq!(second, first + 1, "a plain restart goes on counting");
    // The copy from before is put back.
    stage.machines = old_copy;
    stage.new_incarnation = true;
    stage.restart(true, true);
    let third = ids(&mut stage, "C3");
    assert!(mailbox::id_after(third, second), "{third} after {second}");
}

// covers: POL-06
#[test]
fn another_devices_mailbox_is_not_followed() {
    let mut stage = Stage::with(vec![spec()]);
    stage.connect();
    let foreign = mailbox_reading(&stage, 1, 0x7FFF_0000, 0x7FFF_0000);
    gate(&mut stage, foreign);
    let own = mailbox_reading(&stage, 4711, 0x6000_0041, 5);
    gate(&mut stage, own);
    let request = stage.request("E1", "eject_one");
    recorded(stage.submit(request, 1000));
    assert_eq!(stage.disk[&id("E1")].request_id, Some(0x6000_0042));
    assert_eq!(stage.machines["press-1"].session_epoch, 6);
}

// covers: SEND-05, VER-03
#[test]
fn a_record_that_stands_before_the_first_byte_is_another_writers() {
    for outcome in [
        Outcome::DeviceReplied(Reply::Mailbox(MailboxEcho {
            request_id: 1,
            result: 0,
            effect_counter: 9,
        })),
        Outcome::DeviceAccepted,
    ] {
        let mut stage = Stage::with(vec![spec()]);
        stage.up(7);
        let request = stage.request("E1", "eject_one");
        recorded(stage.submit(request, 1000));
        let (_, attempt) = stage.runs().pop().unwrap();
        stage.input(Input::Exchanged {
            machine: "press-1".into(),
            operation: id("E1"),
            attempt,
            exchange: Exchange {
                outcome,
                bytes_sent: 0,
                bytes_total: 0,
                request_ident: String::new(),
                sent_at: None,
                replied_at: Some(stage.now),
                reply: Vec::new(),
            },
        });
        assert_eq!(stage.state("E1").family(), Family::NotSent);
    }
}

// covers: VER-05, CFG-03
#[test]
fn a_mailbox_is_free_again_once_the_operation_of_a_removed_command_is_resolved() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("E1", "eject_one");
    recorded(stage.submit(request, 1000));
    let lost = || Outcome::SentNoReply { why: "test".into() };
    stage.exchanged("E1", lost());
    let mut burning = stage.machines["press-1"].clone();
    burning.burning = Some(Burn {
        operation: id("E1"),
        request_id: 2,
        tries: 1,
    });
    stage.machines.insert("press-1".into(), burning);
    let mut without = spec();
    without.commands[1].name = "eject_two".into();
    stage.specs = vec![Arc::new(without)];
    stage.restart(true, true);
    let resolve = Act::Resolve {
        verdict: Verdict::NotExecuted,
        reason: "seen at the machine".into(),
        by_operation: None,
    };
    assert!(matches!(stage.act("E1", resolve), Answer::Done(_)));
    assert_eq!(stage.machines["press-1"].burning, None);
    stage.up(7);
    let request = stage.request("E2", "eject_two");
    recorded(stage.submit(request, 1000));
    assert_eq!(stage.runs_of("E2"), 1);
}

/// What a PLC in its `boot`th start says that took `request_id`, is in `state`, and has not ended it.
fn taken(stage: &Stage, request_id: u32, boot: u16, state: u16) -> MailboxBlocks {
    let mut blocks = mailbox_reading(stage, 4711, request_id, 1).mailbox.unwrap();
    let mut words = vec![0; mailbox::STATUS_WORDS];
    (words[0], words[2], words[6]) = (mailbox::LAYOUT_VERSION, boot, state);
    words[4..6].copy_from_slice(&mailbox::split_u32(request_id, WordOrder::HighFirst));
    let crc = words.len() - 1;
    words[crc] = mailbox::crc16(&words[..crc]);
    blocks.status = words;
    blocks
}

/// The device takes E1, and is looked at over two hours; what it said last, and how often it was called accepted.
fn looked_at(boot: u16, state: u16) -> (State, usize) {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("E1", "eject_one");
    recorded(stage.submit(request, 1000));
    let mut operation = stage.disk[&id("E1")].clone();
    operation.device_boot = Some(1);
    stage.disk.insert(id("E1"), operation);
    stage.exchanged("E1", Outcome::DeviceAccepted);
    let mut accepted = 0;
    for _ in 0..720 {
        stage.pass(10.0);
        let operation = stage.disk[&id("E1")].clone();
        accepted += usize::from(operation.state.name() == "accepted");
        let blocks = taken(&stage, operation.request_id.unwrap(), boot, state);
        stage.input(Input::Probed {
            machine: "press-1".into(),
            operation: id("E1"),
            answer: ProbeAnswer::Mailbox(blocks),
        });
    }
    (stage.state("E1"), accepted)
}

// covers: ST-04, VER-03
#[test]
fn what_the_device_took_and_never_ends_is_not_called_accepted_again_and_again() {
    const EXECUTING: u16 = 2;
    let (state, accepted) = looked_at(1, EXECUTING);
    assert_eq!(
        state,
        State::OutcomeUnknown(UnknownReason::CompletionTimeout)
    );
    assert!(accepted <= 1, "{accepted} times");
}

// covers: ST-04, VER-03, VER-04
#[test]
fn what_a_restart_of_the_plc_cut_off_is_unknown_and_stays_so() {
    const IDLE: u16 = 0;
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("E1", "eject_one");
    recorded(stage.submit(request, 1000));
    stage.exchanged("E1", Outcome::DeviceAccepted);
    assert_eq!(stage.state("E1").name(), "accepted");
    let blocks = taken(&stage, stage.disk[&id("E1")].request_id.unwrap(), 2, IDLE);
    stage.input(Input::Probed {
        machine: "press-1".into(),
        operation: id("E1"),
        answer: ProbeAnswer::Mailbox(blocks),
    });
    let restarted = State::OutcomeUnknown(UnknownReason::DeviceRestart);
    assert_eq!(stage.state("E1"), restarted);
    let (state, _) = looked_at(2, IDLE);
    assert_eq!(state.name(), "outcome_unknown");
}

// covers: TIME-04
#[test]
fn an_approval_after_a_reboot_does_not_vouch_for_a_validity_that_nobody_can_prove() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(8);
    let held = recorded(stage.set("SET", 50, 1000));
    assert_eq!(held.state.name(), "held");
    stage.restart(false, false);
    stage.up(8);
    stage.act("SET", Act::Approve);
    assert_eq!(
        stage.state("SET"),
        State::Held(HeldReason::ValidityUnprovable)
    );
    assert_eq!(stage.runs_of("SET"), 0);
}

// covers: ST-04, CFG-03
#[test]
fn what_was_accepted_becomes_unknown_though_its_command_is_gone() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("N1", "nudge");
    recorded(stage.submit(request, 1000));
    stage.echo("N1");
    assert_eq!(stage.state("N1").name(), "accepted");
    reload(&mut stage, vec![press("press-1")]);
    stage.pass(60.0);
    assert_eq!(stage.state("N1").name(), "outcome_unknown");
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("N1", "nudge");
    recorded(stage.submit(request, 1000));
    stage.echo("N1");
    stage.specs = vec![Arc::new(press("press-1"))];
    stage.restart(true, true);
    stage.pass(60.0);
    assert_eq!(stage.state("N1").name(), "outcome_unknown");
}

// covers: CFG-03, VER-04, POL-02
#[test]
fn a_machine_that_comes_back_after_a_restart_has_what_it_left_open() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("E1", "eject_one");
    recorded(stage.submit(request, 1000));
    stage.exchanged("E1", Outcome::SentNoReply { why: "test".into() });
    stage.specs = vec![Arc::new(press("press-2"))];
    stage.restart(true, true);
    assert_eq!(stage.core.open().count(), 1);
    reload(&mut stage, vec![spec(), press("press-2")]);
    let machine = &stage.core.machines()["press-1"];
    assert_eq!(machine.unresolved.len(), 1);
    stage.up(7);
    let probed = |effect: &Effect| matches!(effect, Effect::Probe { operation, .. } if *operation == id("E1"));
    assert!(stage.effects.iter().any(probed));
    let request = stage.request("E2", "eject_one");
    recorded(stage.submit(request, 1000));
    assert_eq!(stage.runs_of("E2"), 0, "the mailbox is taken by E1");
    // Out of the files again: what is open stays, and nothing new is taken.
    stage.down();
    reload(&mut stage, vec![press("press-2")]);
    let request = stage.set_request("S1", 50);
    let refused = stage.submit(request, 1000);
    assert!(
        matches!(refused, Answer::Refused(Refusal::UnknownMachine { .. })),
        "{refused:?}"
    );
    assert_eq!(stage.core.machines()["press-1"].unresolved.len(), 1);
}

// covers: CMD-02, CFG-03
#[test]
fn a_known_id_is_answered_though_its_command_has_left_the_files() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    let request = stage.request("N1", "nudge");
    recorded(stage.submit(request.clone(), 1000));
    reload(&mut stage, vec![press("press-1")]);
    assert!(matches!(stage.submit(request, 1000), Answer::Replayed(_)));
    let other = stage.request("N2", "nudge");
    let refused = stage.submit(other, 1000);
    assert!(matches!(
        refused,
        Answer::Refused(Refusal::UnknownCommand { .. })
    ));
}

// covers: POL-06
#[test]
fn an_identity_that_could_not_be_read_is_not_another_device() {
    let mut stage = Stage::with(vec![spec()]);
    stage.up(7);
    stage.down();
    recorded(stage.set("SET", 50, 1000));
    stage.connect();
    let mut reading = mailbox_reading(&stage, 4711, 1, 1);
    reading.identity = None;
    reading.quality = Quality::Bad;
    gate(&mut stage, reading);
    assert_eq!(stage.state("SET").name(), "queued");
    stage.up(7);
    stage.pass(0.3);
    gate_good(&mut stage);
    assert_eq!(stage.runs_of("SET"), 1);
}

fn gate_good(stage: &mut Stage) {
    let reading = mailbox_reading(stage, 4711, 1, 1);
    gate(stage, reading);
}

fn link_alarm(stage: &Stage) -> Option<&str> {
    let mut alarms = stage.core.alarms();
    alarms
        .find(|alarm| alarm.code == "link_down")
        .map(|alarm| alarm.text.as_str())
}

// A machine that was never reached is an alarm like one that was lost, once its time is over.
#[test]
fn a_machine_that_was_never_reached_is_an_alarm_after_its_grace() {
    let refused = |reason: &str| LinkChange::Down {
        reason: reason.into(),
    };
    let mut stage = Stage::new();
    stage.pass(60.0);
    assert_eq!(link_alarm(&stage), None, "nobody has tried yet");
    stage.link(LinkChange::Connecting);
    stage.link(refused("it refuses the connection"));
    stage.pass(4.9);
    assert_eq!(link_alarm(&stage), None);
    let events = stage.events.len();
    stage.pass(0.2);
    let says = "press-1 is not connected: it refuses the connection";
    assert_eq!(link_alarm(&stage), Some(says));
    let told = &stage.events[events..];
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].event_type, "alarm.raised");
    // Another reason is shown, and is no other event.
    stage.link(LinkChange::Connecting);
    stage.link(refused("no answer"));
    assert_eq!(
        link_alarm(&stage),
        Some("press-1 is not connected: no answer")
    );
    stage.pass(60.0);
    assert_eq!(stage.events.len(), events + 1);
    stage.up(7);
    assert_eq!(link_alarm(&stage), None);
    stage.pass(60.0);
    assert_eq!(link_alarm(&stage), None);
    // One that is reached within its grace never was an alarm.
    let mut stage = Stage::new();
    stage.link(LinkChange::Connecting);
    stage.pass(2.0);
    stage.up(7);
    stage.pass(60.0);
    assert!(
        stage
            .events
            .iter()
            .all(|event| event.event_type != "alarm.raised")
    );
}

// How long a link stands as it stands: attempts to reconnect do not begin an outage anew, and nothing of an outage
// is counted to the link that came after it.
#[test]
fn a_link_is_as_old_as_the_state_that_is_shown() {
    let mut stage = Stage::new();
    let age_s = |stage: &Stage| {
        let since = stage.core.machines()["press-1"].since;
        (stage.now.boottime_ns - since.boottime_ns) / 1_000_000_000
    };
    stage.down();
    stage.pass(3.0);
    stage.link(LinkChange::Connecting);
    assert_eq!(age_s(&stage), 3);
    stage.connect();
    assert_eq!(age_s(&stage), 0, "the gate is being read");
    stage.pass(2.0);
    stage.gate(4711, 7, true);
    assert_eq!(age_s(&stage), 0, "up");
    stage.pass(4.0);
    stage.gate(4712, 7, true);
    assert_eq!(age_s(&stage), 0, "another device answers");
    stage.pass(5.0);
    stage.gate(4712, 7, true);
    assert_eq!(age_s(&stage), 5);
    stage.down();
    assert_eq!(age_s(&stage), 0);
}
