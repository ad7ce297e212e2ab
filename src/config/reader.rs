//! Owns: reading TOML with positions: exact types, unknown keys with the nearest known one, scalars with units.
//! May call: problem; core's number reader and name matching.
//! Never: coerce a type; stop at the first problem.

use super::problem::Doc;
use crate::core::intent::{nearest, parse_number};
use rust_decimal::Decimal;
use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use toml::de::{DeTable, DeValue};

/// Keys that would hold a secret in clear (CFG-04).
const SECRET_KEYS: &[&str] = &[
    "password",
    "passwd",
    "token",
    "secret",
    "api_key",
    "passphrase",
    "private_key",
];

/// A table that knows which keys were asked of it.
pub(super) struct Table<'a> {
    pub(super) doc: &'a Doc,
    pub(super) path: String,
    pub(super) span: Range<usize>,
    entries: &'a DeTable<'a>,
    asked: RefCell<Vec<&'static str>>,
}

/// A value and where it stands.
#[derive(Clone)]
pub(super) struct Node<'a> {
    pub(super) doc: &'a Doc,
    pub(super) path: String,
    pub(super) span: Range<usize>,
    value: &'a DeValue<'a>,
}

impl<'a> Table<'a> {
    pub(super) fn root(doc: &'a Doc, entries: &'a DeTable<'a>) -> Self {
        Self::new(doc, String::new(), 0..0, entries)
    }

    fn new(doc: &'a Doc, path: String, span: Range<usize>, entries: &'a DeTable<'a>) -> Self {
        Self {
            doc,
            path,
            span,
            entries,
            asked: RefCell::default(),
        }
    }

    fn child(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The value of a key, if it is there.
    pub(super) fn get(&self, key: &'static str) -> Option<Node<'a>> {
        self.asked.borrow_mut().push(key);
        self.entries.get(key).map(|value| Node {
            doc: self.doc,
            path: self.child(key),
            span: value.span(),
            value: value.get_ref(),
        })
    }

    /// The value of a key that must be there.
    pub(super) fn need(&self, key: &'static str, expected: &str) -> Option<Node<'a>> {
        let node = self.get(key);
        if node.is_none() {
            let mend = Some(format!("add {key} = …"));
            self.report(&self.child(key), "nothing", expected, mend);
        }
        node
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// All entries with free names, in the order of the file.
    pub(super) fn named(&self) -> Vec<(String, Node<'a>)> {
        let mut all: Vec<_> = self.entries.iter().collect();
        all.sort_by_key(|(key, _)| key.span().start);
        all.into_iter()
            .map(|(key, value)| {
                let name = key.get_ref().to_string();
                let node = Node {
                    doc: self.doc,
                    path: self.child(&name),
                    span: value.span(),
                    value: value.get_ref(),
                };
                (name, node)
            })
            .collect()
    }

    /// A problem of the table as a whole.
    pub(super) fn report(&self, key: &str, found: &str, expected: &str, mend: Option<String>) {
        let span = self.span.clone();
        self.doc
            .report(span, key, found.to_owned(), expected.to_owned(), mend);
    }

    /// Refuses every key that was never asked for.
    pub(super) fn finish(&self) {
        let asked = self.asked.borrow();
        for key in self.entries.keys() {
            let name: &str = key.get_ref();
            if asked.contains(&name) {
                continue;
            }
            let (expected, mend) = if SECRET_KEYS.contains(&name) {
                let file_key = format!("{name}_file");
                (
                    "no secret in this file".to_owned(),
                    Some(format!(
                        "put it into a file of its own and name that: {file_key} = …"
                    )),
                )
            } else {
                let mut known = asked.clone();
                known.sort_unstable();
                known.dedup();
                match nearest(name, known.iter().copied()) {
                    Some(near) => (
                        "a key of this table".to_owned(),
                        Some(format!("did you mean {near:?}?")),
                    ),
                    None => (format!("one of {}", known.join(", ")), None),
                }
            };
            let found = format!("the unknown key {name:?}");
            let path = self.child(name);
            self.doc.report(key.span(), &path, found, expected, mend);
        }
    }
}

impl<'a> Node<'a> {
    pub(super) fn problem(
        &self,
        found: impl Into<String>,
        expected: impl Into<String>,
        mend: Option<String>,
    ) {
        let span = self.span.clone();
        self.doc
            .report(span, &self.path, found.into(), expected.into(), mend);
    }

    /// A problem with the value as it stands.
    pub(super) fn wrong<T>(&self, expected: impl Into<String>, mend: Option<String>) -> Option<T> {
        self.problem(self.describe(), expected, mend);
        None
    }

    /// The value in words, for an error.
    pub(super) fn describe(&self) -> String {
        match self.value {
            DeValue::String(text) => format!("the string {:?}", cut(text)),
            DeValue::Integer(number) => format!("the integer {}", cut(number.as_str())),
            DeValue::Float(number) => format!("the float {}", cut(number.as_str())),
            DeValue::Boolean(bit) => format!("the boolean {bit}"),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(_) => "an array".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        }
    }

    pub(super) fn as_text(&self) -> Option<&'a str> {
        self.value.as_str()
    }

    pub(super) fn is_table(&self) -> bool {
        self.value.is_table()
    }

    pub(super) fn is_array(&self) -> bool {
        self.value.is_array()
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.as_text()
            .or_else(|| self.wrong("a string in quotes", None))
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.value.as_bool().or_else(|| {
            let mend = match self.as_text() {
                Some("on" | "yes" | "true" | "1") => Some("write true, without quotes".to_owned()),
                Some("off" | "no" | "false" | "0") => {
                    Some("write false, without quotes".to_owned())
                }
                _ => None,
            };
            self.wrong("true or false", mend)
        })
    }

    pub(super) fn as_integer(&self) -> Option<i128> {
        let number = self.value.as_integer()?;
        i128::from_str_radix(number.as_str(), number.radix()).ok()
    }

    pub(super) fn integer(&self, min: i128, max: i128) -> Option<i128> {
        let expected = format!("an integer from {min} to {max}");
        match self.as_integer() {
            Some(number) if (min..=max).contains(&number) => Some(number),
            Some(_) => self.wrong(expected, None),
            None => {
                let digits = self.as_text().and_then(|t| t.trim().parse::<i64>().ok());
                self.wrong(
                    expected,
                    digits.map(|n| format!("write {n}, without quotes")),
                )
            }
        }
    }

    /// An integer or a float, exactly.
    pub(super) fn decimal(&self) -> Option<Decimal> {
        let text = match self.value {
            DeValue::Float(number) => number.as_str().to_owned(),
            _ => self.as_integer().map(|n| n.to_string()).unwrap_or_default(),
        };
        parse_number(text.trim_start_matches('+')).or_else(|| {
            let number = self.as_text().and_then(|t| parse_number(t.trim()));
            let mend = number.map(|n| format!("write {n}, without quotes"));
            self.wrong("a number of at most 28 digits", mend)
        })
    }

    /// The number's notation, for core's own reader of numbers.
    pub(super) fn number_text(&self) -> Option<String> {
        match self.value {
            DeValue::Float(number) => Some(number.as_str().trim_start_matches('+').to_owned()),
            _ => self.as_integer().map(|n| n.to_string()),
        }
    }

    pub(super) fn as_bool(&self) -> Option<bool> {
        self.value.as_bool()
    }

    /// One of a few words.
    pub(super) fn choice<T: Clone>(&self, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let Some(text) = self.as_text() else {
            return self.wrong(format!("one of {}", quoted(&names)), None);
        };
        let found = choices.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| value.clone()).or_else(|| {
            let near = nearest(text, names.iter().copied());
            let mend = near.map(|name| format!("did you mean {name:?}?"));
            self.wrong(format!("one of {}", quoted(&names)), mend)
        })
    }

    /// A duration such as `"500ms"`, in milliseconds.
    pub(super) fn duration(&self, ms_min: u64, ms_max: u64) -> Option<u64> {
        let units = [
            ("ms", 1),
            ("s", 1000),
            ("min", 60_000),
            ("m", 60_000),
            ("h", 3_600_000),
            ("d", 86_400_000),
        ];
        let expected = format!(
            "a duration from {} to {}",
            show_duration(ms_min),
            show_duration(ms_max)
        );
        let ms = self.as_text().and_then(|text| counted(text, &units));
        match ms {
            Some(ms) if (ms_min..=ms_max).contains(&ms) => Some(ms),
            Some(_) => self.wrong(expected, None),
            None => {
                let mend = match self.as_integer() {
                    Some(n) => format!("write a unit: \"{n}s\" or \"{n}ms\""),
                    None => "write it as \"500ms\", \"10s\", \"24h\" or \"90d\"".to_owned(),
                };
                self.wrong(expected, Some(mend))
            }
        }
    }

    /// A size such as `"512MiB"`, in bytes.
    pub(super) fn size(&self, bytes_min: u64, bytes_max: u64) -> Option<u64> {
        let units = [
            ("B", 1),
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
        ];
        let bytes = self.as_text().and_then(|text| counted(text, &units));
        let mib = |bytes: u64| bytes >> 20;
        let expected = format!("a size from {} to {} MiB", mib(bytes_min), mib(bytes_max));
        match bytes {
            Some(bytes) if (bytes_min..=bytes_max).contains(&bytes) => Some(bytes),
            Some(_) => self.wrong(expected, None),
            None => self.wrong(
                expected,
                Some("write it as a whole number of MiB, such as \"512MiB\"".into()),
            ),
        }
    }

    /// A rate such as `"5/s"`, in thousandths per second.
    pub(super) fn rate(&self, milli_max: u64) -> Option<u64> {
        let expected = format!("a rate of at most {}/s, above 0", milli_max / 1000);
        let parse = |text: &str| -> Option<u64> {
            let (number, per) = text.split_once('/')?;
            let seconds = match per.trim() {
                "s" => 1,
                "min" => 60,
                "h" => 3600,
                _ => return None,
            };
            let milli = parse_number(number.trim())?.checked_mul(Decimal::from(1000))?;
            u64::try_from(milli.checked_div(Decimal::from(seconds))?.trunc()).ok()
        };
        match self.as_text().and_then(parse) {
            Some(milli) if (1..=milli_max).contains(&milli) => Some(milli),
            Some(_) => self.wrong(expected, None),
            None => self.wrong(expected, Some("write it as \"5/s\" or \"30/min\"".into())),
        }
    }

    /// An absolute path without `..`.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let path = PathBuf::from(self.text()?);
        let up = path.components().any(|part| part.as_os_str() == "..");
        if path.is_absolute() && !up {
            Some(path)
        } else {
            self.wrong("an absolute path without \"..\"", None)
        }
    }

    pub(super) fn table(&self) -> Option<Table<'a>> {
        match self.value.as_table() {
            Some(entries) => Some(Table::new(
                self.doc,
                self.path.clone(),
                self.span.clone(),
                entries,
            )),
            None => self.wrong("a table", None),
        }
    }

    pub(super) fn list(&self) -> Option<Vec<Node<'a>>> {
        let Some(array) = self.value.as_array() else {
            return self.wrong("an array [ … ]", None);
        };
        let items = array.iter().enumerate().map(|(index, item)| Node {
            doc: self.doc,
            path: format!("{}[{index}]", self.path),
            span: item.span(),
            value: item.get_ref(),
        });
        Some(items.collect())
    }

    pub(super) fn tables(&self) -> Option<Vec<Table<'a>>> {
        Some(self.list()?.iter().filter_map(Node::table).collect())
    }
}

/// The tables of `[[key]]`; none if it is absent.
pub(super) fn tables<'a>(table: &Table<'a>, key: &'static str) -> Vec<Table<'a>> {
    let node = table.get(key);
    node.and_then(|node| node.tables()).unwrap_or_default()
}

fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

fn quoted(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}

/// `12ms` with the unit's factor applied.
fn counted(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (digits, unit) = text.split_at(split);
    let factor = units.iter().find(|(name, _)| *name == unit.trim())?.1;
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// A duration as it would be written in a configuration file.
#[must_use]
pub fn show_duration(ms: u64) -> String {
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1000, "s"),
    ];
    let whole = units
        .iter()
        .find(|(size, _)| ms >= *size && ms.is_multiple_of(*size));
    whole.map_or_else(
        || format!("{ms}ms"),
        |(size, name)| format!("{}{name}", ms / size),
    )
}
