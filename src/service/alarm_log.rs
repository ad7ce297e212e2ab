//! Owns: how bad each alarm of the core is and what to do about it, and telling the log of them.
//! May call: core types.
//! Never: tell the log the same thing twice in a row.

use crate::core::gateway::Alarm;
use log::Level;
use std::collections::BTreeMap;

/// What the log was told of the alarms that stand, by code and what they are about.
#[derive(Default)]
pub(super) struct AlarmLog(BTreeMap<(String, String), String>);

impl AlarmLog {
    /// One line for each alarm that was raised, got another text, or was cleared since the last call.
    pub(super) fn tell<'a>(&mut self, standing: impl Iterator<Item = &'a Alarm>) {
        for (level, line) in self.news(standing) {
            log::log!(level, "{line}");
        }
    }

    fn news<'a>(&mut self, standing: impl Iterator<Item = &'a Alarm>) -> Vec<(Level, String)> {
        let mut lines = Vec::new();
        let mut cleared = std::mem::take(&mut self.0);
        for alarm in standing {
            let key = (alarm.code.clone(), alarm.about.clone());
            let before = cleared.remove(&key);
            if before.as_ref() != Some(&alarm.text) {
                let (severity, mend) = mend(&alarm.code);
                let line = match before {
                    None => format!("alarm {}: {}; {mend}", alarm.code, alarm.text),
                    Some(_) => format!("alarm {}: {}", alarm.code, alarm.text),
                };
                lines.push((level(severity), line));
            }
            self.0.insert(key, alarm.text.clone());
        }
        let over = |((code, _), text)| (Level::Info, format!("alarm {code} is over: {text}"));
        lines.extend(cleared.into_iter().map(over));
        lines
    }
}

fn level(severity: &str) -> Level {
    match severity {
        "critical" => Level::Error,
        "warning" => Level::Warn,
        _ => Level::Info,
    }
}

/// How bad an alarm is, and what to do.
pub(super) fn mend(code: &str) -> (&'static str, &'static str) {
    match code {
        "recovery_mode" => (
            "critical",
            "stop the gateway, then holdfast journal check DIR and holdfast journal salvage DIR",
        ),
        "foreign_journal" => (
            "critical",
            "make sure that the other computer is off, stop this gateway, then holdfast journal adopt DIR --reason …",
        ),
        "telemetry_dropped" => (
            "warning",
            "see holdfast sinks for what is not taken; which keys were dropped is told when there is room",
        ),
        "journal_full" => (
            "critical",
            "free disk space, or see holdfast sinks for what is not taken",
        ),
        "events_not_taken" => (
            "critical",
            "make room in the journal: see holdfast sinks for what is not taken",
        ),
        "source_unclear" => (
            "warning",
            "compare the device's numbers with this [[event]] in the machine's file",
        ),
        "identity_mismatch" => (
            "critical",
            "check which device answers at this address, or correct [gate] identity in the machine's file",
        ),
        "sink_stopped" => (
            "critical",
            "mend what it says, then holdfast sinks NAME resume; nothing is lost meanwhile, events wait in the journal",
        ),
        "link_down" => (
            "warning",
            "check power, cable and address; it is tried again by itself",
        ),
        _ => ("info", "see holdfast events"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::BootId;
    use crate::core::time::Now;

    #[test]
    fn an_alarm_is_one_line_when_it_comes_changes_and_goes() {
        let alarm = |code: &str, text: &str| Alarm {
            code: code.into(),
            about: "press-1".into(),
            since: Now {
                boot_id: BootId([1; 16]),
                boottime_ns: 0,
                wall_us: 0,
                wall_trusted: true,
            },
            text: text.into(),
        };
        let mut log = AlarmLog::default();
        let refused = [
            alarm("identity_mismatch", "another device"),
            alarm("link_down", "refused"),
        ];
        let told = log.news(refused.iter());
        let levels: Vec<Level> = told.iter().map(|(level, _)| *level).collect();
        assert_eq!(levels, [Level::Error, Level::Warn]);
        assert!(told[1].1.starts_with("alarm link_down: refused; check"));
        assert_eq!(log.news(refused.iter()), []);
        let silent = [alarm("link_down", "no answer")];
        let told = log.news(silent.iter());
        let over = "alarm identity_mismatch is over: another device";
        assert_eq!(
            told,
            [
                (Level::Warn, "alarm link_down: no answer".to_owned()),
                (Level::Info, over.to_owned()),
            ]
        );
        let told = log.news([].iter());
        assert_eq!(
            told,
            [(Level::Info, "alarm link_down is over: no answer".to_owned())]
        );
    }
}
