//! Owns: the simulated line of serial devices: a pseudo-terminal under a fixed name, or a real port.
//! May call: device, server (what becomes of a request), incoming, fault, spec.
//! Never: know what a request means.

use super::device::{Device, Link};
use super::fault::Outgoing;
use super::incoming;
use super::server::{Connection, REPLIES_MAX};
use super::spec::{RtuProgram, SimulatorSpec};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_serial::SerialStream;

/// A request that stops halfway for so long is none, in milliseconds.
pub(super) const FRAME_PAUSE_MS_MAX: u64 = 200;
/// Between two looks at a pseudo-terminal that cannot be waited for, in milliseconds.
const NOBODY_PAUSE_MS: u64 = 1;
const READ_BYTES: usize = 1024;

/// One end of a line.
enum Port {
    /// The runtime's pipes take any descriptor that can be waited for.
    Pty {
        reader: Receiver,
        writer: Sender,
        name: PathBuf,
        /// Somebody has closed it before; from then on the runtime calls it ready whatever it is.
        closed_once: AtomicBool,
    },
    Serial {
        reader: tokio::sync::Mutex<ReadHalf<SerialStream>>,
        writer: tokio::sync::Mutex<WriteHalf<SerialStream>>,
    },
}

/// Plugs the line in.
fn open(program: &RtuProgram) -> io::Result<Port> {
    if let Some(path) = &program.serial {
        let builder = tokio_serial::new(path.to_string_lossy(), program.baud);
        let builder = builder.parity(program.parity.into());
        let stream = SerialStream::open(&builder)?;
        let (reader, writer) = tokio::io::split(stream);
        return Ok(Port::Serial {
            reader: reader.into(),
            writer: writer.into(),
        });
    }
    let name = program.pty.clone().unwrap_or_default();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    fcntl_setfl(&master, OFlags::NONBLOCK)?;
    let device = ptsname(&master, Vec::new())?;
    link(
        Path::new(std::ffi::OsStr::from_bytes(device.as_bytes())),
        &name,
    )?;
    let master = File::from(master);
    Ok(Port::Pty {
        writer: Sender::from_file_unchecked(master.try_clone()?)?,
        reader: Receiver::from_file_unchecked(master)?,
        name,
        closed_once: AtomicBool::new(false),
    })
}

/// Puts the name in place at once, over an earlier link and over nothing else.
fn link(device: &Path, name: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(name).is_ok_and(|found| !found.is_symlink()) {
        return Err(io::Error::other(format!(
            "{} is there and is no link of a simulator",
            name.display()
        )));
    }
    let fresh = name.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(device, &fresh)?;
    std::fs::rename(&fresh, name)
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Self::Pty { name, .. } = self {
            let _ = std::fs::remove_file(name);
        }
    }
}

impl Port {
    async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Serial { reader, .. } => reader.lock().await.read(bytes).await,
            Self::Pty {
                reader,
                closed_once,
                ..
            } => loop {
                reader.readable().await?;
                let error = match reader.try_read(bytes) {
                    Ok(count) => return Ok(count),
                    Err(error) => error,
                };
                closed_once.fetch_or(nobody(&error), Relaxed);
                if !nobody(&error) && error.kind() != io::ErrorKind::WouldBlock {
                    return Err(error);
                }
                if closed_once.load(Relaxed) {
                    sleep(Duration::from_millis(NOBODY_PAUSE_MS)).await;
                }
            },
        }
    }

    async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Serial { writer, .. } => writer.lock().await.write_all(bytes).await,
            Self::Pty { writer, .. } => {
                while !bytes.is_empty() {
                    writer.writable().await?;
                    match writer.try_write(bytes) {
                        Ok(count) => bytes = &bytes[count..],
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            sleep(Duration::from_millis(NOBODY_PAUSE_MS)).await;
                        }
                        // Onto a line that nobody listens to.
                        Err(error) if nobody(&error) => return Ok(()),
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
        }
    }
}

/// Nobody has the other end open.
fn nobody(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

/// The line, plugged in; served by [`serve`].
pub(super) struct Plugged(Port);

/// Plugs it in for the first time.
pub(super) fn plug(program: &RtuProgram) -> io::Result<Plugged> {
    open(program).map(Plugged)
}

/// Serves while the link is up; when it is cut the line is unplugged, until it is restored. Ends only with its task.
pub(super) async fn serve(units: Arc<Vec<Device>>, plugged: Plugged) -> io::Result<()> {
    let Some(device) = units.first().cloned() else {
        return Ok(());
    };
    let spec = device.lock().spec.clone();
    let program = spec.line().cloned().unwrap_or_default();
    let mut link = device.link();
    let mut port = Some(plugged.0);
    loop {
        let now = *link.borrow_and_update();
        if !now.listening {
            port = None;
            let _ = link.changed().await;
            continue;
        }
        let plugged = match port.take() {
            Some(port) => port,
            None => open(&program)?,
        };
        let number = device.change(|state| {
            state.connections += 1;
            state.connections
        });
        let connection = Connection {
            device: device.clone(),
            number,
            generation: now.generation,
            units: Arc::clone(&units),
        };
        serve_port(connection, &spec, &program, &plugged, device.link()).await;
    }
}

async fn serve_port(
    connection: Connection,
    spec: &SimulatorSpec,
    program: &RtuProgram,
    port: &Port,
    mut link: watch::Receiver<Link>,
) {
    let (replies, waiting) = mpsc::channel(REPLIES_MAX);
    let over = async {
        let generation = connection.generation;
        while link.borrow_and_update().generation == generation {
            if link.changed().await.is_err() {
                return;
            }
        }
    };
    let mut line = Listener {
        buffer: Vec::new(),
        last: None,
    };
    let listen = line.listen(&connection, spec, program, port, &replies);
    tokio::select! {
        () = over => {}
        _ = listen => {}
        _ = answer(port, waiting, connection.device.link()) => {}
    }
}

struct Listener {
    buffer: Vec<u8>,
    /// The last byte that was on the line.
    last: Option<Instant>,
}

impl Listener {
    async fn listen(
        &mut self,
        connection: &Connection,
        spec: &SimulatorSpec,
        program: &RtuProgram,
        port: &Port,
        replies: &mpsc::Sender<Outgoing>,
    ) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        loop {
            let count = port.read(&mut bytes).await?;
            let now = Instant::now();
            let silence = self.last.map_or(Duration::MAX, |last| now - last);
            self.last = Some(now);
            let link = *connection.device.link().borrow();
            if link.frozen || link.black_hole {
                continue;
            }
            if program.echo {
                port.write(&bytes[..count]).await?;
            }
            if silence >= Duration::from_millis(FRAME_PAUSE_MS_MAX) {
                self.buffer.clear();
            }
            // As a device whose receiver is not ready yet.
            if self.buffer.is_empty() && silence < program.gap.0 {
                connection.device.change(|state| state.early_requests += 1);
                continue;
            }
            self.buffer.extend_from_slice(&bytes[..count]);
            while let Ok(Some(request)) = incoming::take(&mut self.buffer, spec) {
                // Its own reply is on the line from now on: taken before, since the reply may be read before this goes on.
                self.last = Some(Instant::now());
                connection.dispatch(request, replies);
            }
        }
    }
}

async fn answer(
    port: &Port,
    mut waiting: mpsc::Receiver<Outgoing>,
    mut link: watch::Receiver<Link>,
) -> io::Result<()> {
    while let Some(outgoing) = waiting.recv().await {
        for (pause, bytes) in outgoing.parts {
            sleep(pause).await;
            while link.borrow_and_update().frozen {
                let _ = link.changed().await;
            }
            if !link.borrow().black_hole {
                port.write(&bytes).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_by_anything_but_a_link_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("com1");
        let device = Path::new("/dev/pts/0");
        link(device, &name).unwrap();
        link(device, &name).unwrap();
        assert_eq!(std::fs::read_link(&name).unwrap(), device);
        let file = dir.path().join("precious.toml");
        std::fs::write(&file, "kept").unwrap();
        let error = link(device, &file).unwrap_err().to_string();
        assert!(error.contains("is no link of a simulator"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
    }
}
