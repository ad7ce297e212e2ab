//! Owns: over which protocol a rig's machine is reached: the same machine, the same simulated PLC, another wire.
//! May call: nothing.
//! Never: change what a machine or its PLC does.

/// The environment variable that runs the whole suite over another protocol: `modbus-rtu`,
/// `modbus-rtu-over-tcp`, `mc-3e`, `mc-4e-ascii-udp` …
pub(crate) const LINK_ENV: &str = "HOLDFAST_TEST_LINK";

/// How the machine is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkKind {
    ModbusTcp,
    /// RTU frames, on a pseudo-terminal or over TCP.
    Rtu {
        tcp: bool,
    },
    /// 3E or 4E over Ethernet.
    Mc {
        frame: &'static str,
        ascii: bool,
        udp: bool,
    },
    /// A serial module on a pseudo-terminal.
    C24 {
        frame: &'static str,
        format: u8,
    },
}

/// The line between the two; `RIG_DIR` is the test's directory.
const LINE: &str = "serial = \"RIG_DIR/com1\"\nbaud = 115200\nparity = \"none\"\nsettle = \"60ms\"";

impl LinkKind {
    /// As the environment says; Modbus TCP otherwise.
    pub(crate) fn from_env() -> Self {
        let name = std::env::var(LINK_ENV).unwrap_or_default();
        let ethernet = |frame| Self::Mc {
            frame,
            ascii: name.contains("ascii"),
            udp: name.contains("udp"),
        };
        match name.as_str() {
            "" | "modbus-tcp" => Self::ModbusTcp,
            "modbus-rtu" => Self::Rtu { tcp: false },
            "modbus-rtu-over-tcp" => Self::Rtu { tcp: true },
            "mc-4c" => Self::C24 {
                frame: "4c",
                format: 5,
            },
            "mc-3c" => Self::C24 {
                frame: "3c",
                format: 1,
            },
            mc if mc.starts_with("mc-3e") => ethernet("3e"),
            mc if mc.starts_with("mc-4e") => ethernet("4e"),
            _ => panic!(
                "{LINK_ENV}={name}: expected modbus-rtu, modbus-rtu-over-tcp, mc-4c, mc-3c, or mc-3e or mc-4e with \
                 -ascii and -udp"
            ),
        }
    }

    /// A machine's file for Modbus TCP, as it is over this link. Wider values keep their high word first, so that
    /// the PLC's tables look alike.
    pub(crate) fn machine(self, modbus: &str) -> String {
        let link = match self {
            Self::ModbusTcp => return modbus.to_owned(),
            Self::Rtu { tcp } => return rtu_machine(modbus, tcp),
            Self::C24 { frame, format } => format!(
                "protocol = \"mc-{frame}\"\nfamily = \"q\"\nformat = {format}\nstation = 1\n{LINE}"
            ),
            Self::Mc { frame, ascii, udp } => {
                let code = if ascii { "ascii" } else { "binary" };
                let transport = if udp { "udp" } else { "tcp" };
                format!(
                    "protocol = \"mc-{frame}\"\nfamily = \"q\"\ncode = \"{code}\"\ntransport = \"{transport}\""
                )
            }
        };
        let own_address = match self {
            Self::C24 { .. } => "",
            _ => "address = \"ADDRESS\"\n",
        };
        let text = modbus
            .replace("protocol = \"modbus-tcp\"", &link)
            .replace("address = \"ADDRESS\"\n", own_address)
            .replace("\nunit = 1\n", "\n")
            .replace("read_registers_max", "read_words_max")
            .replace("{ type = ", "{ word_order = \"high_first\", type = ");
        let mut out = String::new();
        for line in devices(&text).lines() {
            let wide = ["u32", "i32", "f32", "u64", "i64", "f64"];
            let own = wide.iter().any(|wide| {
                line == format!("type = \"{wide}\"") || line == format!("data_type = \"{wide}\"")
            });
            out += &ids(line);
            out += "\n";
            if own {
                out += "word_order = \"high_first\"\n";
            }
        }
        out
    }

    /// A simulated PLC's file, as it is over this link.
    pub(crate) fn simulator(self, modbus: &str) -> String {
        match self {
            Self::ModbusTcp => modbus.to_owned(),
            Self::Rtu { tcp } => {
                let port = if tcp { "" } else { "pty = \"RIG_DIR/com1\"\n" };
                format!("{modbus}\n[rtu]\n{port}")
            }
            Self::C24 { frame, format } => format!(
                "{modbus}\n[c24]\nframe = \"{frame}\"\nformat = {format}\n[c24.line]\npty = \"RIG_DIR/com1\"\n\
                 [mc]\n"
            ),
            Self::Mc { frame, ascii, udp } => {
                let code = if ascii { "ascii" } else { "binary" };
                format!("{modbus}\n[mc]\nframe = \"{frame}\"\ncode = \"{code}\"\nudp = {udp}\n")
            }
        }
    }
}

/// A machine's file for Modbus TCP with its link on a line of RTU frames.
fn rtu_machine(modbus: &str, tcp: bool) -> String {
    let found = "protocol = \"modbus-tcp\"\naddress = \"ADDRESS\"";
    assert!(modbus.contains(found), "{modbus}");
    let link = match tcp {
        true => "protocol = \"modbus-rtu-over-tcp\"\naddress = \"ADDRESS\"",
        false => &format!("protocol = \"modbus-rtu\"\n{LINE}"),
    };
    let settle = if tcp { "\nsettle = \"60ms\"" } else { "" };
    modbus.replace(found, &format!("{link}{settle}"))
}

/// `holding:100` is D100, and so on, as the simulated CPU shows its tables.
fn devices(text: &str) -> String {
    let mut out = String::new();
    for (n, part) in text.split('"').enumerate() {
        if n > 0 {
            out.push('"');
        }
        let place = part.split_once(':').and_then(|(area, offset)| {
            let offset: u32 = offset.parse().ok()?;
            Some(match area {
                "holding" => format!("D{offset}"),
                "coil" => format!("M{offset}"),
                "input" => format!("W{offset:X}"),
                "discrete" => format!("X{offset:X}"),
                _ => return None,
            })
        });
        out += place.as_deref().unwrap_or(part);
    }
    out
}

/// The place of a request id, an item's number or a ring's head, with its word order.
fn ids(line: &str) -> String {
    for key in ["id", "item", "head"] {
        match line.split_once(&format!("{key} = \"D")) {
            Some((before, rest)) if before.is_empty() || before.ends_with("{ ") => {
                let (number, after) = rest.split_once('"').unwrap_or((rest, ""));
                return format!(
                    "{before}{key} = {{ read = \"D{number}\", type = \"u32\", word_order = \"high_first\" }}{after}"
                );
            }
            _ => {}
        }
    }
    line.to_owned()
}
