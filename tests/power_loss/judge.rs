//! Owns: putting an image where the gateway finds it, opening it, and saying whether anything is lost.
//! May call: the journal, recording, disk.
//! Never: take damage that is told for a loss, or a loss for damage that is told.

use super::disk::Image;
use super::harness::Rig;
use super::load;
use super::recording::Told;
use holdfast::core::ids::{BootId, OperationId};
use holdfast::core::record::{Position, Stored};
use holdfast::core::time::Now;
use holdfast::journal::{Journal, Opened, Options, Recovered, open};
use holdfast::service::{RELEASED_US, computer};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is part of the image; the rest of the rig's directory is the test's.
const PARTS: [&str; 2] = ["state", "events"];
const PAGE_BYTES: usize = 4096;

/// Where images are laid. The store's file keeps its inode: a power loss makes no copy of a disk.
pub(crate) struct Bench {
    root: PathBuf,
    kept_db: PathBuf,
    db: PathBuf,
}

impl Bench {
    /// Of a rig that is stopped for good.
    pub(crate) fn new(rig: &Rig) -> Self {
        let (root, db) = (rig.path().to_owned(), PathBuf::from("state/journal/g-1/db"));
        let kept_db = root.join("kept-db");
        fs::hard_link(root.join(&db), &kept_db).unwrap();
        Self { root, kept_db, db }
    }

    /// Whether the disk is as the log says: nothing was written past it.
    pub(crate) fn assert_same(&self, image: &Image) {
        let mut there = Vec::new();
        for part in PARTS {
            files_below(&self.root.join(part), &mut there);
        }
        let paths: Vec<PathBuf> = there
            .iter()
            .map(|path| path.strip_prefix(&self.root).unwrap().to_owned())
            .collect();
        let logged: BTreeSet<&PathBuf> = image.files.keys().filter(|path| is_part(path)).collect();
        assert_eq!(paths.iter().collect::<BTreeSet<_>>(), logged, "names");
        for path in paths {
            let bytes = fs::read(self.root.join(&path)).unwrap();
            assert!(
                bytes == image.files[&path],
                "{} is not what was logged",
                path.display()
            );
        }
    }

    pub(crate) fn lay(&self, image: &Image) {
        for part in PARTS {
            let _ = fs::remove_dir_all(self.root.join(part));
        }
        for dir in image.dirs.iter().filter(|path| is_part(path)) {
            fs::create_dir_all(self.root.join(dir)).unwrap();
        }
        for (path, bytes) in image.files.iter().filter(|(path, _)| is_part(path)) {
            let whole = self.root.join(path);
            if *path == self.db {
                fs::hard_link(&self.kept_db, &whole).unwrap();
            }
            write_sparse(&whole, bytes);
        }
    }

    fn options(&self) -> Options {
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Options {
            dir: self.root.join("state/journal"),
            budget_bytes: 1 << 30,
            gateway: "gw-test".into(),
            now: Now {
                boot_id: BootId([9; 16]),
                boottime_ns: boot.tv_sec as u64 * 1_000_000_000,
                wall_us: jiff::Timestamp::now().as_microsecond(),
                wall_trusted: true,
            },
            build_wall_us: RELEASED_US,
            machine_id: computer::describe(),
            open_timeout: Duration::from_millis(20_000),
        }
    }

    /// Opens what was laid and compares it with what was told.
    pub(crate) fn judge(&self, told: &Told) -> Verdict {
        match open(self.options()) {
            Ok(Opened::Normal(journal, recovered)) => match self.losses(&journal, &recovered, told)
            {
                Ok(()) => Verdict::Whole,
                Err(loss) => Verdict::Lost(loss),
            },
            Ok(Opened::Recovery(_, recovered)) if recovered.findings.is_empty() => {
                Verdict::Lost("recovery mode that does not say why".into())
            }
            Ok(Opened::Recovery(_, recovered)) => {
                Verdict::Recovery(recovered.findings[0].code.clone())
            }
            Err(error) => Verdict::Refused(error.to_string()),
        }
    }

    fn losses(&self, journal: &Journal, recovered: &Recovered, told: &Told) -> Result<(), String> {
        if recovered.epoch.0 <= told.epoch {
            return Err(format!(
                "epoch {} again: {} was told",
                recovered.epoch, told.epoch
            ));
        }
        if told.epoch > 0
            && recovered
                .note
                .as_deref()
                .is_some_and(|note| note.contains("copy"))
        {
            return Err("taken for a copy".into());
        }
        let machine = recovered
            .machines
            .iter()
            .find(|machine| machine.name == "press-1");
        let request_id = machine.map_or(0, |machine| machine.last_request_id);
        if request_id < told.request_id {
            return Err(format!(
                "request {} was sent, and {request_id} is the last known",
                told.request_id
            ));
        }
        let reader = journal.reader();
        let lookup = |id: &str| {
            reader
                .lookup(&OperationId::parse(id).unwrap())
                .map_err(|e| e.to_string())
        };
        for (id, state) in &told.operations {
            match lookup(id)? {
                Some(Stored::Operation(found)) => {
                    if load::is_final(state) && found.state.name() != state {
                        return Err(format!(
                            "{id} was told {state}, and is {}",
                            found.state.name()
                        ));
                    }
                }
                other => return Err(format!("{id} was told {state}, and is lost: {other:?}")),
            }
        }
        for id in &told.effects {
            match lookup(id)? {
                Some(Stored::Operation(found))
                    if !matches!(found.state.name(), "queued" | "held") => {}
                other => {
                    return Err(format!(
                        "{id} had its effect, and could be sent again: {other:?}"
                    ));
                }
            }
        }
        let events = reader
            .events(Position::default(), usize::MAX, usize::MAX)
            .map_err(|e| e.to_string())?;
        let keys: BTreeSet<String> = events
            .iter()
            .map(|(_, event, _)| event.key.to_string())
            .collect();
        if let Some(key) = told.events.difference(&keys).next() {
            return Err(format!("event {key} was shown, and is lost"));
        }
        let items: BTreeSet<String> = events
            .iter()
            .filter(|(_, event, _)| event.event_type == "unit.done")
            .filter_map(|(_, event, _)| serde_json::from_str::<serde_json::Value>(&event.body).ok())
            .map(|body| body["item"].to_string().trim_matches('"').to_owned())
            .collect();
        if let Some(number) = told
            .items
            .iter()
            .find(|number| !items.contains(&number.to_string()))
        {
            return Err(format!(
                "item {number} was acknowledged to the machine, and is lost"
            ));
        }
        let lines = self.lines();
        for cursor in recovered
            .cursors
            .iter()
            .filter(|cursor| cursor.sink == "local")
        {
            for (at, event, _) in events.iter().filter(|(at, ..)| *at <= cursor.through) {
                if !lines.contains(&event.key.to_string()) {
                    return Err(format!(
                        "event {} at {at:?} counts as taken, and is not in the sink",
                        event.key
                    ));
                }
            }
        }
        Ok(())
    }

    /// Keys of the whole lines of the file sink.
    fn lines(&self) -> BTreeSet<String> {
        let mut paths = Vec::new();
        files_below(&self.root.join("events"), &mut paths);
        let mut keys = BTreeSet::new();
        for path in paths {
            let text = fs::read(path).unwrap();
            for line in text.split(|byte| *byte == b'\n') {
                if let Ok(event) = serde_json::from_slice::<serde_json::Value>(line)
                    && let (Some(source), Some(epoch), Some(sequence)) = (
                        event["source"].as_str(),
                        event["epoch"].as_str(),
                        event["sequence"].as_str(),
                    )
                {
                    keys.insert(format!("{source}/{epoch}/{sequence}"));
                }
            }
        }
        keys
    }
}

/// What became of an image.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Opened, and all that was told is there.
    Whole,
    /// Damage, and told: by its code.
    Recovery(String),
    /// No start, with a reason.
    Refused(String),
    /// Opened, and something is missing: what the product must never do.
    Lost(String),
}

fn is_part(path: &Path) -> bool {
    PARTS.iter().any(|part| path.starts_with(part))
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files_below(&entry.path(), found);
        } else if entry.file_type().unwrap().is_file() {
            found.push(entry.path());
        }
    }
}

fn write_sparse(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (page, at) in bytes.chunks(PAGE_BYTES).zip((0_u64..).step_by(PAGE_BYTES)) {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, at).unwrap();
        }
    }
    file.flush().unwrap();
}
