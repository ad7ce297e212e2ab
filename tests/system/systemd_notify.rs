//! What the service manager and the person at the terminal see: readiness, watchdog, stop, reload, a second gateway.

use super::harness::{PATIENCE, Rig};
use std::os::unix::net::UnixDatagram;
use std::process::Output;
use std::time::{Duration, Instant};

/// The service manager's end of the notification socket.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<String>,
}

impl Manager {
    fn of(rig: &mut Rig) -> Self {
        let path = rig.path().join("notify");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        rig.env("NOTIFY_SOCKET", path.to_str().unwrap());
        Self {
            socket,
            heard: Vec::new(),
        }
    }
    fn listen(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(n) = self.socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
            self.heard.extend(text.lines().map(str::to_owned));
        }
    }
    fn count(&mut self, word: &str) -> usize {
        self.listen();
        self.heard.iter().filter(|line| *line == word).count()
    }
    async fn until(&mut self, word: &str, times: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.count(word) < times {
            assert!(Instant::now() < deadline, "no {word}: {:?}", self.heard);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn hangup(rig: &Rig) {
    let pid = rig.gateway.as_ref().unwrap().id();
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

// covers: OPS-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_manager_hears_of_readiness_life_and_stop_when_they_are_true() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let (_, done) = rig.submit_wait(&rig.set_speed("S1", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    rig.kill();

    // Ended in the middle of its recovery: it had not said that it was ready.
    let mut manager = Manager::of(&mut rig);
    rig.env("HOLDFAST_KILL_AT", "open.after-epoch");
    rig.spawn();
    rig.until_dead().await;
    assert_eq!(manager.count("READY=1"), 0, "{:?}", manager.heard);

    let mut manager = Manager::of(&mut rig);
    rig.env("WATCHDOG_USEC", "300000");
    rig.spawn();
    manager.until("READY=1", 1).await;
    // Ready means: what was acknowledged before is known again, and the interface answers.
    assert_eq!(rig.state("S1").await, "completed");
    manager.until("WATCHDOG=1", 5).await;
    assert_eq!(manager.count("STOPPING=1"), 0);
    assert!(rig.stop().await.success(), "{}", rig.log());
    manager.until("STOPPING=1", 1).await;
    assert!(!rig.path().join("api.sock").exists());
}

// covers: REC-06, F143
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_gateway_on_one_journal_is_refused_and_names_the_first() {
    let mut rig = Rig::new().await;
    // What the lock file says is information only: this process lives, and holds nothing.
    std::fs::create_dir_all(rig.journal_dir()).unwrap();
    for stale in [
        format!("{}\n", std::process::id()),
        "1\n".into(),
        String::new(),
    ] {
        std::fs::write(rig.journal_dir().join("lock"), &stale).unwrap();
        rig.start_up().await;
        rig.kill();
    }
    rig.start_up().await;
    let first = rig.gateway.as_ref().unwrap().id().to_string();
    let connections = rig.device.connections();
    let mut second = rig.command(&["run"]);
    let second = tokio::task::spawn_blocking(move || second.output().unwrap())
        .await
        .unwrap();
    let said = text(&second);
    assert_eq!(second.status.code(), Some(9), "{said}");
    assert!(
        said.contains(&first) && said.contains("in use by another gateway"),
        "{said}"
    );
    assert_eq!(
        rig.device.connections(),
        connections,
        "the second touched the machine"
    );
    let (_, done) = rig.submit_wait(&rig.set_speed("S1", 50)).await;
    assert_eq!(done["state"], "completed", "the first goes on: {done}");
}

// covers: CFG-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_is_all_or_nothing() {
    let mut rig = Rig::new().await;
    rig.start_up().await;
    let connections = rig.device.connections();
    let good = (rig.gateway_toml.clone(), rig.machine_toml.clone());

    // A broken file beside a good change: nothing changes, neither by signal nor by command.
    rig.machine_toml =
        good.1.replace("name = \"speed\"", "name = \"rotation\"") + "\nnonsense = 1\n";
    rig.write_config();
    let refused = reload(&rig).await;
    assert_eq!(refused.status.code(), Some(78), "{}", text(&refused));
    assert!(text(&refused).contains("nonsense"), "{}", text(&refused));
    hangup(&rig);
    rig.until("the signal was refused, too", async |rig| {
        rig.log().contains("nothing changed")
    })
    .await;
    assert_eq!(tag_names(&rig).await, ["speed"]);
    assert_eq!(
        (rig.link().await.as_str(), rig.device.connections()),
        ("up", connections)
    );

    // What cannot change while running says so, and takes nothing else with it.
    rig.machine_toml = good.1.replace("name = \"speed\"", "name = \"rotation\"");
    rig.gateway_toml = good.0.replace("/state\"", "/elsewhere\"");
    rig.write_config();
    let refused = reload(&rig).await;
    assert_eq!(refused.status.code(), Some(78), "{}", text(&refused));
    assert!(text(&refused).contains("state_dir"), "{}", text(&refused));
    assert_eq!(tag_names(&rig).await, ["speed"]);
    assert!(!rig.path().join("elsewhere").exists());
    assert_eq!(
        (rig.link().await.as_str(), rig.device.connections()),
        ("up", connections)
    );

    // A good change: the machine is connected anew, what was known stays known.
    let (_, done) = rig.submit_wait(&rig.set_speed("S1", 50)).await;
    assert_eq!(done["state"], "completed", "{done}");
    rig.gateway_toml = good.0;
    rig.write_config();
    hangup(&rig);
    rig.until("the new tag is there", async |rig| {
        tag_names(rig).await == ["rotation"]
    })
    .await;
    rig.until_link("up").await;
    assert_eq!(rig.device.connections(), connections + 1);
    assert_eq!(rig.state("S1").await, "completed");
    assert_eq!(rig.speed_writes(), 1);
}

async fn reload(rig: &Rig) -> Output {
    let mut command = rig.command(&["reload"]);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

async fn tag_names(rig: &Rig) -> Vec<String> {
    let (_, tags) = rig.get("/v1/machines/press-1/tags").await;
    let tags = tags["tags"].as_array().unwrap();
    tags.iter()
        .map(|tag| tag["name"].as_str().unwrap().to_owned())
        .collect()
}

// covers: F091, CFG-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_with_a_wrong_configuration_leave_the_backlog_alone() {
    let mut rig = Rig::new().await;
    let good = rig.gateway_toml.clone();
    // The sink cannot take anything: its directory's place is a file.
    std::fs::write(rig.path().join("events"), b"in the way").unwrap();
    rig.start_up().await;
    for n in 0..30 {
        let (_, done) = rig.submit_wait(&rig.set_speed(&format!("S{n}"), n)).await;
        assert_eq!(done["state"], "completed", "{done}");
    }
    let backlog = rig.events().await;
    assert!(backlog.len() > 60, "{}", backlog.len());
    rig.kill();
    let before = files(&rig);
    for _ in 0..3 {
        rig.gateway_toml = good.replace("schema = 1", "schema = 1\nwrong_key = true");
        rig.spawn();
        let ended = rig.until_dead().await;
        assert_eq!(ended.code(), Some(78), "{}", rig.log());
    }
    assert!(
        files(&rig) == before,
        "a wrong configuration touched the journal"
    );
    rig.gateway_toml = good;
    std::fs::remove_file(rig.path().join("events")).unwrap();
    rig.start_up().await;
    rig.until("the whole backlog is in the sink", async |rig| {
        let lines = rig.sink_lines();
        backlog.iter().all(|event| {
            let same = |line: &&serde_json::Value| {
                ["source", "epoch", "sequence", "digest"]
                    .iter()
                    .all(|key| line[key] == event[key])
            };
            lines.iter().filter(same).count() == 1
        })
    })
    .await;
}

/// Every file of the journal, byte for byte.
fn files(rig: &Rig) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut todo = vec![rig.journal_dir()];
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}
