//! Owns: what `holdfast check` makes of event sources, and what it refuses of them, where.
//! May call: the crate's config.
//! Never: need a device.

use super::common::{GATEWAY, MACHINE, load_bytes, refused, text};
use holdfast::core::spec::{DataType, EventKind};

/// The TOML blocks of a page, without their fences.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
}

// covers: CFG-01
#[test]
fn what_the_pages_show_is_accepted() {
    let page = include_str!("../../docs/interfaces.md");
    let machine = blocks(page)
        .find(|block| block.contains("[[event]]"))
        .unwrap();
    let config = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    let config = config.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let kinds: Vec<&str> = config.machines[0]
        .events
        .iter()
        .map(|event| event.kind.name())
        .collect();
    assert_eq!(kinds, ["on_change", "counter", "handshake", "ring"]);
    let page = include_str!("../../docs/sources.md");
    let sources: String = blocks(page).collect();
    let machine = format!("{MACHINE}{sources}");
    let config = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    let config = config.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    assert_eq!(config.machines[0].events.len(), 3);
}

const COUNTER: &str = "[[event]]\ntype = \"piece.good\"\nsource = \"counter\"\nread = \"holding:200\"\nclass = \"business\"\n";
const HANDSHAKE: &str = r#"[[event]]
type = "unit.done"
source = "handshake"
ready = "coil:20"
ack = "coil:21"
item = "holding:220"
data = [{ name = "good", read = "holding:222", type = "u16" }, { name = "weight", read = "holding:224", type = "f32", unit = "kg" }]
class = "business"
"#;
const RING: &str = r#"[[event]]
type = "log.entry"
source = "ring"
head = "holding:400"
base = "holding:402"
entries = 16
words = 8
"#;

// covers: CFG-01, EVT-03
#[test]
fn sources_at_the_machine_mean_what_they_say() {
    let machine = format!("{MACHINE}{COUNTER}{HANDSHAKE}{RING}");
    let config = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    let config = config.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let events = &config.machines[0].events;
    let EventKind::Counter(counter) = &events[0].kind else {
        panic!("{events:?}")
    };
    assert_eq!(
        (counter.at.data_type, counter.wraps_after, counter.max_step),
        (DataType::U16, 65_535, None)
    );
    assert!(
        config
            .warnings
            .iter()
            .any(|warning| warning.contains("no max_step")),
        "{:?}",
        config.warnings
    );
    let EventKind::Handshake(handshake) = &events[1].kind else {
        panic!("{events:?}")
    };
    assert_eq!(handshake.item.data_type, DataType::U32);
    assert_eq!(
        (handshake.numbering.first, handshake.numbering.last),
        (1, u32::MAX)
    );
    assert_eq!(handshake.data[1].unit.as_deref(), Some("kg"));
    let EventKind::Ring(ring) = &events[2].kind else {
        panic!("{events:?}")
    };
    assert_eq!((ring.entries, ring.words, ring.from_oldest), (16, 8, false));
    let decimal = COUNTER.to_owned()
        + "data_type = \"u32\"\nwraps_after = 9999\nmax_step = 100\nreset_to = 1\n";
    let machine = format!("{MACHINE}{decimal}");
    let config = load_bytes(GATEWAY.as_bytes(), machine.as_bytes()).unwrap();
    assert!(
        !config
            .warnings
            .iter()
            .any(|warning| warning.contains("no max_step"))
    );
}

// covers: CFG-01, EVT-06, OPS-04, AGT-01
#[test]
fn a_source_that_cannot_be_taken_safely_is_refused_where_it_stands() {
    let bad = |head: (&str, &str), source: &str, from: &str, to: &str, at: &str, says: &[&str]| {
        assert!(source.contains(from) && MACHINE.contains(head.0), "{from}");
        let machine = MACHINE.replacen(head.0, head.1, 1) + &source.replacen(from, to, 1);
        refused(GATEWAY, &machine, ("press-1.toml", at), says);
    };
    let as_is = ("schema = 1", "schema = 1");
    let class = "class = \"business\"";
    bad(
        as_is,
        COUNTER,
        class,
        "data_type = \"f32\"",
        "\"f32\"",
        &["a count", "\"u64\""],
    );
    bad(
        as_is,
        COUNTER,
        class,
        "max_step = 32768",
        "32768",
        &["an integer from 1 to 32767"],
    );
    bad(
        as_is,
        COUNTER,
        class,
        "wraps_after = 65536",
        "65536",
        &["65535"],
    );
    bad(
        as_is,
        COUNTER,
        class,
        "ack = \"coil:3\"",
        "ack",
        &["unknown key"],
    );
    bad(
        as_is,
        HANDSHAKE,
        "\"coil:21\"",
        "\"discrete:21\"",
        "\"discrete:21\"",
        &["as it is written"],
    );
    bad(
        as_is,
        HANDSHAKE,
        "\"coil:21\"",
        "\"coil:20\"",
        "\"coil:20\"\nitem",
        &["a place of its own", "ready bit"],
    );
    bad(
        as_is,
        HANDSHAKE,
        "\"holding:220\"",
        "{ read = \"holding:220\", type = \"i32\" }",
        "{ read = \"holding:220\"",
        &["u16 or u32"],
    );
    bad(
        as_is,
        HANDSHAKE,
        "\"holding:222\"",
        "\"holding:221\"",
        "\"holding:220\"",
        &["overlaps", "\"good\""],
    );
    bad(
        as_is,
        HANDSHAKE,
        class,
        "numbers_from = 77\nnumbers_to = 76",
        "76",
        &["an integer from 78"],
    );
    bad(
        as_is,
        RING,
        "words = 8",
        "words = 126",
        "126",
        &["an integer from 2 to 125"],
    );
    bad(
        as_is,
        RING,
        "\"holding:402\"",
        "\"holding:65500\"",
        "\"holding:65500\"",
        &["room for 16 entries"],
    );
    bad(
        as_is,
        RING,
        "\"holding:402\"",
        "\"holding:401\"",
        "\"holding:401\"",
        &["overlaps", "the head"],
    );
    bad(
        as_is,
        RING,
        "words = 8",
        "words = 8\ndata = [{ name = \"a\", word = 7, type = \"u32\" }]",
        "7, type",
        &["room for its 2 registers"],
    );
    // An acknowledgement is a write: where none may be made, none is promised.
    bad(
        ("schema = 1", "schema = 1\nread_only = true"),
        HANDSHAKE,
        class,
        class,
        "\"handshake\"",
        &["read_only", "an acknowledgement is a write"],
    );
    bad(
        ("schema = 1", "schema = 1\nowner = \"gw-2\""),
        HANDSHAKE,
        class,
        class,
        "\"handshake\"",
        &["gw-2", "take these events at the owner"],
    );
    // Whoever writes the acknowledgement could take an item that is not durable.
    let write = "write = \"holding:100\"\nargs = { speed = { type = \"u16\", unit = \"rpm\", min = 0, max = 3000 } }";
    let coil = "write = \"coil:21\"\nargs = { bit = { type = \"bool\" } }";
    bad(
        (write, coil),
        HANDSHAKE,
        class,
        class,
        "\"coil:21\"",
        &["argument", "the ack of event", "not durable"],
    );
    let two = HANDSHAKE.to_owned()
        + &HANDSHAKE
            .replace("unit.done", "unit.two")
            .replace("holding:22", "holding:24")
            .replace("coil:20", "coil:22");
    let machine = MACHINE.to_owned() + &two;
    let problems = load_bytes(GATEWAY.as_bytes(), machine.as_bytes()).unwrap_err();
    assert!(
        text(&problems).contains("the ack of event \"unit.two\" on coil:21"),
        "{}",
        text(&problems)
    );
}
