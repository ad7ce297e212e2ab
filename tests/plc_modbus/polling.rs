//! Owns: cases of polling: refusals, guards, "no value", busy, offline, heartbeat, the gate.
//! May call: the scripted server.
//! Never: accept a stand-in for a value.

use crate::server::{
    Act, Server, asked, clock, connected, counter, exception, holding, registers, scalar, spec,
};
use holdfast::core::contract::{Job, Outcome};
use holdfast::core::spec::{DataType, MachineSpec, Quality, Tag, TagGroup, Value};
use holdfast::plc::link::{Link, LinkError, Reading};
use holdfast::plc::plan::{PointId, PollPlan, REFUSED_RETRY_MS};
use std::collections::BTreeMap;

const POLL_MS: u64 = 1000;
const SECOND_NS: u64 = 1_000_000_000;

fn tag(offset: u16, data_type: DataType) -> Tag {
    Tag {
        name: format!("t{offset}"),
        at: scalar(offset, data_type),
        unit: None,
        poll_ms: POLL_MS,
        no_value: Vec::new(),
        group: None,
    }
}

fn with_tags(port: u16, tags: Vec<Tag>) -> MachineSpec {
    MachineSpec { tags, ..spec(port) }
}

/// Does all that is due at `now_ns`, and what falls due by it; the last reading of each point.
async fn cycle(link: &mut Link, plan: &mut PollPlan, now_ns: u64) -> BTreeMap<PointId, Reading> {
    let mut all = BTreeMap::new();
    for _ in 0..100 {
        let Some(step) = plan.due(now_ns).into_iter().next() else {
            return all;
        };
        for reading in link.poll(plan, &step).await {
            all.insert(reading.id, reading);
        }
    }
    panic!("the plan does not come to rest");
}

fn now_ns() -> u64 {
    clock()().boottime_ns + SECOND_NS / 2
}

// covers: F049
#[tokio::test]
async fn a_refused_block_is_split_to_the_bad_place_and_the_rest_keeps_its_data() {
    let server = Server::start(|request| {
        let (start, count) = asked(request);
        let hole = (start..start + count).contains(&120);
        let words: Vec<u16> = (start..start + count).collect();
        vec![Act::Bytes(match hole || count > 50 {
            true => exception(request, 2),
            false => registers(request, &words),
        })]
    })
    .await;
    let places = (0..120).chain(121..131);
    let mut tags: Vec<Tag> = places.map(|n| tag(n, DataType::U16)).collect();
    tags.push(tag(120, DataType::U16));
    let spec = with_tags(server.port, tags);
    let mut link = connected(&spec).await;
    let mut plan = PollPlan::new(&spec);
    let all = cycle(&mut link, &mut plan, now_ns()).await;
    assert_eq!(all.len(), 131);
    for (id, reading) in &all {
        let PointId::Tag(n) = id else { panic!() };
        match n {
            0..=119 => assert_eq!(reading.value, Some(Value::Int(*n as i128))),
            120..=129 => assert_eq!(reading.value, Some(Value::Int(*n as i128 + 1))),
            _ => {
                assert_eq!((&reading.value, reading.quality), (&None, Quality::Bad));
                assert!(reading.reason.as_ref().unwrap().contains("holding:120"));
            }
        }
    }
    assert!(plan.notes()[0].contains("holding:120 with exception 02"));
    // What was learnt is kept: the next cycle meets no exception.
    let learnt = counter(&link, "exceptions");
    let asked_before = server.log().requests.len();
    cycle(&mut link, &mut plan, now_ns() + SECOND_NS).await;
    assert_eq!(counter(&link, "exceptions"), learnt);
    assert!(server.log().requests.len() - asked_before <= 12);
    // The bad place is asked again, but only after its pause.
    let asks_it = |until_ns| {
        let steps = plan.due(until_ns);
        steps
            .iter()
            .any(|step| step.points.iter().any(|p| p.at.address == holding(120)))
    };
    let pause_ns = REFUSED_RETRY_MS * 1_000_000;
    assert!(!asks_it(now_ns() + pause_ns / 2));
    assert!(asks_it(now_ns() + pause_ns));
}

// covers: EVT-06, F051
#[tokio::test]
async fn a_group_over_two_requests_is_read_until_its_guard_holds_or_is_uncertain() {
    for (changes, quality) in [
        (0, Quality::Good),
        (1, Quality::Good),
        (9, Quality::Uncertain),
    ] {
        let mut guard = 0;
        let server = Server::start(move |request| {
            let (start, count) = asked(request);
            if start == 500 {
                guard += u16::from(guard < changes);
                return vec![Act::Bytes(registers(request, &[guard]))];
            }
            vec![Act::Bytes(registers(
                request,
                &vec![guard; usize::from(count)],
            ))]
        })
        .await;
        let in_group = |offset| Tag {
            group: Some("recipe".into()),
            ..tag(offset, DataType::U64)
        };
        let mut spec = with_tags(server.port, (0..50).map(|n| in_group(n * 4)).collect());
        spec.groups.push(TagGroup {
            name: "recipe".into(),
            guard: Some(scalar(500, DataType::U16)),
        });
        let mut link = connected(&spec).await;
        let all = cycle(&mut link, &mut PollPlan::new(&spec), now_ns()).await;
        assert_eq!(all.len(), 50);
        assert!(
            all.values().all(|reading| reading.quality == quality),
            "{changes} changes"
        );
        for request in &server.log().requests {
            let (start, count) = asked(request);
            assert!(
                start == 500 || (start % 4 == 0 && count % 4 == 0),
                "torn: {start} {count}"
            );
        }
    }
}

// covers: F045, F063
#[tokio::test]
async fn a_sentinel_or_a_lost_link_gives_no_value_and_a_reason() {
    let server = Server::start(|request| match asked(request) {
        (0, _) => vec![Act::Bytes(registers(request, &[0xFFFF, 0xFFFF]))],
        _ => vec![Act::Fin],
    })
    .await;
    let listed = Tag {
        no_value: vec![Value::Int(0xFFFF)],
        ..tag(0, DataType::U16)
    };
    let tags = vec![listed, tag(1, DataType::U16), tag(100, DataType::U16)];
    let spec = with_tags(server.port, tags);
    let mut link = connected(&spec).await;
    let all = cycle(&mut link, &mut PollPlan::new(&spec), now_ns()).await;
    let reading = |n| &all[&PointId::Tag(n)];
    assert_eq!(
        (&reading(0).value, reading(0).quality),
        (&None, Quality::Bad)
    );
    assert_eq!(reading(1).value, Some(Value::Int(0xFFFF)));
    assert_eq!(reading(1).quality, Quality::Good);
    assert_eq!(
        (&reading(2).value, reading(2).quality),
        (&None, Quality::Bad)
    );
    assert!(
        reading(2)
            .reason
            .as_ref()
            .unwrap()
            .contains("closed the connection")
    );
    assert!(!link.is_connected());
}

// covers: F039
#[tokio::test]
async fn a_busy_device_gives_no_zero_and_is_asked_again_within_the_cycle() {
    let server = Server::start(|request| vec![Act::Bytes(exception(request, 6))]).await;
    let spec = with_tags(server.port, vec![tag(0, DataType::U16)]);
    let mut link = connected(&spec).await;
    let mut plan = PollPlan::new(&spec);
    let mut asked_at = Vec::new();
    let from = plan.due(now_ns()).len();
    assert_eq!(from, 1);
    for _ in 0..3 {
        let step = plan.due(u64::MAX).remove(0);
        let readings = link.poll(&mut plan, &step).await;
        assert_eq!(
            (&readings[0].value, readings[0].quality),
            (&None, Quality::Stale)
        );
        asked_at.push(
            plan.next_due_ns()
                .unwrap()
                .saturating_sub(readings[0].at.boottime_ns),
        );
    }
    // Twice soon, then at its beat again.
    assert_eq!(asked_at[..2], [SECOND_NS / 4; 2]);
    assert!(asked_at[2] > SECOND_NS / 4);
    assert!(link.is_connected());
}

// covers: F043
#[tokio::test]
async fn a_unit_behind_a_gateway_is_offline_while_the_connection_stands() {
    let server = Server::start(|request| vec![Act::Bytes(exception(request, 0x0B))]).await;
    let mut spec = with_tags(server.port, vec![tag(0, DataType::U16)]);
    let mut link = connected(&spec).await;
    let all = cycle(&mut link, &mut PollPlan::new(&spec), now_ns()).await;
    let reading = &all[&PointId::Tag(0)];
    assert_eq!((&reading.value, reading.quality), (&None, Quality::Bad));
    assert!(
        reading
            .reason
            .as_ref()
            .unwrap()
            .contains("unit 3 is offline")
    );
    assert!(link.is_open() && !link.is_connected());

    // A first connection to an absent unit keeps its socket for the next try, too.
    spec.gate.identity = None;
    let mut link = Link::new(&spec, clock());
    for _ in 0..3 {
        let error = link.connect().await.unwrap_err();
        assert!(
            matches!(
                error,
                LinkError::UnitOffline {
                    unit: 3,
                    code: 11,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    assert_eq!(counter(&link, "connects"), 1);
}

// covers: F069
#[tokio::test]
async fn the_heartbeat_finds_a_dead_connection_before_a_command_does() {
    let server = Server::start(|_| vec![]).await;
    let mut spec = with_tags(server.port, vec![tag(0, DataType::U16)]);
    let mut link = connected(&spec).await;
    assert!(!link.heartbeat_due());
    link.heartbeat().await.unwrap();
    spec.gate.identity = None;
    let mut dead = Link::new(&spec, clock());
    assert!(dead.heartbeat_due());
    let error = dead.connect().await.unwrap_err();
    assert!(matches!(error, LinkError::NoReply(_)), "{error:?}");
    let job = Job::Write {
        start: crate::server::holding(0),
        words: vec![1],
    };
    let exchange = dead.run(&job).await;
    assert!(matches!(exchange.outcome, Outcome::NotSent { .. }));
    assert_eq!(server.count(6), 0);
}

// covers: F055
#[tokio::test]
async fn the_gate_reads_the_fingerprint_and_says_when_a_part_is_missing() {
    let server = Server::start(|request| {
        vec![Act::Bytes(match asked(request) {
            (120, 2) => registers(request, &[18, 1]),
            _ => exception(request, 2),
        })]
    })
    .await;
    let mut spec = spec(server.port);
    spec.gate.config_version = Some(scalar(120, DataType::U16));
    spec.gate.mode = Some(holdfast::core::spec::ModeCheck {
        at: scalar(121, DataType::U16),
        allowed: vec![1],
    });
    let mut link = connected(&spec).await;
    let gate = link.read_gate().await.unwrap();
    assert_eq!(gate.identity, Some(Value::Int(0x1267)));
    assert_eq!((gate.config_version, gate.mode), (Some(18), Some(1)));
    assert_eq!(gate.quality, Quality::Good);

    spec.gate.config_version = Some(scalar(130, DataType::U16));
    spec.gate.mode = None;
    let mut link = connected(&spec).await;
    let gate = link.read_gate().await.unwrap();
    assert_eq!((gate.config_version, gate.quality), (None, Quality::Bad));
}
