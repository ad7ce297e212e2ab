//! Owns: directories whose names stay.
//! May call: nothing.
//! Never: make a directory within one whose own name is not durable.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Makes a directory and what is missing above it, each with this mode, and makes all these names durable. One that is
/// there counts as made by a process that ended before it could do that.
///
/// # Errors
/// What the system says; what could not be made durable is taken away again as far as that goes, since a later sync
/// says nothing of what an earlier one could not write.
pub fn create_dir(path: &Path, mode: u32) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let builder = || {
        let mut builder = DirBuilder::new();
        builder.mode(mode);
        builder
    };
    let mut made = builder().create(path);
    if matches!(&made, Err(error) if error.kind() == ErrorKind::NotFound) && parent != path {
        create_dir(parent, mode)?;
        made = builder().create(path);
    }
    match made {
        Ok(()) => {
            let synced = sync(parent);
            if synced.is_err() {
                let _ = fs::remove_dir(path);
            }
            synced
        }
        // Also where this user, or nobody, may make one: `/`, a mount point.
        Err(_) if path.is_dir() => match sync(parent) {
            // Who may not even look there has made nothing there.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            other => other,
        },
        Err(error) => Err(error),
    }
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_made_and_what_is_there_stays() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("a/b/c");
        for _ in 0..2 {
            create_dir(&deep, 0o750).unwrap();
            assert!(deep.is_dir());
        }
        create_dir(Path::new("/"), 0o750).unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        let through = home.path().join("file/d");
        assert!(create_dir(&through, 0o750).is_err());
        assert!(create_dir(&home.path().join("file"), 0o750).is_err());
    }
}
