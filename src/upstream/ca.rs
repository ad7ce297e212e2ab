//! Owns: reading a file of certificate authorities.
//! May call: the file system.
//! Never: read without bound; take a part of a file for the whole.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Most bytes of a file of certificate authorities.
pub const CA_BYTES_MAX: u64 = 4 << 20;

/// The bytes of `path`.
///
/// # Errors
/// What a person must mend.
pub fn read_ca(path: &Path) -> Result<Vec<u8>, String> {
    let bad = |found: String| {
        let file = path.display();
        format!("ca_file {file}: {found}; expected certificates as PEM, readable by this service")
    };
    let file = File::open(path).map_err(|error| bad(error.to_string()))?;
    let mut pem = Vec::new();
    file.take(CA_BYTES_MAX + 1)
        .read_to_end(&mut pem)
        .map_err(|error| bad(error.to_string()))?;
    if pem.len() as u64 > CA_BYTES_MAX {
        return Err(bad(format!("more than {CA_BYTES_MAX} bytes")));
    }
    Ok(pem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused_and_one_at_the_limit_is_read() {
        let refused = read_ca(Path::new("/dev/zero")).unwrap_err();
        assert!(refused.contains("more than"), "{refused}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        File::create(&path).unwrap().set_len(CA_BYTES_MAX).unwrap();
        assert_eq!(read_ca(&path).unwrap().len() as u64, CA_BYTES_MAX);
    }
}
