//! Owns: recovery mode's view, and `check`, `export`, `salvage` on a stopped gateway (REC-04).
//! May call: evidence, files, store, state.
//! Never: change anything unless told to write; call something saved that is not proven.

use super::evidence::Evidence;
use super::files::{self, CopyFault, HighWater, HighWaterFile, Lock, LockFault};
use super::open::{draw_epoch, find_generation, try_open, unproven_before_us};
use super::reader::{Reader, Source};
use super::state::{self, EncodeFault, cursor_key, dead_key, machine_key, sink_key, source_key};
use super::store::{self, Store, StoreError, guarded};
use super::{Finding, Meta, Options, Recovered};
use crate::core::ids::{CommitNo, Epoch};
use crate::core::lifecycle::Actor;
use crate::core::record::{Block, Record, Stored};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long opening that copy may take.
const CHECK_OPEN_MS_MAX: u64 = 60_000;

/// A damaged journal: what can be proven, read-only.
pub struct Damaged {
    evidence: Arc<Evidence>,
    findings: Vec<Finding>,
    _lock: Option<Lock>,
}

impl Damaged {
    pub(super) fn gather(
        dir: &Path,
        lock: Option<Lock>,
        mut findings: Vec<Finding>,
    ) -> (Self, Recovered) {
        let evidence = Evidence::scan(dir).unwrap_or_else(|e| {
            findings.push(Finding::new("files_unreadable", e.0));
            Evidence::none()
        });
        findings.extend(judge(dir, &evidence));
        let recovered = recovered(&evidence, &findings);
        let damaged = Self {
            evidence: Arc::new(evidence),
            findings,
            _lock: lock,
        };
        (damaged, recovered)
    }

    /// Reads what is proven.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Source::Proven(Arc::clone(&self.evidence)))
    }
    /// What was found wrong.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

fn recovered(evidence: &Evidence, findings: &[Finding]) -> Recovered {
    let mut open = Vec::new();
    for (id, _) in evidence.ids() {
        if let Ok(Some(Stored::Operation(operation))) = evidence.lookup(id)
            && !operation.state.is_ended()
        {
            open.push(*operation);
        }
    }
    open.sort_by_key(|operation| operation.submitted);
    let mut dead = std::collections::BTreeMap::<String, u64>::new();
    for (_, letter) in evidence.all_dead_letters() {
        *dead.entry(letter.sink.clone()).or_default() += 1;
    }
    Recovered {
        epoch: Epoch(evidence.last_epoch),
        next_commit: CommitNo(evidence.durable.borrow().0 + 1),
        open_operations: open,
        machines: evidence.machines.values().map(|(_, m)| m.clone()).collect(),
        cursors: evidence.cursors.values().map(|(_, c)| c.clone()).collect(),
        sources: evidence.sources.values().map(|(_, s)| s.clone()).collect(),
        sinks: evidence.sinks.values().map(|(_, s)| s.clone()).collect(),
        dead_letters: dead.into_iter().collect(),
        shed: evidence.shed.1.clone(),
        highest_wall_us: evidence.highest_wall_us,
        clean: false,
        unproven_before_us: evidence.meta.unproven_before_us,
        previous_epoch: Epoch(evidence.last_epoch),
        note: None,
        foreign: None,
        findings: findings.to_vec(),
    }
}

/// What the raw files say against themselves.
fn judge(dir: &Path, evidence: &Evidence) -> Vec<Finding> {
    let high_water = files::read_high_water(dir);
    let mut findings = Vec::new();
    if high_water.is_none() {
        findings.push(Finding::new(
            "high_water_lost",
            "the high-water file is lost",
        ));
    }
    if !dir.join(files::CREATED).exists() {
        findings.push(Finding::new("marker_lost", "the creation marker is lost"));
    }
    if evidence.is_empty() && high_water.is_some_and(|h| h.no > 0) {
        findings.push(Finding::new(
            "nothing_proven",
            "no commit is readable in any file",
        ));
    }
    for (from, to) in evidence.missing(high_water.map_or(0, |h| h.no)) {
        findings.push(Finding::new(
            "commits_lost",
            format!("commits {from} to {to} are lost ({})", to - from + 1),
        ));
    }
    findings
}

/// What [`check`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether nothing is wrong.
    pub ok: bool,
    /// First and last commit that are proven; before the first, the log was trimmed.
    pub proven: Option<(u64, u64)>,
    /// The last commit that was acknowledged, if the high-water file is whole.
    pub high_water: Option<u64>,
    /// The log was trimmed up to here.
    pub trimmed_through: u64,
    /// Commits that are lost, first and last of each gap.
    pub lost: Vec<(u64, u64)>,
    /// Operations of which something is kept.
    pub operations: u64,
    /// The last epoch known.
    pub epoch: u64,
    /// What was found wrong.
    pub findings: Vec<Finding>,
    /// Why opening the store, on a copy, could not be tried; `None` if it was, or was not asked for.
    pub not_tried: Option<String>,
}

/// Why a tool could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Operator: stop the gateway first.
    #[error("the journal is in use by a running gateway ({0}); stop it first")]
    Running(String),
    /// Operator: there is none.
    #[error("there is no journal in {0}")]
    None(String),
    /// Operator: nothing is wrong, so nothing needs leaving.
    #[error("nothing to salvage: the journal is whole and opens; start the gateway")]
    NotDamaged,
    /// Operator: the journal does not come from another computer, or was adopted already.
    #[error(
        "nothing to adopt: the journal waits for nobody; one from another computer does once the gateway was started on it"
    )]
    NotForeign,
    /// Operator: the disk.
    #[error("{0}")]
    Io(String),
}

impl From<StoreError> for ToolError {
    fn from(error: StoreError) -> Self {
        Self::Io(error.0)
    }
}
impl From<std::io::Error> for ToolError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

fn stopped(dir: &Path) -> Result<Option<Lock>, ToolError> {
    if !dir.join(files::LOCK).exists() && files::generations(dir).is_empty() {
        return Err(ToolError::None(dir.display().to_string()));
    }
    match Lock::probe(dir) {
        Ok(lock) => Ok(lock),
        Err(LockFault::Held(who)) => Err(ToolError::Running(who)),
        Err(LockFault::Io(e)) => Err(e.into()),
    }
}

fn report(dir: &Path, evidence: &Evidence) -> Report {
    let high_water = files::read_high_water(dir).map(|h| h.no);
    let findings = judge(dir, evidence);
    Report {
        ok: findings.is_empty(),
        proven: evidence.bounds(),
        high_water,
        trimmed_through: evidence.meta.trimmed_through,
        lost: evidence.missing(high_water.unwrap_or(0)),
        operations: evidence.ids().count() as u64,
        epoch: evidence.last_epoch,
        findings,
        not_tried: None,
    }
}

/// Reads every byte of a stopped gateway's journal and says what is wrong; then opens a copy of the
/// store, which may be refused although every frame in it is whole. Changes nothing.
///
/// # Errors
/// [`ToolError`]
pub fn check(dir: &Path) -> Result<Report, ToolError> {
    let _lock = stopped(dir)?;
    judged(dir, &Evidence::scan(dir)?)
}

/// The one judgement of every tool.
fn judged(dir: &Path, evidence: &Evidence) -> Result<Report, ToolError> {
    let mut report = report(dir, evidence);
    if report.ok {
        let copy = dir.join(files::CHECK_COPY);
        match try_copy(dir, &copy) {
            Ok(finding) => report.findings.extend(finding),
            Err(why) => report.not_tried = Some(why),
        }
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        report.ok = report.findings.is_empty();
    }
    Ok(report)
}

/// What an open would find; `Err` if there can be no copy.
fn try_copy(dir: &Path, copy: &Path) -> Result<Option<Finding>, String> {
    let generation = match find_generation(dir) {
        Ok(generation) => generation,
        Err(finding) => return Ok(Some(finding)),
    };
    if copy.exists() {
        fs::remove_dir_all(copy).map_err(|e| e.to_string())?;
    }
    files::copy_tree(&files::generation_dir(dir, generation), copy).map_err(|e| match e {
        CopyFault::NoRoom { needed, free } => {
            format!("a copy of the store needs {needed} bytes, and {free} are free")
        }
        CopyFault::Io(e) => format!("the store cannot be copied: {e}"),
    })?;
    files::delete_generating(copy).map_err(|e| e.to_string())?;
    let limit = Duration::from_millis(CHECK_OPEN_MS_MAX);
    Ok(try_open(copy, files::read_high_water(dir), limit))
}

/// Writes everything provable as JSON lines, what is lost last. Changes nothing.
///
/// # Errors
/// [`ToolError`]
pub fn export(dir: &Path, out: &mut impl Write) -> Result<Report, ToolError> {
    let _lock = stopped(dir)?;
    let evidence = Evidence::scan(dir)?;
    let report = judged(dir, &evidence)?;
    let mut line = |kind: &str, value: serde_json::Value| -> std::io::Result<()> {
        writeln!(
            out,
            "{}",
            serde_json::json!({ "kind": kind, "value": value })
        )
    };
    let json = |value: Result<serde_json::Value, serde_json::Error>| {
        value.map_err(|e| ToolError::Io(e.to_string()))
    };
    for no in evidence.block_numbers(0) {
        if let Some(block) = evidence.block(no)? {
            line("commit", json(serde_json::to_value(block))?)?;
        }
    }
    for (id, _) in evidence.ids() {
        match evidence.lookup(id)? {
            Some(Stored::Operation(o)) => line("operation", json(serde_json::to_value(o))?)?,
            Some(Stored::Tombstone(t)) => line("tombstone", json(serde_json::to_value(t))?)?,
            None => {}
        }
    }
    for (_, machine) in evidence.machines.values() {
        line("machine", json(serde_json::to_value(machine))?)?;
    }
    for (_, cursor) in evidence.cursors.values() {
        line("cursor", json(serde_json::to_value(cursor))?)?;
    }
    for (_, source) in evidence.sources.values() {
        line("source", json(serde_json::to_value(source))?)?;
    }
    for (_, sink) in evidence.sinks.values() {
        line("sink", json(serde_json::to_value(sink))?)?;
    }
    for (_, letter) in evidence.all_dead_letters() {
        line("dead_letter", json(serde_json::to_value(letter))?)?;
    }
    line("report", json(serde_json::to_value(&report))?)?;
    Ok(report)
}

/// Says that this computer takes the place of the one that wrote the journal in `dir`; taken over, with
/// the reason, at the next start.
///
/// # Errors
/// [`ToolError`]; a journal that waits for nobody is left as it is.
pub fn adopt(dir: &Path, reason: &str) -> Result<(), ToolError> {
    let _lock = stopped(dir)?;
    if !dir.join(files::FOREIGN).exists() {
        return Err(ToolError::NotForeign);
    }
    files::write_whole(&dir.join(files::ADOPTED), reason.as_bytes())?;
    Ok(())
}

/// What [`salvage`] did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SalvageReport {
    /// Whether anything was written.
    pub written: bool,
    /// What was found before.
    pub report: Report,
    /// Commits carried over.
    pub commits_kept: u64,
    /// Commits that are lost, and are marked as such in the new journal.
    pub commits_lost: u64,
    /// Operations carried over.
    pub operations_kept: u64,
    /// The epoch above which the new journal begins.
    pub epoch: Option<u64>,
    /// Where the damaged files are kept.
    pub kept_aside: Vec<String>,
}

/// Leaves recovery mode: builds a new incarnation beside the damaged one from all that is proven, with
/// the reason in it and an epoch of its own. Without `write` it only says what it would do.
///
/// # Errors
/// [`ToolError`]; a journal that is whole is left as it is.
pub fn salvage(options: &Options, reason: &str, write: bool) -> Result<SalvageReport, ToolError> {
    let dir = &options.dir;
    let _lock = stopped(dir)?;
    let evidence = Evidence::scan(dir)?;
    let report = judged(dir, &evidence)?;
    if report.ok && report.not_tried.is_none() {
        return Err(ToolError::NotDamaged);
    }
    let lost: u64 = report.lost.iter().map(|(from, to)| to - from + 1).sum();
    let first_kept = evidence.meta.trimmed_through + 1;
    let mut done = SalvageReport {
        written: false,
        commits_kept: evidence.block_numbers(first_kept).count() as u64,
        commits_lost: lost,
        operations_kept: report.operations,
        report,
        epoch: None,
        kept_aside: Vec::new(),
    };
    if !write {
        return Ok(done);
    }
    let there = files::generations(dir);
    let generation = there.iter().max().map_or(1, |g| g + 1);
    let store_dir = files::generation_dir(dir, generation);
    let store = guarded(|| Store::open(&store_dir))?;
    let (mark, meta) = guarded(|| Ok(build(&store, &evidence, options, reason, &done.report)))??;
    drop(store);
    files::sync_tree(&store_dir)?;
    HighWaterFile::open(dir)?.write(mark)?;
    files::write_manifest(dir, generation)?;
    files::write_whole(&dir.join(files::CREATED), b"created\n")?;
    let old = there.into_iter().map(|g| files::generation_dir(dir, g));
    for path in old.chain([dir.join(files::ASIDE)]).filter(|p| p.exists()) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let to = dir.join(format!("damaged-{}-{name}", meta.epoch));
        fs::rename(&path, &to)?;
        done.kept_aside.push(to.display().to_string());
    }
    files::sync_dir(dir)?;
    done.written = true;
    done.epoch = Some(meta.epoch);
    Ok(done)
}

fn audit(result: String) -> Record {
    Record::Audit {
        actor: Actor::Gateway,
        action: "journal salvage".into(),
        result,
    }
}

/// Fills the new store. Commit numbers stay, so that cursors stay right: a lost commit is replaced by
/// one that says so.
fn build(
    store: &Store,
    evidence: &Evidence,
    options: &Options,
    reason: &str,
    report: &Report,
) -> Result<(HighWater, Meta), ToolError> {
    let known = report
        .high_water
        .unwrap_or(0)
        .max(evidence.durable.borrow().0);
    let known_epoch = evidence
        .last_epoch
        .max(files::read_high_water(&options.dir).map_or(0, |h| h.epoch));
    let epoch = draw_epoch(options, known_epoch).map_err(|e| ToolError::Io(e.to_string()))?;
    let mut meta = Meta {
        trimmed_through: evidence.meta.trimmed_through,
        epoch,
        identity: files::identity(&store.dir.join("db"))?,
        machine_id: options.machine_id.clone(),
        gateway: options.gateway.clone(),
        note: Some(format!("salvage: {reason}")),
        unproven_before_us: unproven_before_us(&options.now, evidence.highest_wall_us),
        ..Meta::default()
    };
    // A gap at the very beginning needs no placeholders: the log begins behind it.
    if let Some((from, to)) = report.lost.first()
        && *from == meta.trimmed_through + 1
    {
        meta.trimmed_through = *to;
    }
    let mut chain = 0;
    let mut last_epoch = Epoch(0);
    for no in meta.trimmed_through + 1..=known + 1 {
        let block = match evidence.block(no)? {
            Some(block) if no <= known => block,
            _ => Block {
                no: CommitNo(no),
                epoch: if no > known { Epoch(epoch) } else { last_epoch },
                at: options.now,
                records: vec![if no > known {
                    audit(format!("{reason}; lost commits: {:?}", report.lost))
                } else if evidence.is_hollow(no) {
                    Record::Gone
                } else {
                    audit("this commit is lost".into())
                }],
            },
        };
        last_epoch = block.epoch;
        let (frames, next) = state::encode_block(&block, chain).map_err(|e| match e {
            EncodeFault::TooLarge(bytes) => ToolError::Io(format!("commit {no} has {bytes} bytes")),
            EncodeFault::Store(e) => e.into(),
        })?;
        store.put_block(no, &frames)?;
        chain = next;
    }
    fill_trees(store, evidence)?;
    meta.derived_through = known + 1;
    state::put_meta(store, &meta)?;
    store.flush()?;
    let mark = HighWater {
        no: known + 1,
        epoch,
        chain,
    };
    Ok((mark, meta))
}

fn fill_trees(store: &Store, evidence: &Evidence) -> Result<(), StoreError> {
    use super::frame::Kind;
    for (id, no) in evidence.ids() {
        match evidence.lookup(id)? {
            Some(Stored::Operation(operation)) => {
                state::settle(store, no, &operation)?;
            }
            Some(Stored::Tombstone(tombstone)) => {
                let frames = store::framed(Kind::Tombstone, no, tombstone.created_us, &tombstone)?;
                store::put(&store.done, id.as_str().as_bytes(), &frames)?;
                let key = state::ends_key(b't', tombstone.created_us, id);
                store.ends.insert(key, &[])?;
            }
            None => {}
        }
    }
    for (no, machine) in evidence.machines.values() {
        let frames = store::framed(Kind::Machine, *no, 0, machine)?;
        store::put(&store.keyed, machine_key(&machine.name).as_bytes(), &frames)?;
    }
    for (no, cursor) in evidence.cursors.values() {
        let frames = store::framed(Kind::Cursor, *no, 0, cursor)?;
        store::put(&store.keyed, cursor_key(&cursor.sink).as_bytes(), &frames)?;
    }
    for (no, source) in evidence.sources.values() {
        let frames = store::framed(Kind::Source, *no, 0, source)?;
        store::put(&store.keyed, source_key(source).as_bytes(), &frames)?;
    }
    for (no, sink) in evidence.sinks.values() {
        let frames = store::framed(Kind::Sink, *no, 0, sink)?;
        store::put(&store.keyed, sink_key(&sink.sink).as_bytes(), &frames)?;
    }
    let (no, shed) = &evidence.shed;
    let frames = store::framed(Kind::Shed, *no, 0, shed)?;
    store::put(&store.keyed, state::SHED_KEY.as_bytes(), &frames)?;
    for (no, letter) in evidence.all_dead_letters() {
        let frames = store::framed(Kind::DeadLetter, no, 0, letter)?;
        store::put(
            &store.dead,
            &dead_key(&letter.sink, &letter.event.key),
            &frames,
        )?;
    }
    Ok(())
}
