//! Owns: a real mosquitto for one test: its configuration, its death, its return.
//! May call: the mosquitto program.
//! Never: share a broker between tests; leave one running.
#![allow(dead_code, reason = "each part of the suite uses some of it")]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a broker may take to come up, in milliseconds.
const UP: Duration = Duration::from_millis(20_000);
/// Where Debian puts it; not in everybody's PATH.
const PLACES: [&str; 3] = [
    "/usr/sbin/mosquitto",
    "/usr/local/sbin/mosquitto",
    "/usr/bin/mosquitto",
];

/// A broker on a port of its own.
pub(crate) struct Mosquitto {
    dir: TempDir,
    pub(crate) port: u16,
    child: Option<Child>,
    extra: String,
    listener: String,
}

impl Mosquitto {
    /// With persistence, open to everybody on this computer.
    pub(crate) fn start() -> Self {
        Self::with("allow_anonymous true\n", "")
    }

    /// `extra` goes into its file as it stands, `listener` right behind the listener's line; `DIR` in either is
    /// its directory.
    pub(crate) fn with(extra: &str, listener: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("mq").tempdir().unwrap();
        Self::inside(dir, extra, listener)
    }

    /// In a directory that holds what `extra` and `listener` name.
    pub(crate) fn inside(dir: TempDir, extra: &str, listener: &str) -> Self {
        let mut broker = Self {
            dir,
            port: 0,
            child: None,
            extra: extra.to_owned(),
            listener: listener.to_owned(),
        };
        // Between finding a free port and taking it, another test may have it.
        for _ in 0..20 {
            broker.port = free_port();
            if broker.up() {
                return broker;
            }
        }
        panic!("mosquitto does not start:\n{}", broker.log());
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
    pub(crate) fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    fn write_config(&self) {
        let dir = self.path().display().to_string();
        let text = format!(
            "user root\npersistence true\npersistence_location {dir}/\nautosave_interval 1\n\
             max_inflight_messages 1000\nmax_queued_messages 100000\nlog_type all\nlog_dest stderr\n\
             {}listener {} 127.0.0.1\n{}",
            self.extra.replace("DIR", &dir),
            self.port,
            self.listener.replace("DIR", &dir),
        );
        std::fs::write(self.path().join("mosquitto.conf"), text).unwrap();
    }

    fn up(&mut self) -> bool {
        self.write_config();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path().join("log"))
            .unwrap();
        let program = PLACES.into_iter().find(|place| Path::new(place).exists());
        let program =
            program.expect("no mosquitto: install the Debian package mosquitto, or use tests/run");
        let child = Command::new(program)
            .arg("-c")
            .arg(self.path().join("mosquitto.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
        let deadline = Instant::now() + UP;
        while Instant::now() < deadline {
            let child = self.child.as_mut().unwrap();
            if child.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// ... and it comes back on the same port, with what it had written down.
    pub(crate) fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        assert!(self.up(), "mosquitto does not come back:\n{}", self.log());
    }

    /// It stops answering, without closing anything.
    pub(crate) fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }
    /// ... and goes on.
    pub(crate) fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }
    fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().expect("it runs");
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
