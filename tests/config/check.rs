//! Owns: what `holdfast check` refuses, and what it says: file, line, column, what to do.
//! May call: the crate's config.
//! Never: need a device.

use super::common::{GATEWAY, MACHINE, load_bytes, place, refused, text};
use holdfast::board::BUILT_IN;
use holdfast::config::{GatewayConfig, Role, SinkKind, Who, load};
use holdfast::config::{JOURNAL_BYTES_MIN, RECONNECT_MS_MAX_DEFAULT};
use holdfast::core::c24::{C24Format, C24Frame, C24Route};
use holdfast::core::melsec::{Code, Frame, Remote, Route, Transport};
use holdfast::core::spec::{Action, Completion, DataType, LinkSpec, Origin, Verify, WordOrder};
use holdfast::journal::BUDGET_BYTES_MIN;
use std::fs;
use std::path::Path;

fn machine_refused(from: &str, to: &str, at: &str, says: &[&str]) {
    assert!(MACHINE.contains(from), "{from}");
    let machine = MACHINE.replacen(from, to, 1);
    refused(GATEWAY, &machine, ("press-1.toml", at), says);
}

fn gateway_refused(from: &str, to: &str, at: &str, says: &[&str]) {
    assert!(GATEWAY.contains(from), "{from}");
    let gateway = GATEWAY.replacen(from, to, 1);
    refused(&gateway, MACHINE, ("holdfast.toml", at), says);
}

fn machine_accepted(from: &str, to: &str) -> GatewayConfig {
    assert!(MACHINE.contains(from), "{from}");
    let machine = MACHINE.replacen(from, to, 1);
    let loaded = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)))
}

// covers: CFG-01
#[test]
fn the_examples_load_and_say_what_they_mean() {
    let example = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("config")
            .join(name);
        load(&path, Path::new("/nonexistent")).unwrap_or_else(|p| panic!("{}", text(&p)))
    };
    let full = example("holdfast.toml");
    assert_eq!(full.gateway, "gw-line3");
    assert_eq!(full.journal_budget_bytes, 512 << 20);
    assert_eq!(full.replay_window_ms, 24 * 3_600_000);
    assert_eq!(full.recovery_machine_milli_per_s, 5_000);
    assert_eq!(full.roles[0].who, Who::Group("holdfast-operators".into()));
    assert_eq!(full.roles[0].role, Role::Operator);
    let SinkKind::File {
        path, files_max, ..
    } = &full.sinks[0].kind
    else {
        panic!("{:?}", full.sinks[0]);
    };
    assert_eq!(
        (path.to_str().unwrap(), *files_max),
        ("/var/lib/holdfast/events", None)
    );
    let start = full.machines[0].row("start_cycle").unwrap();
    assert!(matches!(start.completion, Completion::Event(_)));
    assert_eq!(start.verify, Verify::Event);

    let minimal = example("minimal.toml");
    assert_eq!(minimal.machines[0].owner, "gw-1");
    assert_eq!(minimal.machines[0].tags[0].poll_ms, 1_000);
    assert!(minimal.roles.is_empty());
}

// covers: CFG-01
#[test]
fn every_generic_board_profile_is_valid_and_can_be_overridden() {
    for (name, profile) in BUILT_IN.iter().filter(|b| b.0.starts_with("generic-")) {
        let gateway = GATEWAY.replace("generic-x86_64", name);
        let config = load_bytes(gateway.as_bytes(), MACHINE.as_bytes());
        let board = config.unwrap_or_else(|p| panic!("{}", text(&p))).board;
        assert_eq!((board.name.as_str(), board.serial.len()), (*name, 2));
        assert_eq!(board.battery_clock, board.arch == "x86_64", "{profile}");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("holdfast.toml"), GATEWAY).unwrap();
    fs::write(dir.path().join("press-1.toml"), MACHINE).unwrap();
    let override_file = dir.path().join("generic-x86_64.toml");
    let no_battery = BUILT_IN[0]
        .1
        .replace("battery_clock = true", "battery_clock = false");
    fs::write(&override_file, no_battery).unwrap();
    let config = load(&dir.path().join("holdfast.toml"), dir.path()).unwrap();
    assert!(!config.board.battery_clock);
    fs::write(
        &override_file,
        "schema = 1\nname = \"generic-x86_64\"\narch = \"x86\"\nbattery_clock = true\n",
    )
    .unwrap();
    let problems = load(&dir.path().join("holdfast.toml"), dir.path()).unwrap_err();
    assert_eq!(
        (problems[0].line, problems[0].column),
        (3, 8),
        "{}",
        text(&problems)
    );
    assert!(problems[0].to_string().contains("did you mean \"x86_64\"?"));
    gateway_refused(
        "generic-x86_64",
        "generic-x86",
        "\"generic-x86\"",
        &["did you mean \"generic-x86_64\"?"],
    );
}

// covers: CFG-01, F137
#[test]
fn types_are_exact_and_keys_are_known() {
    machine_refused(
        "unit = 1",
        "unit = \"1\"",
        "\"1\"",
        &[
            "the string \"1\"",
            "from 0 to 255",
            "write 1, without quotes",
        ],
    );
    machine_refused(
        "unit = 1",
        "unit = 256",
        "256",
        &["an integer from 0 to 255"],
    );
    machine_refused(
        "equals = true }",
        "equals = 1 }",
        "1 }]",
        &["true or false", "write true"],
    );
    machine_refused(
        "equals = true }",
        "equals = \"on\" }",
        "\"on\"",
        &["true or false"],
    );
    machine_refused(
        "equals = 4711",
        "equals = 70000",
        "70000",
        &["from 0 to 65535", "type = \"u32\""],
    );
    machine_refused(
        "queueable = true",
        "queueable = \"yes\"",
        "\"yes\"",
        &["write true, without quotes"],
    );
    machine_refused(
        "queueable = true",
        "queueable = yes",
        "yes",
        &["valid TOML"],
    );
    machine_refused(
        "poll = \"500ms\"",
        "pol = \"500ms\"",
        "pol =",
        &["the unknown key \"pol\"", "did you mean \"poll\"?"],
    );
    machine_refused("[gate]", "[gates]", "gates", &["did you mean \"gate\"?"]);
    machine_refused(
        "poll = \"500ms\"",
        "poll = 500",
        "500\n[[command",
        &["a duration", "\"500s\" or \"500ms\""],
    );
    machine_refused(
        "poll = \"500ms\"",
        "poll = \"500 milli\"",
        "\"500 milli\"",
        &["write it as \"500ms\""],
    );
    machine_refused(
        "poll = \"500ms\"",
        "poll = \"1ms\"",
        "\"1ms\"",
        &["from 10ms to 1d"],
    );
    machine_refused(
        "name = \"speed\"",
        "name = 1e5",
        "1e5",
        &["the float 1e5", "a string in quotes"],
    );
    machine_refused("name = \"speed\"", "name = null", "null", &["valid TOML"]);
    machine_refused(
        "class = \"query\"",
        "class = \"querry\"",
        "\"querry\"",
        &["did you mean \"query\"?"],
    );
    machine_refused("schema = 1", "schema = 2", "2", &["write schema = 1"]);
    machine_refused(
        "unit = 1\n",
        "",
        "[link]",
        &["link.unit", "found nothing", "add unit = "],
    );
    // In TOML a name in quotes is text, whatever it looks like.
    for name in ["NO", "1e5", "null"] {
        let config = machine_accepted("name = \"speed\"", &format!("name = {name:?}"));
        assert_eq!(config.machines[0].tags[0].name, name);
    }
}

// covers: F137, CFG-01
#[test]
fn a_key_given_twice_is_refused() {
    machine_refused(
        "unit = 1\n",
        "unit = 1\nunit = 2\n",
        "unit = 2",
        &["duplicate key", "remove one of the two"],
    );
    let machine = MACHINE.to_owned() + "[gate]\nmax_age = \"1s\"\n";
    let problems = load_bytes(GATEWAY.as_bytes(), machine.as_bytes()).unwrap_err();
    assert_eq!(
        problems[0].line,
        MACHINE.lines().count() + 1,
        "{}",
        text(&problems)
    );
    assert!(problems[0].to_string().contains("duplicate key"));
}

// covers: F135
#[test]
fn only_utf8_is_read_and_the_other_encoding_is_named() {
    let ok = |machine: &[u8]| load_bytes(GATEWAY.as_bytes(), machine).is_ok();
    assert!(ok(format!("\u{feff}{MACHINE}").as_bytes()));
    assert!(ok(MACHINE.replace('\n', "\r\n").as_bytes()));
    assert!(ok(MACHINE.replace("unit = 1", "\tunit\t= 1").as_bytes()));
    assert!(ok(MACHINE.replace("\"speed\"", "\"速度\"").as_bytes()));

    let first = |machine: &[u8]| {
        load_bytes(GATEWAY.as_bytes(), machine)
            .unwrap_err()
            .remove(0)
    };
    let wide = |to_bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        MACHINE.encode_utf16().flat_map(to_bytes).collect()
    };
    for (bytes, name) in [
        (
            [&[0xFF, 0xFE][..], &wide(u16::to_le_bytes)].concat(),
            "UTF-16LE",
        ),
        (wide(u16::to_le_bytes), "UTF-16LE"),
        (
            [&[0xFE, 0xFF][..], &wide(u16::to_be_bytes)].concat(),
            "UTF-16BE",
        ),
        (wide(u16::to_be_bytes), "UTF-16BE"),
    ] {
        let problem = first(&bytes).to_string();
        assert!(
            problem.contains(name) && problem.contains("press-1.toml:1:1"),
            "{problem}"
        );
        assert!(problem.contains("save it again as UTF-8"), "{problem}");
    }

    let (line, column) = place(MACHINE, "speed\"");
    let with_bytes = |name: &[u8]| {
        let (before, after) = MACHINE.split_once("speed").unwrap();
        [before.as_bytes(), name, after.as_bytes()].concat()
    };
    // 温度 in CP932 and in GBK, and a lone byte of Latin-1 before a quote.
    for (bytes, name) in [
        (&[0x89, 0xB7, 0x93, 0x78][..], "CP932"),
        (&[0xCE, 0xC2, 0xB6, 0xC8], "GBK"),
        (&[0xE4], "no UTF-8"),
    ] {
        let problem = first(&with_bytes(bytes));
        assert_eq!((problem.line, problem.column), (line, column), "{problem}");
        let shown = problem.to_string();
        assert!(
            shown.contains(name) && shown.contains("save it again as UTF-8"),
            "{shown}"
        );
    }

    let problem = first(format!("{MACHINE}\0\0").as_bytes());
    assert_eq!(
        (problem.line, problem.column),
        (MACHINE.lines().count() + 1, 1)
    );
    assert!(problem.to_string().contains("a NUL character"), "{problem}");
}

// covers: CFG-01
#[test]
fn addresses_that_cannot_be_are_refused() {
    machine_refused(
        "\"holding:100\"\ntype",
        "\"holding:65536\"\ntype",
        "\"holding:65536\"",
        &["from 0 to 65535"],
    );
    machine_refused(
        "\"holding:100\"\ntype = \"u16\"",
        "\"holding:65535\"\ntype = \"u32\"",
        "\"holding:65535\"",
        &["at most 65534", "u32 takes 2 registers"],
    );
    machine_refused(
        "\"holding:100\"\ntype",
        "\"coil:100\"\ntype",
        "\"u16\"\npoll",
        &["coil holds single bits", "type = \"bool\""],
    );
    machine_refused(
        "\"holding:100\"\ntype",
        "\"holdings:100\"\ntype",
        "\"holdings:100\"",
        &["did you mean \"holding:100\"?"],
    );
    machine_refused(
        "\"holding:100\"\ntype",
        "\"40101\"\ntype",
        "\"40101\"",
        &["the manual's 40101 is \"holding:100\" here"],
    );
    machine_refused(
        "write = \"holding:100\"",
        "write = \"input:100\"",
        "\"input:100\"",
        &["cannot write"],
    );
    machine_refused(
        "127.0.0.1:1502",
        "127.0.0.1",
        "\"127.0.0.1\"",
        &["host and port", "127.0.0.1:502"],
    );
    machine_refused(
        "type = \"u16\"\npoll",
        "type = \"string(300)\"\npoll",
        "\"string(300)\"",
        &["string(250)"],
    );
    machine_refused(
        "status = \"holding:340\"",
        "status = \"holding:310\"",
        "[mailbox]",
        &["a command block on holding:300-318", "two blocks apart"],
    );
    machine_refused(
        "status = \"holding:340\"",
        "status = \"coil:340\"",
        "\"coil:340\"",
        &["a holding or input register"],
    );
}

// covers: CFG-01
#[test]
fn registers_read_as_two_things_are_refused() {
    let second =
        "poll = \"500ms\"\n[[tag]]\nname = \"other\"\nread = \"holding:99\"\ntype = \"u32\"\n";
    machine_refused(
        "poll = \"500ms\"\n",
        second,
        "\"holding:99\"",
        &[
            "tag \"other\" as u32 on holding:99-100",
            "overlaps tag \"speed\" as u16 on holding:100",
        ],
    );
    machine_refused(
        "type = \"u16\"\npoll",
        "type = \"i16\"\npoll",
        "\"holding:100\"\nargs",
        &["argument \"speed\" as u16", "tag \"speed\" as i16"],
    );
    machine_refused(
        "\"holding:100\"\ntype = \"u16\"",
        "\"holding:345\"\ntype = \"f32\"",
        "\"holding:345\"",
        &["inside the mailbox's status block on holding:340-372"],
    );
    machine_refused(
        "write = \"holding:100\"",
        "write = \"holding:303\"",
        "\"holding:303\"",
        &["inside the mailbox's command block"],
    );
    // What the gateway itself writes there is no event of the machine's; that it is shown is no harm.
    for (place, block) in [("holding:302", "command"), ("holding:345", "status")] {
        let source = format!(
            "[[event]]\ntype = \"own\"\nsource = \"on_change\"\nread = \"{place}\"\ndata_type = \"u16\"\n[mailbox]\n"
        );
        let found = format!("event \"own\" as u16 on {place}, inside the mailbox's {block} block");
        let says = [found.as_str(), "no [[event]] source"];
        machine_refused("[mailbox]\n", &source, &format!("\"{place}\""), &says);
        let shown = source
            .replace("[[event]]\ntype", "[[tag]]\nname")
            .replace("source = \"on_change\"\n", "")
            .replace("data_type", "type");
        machine_accepted("[mailbox]\n", &shown);
    }
    // The same register twice, as the same thing, is no contradiction.
    machine_accepted(
        "poll = \"500ms\"\n",
        &second
            .replace("holding:99", "holding:100")
            .replace("u32", "u16"),
    );
}

// covers: CFG-01
#[test]
fn argument_ranges_must_fit_their_type() {
    machine_refused(
        "max = 3000",
        "max = 70000",
        "70000",
        &["inside u16: 0 to 65535"],
    );
    machine_refused(
        "min = 0",
        "min = 4000",
        "3000",
        &["at least min, which is 4000"],
    );
    machine_refused(
        "max = 3000",
        "max = 3000, default = 5000",
        "5000",
        &["from 0 to 3000 rpm"],
    );
    machine_refused(
        "max = 3000",
        "max = \"3000\"",
        "\"3000\"",
        &["write 3000, without quotes"],
    );
    machine_refused(
        "max = 3000",
        "max = 3000, secret = true, default = 1",
        "1 } }",
        &["no secret in this file"],
    );
}

// covers: CFG-01
#[test]
fn names_are_given_once() {
    machine_refused(
        "name = \"eject_one\"",
        "name = \"set_speed\"",
        "\"set_speed\"\nclass = \"rel",
        &["a name that is not used above"],
    );
    let second = "poll = \"500ms\"\n[[tag]]\nname = \"speed\"\nread = \"holding:100\"\n";
    machine_refused(
        "poll = \"500ms\"\n",
        second,
        "\"speed\"\nread = \"holding:100\"\n[[c",
        &["a name that is not used above"],
    );
    gateway_refused(
        "path = \"/var/lib/holdfast/events\"\n",
        "path = \"/var/lib/holdfast/events\"\n[[sink]]\nname =\"local\"\nkind = \"file\"\npath = \"/srv/events\"\n",
        "\"local\"\nkind = \"file\"\npath = \"/srv",
        &["a name that is not used above"],
    );
    gateway_refused(
        "[\"press-1.toml\"]",
        "[\"press-1.toml\", \"./press-1.toml\"]",
        "\"./press-1.toml\"",
        &["a second machine named \"press-1\"", "change name in"],
    );
    gateway_refused(
        "[\"press-1.toml\"]",
        "[\"press-2.toml\"]",
        "\"press-2.toml\"",
        &["a file that exists"],
    );
}

// covers: CFG-01
#[test]
fn a_machine_and_its_gateway_have_two_names() {
    gateway_refused(
        "\"gw-line3\"",
        "\"press-1\"",
        "\"press-1.toml\"",
        &["like the gateway", "keys must not meet"],
    );
}

// covers: POL-03
#[test]
fn a_safety_function_is_refused() {
    machine_refused(
        "mailbox = { opcode = 3 }",
        "mailbox = { opcode = 3 }\nsafety = true",
        "true\n[[command]]\nname = \"read",
        &["the machine's own safety system", "remove this command"],
    );
    machine_accepted(
        "mailbox = { opcode = 3 }",
        "mailbox = { opcode = 3 }\nsafety = false",
    );
}

// covers: POL-02
#[test]
fn what_may_wait_follows_the_class() {
    let eject = "mailbox = { opcode = 3 }";
    for class in ["relative_action", "mode_change"] {
        let machine = MACHINE
            .replace("class = \"relative_action\"", &format!("class = {class:?}"))
            .replace(
                eject,
                "mailbox = { opcode = 3 }\nqueueable =true\ni_accept = \"whatever\"",
            );
        refused(
            GATEWAY,
            &machine,
            ("press-1.toml", "true\ni_accept"),
            &["it never waits", class],
        );
    }
    machine_refused(
        "precondition = \"config_version\"\n",
        "",
        "true\nttl",
        &[
            "queueable = true without precondition",
            "add precondition = \"config_version\"",
        ],
    );
    machine_refused(
        "ttl = \"10s\"\n",
        "",
        "true\nprecondition",
        &["queueable = true without ttl", "add ttl = "],
    );
    machine_refused(
        "config_version = \"holding:120\"\n",
        "",
        "\"config_version\"",
        &["add config_version = \"holding:…\" to [gate]"],
    );
    machine_refused(
        "ttl = \"10s\"",
        "ttl = \"25h\"",
        "\"25h\"",
        &["a duration from 1ms to 1d"],
    );
    machine_refused(
        "ttl = \"10s\"",
        "ttl = \"0s\"",
        "\"0s\"",
        &["a duration from 1ms to 1d"],
    );
    machine_refused(
        eject,
        "mailbox = { opcode = 3 }\nreplace = \"same_operator\"",
        "\"same_operator\"",
        &["never gives way"],
    );
    machine_refused(
        eject,
        "mailbox = { opcode = 3 }\nduplicates = \"merge\"\nmerge = \"latest\"",
        "\"merge\"",
        &["never gives way"],
    );
    machine_refused(
        "queueable = true",
        "queueable = true\nduplicates = \"merge\"",
        "\"merge\"",
        &["add merge = \"latest\""],
    );
    machine_refused(
        "queueable = true",
        "queueable = true\nmax_queued = 0",
        "0\nttl",
        &["from 1 to 1000"],
    );
    machine_refused(
        "read = \"holding:5160\"",
        "read = \"holding:5160\"\nmax_queued = 2",
        "2\n[mailbox",
        &["from 1 to 1"],
    );
    let merged = machine_accepted(
        "queueable = true",
        "queueable = true\nduplicates = \"merge\"\nmerge = \"latest\"",
    );
    assert!(merged.machines[0].row("set_speed").unwrap().merge_latest);
}

// covers: POL-01, POL-10
#[test]
fn a_row_laxer_than_its_class_must_name_its_justification() {
    let eject = "mailbox = { opcode = 3 }";
    let by_reply =
        "write = \"holding:500\"\nargs = { n = { type = \"u16\" } }\ncompletion = \"reply\"";
    machine_refused(
        eject,
        by_reply,
        "\"reply\"",
        &[
            "laxer than the class relative_action",
            "the device took it, not that it did it",
            "add i_accept",
        ],
    );
    let accepted = machine_accepted(
        eject,
        &format!("{by_reply}\ni_accept = \"FX5 manual 4.2: the write is the stroke\""),
    );
    let row = accepted.machines[0].row("eject_one").unwrap();
    assert_eq!(row.completion, Completion::Reply);
    assert!(row.i_accept.as_deref().unwrap().contains("FX5"));
    machine_refused(
        "queueable = true",
        "queueable = true\ninterlocks = []",
        "[]",
        &["every interlock of [gate]", "add i_accept"],
    );
    machine_refused(
        "queueable = true",
        "queueable = true\ninterlocks = [\"door close\"]",
        "\"door close\"",
        &["did you mean \"door closed\"?"],
    );
    machine_refused(
        eject,
        "mailbox = { opcode = 3 }\nttl = \"10min\"",
        "\"10min\"",
        &["at most 5min", "add i_accept"],
    );
    let idle = machine_accepted(
        "queueable = true",
        "queueable = true\ni_accept = \"just in case\"",
    );
    assert!(
        idle.warnings
            .iter()
            .any(|w| w.contains("justifies nothing")),
        "{:?}",
        idle.warnings
    );
}

// covers: POL-10
#[test]
fn without_a_contract_an_acceptance_is_not_a_completion() {
    let eject = "mailbox = { opcode = 3 }";
    let plain = machine_accepted(
        eject,
        "write = \"holding:500\"\nargs = { n = { type = \"u16\" } }",
    );
    let row = plain.machines[0].row("eject_one").unwrap();
    assert_eq!(row.completion, Completion::None);
    assert_eq!(
        plain.machines[0].row("set_speed").unwrap().completion,
        Completion::Reply
    );
    let event =
        "write = \"holding:500\"\nargs = { n = { type = \"u16\" } }\ncompletion = \"event\"";
    machine_refused(eject, event, "\"event\"", &["add request_id = \"append\""]);
    machine_refused(eject, event, "\"event\"", &["add done = { id = "]);
    machine_refused(
        eject,
        "mailbox = { opcode = 3 }\ncompletion = \"reply\"",
        "\"reply\"",
        &["as the command goes there"],
    );
    machine_refused(
        "queueable = true",
        "queueable = true\nverify = \"mailbox\"",
        "\"mailbox\"",
        &["a command that goes to the mailbox"],
    );
    machine_refused(
        "queueable = true",
        "queueable = true\ndevice_contract = \"mailbox\"",
        "\"mailbox\"",
        &["only that knows request ids"],
    );
}

// covers: POL-11
#[test]
fn what_needs_more_than_one_frame_goes_through_the_mailbox() {
    let args = "args = { speed = { type = \"u16\", unit = \"rpm\", min = 0, max = 3000 } }";
    machine_refused(
        args,
        "args = { a = { type = \"string(246)\" }, b = { type = \"u16\" } }",
        "\"holding:100\"\nargs",
        &["124 words to write", "at most 123", "mailbox = { opcode = "],
    );
    let machine = MACHINE
        .replace("write = \"holding:100\"", "write = \"coil:100\"")
        .replace(
            args,
            "args = { on = { type = \"bool\" }, speed = { type = \"u16\" } }",
        );
    refused(
        GATEWAY,
        &machine,
        ("press-1.toml", "\"coil:100\""),
        &[
            "coils and registers in one command",
            "half of two could be applied",
        ],
    );
    let eject = "mailbox = { opcode = 3 }";
    let wide = "mailbox = { opcode = 3 }\nargs = { a = { type = \"f64\" }, b = { type = \"f64\" }, c = { type = \"u16\" } }";
    machine_refused(
        eject,
        wide,
        "{ opcode = 3 }",
        &["9 parameter words", "at most 8"],
    );
    let blocks = "[mailbox]\ncommand = \"holding:300\"\nstatus = \"holding:340\"\n";
    machine_refused(
        blocks,
        "",
        "{ opcode = 3 }",
        &["a mailbox command without a mailbox", "add [mailbox]"],
    );
    machine_refused(
        eject,
        "mailbox = { opcode = 0 }",
        "0 }\n[[command",
        &["from 1 to 65535"],
    );
}

// covers: CFG-01
#[test]
fn a_query_states_the_type_that_it_reads_or_takes_the_tags() {
    let query = "read = \"holding:5160\"\n";
    let read = |config: &GatewayConfig| {
        let Action::Read { points } = &config.machines[0].row("read_status").unwrap().action else {
            panic!("no read")
        };
        (points[0].1.data_type, points[0].1.word_order)
    };
    let (u16, f32) = (DataType::U16, DataType::F32);
    let (high, low) = (WordOrder::HighFirst, WordOrder::LowFirst);
    assert_eq!(read(&machine_accepted(query, query)), (u16, high));
    let typed = format!("{query}type = \"f32\"\nword_order = \"low_first\"\n");
    assert_eq!(read(&machine_accepted(query, &typed)), (f32, low));
    let tag = "[[tag]]\nname = \"status\"\nread = \"holding:5160\"\ntype = \"f32\"\nword_order = \"low_first\"\n";
    let with_tag = MACHINE.replacen("[[command]]", &format!("{tag}[[command]]"), 1);
    let loaded = load_bytes(GATEWAY.as_bytes(), with_tag.as_bytes());
    let config = loaded.unwrap_or_else(|p| panic!("{}", text(&p)));
    assert_eq!(read(&config), (f32, low));
    let otherwise = format!("class = \"query\"\n{query}");
    let otherwise = with_tag.replace(&otherwise, &format!("{otherwise}type = \"u32\"\n"));
    let expected = "registers of its own, or the same";
    refused(
        GATEWAY,
        &otherwise,
        ("press-1.toml", "\"holding:5160\"\ntype = \"u32\"\n[mailbox"),
        &["tag \"status\"", expected],
    );
    machine_refused(
        query,
        &format!("{query}type = \"word\"\n"),
        "\"word\"",
        &["one of"],
    );
    // Beside a table or a list, the type stands in each of them.
    machine_refused(
        query,
        "read = { read = \"input:0\", type = \"f32\" }\ntype = \"f32\"\n",
        "type = \"f32\"\n[mailbox]",
        &["the unknown key \"type\""],
    );
}

// covers: CFG-01
#[test]
fn a_coil_takes_bool_arguments_and_something_to_write() {
    let args = "args = { speed = { type = \"u16\", unit = \"rpm\", min = 0, max = 3000 } }";
    let says = [
        "argument \"speed\" of type u16",
        "a bool argument: a coil takes one bit",
    ];
    machine_refused(
        "write = \"holding:100\"",
        "write = \"coil:100\"",
        "\"coil:100\"",
        &says,
    );
    let examples = [
        ("holding", "min = 1, max = 1, default = 1"),
        ("coil", "may still send false"),
    ];
    for (area, says) in examples {
        let machine = MACHINE.replace(args, "");
        let write = format!("write = \"{area}:100\"");
        let machine = machine.replace("write = \"holding:100\"", &write);
        let at = ("press-1.toml", format!("\"{area}:100\"\n\nqueue"));
        refused(
            GATEWAY,
            &machine,
            (at.0, &at.1),
            &["nothing to write", says],
        );
    }
}

// covers: CFG-01
#[test]
fn one_mistake_is_told_once() {
    for (from, to) in [
        ("max = 3000", "max = -1"),
        ("max = 3000", "max = 70000, default = 80000"),
        ("min = 0, max = 3000", "min = 9, max = 3, default = 5"),
        (
            "queueable = true",
            "queueable = true\ninterlocks = [\"door\"]",
        ),
        ("name = \"door closed\"", "name = \"door shut\""),
        ("127.0.0.1:1502", "192.168.0.300:502"),
    ] {
        let machine = MACHINE.replacen(from, to, 1).replace(
            "opcode = 3 }\n",
            "opcode = 3 }\ninterlocks = [\"door closed\"]\n",
        );
        let problems = load_bytes(GATEWAY.as_bytes(), machine.as_bytes()).unwrap_err();
        assert_eq!(problems.len(), 1, "{to}:\n{}", text(&problems));
    }
}

// covers: CFG-01
#[test]
fn an_address_that_looks_like_ipv4_is_one() {
    for host in [
        "192.168.0.300",
        "192.168.0",
        "10.0.0.1.2",
        "192.168.000.010",
        "1234",
    ] {
        let address = format!("\"{host}:502\"");
        machine_refused(
            "\"127.0.0.1:1502\"",
            &address,
            &address,
            &["four numbers from 0 to 255"],
        );
    }
    for host in [
        "10.0.0.5",
        "plc-7",
        "plc.line3.example",
        "plc7.",
        "[fe80::1]",
    ] {
        machine_accepted("127.0.0.1:1502", &format!("{host}:502"));
    }
}

// covers: CFG-01
#[test]
fn a_missing_file_and_a_wrong_board_say_where_to_look_and_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let boards = dir.path().join("boards");
    fs::create_dir(&boards).unwrap();
    fs::write(boards.join("own-box.toml"), "").unwrap();
    let gateway = GATEWAY.replace("generic-x86_64", "raspberry");
    fs::write(dir.path().join("holdfast.toml"), gateway).unwrap();
    let told = text(&load(&dir.path().join("holdfast.toml"), &boards).unwrap_err());
    let directory = format!("relative to the directory {}", dir.path().display());
    assert!(told.contains(&directory), "{told}");
    assert!(
        told.contains("generic-aarch64, generic-x86_64, ") && told.contains(", own-box, "),
        "{told}"
    );

    // A bare name lies in the working directory, which is then named.
    let name = format!("no-machine-{}.toml", std::process::id());
    fs::write(&name, GATEWAY).unwrap();
    let told = load(Path::new(&name), &boards);
    fs::remove_file(&name).unwrap();
    let here = std::env::current_dir().unwrap();
    let directory = format!("relative to the directory {}", here.display());
    assert!(text(&told.unwrap_err()).contains(&directory));
}

// covers: CFG-01
#[test]
fn what_expires_before_the_link_tries_again_and_what_never_completes_is_warned_of() {
    let warned = |config: &GatewayConfig, says: &str| {
        config.warnings.iter().filter(|w| w.contains(says)).count()
    };
    let early = "ttl 10s is shorter than reconnect_max";
    let never = "completion is none, so it always ends as outcome_unknown";
    let plain = machine_accepted("unit = 1\n", "unit = 1\n");
    let LinkSpec::ModbusTcp(link) = &plain.machines[0].link else {
        panic!("{:?}", plain.machines[0].link);
    };
    assert_eq!(link.reconnect_ms_max, RECONNECT_MS_MAX_DEFAULT);
    assert_eq!((warned(&plain, early), warned(&plain, never)), (0, 0));
    let slow = machine_accepted("unit = 1\n", "unit = 1\nreconnect_max = \"11s\"\n");
    assert_eq!(warned(&slow, early), 1, "{:?}", slow.warnings);
    let silent = machine_accepted(
        "mailbox = { opcode = 3 }",
        "write = \"coil:9\"\nargs = { on = { type = \"bool\" } }",
    );
    assert_eq!(warned(&silent, never), 1, "{:?}", silent.warnings);
}

// covers: CAP-01
#[test]
fn a_budget_below_what_the_journal_needs_is_refused() {
    assert_eq!(JOURNAL_BYTES_MIN, BUDGET_BYTES_MIN);
    let with = |budget: &str| {
        GATEWAY.replace("[api]", &format!("[journal]\nbudget = \"{budget}\"\n[api]"))
    };
    refused(
        &with("63MiB"),
        MACHINE,
        ("holdfast.toml", "\"63MiB\""),
        &["from 64 to"],
    );
    assert!(load_bytes(with("64MiB").as_bytes(), MACHINE.as_bytes()).is_ok());
}

// covers: CAP-03
#[test]
fn a_replay_window_shorter_than_a_requests_journey_is_refused() {
    gateway_refused(
        "window = \"24h\"",
        "window = \"10min\"",
        "\"10min\"",
        &[
            "a replay window of 10min",
            "validity 1min",
            "or shorten the validity",
        ],
    );
    // A validity of a whole day does not fit into the default window of a day.
    let gateway = GATEWAY.replace("[replay]\nwindow = \"24h\"\n", "");
    let machine = MACHINE.replace("ttl = \"10s\"", "ttl = \"24h\"");
    refused(
        &gateway,
        &machine,
        ("holdfast.toml", "schema"),
        &["replay.window", "press-1 set_speed"],
    );
    // Timeout 1s, validity 1min, completion 30s, reconnection 5s, retry by hand 10min: to the millisecond.
    gateway_refused(
        "window = \"24h\"",
        "window = \"695999ms\"",
        "\"695999ms\"",
        &["at least 696s"],
    );
    let exact = GATEWAY.replace("window = \"24h\"", "window = \"696s\"");
    assert!(load_bytes(exact.as_bytes(), MACHINE.as_bytes()).is_ok());
}

// covers: CFG-04
#[test]
fn secrets_do_not_stand_in_the_file() {
    let path = "path = \"/var/lib/holdfast/events\"\n";
    gateway_refused(
        path,
        &format!("{path}password = \"hunter2\"\n"),
        "password",
        &["no secret in this file", "password_file = "],
    );
    gateway_refused(
        "kind = \"file\"",
        "kind = \"http\"\nurl = \"https://me:hunter2@mes/\"",
        "\"https",
        &["password_file = "],
    );
    let machine = MACHINE.replace("unit = 1\n", "unit = 1\npassword = \"hunter2\"\n");
    let problems = load_bytes(GATEWAY.as_bytes(), machine.as_bytes()).unwrap_err();
    assert!(!text(&problems).contains("hunter2"), "{}", text(&problems));
}

// covers: CFG-01
#[test]
fn what_this_version_does_not_have_is_refused_by_name() {
    for kind in ["nats", "kafka"] {
        gateway_refused(
            "\"file\"",
            &format!("{kind:?}"),
            &format!("{kind:?}"),
            &["a sink that this version has"],
        );
    }
    gateway_refused(
        "unix = ",
        "tcp = \"0.0.0.0:8080\"\nunix = ",
        "\"0.0.0.0:8080\"",
        &["serves no TCP"],
    );
}

// covers: CFG-01
#[test]
fn paths_are_absolute_and_apart() {
    gateway_refused(
        "\"/run/holdfast/api.sock\"",
        "\"api.sock\"",
        "\"api.sock\"",
        &["an absolute path"],
    );
    let long = format!("\"/{}\"", "x".repeat(107));
    gateway_refused(
        "\"/run/holdfast/api.sock\"",
        &long,
        &long,
        &["at most 107 bytes"],
    );
    gateway_refused(
        "/var/lib/holdfast/events",
        "/var/lib/holdfast/journal/e",
        "\"/var/lib/holdfast/journal/e\"",
        &["apart from the journal's"],
    );
    gateway_refused(
        "/var/lib/holdfast/events",
        "/var/../etc",
        "\"/var/../etc\"",
        &["without \"..\""],
    );
}

// covers: CFG-02
#[test]
fn all_problems_of_all_files_come_in_one_pass() {
    let gateway = GATEWAY
        .replace("\"24h\"", "\"1 day\"")
        .replace("kind = \"file\"", "kind = \"files\"");
    let machine = MACHINE
        .replace("unit = 1", "unit = -1")
        .replace("\"coil:3\"", "\"coil:99999\"")
        .replace("max = 3000", "max = 99999")
        .replace("\"query\"", "\"question\"");
    let problems = load_bytes(gateway.as_bytes(), machine.as_bytes()).unwrap_err();
    let places: Vec<_> = problems
        .iter()
        .map(|p| (p.file.file_name().unwrap().to_str().unwrap(), p.line))
        .collect();
    let line = |text: &str, needle: &str| place(text, needle).0;
    assert_eq!(
        places,
        [
            ("holdfast.toml", line(&gateway, "1 day")),
            ("holdfast.toml", line(&gateway, "files")),
            ("press-1.toml", line(&machine, "-1\n[")),
            ("press-1.toml", line(&machine, "coil:99999")),
            ("press-1.toml", line(&machine, "max = 99999")),
            ("press-1.toml", line(&machine, "question")),
        ],
        "{}",
        text(&problems)
    );
}

// The configuration's part: it is judged without a look at the state directory.
// covers: F091
#[test]
fn a_wrong_configuration_leaves_the_state_directory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("backlog"), "10000 events").unwrap();
    let gateway = GATEWAY.replace("machines", &format!("state_dir = {state:?}\nmachines"));
    for _ in 0..3 {
        assert!(load_bytes(gateway.as_bytes(), b"schema = 9").is_err());
    }
    assert!(load_bytes(gateway.as_bytes(), MACHINE.as_bytes()).is_ok());
    let names: Vec<_> = fs::read_dir(&state)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["backlog"]);
    assert_eq!(
        fs::read_to_string(state.join("backlog")).unwrap(),
        "10000 events"
    );
}

// covers: POL-11
#[test]
fn arguments_are_written_in_the_order_of_the_file() {
    let args = "args = { speed = { type = \"u16\", unit = \"rpm\", min = 0, max = 3000 } }";
    let config = machine_accepted(
        args,
        "args = { zeta = { type = \"u16\" }, alpha = { type = \"u16\" } }",
    );
    let row = config.machines[0].row("set_speed").unwrap();
    let names: Vec<_> = row.args.iter().map(|arg| arg.name.as_str()).collect();
    assert_eq!(names, ["zeta", "alpha"]);
}

// covers: EVT-06
#[test]
fn what_one_request_cannot_hold_is_refused() {
    let few = MACHINE.replace("unit = 1\n", "unit = 1\nread_registers_max = 32\n");
    refused(
        GATEWAY,
        &few,
        ("press-1.toml", "[mailbox]"),
        &["read_registers_max = 32", "at least 33"],
    );
    let few = few.replace("type = \"u16\"\npoll", "type = \"string(66)\"\npoll");
    refused(
        GATEWAY,
        &few,
        ("press-1.toml", "\"holding:100\""),
        &["33 registers", "at most 32 registers"],
    );
    let tag = |read: &str| {
        format!(
            "[[tag]]\nname = \"t{}\"\nread = {read:?}\ngroup = \"g\"\n",
            &read[8..]
        )
    };
    let group = "[[group]]\nname = \"g\"\n";
    let far = format!(
        "{MACHINE}{group}{}{}",
        tag("holding:1000"),
        tag("holding:1125")
    );
    refused(
        GATEWAY,
        &far,
        ("press-1.toml", "\"g\""),
        &["one read request cannot hold", "add guard = "],
    );
    let near = far.replace("holding:1125", "holding:1124");
    assert!(load_bytes(GATEWAY.as_bytes(), near.as_bytes()).is_ok());
    let guarded = far.replace(group, &format!("{group}guard = \"holding:999\"\n"));
    assert!(load_bytes(GATEWAY.as_bytes(), guarded.as_bytes()).is_ok());
    let unknown = near.replace("group = \"g\"", "group = \"gg\"");
    refused(
        GATEWAY,
        &unknown,
        ("press-1.toml", "\"gg\""),
        &["the name of a [[group]]"],
    );
}

proptest::proptest! {
    // covers: OPS-03
    #[test]
    fn no_damage_to_a_file_makes_the_check_panic(at in 0..MACHINE.len(), length in 0_usize..40, piece in 0..14_usize, of_gateway: bool) {
        let pieces = ["", "\"", "[", "]]", "{", "\n", "=", "1e999", "nan", "-1", "\"holding:65535\"", "\u{e9}", "true", "[[command]]\n"];
        let source = if of_gateway { GATEWAY } else { MACHINE };
        let start = at % source.len();
        let end = (start + length).min(source.len());
        let damaged = format!("{}{}{}", &source[..start], pieces[piece], &source[end..]);
        let (gateway, machine) = if of_gateway { (damaged.as_str(), MACHINE) } else { (GATEWAY, damaged.as_str()) };
        if let Err(problems) = load_bytes(gateway.as_bytes(), machine.as_bytes()) {
            proptest::prop_assert!(!problems.is_empty());
            proptest::prop_assert!(problems.iter().all(|p| p.line > 0 && p.column > 0));
        }
    }
}

// covers: POL-12
#[test]
fn each_cell_of_the_policy_knows_where_its_value_came_from() {
    let config = load_bytes(GATEWAY.as_bytes(), MACHINE.as_bytes()).unwrap();
    let row = config.machines[0].row("set_speed").unwrap();
    assert_eq!(row.origins["ttl"], Origin::Row);
    assert_eq!(row.origins["on_restart"], Origin::ClassDefault);
}

/// As MACHINE, behind MC protocol.
const MELSEC: &str = r#"schema = 1
name = "press-1"
[link]
protocol = "mc-4e"
address = "127.0.0.1:5007"
family = "q"
code = "binary"
network = 1
pc = 2
io = 0x03E0
station = 3
transport = "udp"
[gate]
identity = { read = "D110", equals = 4711 }
config_version = "D120"
mode = { read = "SD203", allowed = [0] }
interlocks = [{ name = "door closed", read = "X1F", equals = true }]
[[tag]]
name = "length"
read = "W1A"
type = "u32"
poll = "500ms"
[[tag]]
name = "turned"
read = "D200"
type = "u32"
word_order = "high_first"
[[command]]
name = "set_length"
class = "absolute_set"
write = "D100"
args = { length = { type = "u32", min = 0, max = 3000 } }
[[command]]
name = "lamp"
class = "absolute_set"
write = "Y20"
args = { on = { type = "bool" } }
[[command]]
name = "eject_one"
class = "relative_action"
mailbox = { opcode = 3 }
[[command]]
name = "run"
class = "mode_change"
remote = "run"
[mailbox]
command = "D300"
status = "D340"
"#;

fn melsec_refused(from: &str, to: &str, at: &str, says: &[&str]) {
    assert!(MELSEC.contains(from), "{from}");
    let machine = MELSEC.replacen(from, to, 1);
    refused(GATEWAY, &machine, ("press-1.toml", at), says);
}

fn melsec_accepted(from: &str, to: &str) -> GatewayConfig {
    let machine = MELSEC.replacen(from, to, 1);
    let loaded = load_bytes(GATEWAY.as_bytes(), machine.as_bytes());
    loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)))
}

// covers: CFG-01, F062
#[test]
fn a_melsec_machine_is_read_with_its_route_and_its_devices() {
    let loaded = melsec_accepted("q", "q");
    let machine = &loaded.machines[0];
    let LinkSpec::Mc(link) = &machine.link else {
        panic!("{:?}", machine.link);
    };
    assert_eq!((link.frame, link.transport), (Frame::E4, Transport::Udp));
    let route = Route {
        network: 1,
        pc: 2,
        io: 0x03E0,
        station: 3,
    };
    assert_eq!(link.route, route);
    let lock = machine.gate.interlocks[0].at.address;
    assert_eq!((lock.to_string().as_str(), lock.number()), ("X1F", 0x1F));
    assert_eq!(machine.tags[0].at.address.number(), 0x1A);
    // Low word first is what MELSEC itself does.
    assert_eq!(machine.tags[0].at.word_order, WordOrder::LowFirst);
    assert_eq!(machine.tags[1].at.word_order, WordOrder::HighFirst);
    // The mailbox's blocks are laid out alike everywhere.
    let order = machine.mailbox.as_ref().map(|mailbox| mailbox.word_order);
    assert_eq!(order, Some(WordOrder::HighFirst));
    let set = machine.row("set_length").unwrap();
    assert_eq!(set.args[0].word_order, WordOrder::LowFirst);
    let run = machine.row("run").unwrap();
    assert_eq!(run.action, Action::Remote { order: Remote::Run });
    assert_eq!(run.completion, Completion::Reply);
    let lamp = &machine.row("lamp").unwrap().action;
    assert!(matches!(lamp, Action::Write { start, .. } if start.number() == 0x20));

    let defaults = melsec_accepted(
        "code = \"binary\"\nnetwork = 1\npc = 2\nio = 0x03E0\nstation = 3\ntransport = \"udp\"\n",
        "",
    );
    let LinkSpec::Mc(link) = &defaults.machines[0].link else {
        panic!("{:?}", defaults.machines[0].link);
    };
    assert_eq!((link.code, link.transport), (Code::Binary, Transport::Tcp));
    assert_eq!(link.route, Route::default());
}

// covers: CFG-01, F062
#[test]
fn the_melsec_family_is_mandatory_and_decides_what_an_address_means() {
    let without = MELSEC.replacen("family = \"q\"\n", "", 1);
    let problems = load_bytes(GATEWAY.as_bytes(), without.as_bytes()).unwrap_err();
    let said = text(&problems);
    assert!(
        said.contains("link.family") && said.contains("has no default"),
        "{said}"
    );
    assert_eq!(
        problems.len(),
        1,
        "its absence is the one thing to say: {said}"
    );

    let octal = MELSEC.replacen("family = \"q\"", "family = \"fx5\"", 1);
    let octal = octal.replacen("X1F", "X17", 1);
    let loaded = load_bytes(GATEWAY.as_bytes(), octal.as_bytes());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let lamp = &loaded.machines[0].row("lamp").unwrap().action;
    assert!(matches!(lamp, Action::Write { start, .. } if start.number() == 0o20));
    let eighteen = octal.replacen("\"Y20\"", "\"Y18\"", 1);
    let at = ("press-1.toml", "\"Y18\"");
    refused(GATEWAY, &eighteen, at, &["Y with an octal number", "fx5"]);
}

// covers: CFG-01
#[test]
fn what_mc_protocol_cannot_carry_is_refused_with_what_to_do() {
    melsec_refused(
        "\"W1A\"",
        "\"holding:26\"",
        "\"holding:26\"",
        &["such as \"D100\""],
    );
    melsec_refused("\"W1A\"", "\"D1A\"", "\"D1A\"", &["decimal number"]);
    melsec_refused(
        "\"D300\"",
        "\"M300\"",
        "\"M300\"",
        &["words, such as D1000"],
    );
    melsec_refused("\"q\"", "\"fx3\"", "\"fx3\"", &["fx5"]);
    melsec_refused(
        "\"D100\"",
        "\"M100\"",
        "\"M100\"",
        &["a bit device", "one bit"],
    );
    melsec_refused(
        "\"run\"\n[mailbox]",
        "\"jog\"\n[mailbox]",
        "\"jog\"",
        &["pause"],
    );
    melsec_refused(
        "class = \"mode_change\"",
        "class = \"relative_action\"",
        "\"run\"\n[mailbox]",
        &["mode_change"],
    );
    let ascii = MELSEC.replacen("\"binary\"", "\"ascii\"", 1);
    let zr = ascii.replacen("\"W1A\"", "\"ZR100\"", 1);
    let at = ("press-1.toml", "\"ZR100\"");
    refused(
        GATEWAY,
        &zr,
        at,
        &["in ASCII", "the sources disagree", "code to binary"],
    );
    // What Modbus cannot carry.
    machine_refused(
        "[[command]]\nname = \"eject_one\"\nclass = \"relative_action\"\nmailbox = { opcode = 3 }",
        "[[command]]\nname = \"run\"\nclass = \"mode_change\"\nremote = \"run\"",
        "\"run\"\n[[command]]\nname = \"read_status\"",
        &["only a MELSEC CPU"],
    );
}

/// The link of MELSEC's machine over a serial module in place of its own.
fn over_serial(link: &str) -> String {
    let (before, rest) = MELSEC.split_once("[link]\n").unwrap();
    let (_, after) = rest.split_once("[gate]").unwrap();
    format!(
        "{before}[link]\nserial = \"/dev/serial/by-id/a\"\nbaud = 19200\nparity = \"even\"\n{link}[gate]{after}"
    )
}

// covers: CFG-01
#[test]
fn a_machine_behind_a_serial_module_is_read_with_what_its_frame_carries() {
    let text_of = over_serial(
        "protocol = \"mc-4c\"\nfamily = \"q\"\nformat = 5\nstop_bits = 2\nsum_check = false\nstation = 3\n\
         self_station = 1\nnetwork = 2\npc = 4\necho = true\nsettle = \"2s\"\n",
    );
    let loaded = load_bytes(GATEWAY.as_bytes(), text_of.as_bytes());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let LinkSpec::C24(link) = &loaded.machines[0].link else {
        panic!("{:?}", loaded.machines[0].link);
    };
    assert_eq!((link.frame, link.format), (C24Frame::C4, C24Format::F5));
    assert_eq!(
        (link.sum_check, link.echo, link.settle_ms),
        (false, true, 2_000)
    );
    let route = C24Route {
        station: 3,
        network: 2,
        pc: 4,
        self_station: 1,
        ..C24Route::default()
    };
    assert_eq!((link.route, link.read_words_max), (route, 64));
    let three = over_serial("protocol = \"mc-3c\"\nfamily = \"q\"\nformat = 4\n");
    let loaded = load_bytes(GATEWAY.as_bytes(), three.as_bytes());
    let loaded = loaded.unwrap_or_else(|problems| panic!("{}", text(&problems)));
    let LinkSpec::C24(link) = &loaded.machines[0].link else {
        panic!("{:?}", loaded.machines[0].link);
    };
    assert!(link.sum_check && link.settle_ms == link.timeout_ms);
}

// covers: CFG-01, F062
#[test]
fn what_a_serial_module_cannot_carry_is_refused_with_its_place() {
    let refuse = |link: &str, at: &str, says: &[&str]| {
        refused(GATEWAY, &over_serial(link), ("press-1.toml", at), says);
    };
    refuse(
        "protocol = \"mc-3c\"\nfamily = \"q\"\nformat = 5\n",
        "5\n[gate]",
        &["from 1 to 4"],
    );
    refuse(
        "protocol = \"mc-4c\"\nfamily = \"q\"\nformat = 5\ndata_bits = 7\n",
        "7\n[gate]",
        &["format 5 is binary"],
    );
    refuse(
        "protocol = \"mc-4c\"\nfamily = \"q\"\nformat = 5\nstation = 32\n",
        "32\n[gate]",
        &["from 0 to 31"],
    );
    refuse(
        "protocol = \"mc-2c\"\nfamily = \"q\"\nformat = 1\nnetwork = 1\n",
        "network = 1",
        &["network"],
    );
    refuse(
        "protocol = \"mc-1c\"\nfamily = \"q\"\nformat = 1\n",
        "\"run\"\n[mailbox]",
        &["no remote operation"],
    );
    refuse(
        "protocol = \"mc-1c\"\nfamily = \"q\"\nformat = 1\n",
        "\"SD203\"",
        &["1C knows"],
    );
}
