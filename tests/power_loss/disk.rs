//! Owns: the disk that the log describes: what was durable at a moment, and images with some of the rest.
//! May call: tape.
//! Never: keep anything for certain that no completed sync of that file or directory covers.
//!
//! What counts: `fsync` and `fdatasync` of a file make every earlier change of its content and length durable, and
//! of a directory every earlier change of its names; from when they return. A sync of a file says nothing of its
//! name. What a sync that failed should have written never comes to the disk, whatever is synced later; only the name of
//! a directory may still come: a file system whose log fails takes no change until it is mounted anew. The rest is kept or not: content by sectors of 512 bytes, each by itself; names in their order.

use super::load::Random;
use super::tape::{Record, Tape};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SECTOR_BYTES: u64 = 512;
type Node = usize;

#[derive(Debug)]
enum Change {
    Write { at: u64, data: Range<usize> },
    Length(u64),
    Enter { name: String, node: Node },
    Rename { from: String, to: String },
    Remove { name: String },
}

struct Op {
    /// Its place in the log.
    at: usize,
    /// From where on it is durable, or gone for good.
    durable_at: Option<usize>,
    /// The sync that should have made it durable failed: the kernel takes it for clean, and no later sync writes it.
    gone: bool,
    change: Change,
}

/// Every change of every file and directory, in order.
pub(crate) struct History<'a> {
    tape: &'a Tape,
    nodes: Vec<Vec<Op>>,
    is_dir: Vec<bool>,
}

const ROOT: Node = 0;

struct Reading {
    root: PathBuf,
    live: Vec<BTreeMap<String, Node>>,
    inodes: HashMap<u64, Node>,
    syncs: HashMap<u64, (Node, usize)>,
}

impl<'a> History<'a> {
    /// `there`: the directories, the root first, that were there and durable before the log began.
    pub(crate) fn of(tape: &'a Tape, root: &Path, there: &[&str]) -> Self {
        let mut history = Self {
            tape,
            nodes: Vec::new(),
            is_dir: Vec::new(),
        };
        let mut reading = Reading {
            root: root.canonicalize().unwrap(),
            live: Vec::new(),
            inodes: HashMap::new(),
            syncs: HashMap::new(),
        };
        let root_ino = reading.root.metadata().unwrap().ino();
        history.new_node(&mut reading, root_ino, true);
        for name in there {
            let ino = reading.root.join(name).metadata().unwrap().ino();
            let path = reading.root.join(name);
            history.enter(&mut reading, 0, &path, ino, true);
        }
        for op in history.nodes.iter_mut().flatten() {
            op.durable_at = Some(0);
        }
        for (at, record) in tape.records.iter().enumerate() {
            history.take(&mut reading, at, record);
        }
        history
    }

    fn new_node(&mut self, reading: &mut Reading, ino: u64, is_dir: bool) -> Node {
        let node = self.nodes.len();
        self.nodes.push(Vec::new());
        self.is_dir.push(is_dir);
        reading.live.push(BTreeMap::new());
        reading.inodes.insert(ino, node);
        node
    }

    fn push(&mut self, node: Node, at: usize, change: Change) {
        self.nodes[node].push(Op {
            at,
            durable_at: None,
            gone: false,
            change,
        });
    }

    fn enter(&mut self, reading: &mut Reading, at: usize, path: &Path, ino: u64, is_dir: bool) {
        let (dir, name) = reading.place(path).expect("its directory is known");
        let node = self.new_node(reading, ino, is_dir);
        reading.live[dir].insert(name.clone(), node);
        self.push(dir, at, Change::Enter { name, node });
    }

    fn take(&mut self, reading: &mut Reading, at: usize, record: &Record) {
        match record {
            Record::Create { path, ino } => self.enter(reading, at, path, *ino, false),
            Record::MakeDir { path, ino } => self.enter(reading, at, path, *ino, true),
            Record::Write {
                ino,
                at: offset,
                data,
            } => {
                if let Some(node) = reading.inodes.get(ino) {
                    self.push(
                        *node,
                        at,
                        Change::Write {
                            at: *offset,
                            data: data.clone(),
                        },
                    );
                }
            }
            Record::Length { ino, bytes } => {
                if let Some(node) = reading.inodes.get(ino) {
                    self.push(*node, at, Change::Length(*bytes));
                }
            }
            Record::Rename { from, to } => {
                let (dir, from) = reading.place(from).expect("its directory is known");
                let (into, to) = reading.place(to).expect("its directory is known");
                assert_eq!(dir, into, "a rename across directories is not replayed");
                let Some(node) = reading.live[dir].remove(&from) else {
                    // A socket: it holds nothing. (A file that was missed shows when the whole log is compared with the disk.)
                    return;
                };
                reading.live[dir].insert(to.clone(), node);
                self.push(dir, at, Change::Rename { from, to });
            }
            Record::Unlink { path } => {
                if let Some((dir, name)) = reading.place(path)
                    && reading.live[dir].remove(&name).is_some()
                {
                    self.push(dir, at, Change::Remove { name });
                }
            }
            Record::SyncBegin { ino, token } => {
                if let Some(node) = reading.inodes.get(ino) {
                    reading
                        .syncs
                        .insert(*token, (*node, self.nodes[*node].len()));
                }
            }
            Record::SyncEnd { token, failed } => {
                if let Some((node, covered)) = reading.syncs.remove(token) {
                    let all = self.nodes[node][..covered].iter_mut();
                    for op in all.filter(|op| op.durable_at.is_none()) {
                        let is_dir = |node: &Node| self.is_dir[*node];
                        if *failed
                            && matches!(&op.change, Change::Enter { node, .. } if is_dir(node))
                        {
                            continue;
                        }
                        op.durable_at = Some(at);
                        op.gone = *failed;
                    }
                }
            }
            Record::Mark(_) | Record::Failed => {}
        }
    }
}

impl Reading {
    fn place(&self, path: &Path) -> Option<(Node, String)> {
        let below = path.strip_prefix(&self.root).ok()?;
        let mut dir = ROOT;
        for part in below.parent()? {
            dir = *self.live[dir].get(part.to_str()?)?;
        }
        Some((dir, below.file_name()?.to_str()?.to_owned()))
    }
}

/// Every file of an image, by its path below the root, and every directory.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(crate) dirs: Vec<PathBuf>,
    /// Changes that were not durable, and of them those that were kept, at least in part.
    pub(crate) loose: usize,
    pub(crate) kept: usize,
}

/// How much is kept of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    Everything,
    /// Each sector or change with a chance of so many in eight.
    Eighths(u64),
    /// Whole changes, each with an even chance.
    Whole,
}

impl Keep {
    fn any(random: &mut Random) -> Self {
        match random.below(8) {
            0 | 1 => Self::Nothing,
            2 => Self::Everything,
            3 => Self::Whole,
            _ => Self::Eighths(1 + random.below(7)),
        }
    }
    fn change(self, random: &mut Random) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Eighths(n) => random.below(8) < n,
            Self::Whole => random.one_in(2),
        }
    }
}

#[derive(Clone, Default)]
struct Content {
    bytes: Vec<u8>,
    names: BTreeMap<String, Node>,
}

impl Content {
    fn apply(&mut self, change: &Change, tape: &Tape) {
        match change {
            Change::Write { at, data } => self.write(*at, &tape.bytes[data.clone()]),
            Change::Length(bytes) => self.bytes.resize(usize::try_from(*bytes).unwrap(), 0),
            Change::Enter { name, node } => {
                self.names.insert(name.clone(), *node);
            }
            Change::Rename { from, to } => {
                if let Some(node) = self.names.remove(from) {
                    self.names.insert(to.clone(), node);
                }
            }
            Change::Remove { name } => {
                self.names.remove(name);
            }
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        let begin = usize::try_from(at).unwrap();
        let end = begin + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[begin..end].copy_from_slice(data);
    }

    /// A write of which some sectors came to the disk, and perhaps the length without them.
    fn write_torn(&mut self, at: u64, data: &[u8], keep: Keep, random: &mut Random) -> bool {
        let (mut from, end, mut any) = (at, at + data.len() as u64, false);
        while from < end {
            let to = ((from / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
            if keep.change(random) {
                any = true;
                self.write(from, &data[(from - at) as usize..(to - at) as usize]);
            }
            from = to;
        }
        if any && random.one_in(2) && (self.bytes.len() as u64) < end {
            self.bytes.resize(usize::try_from(end).unwrap(), 0);
        }
        any
    }
}

/// The disk, moved along the log.
pub(crate) struct Disk<'a> {
    history: &'a History<'a>,
    durable: Vec<Content>,
    through: Vec<usize>,
}

impl<'a> Disk<'a> {
    pub(crate) fn new(history: &'a History<'a>) -> Self {
        let count = history.nodes.len();
        Self {
            history,
            durable: vec![Content::default(); count],
            through: vec![0; count],
        }
    }

    /// Power is lost after `moment` entries; not before the last one.
    pub(crate) fn advance(&mut self, moment: usize) {
        for (node, ops) in self.history.nodes.iter().enumerate() {
            let rest = &ops[self.through[node]..];
            let durable = |op: &&Op| op.durable_at.is_some_and(|at| at < moment.max(1));
            for op in rest.iter().take_while(durable) {
                if !op.gone {
                    self.durable[node].apply(&op.change, self.history.tape);
                }
                self.through[node] += 1;
            }
        }
    }

    /// What is there after power was lost: all that was durable, and what chance keeps of the rest.
    pub(crate) fn image(&self, moment: usize, random: &mut Random) -> Image {
        self.image_with(moment, random, |random| {
            (Keep::any(random), Keep::any(random))
        })
    }

    /// Only what was durable.
    pub(crate) fn least(&self, moment: usize) -> Image {
        let nothing = |_: &mut Random| (Keep::Nothing, Keep::Nothing);
        self.image_with(moment, &mut Random::new(0), nothing)
    }

    /// As if nothing had been lost.
    pub(crate) fn whole(&self) -> Image {
        let everything = |_: &mut Random| (Keep::Everything, Keep::Everything);
        self.image_with(usize::MAX, &mut Random::new(0), everything)
    }

    fn image_with(
        &self,
        moment: usize,
        random: &mut Random,
        keep: impl Fn(&mut Random) -> (Keep, Keep),
    ) -> Image {
        let (content, names) = keep(random);
        // One journal for all names, or each directory by itself.
        let common = random.one_in(2).then(|| {
            if names.change(random) {
                random.below((moment as u64).saturating_add(1)) as usize
            } else {
                0
            }
        });
        let mut image = Image::default();
        let mut todo = vec![(ROOT, PathBuf::new())];
        while let Some((node, path)) = todo.pop() {
            let pending: Vec<&Op> = self.history.nodes[node][self.through[node]..]
                .iter()
                .take_while(|op| op.at < moment)
                .collect();
            let mut here = self.durable[node].clone();
            image.loose += pending.len();
            if self.history.is_dir[node] {
                let kept = match (names, common) {
                    (Keep::Everything, _) => pending.len(),
                    (Keep::Nothing, _) => 0,
                    (_, Some(limit)) => pending.iter().filter(|op| op.at < limit).count(),
                    (_, None) => random.below(pending.len() as u64 + 1) as usize,
                };
                for op in &pending[..kept] {
                    here.apply(&op.change, self.history.tape);
                }
                image.kept += kept;
                let below = here
                    .names
                    .iter()
                    .map(|(name, node)| (*node, path.join(name)));
                todo.extend(below);
                image.dirs.push(path);
            } else {
                for op in pending {
                    image.kept += usize::from(here.keep(op, content, random, self.history.tape));
                }
                image.files.insert(path, here.bytes);
            }
        }
        image.dirs.sort();
        image
    }
}

impl Content {
    fn keep(&mut self, op: &Op, keep: Keep, random: &mut Random, tape: &Tape) -> bool {
        match (&op.change, keep) {
            (Change::Write { at, data }, Keep::Eighths(_)) => {
                self.write_torn(*at, &tape.bytes[data.clone()], keep, random)
            }
            (change, keep) => {
                let kept = keep.change(random);
                if kept {
                    self.apply(change, tape);
                }
                kept
            }
        }
    }
}
