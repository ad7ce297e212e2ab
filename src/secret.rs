//! Owns: secrets as files: what such a file must be like, and reading it.
//! May call: the file system.
//! Never: show a secret; keep one longer than its user does; take a file that everybody can read.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Longest secret, in bytes.
pub const SECRET_BYTES_MAX: u64 = 64 * 1024;
/// Permissions that others than owner and group must not have.
const OTHERS: u32 = 0o007;
/// Set by systemd for a service with `LoadCredential=` (systemd.exec(5)).
pub const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// Where systemd puts the credentials of the gateway's service.
const CREDENTIALS_DEFAULT: &str = "/run/credentials/holdfast.service";

/// The file of a systemd credential.
#[must_use]
pub fn credential(name: &str) -> PathBuf {
    let directory = std::env::var_os(CREDENTIALS_DIRECTORY).filter(|value| !value.is_empty());
    let directory = directory.map_or_else(|| CREDENTIALS_DEFAULT.into(), PathBuf::from);
    directory.join(name)
}

/// A password or token, shown to nobody by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// For a secret that does not come from a file.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
    /// The secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
    /// Whether `given` is the same, in a time that tells nothing: digests are compared, all of their bytes.
    #[must_use]
    pub fn matches(&self, given: &str) -> bool {
        let (ours, theirs) = (Sha256::digest(&self.0), Sha256::digest(given));
        let differing = ours
            .iter()
            .zip(&theirs)
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(differing) == 0 && !self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a secret cannot be had. Operator.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Missing, not permitted, or broken.
    #[error("{path}: the secret cannot be read: {error}; put it there, readable by this service")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("{0}: found something that is not a file; expected a file that holds the secret")]
    NotAFile(PathBuf),
    /// See [`OTHERS`].
    #[error(
        "{path}: found mode {mode:04o}, open to every user of this computer; expected 0640 or less: \
         chmod o= {path}, and give out a new secret if others may have read it"
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Not what a secret looks like.
    #[error("{path}: found {found}; expected one line of text, the secret alone")]
    Shape {
        /// Which file.
        path: PathBuf,
        /// In words, without the content.
        found: String,
    },
}

/// Whether `path` may hold a secret, without reading it.
///
/// # Errors
/// [`SecretError`].
pub fn judge(path: &Path) -> Result<(), SecretError> {
    let metadata = std::fs::metadata(path).map_err(|error| io_error(path, error))?;
    judge_metadata(path, &metadata)
}

fn io_error(path: &Path, error: io::Error) -> SecretError {
    SecretError::Io {
        path: path.to_owned(),
        error,
    }
}

fn judge_metadata(path: &Path, metadata: &std::fs::Metadata) -> Result<(), SecretError> {
    if !metadata.is_file() {
        return Err(SecretError::NotAFile(path.to_owned()));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(SecretError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Reads the secret in `path`, without the end of its line.
///
/// # Errors
/// [`SecretError`].
pub fn read(path: &Path) -> Result<Secret, SecretError> {
    // Not waiting: opening a pipe that nobody writes to would.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(|error| io_error(path, error))?;
    // Of the open file, so that it is the one that is read.
    let metadata = file.metadata().map_err(|error| io_error(path, error))?;
    judge_metadata(path, &metadata)?;
    let shape = |found: &str| SecretError::Shape {
        path: path.to_owned(),
        found: found.to_owned(),
    };
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| io_error(path, error))?;
    if bytes.len() as u64 > SECRET_BYTES_MAX {
        return Err(shape("more than 64 KiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| shape("bytes that are not UTF-8"))?;
    let secret = text.trim_end_matches(['\n', '\r']);
    if secret.is_empty() {
        return Err(shape("nothing in it"));
    }
    if secret.contains(|c: char| c.is_control()) {
        return Err(shape("several lines, or control characters"));
    }
    Ok(Secret(secret.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    // covers: CFG-04
    #[test]
    fn a_secret_is_one_line_in_a_file_that_others_cannot_read() {
        let (_dir, path) = file(b"hunter2\r\n", 0o640);
        assert_eq!(read(&path).unwrap().reveal(), "hunter2");
        for mode in [0o644, 0o604, 0o602] {
            let (_dir, path) = file(b"hunter2", mode);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod o="), "{error}");
            assert!(matches!(judge(&path), Err(SecretError::Open { .. })));
        }
        for content in [&b""[..], b"\n", b"a\nb\n", b"\xff\xfe", &[b'x'; 70_000]] {
            let (_dir, path) = file(content, 0o600);
            assert!(matches!(read(&path), Err(SecretError::Shape { .. })));
        }
        let (dir, _) = file(b"x", 0o600);
        assert!(matches!(read(dir.path()), Err(SecretError::NotAFile(_))));
        let missing = dir.path().join("missing");
        assert!(matches!(read(&missing), Err(SecretError::Io { .. })));
    }

    // covers: CFG-04
    #[test]
    fn a_secret_is_compared_whole_and_never_shown() {
        let secret = Secret::new("hunter2");
        assert!(secret.matches("hunter2"));
        for other in [
            "",
            "hunter",
            "hunter22",
            "hunter3",
            "hunter2hunter2",
            "Hunter2",
        ] {
            assert!(!secret.matches(other), "{other}");
        }
        assert!(!Secret::new("").matches(""));
        assert!(!format!("{secret:?}").contains("hunter2"));
    }
}
