//! Owns: replies that are late, foreign, cut, refused or no values, as the gateway's users see them.
//! May call: the harness and its common questions.
//! Never: take a unit's word for what the whole gateway does.

use super::harness::{PRESS, PRESS_SIM, Rig, until};
use super::link_kind::LinkKind;
use holdfast::simulator::{ALWAYS, Act, Fault, Matching, Span};
use serde_json::{Value as Json, json};
use std::time::Duration;

fn nudge(rig: &Rig, id: &str) -> Json {
    rig.request(id, "nudge", json!({ "by": 1 }))
}

/// The press, its speed polled alone and its other values out of the way.
fn plain_press(link: &str, tags: &str) -> String {
    format!(
        "schema = 1\nname = \"press-1\"\nowner = \"gw-test\"\n[link]\nprotocol = \"modbus-tcp\"\n\
         address = \"ADDRESS\"\nunit = 1\nreconnect_min = \"50ms\"\nreconnect_max = \"200ms\"\n{link}\n{tags}\n"
    )
}
const SPEED: &str =
    "[[tag]]\nname = \"speed\"\nread = \"holding:100\"\ntype = \"u16\"\npoll = \"50ms\"\n";

// covers: F001
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_replies_never_become_the_values_of_later_requests() {
    let tags = "[[tag]]\nname = \"a\"\nread = \"holding:100\"\ntype = \"u16\"\npoll = \"20ms\"\n\
                [[tag]]\nname = \"b\"\nread = \"holding:150\"\ntype = \"u16\"\npoll = \"20ms\"\n";
    let sim = "[registers.holding]\n100 = 0x1111\n150 = 0x3333\n";
    let mut rig = Rig::with(&plain_press("timeout = \"150ms\"", tags), sim).await;
    rig.start_up().await;
    rig.until_tag("b", |tag| tag["value"] == 0x3333).await;
    let late = Fault::next(Matching::Reads, Act::LateReply(Span::ms(200)));
    rig.device.set_fault(late.every(10).times(5));
    let mut seen = 0;
    while rig.counter("timeouts").await < 5 {
        for (name, only) in [("a", 0x1111), ("b", 0x3333)] {
            let tag = rig.tag(name).await;
            assert!(tag["value"].is_null() || tag["value"] == only, "{tag}");
            seen += u32::from(!tag["value"].is_null());
        }
        tokio::task::yield_now().await;
    }
    assert!(seen > 0, "values were shown in between");
    // Each late reply cost one request, on a connection that was dropped with it.
    rig.polls(100).await;
    assert_eq!(rig.counter("timeouts").await, 5);
    assert_eq!(rig.device.connections(), 6);
    assert_eq!(rig.tag("b").await["value"], 0x3333);
}

// covers: F004
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_reply_breaks_off_is_written_once_and_unknown() {
    // Nine of twelve bytes, and five of eight: in each the rest follows when nobody waits for it any more.
    written_once(LinkKind::ModbusTcp, 9, 900).await;
    written_once(LinkKind::Rtu { tcp: true }, 5, 900).await;
    for rest_ms in [340, 900] {
        written_once(LinkKind::Rtu { tcp: false }, 5, rest_ms).await;
    }
}

async fn written_once(kind: LinkKind, keep: usize, rest_ms: u64) {
    let mut rig = Rig::over(kind, PRESS, PRESS_SIM).await;
    rig.start_up().await;
    let cut = Act::Truncated {
        keep,
        rest_after: Some(Span::ms(rest_ms)),
    };
    rig.device.set_fault(Fault::next(Matching::Writes, cut));
    let (_, answer) = rig.submit(&nudge(&rig, "N1")).await;
    assert_eq!(answer["operation_id"], "N1", "{answer}");
    let operation = rig.until_state("N1", "outcome_unknown").await;
    assert_eq!(
        operation["attempts"][0]["outcome"], "sent_no_reply",
        "{operation}"
    );
    rig.until_link("up").await;
    rig.polls(20).await;
    assert_eq!(rig.device.effects_of_register(150), 1);
    let writes = rig.device.requests();
    assert_eq!(writes.iter().filter(|seen| seen.is_write()).count(), 1);
    if kind != (LinkKind::Rtu { tcp: false }) {
        assert!(rig.device.connections() >= 2, "the old one was in doubt");
    }
    assert_eq!(rig.state("N1").await, "outcome_unknown");
    // Over RTU nothing but the line's silence says where the next frame begins.
    let (_, done) = rig.submit_wait(&rig.set_speed("S1", 50)).await;
    assert_eq!(done["state"], "completed", "{kind:?} {done}");
    assert_eq!((rig.device.holding(100), rig.speed_writes()), (50, 1));
}

// covers: F007
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_of_another_unit_is_named_and_never_a_value() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["quality"] == "good").await;
    rig.device.set_holding(100, 4660);
    let fault = Fault::next(Matching::Any, Act::WrongUnit(9));
    rig.device.set_fault(fault.times(ALWAYS));
    let tag = rig.until_tag("speed", |tag| tag["quality"] != "good").await;
    assert_ne!(tag["value"], 4660, "{tag}");
    rig.until("the reason names both units", async |rig| {
        let (_, machine) = rig.get("/v1/machines/press-1").await;
        let reason = machine["link"]["reason"].as_str().unwrap().to_owned();
        reason.contains("unit 9") && reason.contains('1')
    })
    .await;
    assert!(rig.counter("wrong_unit").await > 0);
    // A device that always answers under another unit may be allowed to, by name.
    rig.machine_toml = rig.machine_toml.replace(
        "timeout = \"300ms\"",
        "timeout = \"300ms\"\nanswering_unit = 9",
    );
    assert_eq!(rig.reload().await.0, 200);
    rig.until_link("up").await;
    rig.until_tag("speed", |tag| tag["value"] == 4660).await;
}

// covers: F009
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_in_pieces_is_one_value() {
    let words = "[registers.holding]\n100 = [0, 0, 0, 1]\n";
    let tags =
        "[[tag]]\nname = \"wide\"\nread = \"holding:100\"\ntype = \"u64\"\npoll = \"20ms\"\n";
    let mut rig = Rig::with(&plain_press("timeout = \"2s\"", tags), words).await;
    rig.start_up().await;
    rig.until_tag("wide", |tag| tag["value"] == 1).await;
    let split = |at: &[usize], gap| Act::Split {
        at: at.to_vec(),
        gap: Span::ms(gap),
    };
    let ways = [
        Act::Bytewise(Span::ms(5)),
        split(&[5], 20),
        split(&[7], 300),
        split(&[16], 20),
    ];
    for way in ways {
        let fault = Fault::next(Matching::Reads, way.clone());
        rig.device.set_fault(fault.times(3));
        rig.polls(5).await;
        let tag = rig.tag("wide").await;
        assert_eq!(
            (&tag["value"], &tag["quality"]),
            (&json!(1), &json!("good")),
            "{way:?}"
        );
    }
    assert_eq!(rig.counter("timeouts").await, 0);
    assert_eq!(rig.device.connections(), 1);
}

// covers: F039
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_device_gives_no_zero() {
    let sim = "[registers.holding]\n100 = 4321\n";
    let mut rig = Rig::with(&plain_press("timeout = \"500ms\"", SPEED), sim).await;
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["value"] == 4321).await;
    let busy = Fault::next(Matching::Reads, Act::Exception(6));
    rig.device.set_fault(busy.clone().every(3).times(ALWAYS));
    let until = rig.counter("exceptions").await + 5;
    while rig.counter("exceptions").await < until {
        assert_eq!(rig.tag("speed").await["value"], 4321);
    }
    // Busy for good: the last good value stays, and is said to be old.
    rig.device.set_fault(busy.times(ALWAYS));
    let tag = rig
        .until_tag("speed", |tag| tag["quality"] == "stale")
        .await;
    assert_eq!(tag["value"], 4321, "{tag}");
    // Bounded: no more than the two retries in each cycle of 50 ms.
    let (from, begun) = (rig.device.requests().len(), std::time::Instant::now());
    rig.polls(12).await;
    let cycles = begun.elapsed().as_millis() / 50 + 2;
    let asked = (rig.device.requests().len() - from) as u128;
    assert!(asked <= 3 * cycles, "{asked} requests in {cycles} cycles");
    assert_eq!(rig.device.connections(), 1);
}

// covers: F045
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_tags_own_sentinels_are_no_value() {
    let tags = r#"
[[tag]]
name = "i32"
read = "holding:100"
type = "i32"
no_value = [-2147483648]
poll = "50ms"
[[tag]]
name = "u16"
read = "holding:102"
type = "u16"
no_value = [65535]
poll = "50ms"
[[tag]]
name = "i16"
read = "holding:103"
type = "i16"
no_value = [-32768]
poll = "50ms"
[[tag]]
name = "u32"
read = "holding:104"
type = "u32"
no_value = [4294967295]
poll = "50ms"
[[tag]]
name = "raw"
read = "holding:106"
type = "u16"
poll = "50ms"
"#;
    let words = "[registers.holding]\n100 = [0x8000, 0, 0xFFFF, 0x8000, 0xFFFF, 0xFFFF, 0xFFFF]\n";
    let mut rig = Rig::with(&plain_press("", tags), words).await;
    rig.start_up().await;
    rig.until_tag("raw", |tag| tag["quality"] == "good").await;
    for name in ["i32", "u16", "i16", "u32"] {
        let tag = rig.until_tag(name, |tag| tag["quality"] == "bad").await;
        assert!(tag["value"].is_null(), "{tag}");
        assert!(
            tag["reason"].as_str().unwrap().contains("no value"),
            "{tag}"
        );
        let (_, now) = rig
            .get(&format!("/v1/machines/press-1/tags?read={name}&now=true"))
            .await;
        assert!(now["tags"][0]["value"].is_null(), "{now}");
    }
    assert_eq!(rig.tag("raw").await["value"], 65535);
}

// covers: F049
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_refuses_long_blocks_loses_only_its_bad_place() {
    let mut tags = String::new();
    for n in 0..=130 {
        tags += &format!(
            "[[tag]]\nname = \"t{n}\"\nread = \"holding:{n}\"\ntype = \"u16\"\npoll = \"200ms\"\n"
        );
    }
    let sim = "read_registers_max = 50\n[registers.holding]\n0 = 7\n119 = 8\n121 = 9\n130 = 10\n\
               [[hole]]\nat = \"holding:120\"\ncount = 1\n";
    let mut rig = Rig::with(&plain_press("", &tags), sim).await;
    rig.start_up().await;
    for (name, value) in [("t0", 7), ("t119", 8), ("t121", 9), ("t130", 10)] {
        let tag = rig.until_tag(name, |tag| tag["quality"] == "good").await;
        assert_eq!(tag["value"], value, "{tag}");
    }
    let bad = rig
        .until_tag("t120", |tag| tag["reason"] != "not read yet")
        .await;
    assert_eq!(
        (&bad["value"], &bad["quality"]),
        (&Json::Null, &json!("bad"))
    );
    for n in (0..=130).filter(|n| *n != 120) {
        let name = format!("t{n}");
        rig.until_tag(&name, |tag| tag["quality"] == "good").await;
    }
    assert!(rig.alarms().await.contains(&"address_refused".to_owned()));
    // Remembered: the device is not asked for it again and again.
    let refused = rig.counter("exceptions").await;
    rig.polls(30).await;
    assert_eq!(rig.counter("exceptions").await, refused);
    assert_eq!(rig.device.connections(), 1);
}

// covers: F051
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_over_two_reads_is_of_one_moment_or_uncertain() {
    let tags = r#"
[[group]]
name = "recipe"
guard = "holding:300"
[[tag]]
name = "first"
read = "holding:100"
type = "u32"
group = "recipe"
poll = "20ms"
[[tag]]
name = "last"
read = "holding:298"
type = "u32"
group = "recipe"
poll = "20ms"
"#;
    let mut rig = Rig::with(&plain_press("", tags), "").await;
    rig.start_up().await;
    let device = rig.device.clone();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    // The device rewrites both ends and its guard again and again, at once for whoever reads one request.
    let writer = tokio::spawn(async move {
        let mut version = 0_u16;
        while !*stopped.borrow_and_update() {
            version = version.wrapping_add(1) & 0x7FFF;
            device.set_holding(300, version);
            for at in [100, 101, 298, 299] {
                device.set_holding(at, version);
            }
            device.set_holding(300, version | 0x8000);
            tokio::time::sleep(Duration::from_millis(u64::from(version % 40))).await;
        }
    });
    let (mut good, mut pairs) = (0, 0);
    while good < 30 {
        let (_, answer) = rig.get("/v1/machines/press-1/tags").await;
        let (a, b) = (&answer["tags"][0], &answer["tags"][1]);
        for tag in [a, b] {
            if let Some(value) = tag["value"].as_u64() {
                assert_eq!(value >> 16, value & 0xFFFF, "a value torn in two: {tag}");
            }
        }
        pairs += 1;
        if a["quality"] == "good" && b["quality"] == "good" && a["read_at"] == b["read_at"] {
            assert_eq!(a["value"], b["value"], "of two moments and called good");
            good += 1;
        }
        assert!(pairs < 20_000, "never good: {answer}");
    }
    stop.send_replace(true);
    writer.await.unwrap();
    // A guard that changes within every reading: uncertain, never good.
    let device = rig.device.clone();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let spinner = tokio::spawn(async move {
        let mut n = 0_u16;
        while !*stopped.borrow() {
            n = n.wrapping_add(1);
            device.set_holding(300, n);
            tokio::task::yield_now().await;
        }
    });
    rig.until_tag("last", |tag| tag["quality"] == "uncertain")
        .await;
    stop.send_replace(true);
    spinner.await.unwrap();
    rig.until_tag("last", |tag| tag["quality"] == "good").await;
}

// covers: F063
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_in_a_poll_leaves_no_stand_in_upstream() {
    let mut rig = Rig::new().await;
    rig.device.set_holding(100, 1234);
    rig.device.set_holding(200, 17);
    rig.start_up().await;
    rig.until_tag("speed", |tag| tag["value"] == 1234).await;
    rig.until("the first piece is recorded", async |rig| {
        !rig.events_of("piece.count").await.is_empty()
    })
    .await;
    for act in [Act::Close, Act::Reset, Act::Drop, Act::WrongByteCount] {
        let connections = rig.device.connections();
        rig.device
            .set_fault(Fault::next(Matching::Reads, act).times(1));
        let device = rig.device.clone();
        until("it connected anew", async || {
            device.connections() > connections
        })
        .await;
        rig.until_link("up").await;
        let tag = rig.tag("speed").await;
        assert!(tag["value"] == 1234 || tag["value"].is_null(), "{tag}");
        assert!(
            tag["quality"] == "good" || tag["reason"].is_string(),
            "{tag}"
        );
    }
    rig.make_events(1).await;
    rig.until("the sink has it", async |rig| {
        rig.sink_lines()
            .iter()
            .any(|line| line["type"] == "piece.count" && line["body"]["value"] == 18)
    })
    .await;
    for line in rig.sink_lines() {
        if line["type"] == "piece.count" {
            let value = &line["body"]["value"];
            let honest = (line["quality"] == "good" && (*value == 17 || *value == 18))
                || (value.is_null() && line["quality"] != "good");
            assert!(honest, "{line}");
        }
    }
}
