//! Owns: all `unsafe` code: the `sync_file_range` symbol, the kernel's clock state, the RS-485 mode and the
//! counters of a serial driver, kill points.
//! May call: libc symbols, rustix.
//! Never: hold policy; anything here is a thin, safe function around one system call.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulong};
use std::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn fdatasync(fd: c_int) -> c_int;
    fn adjtimex(buffer: *mut Timex) -> c_int;
    fn posix_fadvise64(fd: c_int, at: i64, bytes: i64, advice: c_int) -> c_int;
}

/// Room for a `struct timex` on any ABI (208 bytes on 64-bit Linux); `modes` is its first field.
#[repr(C, align(16))]
struct Timex([u8; 512]);

static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Takes the place of libc's `sync_file_range` in this binary.
///
/// The store ends its flush in that call, which flushes neither the drive's cache nor the file's
/// size. Power loss would then lose acknowledged records; `fdatasync` keeps them.
///
/// # Safety
/// Called with a file descriptor, like the function it replaces; touches no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(fd: c_int, _: i64, _: i64, _: c_uint) -> c_int {
    SYNCS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: takes any integer and reports a bad descriptor by errno, as the caller expects.
    unsafe { fdatasync(fd) }
}

/// How often the store has synced through [`sync_file_range`] of this binary.
#[must_use]
pub fn sync_count() -> u64 {
    SYNCS.load(Ordering::SeqCst)
}

/// Has the kernel drop what it holds of a file that is synced: what is read next comes from the disk.
pub fn forget_pages(file: &std::fs::File) {
    const POSIX_FADV_DONTNEED: c_int = 4;
    use std::os::fd::AsRawFd as _;
    // SAFETY: takes any integers and touches no memory; it only advises, so its answer means nothing.
    unsafe {
        posix_fadvise64(file.as_raw_fd(), 0, 0, POSIX_FADV_DONTNEED);
    }
}

/// Whether the kernel calls its wall clock synchronised (NTP or PTP).
#[must_use]
pub fn clock_synchronised() -> bool {
    const TIME_ERROR: c_int = 5;
    let mut buffer = Timex([0; 512]);
    // SAFETY: the buffer is larger than `struct timex`, aligned, and `modes` 0 only reads.
    let state = unsafe { adjtimex(&raw mut buffer) };
    (0..TIME_ERROR).contains(&state)
}

/// Has the driver of a serial port switch the direction of an RS-485 line: RTS is on while it sends, and what
/// is sent is not received.
///
/// # Errors
/// What the system says; `ENOTTY` where the driver has no such mode.
pub fn set_rs485(fd: std::os::fd::RawFd) -> std::io::Result<()> {
    const TIOCSRS485: c_ulong = 0x542F;
    const ENABLED: u32 = 1;
    const RTS_ON_SEND: u32 = 1 << 1;
    unsafe extern "C" {
        fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    }
    // `struct serial_rs485`: flags, two delays in milliseconds, padding.
    let mut mode = [0_u32; 8];
    mode[0] = ENABLED | RTS_ON_SEND;
    // SAFETY: the request reads and writes one `struct serial_rs485`, 32 bytes, which `mode` is; a descriptor
    // that is not open is reported by errno.
    match unsafe { ioctl(fd, TIOCSRS485, mode.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// What a serial driver has counted on its line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineErrors {
    /// Characters that came.
    pub received: u32,
    /// Characters without a stop bit where one must be.
    pub framing: u32,
    /// Characters whose parity does not hold.
    pub parity: u32,
    /// Characters that came before the last was taken.
    pub overrun: u32,
    /// The line stood at zero for longer than a character.
    pub breaks: u32,
}

impl LineErrors {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            received: self.received.wrapping_sub(earlier.received),
            framing: self.framing.wrapping_sub(earlier.framing),
            parity: self.parity.wrapping_sub(earlier.parity),
            overrun: self.overrun.wrapping_sub(earlier.overrun),
            breaks: self.breaks.wrapping_sub(earlier.breaks),
        }
    }
}

/// What the driver of a serial port has counted; `None` where it does not count (a pseudo-terminal, some adapters).
#[must_use]
pub fn line_errors(fd: std::os::fd::RawFd) -> Option<LineErrors> {
    const TIOCGICOUNT: c_ulong = 0x545D;
    unsafe extern "C" {
        fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    }
    // `struct serial_icounter_struct`: cts, dsr, rng, dcd, rx, tx, frame, overrun, parity, brk, buf_overrun,
    // nine reserved.
    let mut counts = [0_u32; 20];
    // SAFETY: the request writes one `struct serial_icounter_struct`, 20 integers, which `counts` is; a
    // descriptor that is not open is reported by errno.
    match unsafe { ioctl(fd, TIOCGICOUNT, counts.as_mut_ptr()) } {
        0 => Some(LineErrors {
            received: counts[4],
            framing: counts[6],
            parity: counts[8],
            overrun: counts[7],
            breaks: counts[9],
        }),
        _ => None,
    }
}

/// Gives memory that was needed only for a while, such as for opening a store, back to the system.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> c_int;
        }
        // SAFETY: malloc_trim(3) takes any value and only touches the allocator's own free lists.
        unsafe {
            malloc_trim(0);
        }
    }
}

/// Ends this process as a power cut would end it, if the environment asks for it at `name`.
#[cfg(feature = "test-hooks")]
pub fn kill_point(name: &str) {
    use std::sync::OnceLock;
    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static PASSES: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("HOLDFAST_KILL_AT").ok()?;
        Some(match text.rsplit_once(':') {
            Some((point, n)) if n.parse::<u64>().is_ok() => {
                (point.to_owned(), n.parse().unwrap_or(1))
            }
            _ => (text, 1),
        })
    });
    let Some((point, n)) = wanted else { return };
    if point == name && PASSES.fetch_add(1, Ordering::SeqCst) + 1 == *n {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // The signal is delivered at the latest when this thread next enters the kernel.
        loop {
            std::thread::park();
        }
    }
}

/// Marks a place where tests may kill the process: `HOLDFAST_KILL_AT=name` or `name:n` (n-th pass).
/// Compiles to nothing without the feature `test-hooks`.
#[macro_export]
macro_rules! failpoint {
    ($name:expr) => {
        #[cfg(feature = "test-hooks")]
        $crate::sys::kill_point($name);
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_symbol_syncs_counts_and_reports_errors() {
        let file = tempfile::tempfile().unwrap();
        let before = sync_count();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { sync_file_range(file.as_raw_fd(), 0, 0, 0) }, 0);
        assert!(sync_count() > before);
        // SAFETY: a descriptor that cannot be open.
        assert_eq!(unsafe { sync_file_range(-1, 0, 0, 0) }, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(9));
    }

    #[test]
    fn the_kernel_can_be_asked_for_its_clock_state() {
        // Either answer is right; it must be the same one twice.
        assert_eq!(clock_synchronised(), clock_synchronised());
    }
}
