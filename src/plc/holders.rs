//! Owns: which processes have a device file open, as far as this user may see.
//! May call: the system's list of processes.
//! Never: open the device; take whoever stands at the other end of a pseudo-terminal for one who shares this end.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Most processes that are looked at.
const PROCESSES_MAX: usize = 10_000;
/// Device numbers of pseudo-terminals: every instance of their file system counts from 0.
const PTY_MAJORS: std::ops::RangeInclusive<u32> = 136..=143;

/// A process that has the device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) pid: u32,
    command: String,
    /// It also has the other end of this pseudo-terminal: it is the device, or the way to it.
    pub(super) is_far_end: bool,
}

impl Holder {
    pub(super) fn is_this_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = match self.is_this_process() {
            true => ", this gateway, by another name or other settings",
            false => "",
        };
        write!(f, "process {} ({}{own})", self.pid, self.command)
    }
}

/// What a look at all processes showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    pub(super) all: Vec<Holder>,
    /// Some processes belong to others, and what they have open is not seen.
    pub(super) is_blind: bool,
}

impl Holders {
    /// Those who share this end of the line with this process.
    pub(super) fn others(&self) -> Vec<String> {
        let others = self.all.iter();
        let others = others.filter(|holder| !holder.is_this_process() && !holder.is_far_end);
        others.map(ToString::to_string).collect()
    }
}

/// Who has `path` open.
pub(super) fn look(path: &str) -> Holders {
    let mut found = Holders::default();
    let (Some(device), Ok(processes)) = (Device::of(path), fs::read_dir("/proc")) else {
        return found;
    };
    for process in processes.flatten().take(PROCESSES_MAX) {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        match held(&process.path(), &device) {
            Ok(None) => {}
            Ok(Some(is_far_end)) => {
                let command = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.all.push(Holder {
                    pid,
                    command: command.trim().to_owned(),
                    is_far_end,
                });
            }
            // One that has ended meanwhile holds nothing.
            Err(error) => found.is_blind |= error.kind() == ErrorKind::PermissionDenied,
        }
    }
    found
}

struct Device {
    path: PathBuf,
    number: u64,
    is_pty: bool,
}

impl Device {
    fn of(path: &str) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let number = fs::metadata(&path).ok()?.rdev();
        let is_pty = PTY_MAJORS.contains(&rustix::fs::major(number));
        Some(Self {
            path,
            number,
            is_pty,
        })
    }

    /// By the name, or, in another tree of files, by the number of its driver.
    fn is_at(&self, descriptor: &Path, to: &Path) -> bool {
        let same = || fs::metadata(descriptor).is_ok_and(|file| file.rdev() == self.number);
        to == self.path || (!self.is_pty && to.starts_with("/dev") && same())
    }

    /// Whether `descriptor` is the other end of it.
    fn is_across(&self, process: &Path, descriptor: &Path, to: &Path) -> bool {
        let master =
            self.is_pty && (to == Path::new("/dev/ptmx") || to == Path::new("/dev/pts/ptmx"));
        let (Some(number), Some(own)) = (descriptor.file_name(), self.path.file_name()) else {
            return false;
        };
        master
            && fs::read_to_string(process.join("fdinfo").join(number)).is_ok_and(|info| {
                let mut index = info
                    .lines()
                    .filter_map(|line| line.strip_prefix("tty-index:"));
                index.next().map(str::trim) == own.to_str()
            })
    }
}

/// Whether a process has the device open, and then whether it has its other end too.
fn held(process: &Path, device: &Device) -> std::io::Result<Option<bool>> {
    let (mut near, mut far) = (false, false);
    for entry in fs::read_dir(process.join("fd"))?.flatten() {
        let descriptor = entry.path();
        let Ok(to) = fs::read_link(&descriptor) else {
            continue;
        };
        near |= device.is_at(&descriptor, &to);
        far |= device.is_across(process, &descriptor, &to);
    }
    Ok(near.then_some(far))
}
