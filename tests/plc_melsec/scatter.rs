//! Owns: polls of scattered places over MC protocol: how many requests they take, and what is refused.
//! May call: the rig, the simulator, plc.
//! Never: count requests anywhere but at the device.

use crate::rig::{Form, PATIENT_MS, cpu_with, forms, link, program, scalar, spec, until_connected};
use holdfast::core::melsec::{Code, Frame, Transport};
use holdfast::core::spec::{DataType, MachineSpec, Quality, Tag, TagGroup, Value};
use holdfast::plc::link::{Link, Reading};
use holdfast::plc::plan::{PointId, PollPlan};
use holdfast::simulator::{Hole, McProgram, Place, Simulator, SimulatorSpec};
use std::collections::BTreeMap;

/// All that is due at the first look.
const FIRST_NS: u64 = 1;
const TCP: Form = Form(Frame::E3, Code::Binary, Transport::Tcp);
const RANDOM: u16 = 0x0403;
const BLOCKS: u16 = 0x0406;

fn tag(at: &str, data_type: DataType, group: Option<&str>) -> Tag {
    Tag {
        name: at.to_owned(),
        at: scalar(at, data_type),
        unit: None,
        poll_ms: 1_000,
        no_value: Vec::new(),
        group: group.map(str::to_owned),
    }
}

struct Scene {
    cpu: Simulator,
    link: Link,
    plan: PollPlan,
}

impl Scene {
    async fn new(form: Form, tags: Vec<Tag>, unknown: &[u16], hole: Option<u16>) -> Self {
        let hole = hole.map(|at| Hole {
            at: Place::holding(at),
            count: 1,
        });
        let cpu = cpu_with(SimulatorSpec {
            mc: Some(McProgram {
                unknown_commands: unknown.to_vec(),
                ..program(form)
            }),
            holes: hole.into_iter().collect(),
            ..SimulatorSpec::default()
        })
        .await;
        (0..60_000).for_each(|at| cpu.device().set_holding(at, at));
        let machine = MachineSpec {
            groups: vec![TagGroup {
                name: "batch".into(),
                guard: None,
            }],
            tags,
            ..spec(form, cpu.address(), PATIENT_MS)
        };
        let mut link = link(&machine);
        until_connected(&mut link).await;
        let plan = PollPlan::new(&machine);
        Self { cpu, link, plan }
    }

    /// All that is due, and how many requests it took.
    async fn cycle(&mut self, now_ns: u64) -> (BTreeMap<PointId, Reading>, usize) {
        let before = self.cpu.device().requests().len();
        let mut all = BTreeMap::new();
        for _ in 0..100 {
            let Some(step) = self.plan.due(now_ns).into_iter().next() else {
                return (all, self.cpu.device().requests().len() - before);
            };
            for reading in self.link.poll(&mut self.plan, &step).await {
                all.insert(reading.id, reading);
            }
        }
        panic!("the plan does not come to rest");
    }

    /// The next cycle, whenever that is due.
    async fn next_cycle(&mut self) -> (BTreeMap<PointId, Reading>, usize) {
        let due = self.plan.due(u64::MAX).len();
        assert!(due > 0);
        let now = self.plan.next_due_ns().unwrap() + 500_000_000;
        self.cycle(now).await
    }
}

/// Ten words, five double words, far apart.
fn far_apart() -> Vec<Tag> {
    let words = (0..10).map(|n| tag(&format!("D{}", 1000 * n), DataType::U16, None));
    let doubles = (0..5).map(|n| tag(&format!("D{}", 30_000 + 1000 * n), DataType::U32, None));
    words.chain(doubles).collect()
}

fn all_good(readings: &BTreeMap<PointId, Reading>) {
    assert_eq!(readings.len(), 15);
    for (id, reading) in readings {
        let PointId::Tag(n) = id else {
            panic!("{id:?}")
        };
        let expected = match n {
            0..10 => 1000 * *n as i128,
            _ => {
                let low = 30_000 + 1000 * (*n as i128 - 10);
                low + ((low + 1) << 16)
            }
        };
        assert_eq!(reading.value, Some(Value::Int(expected)), "{id:?}");
        assert_eq!(reading.quality, Quality::Good);
    }
}

#[tokio::test]
async fn scattered_places_take_one_request_in_every_form() {
    for form in forms() {
        let mut scene = Scene::new(form, far_apart(), &[], None).await;
        let (readings, requests) = scene.cycle(FIRST_NS).await;
        all_good(&readings);
        assert_eq!(requests, 1, "{form:?}");
    }
}

#[tokio::test]
async fn a_device_that_knows_no_random_read_is_read_in_blocks_and_else_place_by_place() {
    let mut scene = Scene::new(TCP, far_apart(), &[RANDOM], None).await;
    let (readings, requests) = scene.cycle(FIRST_NS).await;
    all_good(&readings);
    assert_eq!(requests, 2);
    let (readings, requests) = scene.next_cycle().await;
    all_good(&readings);
    assert_eq!(requests, 1);

    let mut scene = Scene::new(TCP, far_apart(), &[RANDOM, BLOCKS], None).await;
    let (readings, requests) = scene.cycle(FIRST_NS).await;
    all_good(&readings);
    assert_eq!(requests, 2 + 15);
    let (readings, requests) = scene.next_cycle().await;
    all_good(&readings);
    assert_eq!(requests, 15);
    // A new connection may be to another device.
    scene.link.disconnect("a test");
    until_connected(&mut scene.link).await;
    let (_, first) = scene.next_cycle().await;
    let (_, second) = scene.next_cycle().await;
    assert!(first + second > 30, "it is tried again: {first}, {second}");
}

// covers: F049
#[tokio::test]
async fn a_place_that_is_not_there_costs_the_others_nothing() {
    let mut tags = far_apart();
    tags.push(tag("D50500", DataType::U16, None));
    let mut scene = Scene::new(TCP, tags, &[], Some(50_500)).await;
    let (mut readings, _) = scene.cycle(FIRST_NS).await;
    let bad = readings.remove(&PointId::Tag(15)).unwrap();
    assert_eq!((bad.value, bad.quality), (None, Quality::Bad));
    assert!(bad.reason.unwrap().contains("D50500"));
    all_good(&readings);
    assert_eq!(scene.plan.notes().len(), 1);
    // It is not asked for every time, and the others are a few requests, not fifteen.
    let (readings, requests) = scene.next_cycle().await;
    all_good(&readings);
    assert!(requests <= 5, "{requests}");
}

// covers: EVT-06, F051
#[tokio::test]
async fn a_group_in_one_request_is_of_one_moment_and_piece_by_piece_it_is_not() {
    let group = || {
        vec![
            tag("D0", DataType::U16, Some("batch")),
            tag("D5000", DataType::U32, Some("batch")),
            tag("D10000", DataType::U16, Some("batch")),
        ]
    };
    let mut scene = Scene::new(TCP, group(), &[], None).await;
    let (readings, requests) = scene.cycle(FIRST_NS).await;
    assert_eq!(requests, 1);
    assert!(readings.values().all(|r| r.quality == Quality::Good));
    let mut scene = Scene::new(TCP, group(), &[RANDOM, BLOCKS], None).await;
    let (readings, requests) = scene.cycle(FIRST_NS).await;
    assert_eq!((requests, readings.len()), (2 + 3, 3));
    assert!(readings.values().all(|r| r.quality == Quality::Uncertain));
}

#[tokio::test]
async fn the_cpu_says_what_it_is_or_that_is_not_known() {
    for form in forms() {
        let mut scene = Scene::new(form, Vec::new(), &[], None).await;
        let model = scene.link.ask_model().await.unwrap().unwrap();
        assert_eq!((model.name.as_str(), model.code), ("Q06UDVCPU", 0x0368));
        let mut scene = Scene::new(form, Vec::new(), &[0x0101], None).await;
        assert_eq!(scene.link.ask_model().await.unwrap(), None);
        assert!(scene.link.is_connected(), "a refusal is an answer");
    }
}
