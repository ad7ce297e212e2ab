//! Owns: the proof of how a serial port is opened and closed, on pseudo-terminals.
//! May call: the port's opening; a process that holds a port.
//! Never: take this process for another one.

use super::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use tokio::io::AsyncWriteExt as _;

/// A line whose far end reads nothing by itself.
fn pty() -> (fs::File, SerialLine) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let line = SerialLine {
        path,
        baud: 19_200,
        data_bits: 8,
        parity: Parity::None,
        stop_bits: 1,
        rs485: false,
    };
    (fs::File::from(master), line)
}

/// Another process, with `path` open and not locked.
struct Other(Child);

impl Other {
    fn with(path: &str) -> Self {
        let port = fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::from(port))
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// covers: F038
#[tokio::test]
async fn a_port_that_another_process_has_open_without_a_lock_is_not_taken() {
    let (_master, line) = pty();
    let other = Other::with(&line.path);
    let named = format!("process {} (sleep)", other.0.id());
    let error = open(&line).await.err().unwrap().to_string();
    assert!(
        error.contains(&named) && error.contains("without a lock"),
        "{error}"
    );
    assert_eq!(trouble(&line.path), Trouble::InUse(vec![named]));
    drop(other);
    // This process has the other end, and may have this one too, as a simulated device does.
    let _near = fs::File::options()
        .read(true)
        .write(true)
        .open(&line.path)
        .unwrap();
    open(&line).await.unwrap();
}

#[tokio::test]
async fn what_has_not_left_at_the_close_never_leaves() {
    let (mut master, line) = pty();
    // Kept open, so that the far end is not told that nobody is there.
    let _near = fs::File::options()
        .read(true)
        .write(true)
        .open(&line.path)
        .unwrap();
    let mut wire = open(&line).await.unwrap();
    wire.write_all(&[0x55; 100]).await.unwrap();
    drop(wire);
    rustix::io::ioctl_fionbio(&master, true).unwrap();
    let came = master.read(&mut [0; 200]);
    assert_eq!(came.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
