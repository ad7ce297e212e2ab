//! Owns: a simulated PLC with faults: a Modbus TCP server, a line of RTU units, a port or serial module of MC protocol, the mailbox's program, a ledger of effects.
//! May call: core types.
//! Never: share code with the gateway's side, which is tested against it.

mod c24;
mod datagrams;
mod device;
mod fault;
mod frame;
#[cfg(feature = "test-hooks")]
pub(crate) mod fuzz;
mod incoming;
mod mailbox;
mod mc;
mod rtu;
mod rtu_port;
mod server;
mod source;
mod spec;
mod state;
mod state_mc;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_fault;
#[cfg(test)]
mod tests_mailbox;

pub use device::{Cause, Device, Effect, LEDGER_EFFECTS_MAX, SEEN_REQUESTS_MAX, Seen};
pub use fault::{ALWAYS, Act, Fault, Matching};
pub use source::{Item, data_word};
pub use spec::{
    Add, C24FrameKind, C24Program, Counter, DoneProgram, Handshake, Hole, InvalidSpec,
    MailboxProgram, McCode, McFrameKind, McProgram, Offset, Opcode, Order, Pieces, Place, Points,
    Registers, Ring, RtuParity, RtuProgram, Rule, Run, Set, SimulatorSpec, Span, TABLE_ITEMS,
};

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

/// Time between two scans if the mailbox names none.
const SCAN_DEFAULT: Duration = Duration::from_millis(10);

/// A running simulated PLC; it ends when this is dropped.
pub struct Simulator {
    units: Arc<Vec<Device>>,
    address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Simulator {
    /// Listens, and runs on the current tokio runtime.
    ///
    /// # Errors
    /// A specification that does not fit together, or an address that cannot be listened on.
    pub async fn start(spec: SimulatorSpec) -> io::Result<Self> {
        spec.check()
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
        let scan = spec.mailbox.as_ref().map(|mailbox| mailbox.scan.0);
        let scan = scan.filter(|scan| !scan.is_zero()).unwrap_or(SCAN_DEFAULT);
        let (listen, udp) = (spec.listen, spec.mc.as_ref().is_some_and(|port| port.udp));
        let line = spec.line().cloned();
        let on_line = line.filter(|rtu| rtu.pty.is_some() || rtu.serial.is_some());
        let others = spec.others.clone();
        let device = Device::new(spec);
        let units: Vec<Device> = std::iter::once(device.clone())
            .chain(others.into_iter().map(Device::new))
            .collect();
        let units = Arc::new(units);
        let (address, serving) = if let Some(program) = on_line {
            let serving = rtu_port::serve(Arc::clone(&units), rtu_port::plug(&program)?);
            (listen, tokio::spawn(report(listen, serving)))
        } else if udp {
            let socket = datagrams::open(listen)?;
            let address = socket.local_addr()?;
            let serving = datagrams::serve(device.clone(), socket);
            (address, tokio::spawn(report(address, serving)))
        } else {
            let listener = server::open(listen)?;
            let address = listener.local_addr()?;
            let serving = server::accept(device.clone(), Arc::clone(&units), listener, address);
            (address, tokio::spawn(report(address, serving)))
        };
        let tasks = [
            serving,
            tokio::spawn(run_programs(Arc::clone(&units), scan)),
        ];
        Ok(Self {
            units,
            address,
            tasks,
        })
    }

    /// Where it listens; the same through [`Device::cut`] and [`Device::restore`].
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The device's own side; outlives the simulator.
    #[must_use]
    pub fn device(&self) -> Device {
        self.units[0].clone()
    }

    /// All units on its line, the first one first.
    #[must_use]
    pub fn units(&self) -> &[Device] {
        &self.units
    }

    /// Closes the port and every connection; the port is free when this returns.
    pub async fn stop(mut self) {
        for task in &mut self.tasks {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn report(address: SocketAddr, serving: impl Future<Output = io::Result<()>>) {
    if let Err(error) = serving.await {
        log::error!("simulator: {address} cannot be listened on again: {error}");
    }
}

async fn run_programs(units: Arc<Vec<Device>>, scan: Duration) {
    let mut ticks = tokio::time::interval(scan);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for device in units.iter() {
            device.change(|state| state.scan(Instant::now()));
        }
    }
}

/// Why `holdfast sim` ended.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The file cannot be read.
    #[error("{file}: cannot be read: {cause}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        cause: io::Error,
    },
    /// The file describes no simulated PLC.
    #[error("{file}: {cause}")]
    Spec {
        /// The file.
        file: String,
        /// What is wrong, and where.
        cause: InvalidSpec,
    },
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {cause}; choose another address under `listen`, or end its user"
    )]
    Listen {
        /// As in the file.
        address: SocketAddr,
        /// What the system said.
        cause: io::Error,
    },
    /// Its port cannot be made or opened.
    #[error(
        "cannot be on {port}: {cause}; give another name in a directory that is there as `pty`, or another device as `serial`"
    )]
    Line {
        /// As in the file.
        port: String,
        /// What the system said.
        cause: io::Error,
    },
    /// Standard output is gone.
    #[error("standard output: {0}")]
    Output(io::Error),
}

/// Runs the simulated PLC of a file, and prints each effect as a line, until interrupted.
///
/// # Errors
/// See [`SimError`].
pub async fn run_file(path: &Path) -> Result<(), SimError> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|cause| SimError::Read {
        file: file.clone(),
        cause,
    })?;
    let spec = SimulatorSpec::from_toml(&text).map_err(|cause| SimError::Spec { file, cause })?;
    let (address, port) = (spec.listen, port(&spec));
    let simulator = Simulator::start(spec).await.map_err(|cause| match port {
        Some(port) => SimError::Line { port, cause },
        None => SimError::Listen { address, cause },
    })?;
    print_line(&format!(
        "simulated PLC on {place}",
        place = place(&simulator)
    ))?;
    // However it is told to stop: the name of its port goes with it.
    let mut terminate = signal(SignalKind::terminate()).map_err(SimError::Output)?;
    tokio::select! {
        ended = print_effects(simulator.device()) => ended,
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

/// Where it can be reached, for people.
fn place(simulator: &Simulator) -> String {
    let port = port(&simulator.device().lock().spec);
    port.unwrap_or_else(|| simulator.address().to_string())
}

/// The port of its line, if it is on one.
fn port(spec: &SimulatorSpec) -> Option<String> {
    let line = spec.line()?;
    let port = line.pty.as_ref().or(line.serial.as_ref())?;
    Some(port.display().to_string())
}

async fn print_effects(device: Device) -> Result<(), SimError> {
    const LOOK_AGAIN: Duration = Duration::from_secs(3600);
    let mut printed = 0;
    loop {
        device
            .wait_for(LOOK_AGAIN, |device| device.ledger_len() > printed)
            .await;
        for effect in device.ledger_since(printed) {
            print_line(&effect.to_string())?;
            printed += 1;
        }
    }
}

fn print_line(line: &str) -> Result<(), SimError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(SimError::Output)
}
