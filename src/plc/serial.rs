//! Owns: opening a serial port, for this process alone, and saying why it cannot be opened.
//! May call: holders of this room; sys (the direction of an RS-485 line); core serial; the serial port's driver.
//! Never: keep what a name meant: the path is followed anew at every opening; wait for the port on the runtime.

use super::holders;
use super::metered::Wire;
use crate::core::serial::{Parity, SerialLine};
use std::fs;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_serial::{ClearBuffer, DataBits, FlowControl, SerialPort as _, SerialStream, StopBits};

/// Opens the port: locked against others (`TIOCEXCL` and `flock`), raw, without flow control, its buffers empty.
///
/// # Errors
/// In plain words, with who holds it where that can be seen.
pub(super) async fn open(line: &SerialLine) -> Result<Box<dyn Wire>> {
    let line = line.clone();
    // A driver may take its time over an opening.
    let opened = tokio::task::spawn_blocking(move || open_now(&line)).await;
    opened.map_err(Error::other)?
}

/// Said once: it is so at every opening.
static BLINDNESS: Once = Once::new();

/// Fails where another process has the port open, though it has not locked it.
fn must_be_alone(path: &str) -> Result<()> {
    let seen = holders::look(path);
    let others = seen.others();
    if !others.is_empty() {
        return Err(Error::other(format!(
            "serial port {path} is in use by {}, without a lock: nothing is sent while two have it; end that process",
            others.join(", ")
        )));
    }
    if seen.is_blind {
        BLINDNESS.call_once(|| {
            log::info!(
                "{path}: what processes of other users have open cannot be seen: whether one of them has this port \
                 without a lock is not known (`sudo fuser {path}` tells)"
            );
        });
    }
    Ok(())
}

fn open_now(line: &SerialLine) -> Result<Box<dyn Wire>> {
    // Before: the opening would change the settings under whoever has it.
    must_be_alone(&line.path)?;
    let builder = tokio_serial::new(&line.path, line.baud)
        .data_bits(match line.data_bits {
            7 => DataBits::Seven,
            _ => DataBits::Eight,
        })
        .parity(match line.parity {
            Parity::None => tokio_serial::Parity::None,
            Parity::Even => tokio_serial::Parity::Even,
            Parity::Odd => tokio_serial::Parity::Odd,
        })
        .stop_bits(match line.stop_bits {
            2 => StopBits::Two,
            _ => StopBits::One,
        })
        .flow_control(FlowControl::None);
    let stream = SerialStream::open(&builder).map_err(|e| refused(&line.path, &e.to_string()))?;
    // After: whoever came in between came before the lock.
    must_be_alone(&line.path)?;
    if line.rs485 {
        crate::sys::set_rs485(stream.as_raw_fd()).map_err(|e| {
            let path = &line.path;
            Error::other(format!(
                "{path}: the driver does not switch an RS-485 line ({e}), and the board profile says that it does"
            ))
        })?;
    }
    let _ = stream.clear(ClearBuffer::All);
    Ok(Box::new(SerialWire(stream)))
}

/// Why a port does not open, as far as can be seen from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There is no such device file.
    Missing,
    /// These processes have it open.
    InUse(Vec<String>),
    /// This user may not.
    Forbidden {
        /// Those who may.
        group: String,
    },
    /// None of these.
    Other,
}

/// What stands in the way of opening `path`.
#[must_use]
pub fn trouble(path: &str) -> Trouble {
    use rustix::fs::{Access, access};
    if fs::canonicalize(path).is_err() {
        return Trouble::Missing;
    }
    if access(path, Access::READ_OK | Access::WRITE_OK) == Err(rustix::io::Errno::ACCESS) {
        return Trouble::Forbidden { group: group(path) };
    }
    let seen = holders::look(path);
    match (seen.all.as_slice(), seen.others()) {
        ([], _) => Trouble::Other,
        (all, others) if others.is_empty() => {
            Trouble::InUse(all.iter().map(ToString::to_string).collect())
        }
        (_, others) => Trouble::InUse(others),
    }
}

/// The group of the device file, by its name where it has one.
fn group(path: &str) -> String {
    let gid = fs::metadata(path).map_or(0, |file| file.gid());
    let all = fs::read_to_string("/etc/group").unwrap_or_default();
    let named = all.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (parts.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| gid.to_string())
}

fn refused(path: &str, why: &str) -> Error {
    let text = match trouble(path) {
        Trouble::Missing => format!("serial port {path} is not there: is the adapter plugged in?"),
        Trouble::Forbidden { group } => format!(
            "serial port {path} cannot be opened: {why}; this user may not: add it to group {group}"
        ),
        Trouble::InUse(holders) => format!(
            "serial port {path} is in use by {}: end that process",
            holders.join(", ")
        ),
        Trouble::Other => format!(
            "serial port {path} cannot be opened: {why}; is it in use by another user's process, and may this user \
             open it (group dialout)?"
        ),
    };
    Error::other(text)
}

/// A port whose `flush` does not wait: the driver's waits on the thread that calls it until the last bit has left.
struct SerialWire(SerialStream);

impl Drop for SerialWire {
    // A driver waits at the close, up to half a minute, until what it still holds has left: a stuck line never takes it.
    fn drop(&mut self) {
        self.discard_unsent();
    }
}

impl AsyncRead for SerialWire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, out)
    }
}

impl AsyncWrite for SerialWire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Wire for SerialWire {
    fn has_unread(&self) -> bool {
        self.0.bytes_to_read().is_ok_and(|bytes| bytes > 0)
    }
    // A port that is gone says so when it is read, which is done before each request.
    fn closed_by_peer(&self) -> Option<String> {
        None
    }
    fn abort_on_close(&self) {
        self.discard_unsent();
    }
    fn line_errors(&self) -> Option<crate::sys::LineErrors> {
        crate::sys::line_errors(self.0.as_raw_fd())
    }
    fn discard_unsent(&self) {
        let _ = self.0.clear(ClearBuffer::Output);
    }
}

#[cfg(test)]
#[path = "serial_tests.rs"]
mod tests;
