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
}

impl LinkKind {
    /// As the environment says; Modbus TCP otherwise.
    pub(crate) fn from_env() -> Self {
        let name = std::env::var(LINK_ENV).unwrap_or_default();
        let mut parts = name.split('-');
        match (parts.next(), parts.next()) {
            (Some("modbus"), Some("rtu")) => Self::Rtu {
                tcp: name.contains("over-tcp"),
            },
            (Some("" | "modbus"), _) => Self::ModbusTcp,
            (Some("mc"), Some(frame @ ("3e" | "4e"))) => Self::Mc {
                frame: if frame == "3e" { "3e" } else { "4e" },
                ascii: name.contains("ascii"),
                udp: name.contains("udp"),
            },
            _ => panic!(
                "{LINK_ENV}={name}: expected modbus-rtu, modbus-rtu-over-tcp, or mc-3e or mc-4e with -ascii and -udp"
            ),
        }
    }

    /// A machine's file for Modbus TCP, as it is over this link. Wider values keep their high word first, so that
    /// the PLC's tables look alike.
    pub(crate) fn machine(self, modbus: &str) -> String {
        if let Self::Rtu { tcp } = self {
            return rtu_machine(modbus, tcp);
        }
        let Self::Mc { frame, ascii, udp } = self else {
            return modbus.to_owned();
        };
        let code = if ascii { "ascii" } else { "binary" };
        let transport = if udp { "udp" } else { "tcp" };
        let link = format!(
            "protocol = \"mc-{frame}\"\nfamily = \"q\"\ncode = \"{code}\"\ntransport = \"{transport}\""
        );
        let text = modbus
            .replace("protocol = \"modbus-tcp\"", &link)
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
        if let Self::Rtu { tcp } = self {
            let port = if tcp { "" } else { "pty = \"RIG_DIR/com1\"\n" };
            return format!("{modbus}\n[rtu]\n{port}");
        }
        let Self::Mc { frame, ascii, udp } = self else {
            return modbus.to_owned();
        };
        let code = if ascii { "ascii" } else { "binary" };
        format!("{modbus}\n[mc]\nframe = \"{frame}\"\ncode = \"{code}\"\nudp = {udp}\n")
    }
}

/// A machine's file for Modbus TCP with its link on a line of RTU frames.
fn rtu_machine(modbus: &str, tcp: bool) -> String {
    let found = "protocol = \"modbus-tcp\"\naddress = \"ADDRESS\"";
    assert!(modbus.contains(found), "{modbus}");
    let link = match tcp {
        true => "protocol = \"modbus-rtu-over-tcp\"\naddress = \"ADDRESS\"",
        false => {
            "protocol = \"modbus-rtu\"\nserial = \"RIG_DIR/com1\"\nbaud = 115200\nparity = \"none\""
        }
    };
    modbus.replace(found, &format!("{link}\nsettle = \"60ms\""))
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

/// A request id's place, with its word order.
fn ids(line: &str) -> String {
    match line.split_once("id = \"D") {
        Some((before, rest)) if before.ends_with("{ ") => {
            let (number, after) = rest.split_once('"').unwrap_or((rest, ""));
            format!(
                "{before}id = {{ read = \"D{number}\", type = \"u32\", word_order = \"high_first\" }}{after}"
            )
        }
        _ => line.to_owned(),
    }
}
