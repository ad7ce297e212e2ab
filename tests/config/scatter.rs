//! Owns: commands whose arguments are written to places of their own: what is read of them, and what is refused.
//! May call: the crate's config.
//! Never: accept what one frame cannot write.

use crate::common::{GATEWAY, load_bytes, refused, text};
use holdfast::config::GatewayConfig;
use holdfast::core::spec::{Action, Completion, DataType, Verify, WordOrder};

const ETHERNET: &str = "protocol = \"mc-4e\"\naddress = \"192.0.2.1:5007\"\nfamily = \"q\"\n";
const HEAD: &str =
    "[gate]\nconfig_version = \"D120\"\n[[command]]\nname = \"load\"\nclass = \"absolute_set\"\n";
const ARGS: &str = r#"
[command.args]
speed = { type = "u16", unit = "rpm", max = 3000, write = "D130" }
length = { type = "u32", write = "D1500" }
name = { type = "string(8)", write = "W1F" }
"#;

fn serial(protocol: &str, format: u8) -> String {
    let format = format!("format = {format}\n");
    format!(
        "protocol = \"{protocol}\"\nserial = \"/dev/serial/by-id/a\"\nbaud = 19200\nparity = \"even\"\n\
         family = \"q\"\n{format}"
    )
}

fn machine(link: &str, rest: &str) -> String {
    format!("schema = 1\nname = \"press-1\"\n[link]\n{link}{HEAD}{rest}")
}

fn accepted(link: &str, rest: &str) -> GatewayConfig {
    let machine = machine(link, rest);
    let loaded = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)))
}

fn is_refused(link: &str, rest: &str, at: &str, says: &[&str]) {
    let machine = machine(link, rest);
    refused(GATEWAY, &machine, ("press-1.toml", at), says);
    let problems = load_bytes(GATEWAY.as_bytes(), machine.as_bytes()).unwrap_err();
    assert_eq!(
        problems.len(),
        1,
        "one mistake, one message: {}",
        text(&problems)
    );
}

// covers: CFG-01, POL-11
#[test]
fn arguments_with_places_of_their_own_are_one_write() {
    let links = [
        ETHERNET.to_owned(),
        ETHERNET.replace("mc-4e", "mc-3e"),
        ETHERNET.replace("family", "code = \"ascii\"\nfamily"),
        serial("mc-4c", 5),
        serial("mc-3c", 1),
    ];
    for link in links {
        let loaded = accepted(&link, ARGS);
        let row = loaded.machines[0].row("load").unwrap();
        let Action::Scatter { places, request_id } = &row.action else {
            panic!("{:?}", row.action);
        };
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["D130", "D1500", "W1F"], "{link}");
        assert_eq!(*request_id, None);
        // What holds for a write from one place on holds for this one.
        assert_eq!(
            (&row.completion, row.verify),
            (&Completion::Reply, Verify::Readback)
        );
        let written = row.written().unwrap();
        let kinds = written.iter().map(|at| at.data_type).collect::<Vec<_>>();
        assert_eq!(kinds, [DataType::U16, DataType::U32, DataType::Text(8)]);
        assert_eq!(written[1].word_order, WordOrder::LowFirst);
    }
    let with_id = format!(
        "request_id = \"D300\"\ncompletion = \"event\"\ndone = {{ id = \"D510\" }}\n{ARGS}"
    );
    let loaded = accepted(ETHERNET, &with_id);
    let row = loaded.machines[0].row("load").unwrap();
    let Action::Scatter { request_id, .. } = &row.action else {
        panic!("{:?}", row.action);
    };
    assert_eq!(request_id.map(|at| at.to_string()).as_deref(), Some("D300"));
    assert_eq!(row.verify, Verify::Event);
    let bits = "args = { one = { type = \"bool\", write = \"M5\" }, two = { type = \"bool\", write = \"Y2F\" } }\n";
    let loaded = accepted(ETHERNET, bits);
    let action = &loaded.machines[0].row("load").unwrap().action;
    assert!(matches!(action, Action::Scatter { places, .. } if places.len() == 2));
}

// covers: CFG-01
#[test]
fn what_the_page_shows_is_accepted() {
    let page = include_str!("../../docs/interfaces.md");
    let shown = page
        .split("```toml\n")
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains("[command.args]"));
    let (head, command) = (HEAD.split("[[command]]").next().unwrap(), shown.unwrap());
    let machine = format!("schema = 1\nname = \"press-1\"\n[link]\n{ETHERNET}{head}{command}");
    let loaded = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let row = loaded.machines[0].row("load_recipe").unwrap();
    assert!(row.action.writes_request_id());
    assert_eq!(row.verify, Verify::Event);
}

// covers: CFG-01, POL-11
#[test]
fn what_a_protocol_has_no_frame_for_is_refused() {
    let says = [
        "no write in an argument",
        "no request of this protocol",
        "give the command itself a write",
    ];
    for link in [serial("mc-2c", 1), serial("mc-1c", 1)] {
        is_refused(&link, ARGS, "\"D130\"", &says);
    }
    let modbus = |protocol: &str, way: &str| {
        let link = format!("protocol = \"{protocol}\"\n{way}\nunit = 1\n");
        let args = "args = { speed = { type = \"u16\", write = \"holding:130\" } }\n";
        let machine = machine(&link, args).replace("\"D120\"", "\"holding:120\"");
        refused(
            GATEWAY,
            &machine,
            ("press-1.toml", "\"holding:130\""),
            &says,
        );
    };
    modbus("modbus-tcp", "address = \"192.0.2.1:502\"");
    modbus(
        "modbus-rtu",
        "serial = \"/dev/serial/by-id/a\"\nbaud = 9600\nparity = \"even\"",
    );
    modbus("modbus-rtu-over-tcp", "address = \"192.0.2.1:502\"");
}

// covers: CFG-01, POL-11
#[test]
fn what_one_frame_does_not_write_is_refused_with_the_arguments_it_is_about() {
    let refuse = |rest: &str, at: &str, says: &[&str]| is_refused(ETHERNET, rest, at, says);
    let two = |one: &str, other: &str| format!("args = {{ a = {{ {one} }}, b = {{ {other} }} }}\n");
    refuse(
        &two(
            "type = \"u16\", write = \"D1\"",
            "type = \"bool\", write = \"M9\"",
        ),
        "\"D1\"",
        &[
            "bits for argument \"b\"",
            "words for argument \"a\"",
            "no frame writes both",
            "add [mailbox]",
        ],
    );
    refuse(
        &two("type = \"u16\", write = \"D1\"", "type = \"u16\""),
        "\"D1\"",
        &["none in \"b\"", "each of the command's arguments"],
    );
    refuse(
        &two(
            "type = \"u32\", write = \"D1\"",
            "type = \"u16\", write = \"D2\"",
        ),
        "\"D2\"",
        &["argument \"b\" on D2", "argument \"a\" writes too"],
    );
    refuse(
        &two(
            "type = \"u16\", write = \"D1\"",
            "type = \"u16\", write = \"D1\" ",
        ),
        "\"D1\"  }",
        &["writes too"],
    );
    refuse(
        &two(
            "type = \"u16\", write = \"D1\"",
            "type = \"u16\", write = \"M9\"",
        ),
        "\"M9\"",
        &["type \"bool\""],
    );
    refuse(
        &two(
            "type = \"bool\", write = \"M1\"",
            "type = \"bool\", write = \"TC9\"",
        ),
        "\"M1\"",
        &["TC among places apart", "timer or counter"],
    );
    refuse(
        &format!("write = \"D7\"\n{ARGS}"),
        "\"D7\"",
        &["nothing beside arguments", "or write from the arguments"],
    );
    refuse(
        &format!("request_id = \"append\"\n{ARGS}"),
        "\"append\"",
        &["a place for it", "no end"],
    );
    refuse(
        &format!("request_id = \"D131\"\n{ARGS}").replace(
            "length = { type = \"u32\", write = \"D1500\" }",
            "length = { type = \"u16\", write = \"D132\" }",
        ),
        "\"D131\"",
        &["the request id", "argument \"length\" writes too"],
    );
    refuse(
        &two(
            "type = \"u16\", write = \"D1\"",
            "type = \"u16\", write = \"D120\"",
        )
        .replace("\"u16\", write = \"D120\"", "\"u32\", write = \"D119\""),
        "\"D119\"",
        &["overlaps"],
    );
}

/// So many arguments of one type, a hundred places from each other.
fn many(count: usize, data_type: &str, device: &str) -> String {
    let args = (0..count).map(|n| {
        format!(
            "a{n} = {{ type = \"{data_type}\", write = \"{device}{}\" }}\n",
            1000 + 100 * n
        )
    });
    format!("[command.args]\n{}", args.collect::<String>())
}

// covers: CFG-01, POL-11
#[test]
fn the_limits_of_one_frame_are_held_before_anything_is_sent() {
    let ascii = ETHERNET.replace("family", "code = \"ascii\"\nfamily");
    for (link, most, data_type, device, says) in [
        (
            ETHERNET,
            160,
            "u16",
            "D",
            "161 words to write to 161 places",
        ),
        (
            ETHERNET,
            137,
            "u32",
            "D",
            "276 words to write to 138 places",
        ),
        (ETHERNET, 188, "bool", "M", "189 bits to write"),
        (&ascii, 80, "u16", "D", "81 words to write"),
        // In blocks, of which there may be so many.
        (&ascii, 60, "u32", "D", "122 words to write"),
        (&ascii, 94, "bool", "M", "95 bits to write"),
    ] {
        accepted(link, &many(most, data_type, device));
        let first = format!("\"{device}1000\"");
        is_refused(
            link,
            &many(most + 1, data_type, device),
            &first,
            &[says, "one write frame"],
        );
    }
}

// covers: CFG-01
#[test]
fn only_what_writes_has_arguments_with_places() {
    let refuse = |class: &str, rest: &str, at: &str, says: &[&str]| {
        let machine = machine(ETHERNET, rest).replace("absolute_set", class);
        refused(GATEWAY, &machine, ("press-1.toml", at), says);
    };
    let args = "args = { a = { type = \"u16\", write = \"D1\" } }\n";
    refuse("query", args, "\"D1\"", &["no args: a query reads"]);
    refuse(
        "mode_change",
        &format!("remote = \"run\"\n{args}"),
        "\"run\"",
        &["nothing beside arguments"],
    );
    refuse(
        "relative_action",
        &format!("mailbox = {{ opcode = 3 }}\n{args}"),
        "{ opcode",
        &["nothing beside arguments"],
    );
}
