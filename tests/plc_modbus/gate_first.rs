//! Owns: the proof that what was decided for an earlier connection is not handed over on a new one (POL-06).
//! May call: the scripted server, the machine's task.
//! Never: take the task's word for what was sent.

use crate::server::{Act, Server, asked, echo, holding, registers, spec};
use holdfast::core::contract::{Job, Outcome};
use holdfast::core::gateway::Input;
use holdfast::core::ids::{AttemptId, Epoch, OperationId};
use holdfast::plc::port::Ports;
use holdfast::service::clock::Clock;
use holdfast::service::engine::Message;
use holdfast::service::errand::Errand;
use holdfast::service::machine_task::{MachineTask, Shared};
use holdfast::service::progress::Progress;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const WAIT_MAX: Duration = Duration::from_secs(5);

fn write(n: u64) -> Errand {
    Errand::Run {
        operation: OperationId::parse("OP1").unwrap(),
        attempt: AttemptId { epoch: Epoch(7), n },
        job: Job::Write {
            start: holding(100),
            words: vec![50],
        },
        deadline: None,
    }
}

async fn next<T>(inbox: &mut mpsc::Receiver<Message>, wanted: impl Fn(&Input) -> Option<T>) -> T {
    loop {
        let message = timeout(WAIT_MAX, inbox.recv()).await.unwrap().unwrap();
        if let Message::Input(input) = message
            && let Some(found) = wanted(&input)
        {
            return found;
        }
    }
}

fn outcome(input: &Input) -> Option<Outcome> {
    match input {
        Input::Exchanged { exchange, .. } => Some(exchange.outcome.clone()),
        _ => None,
    }
}

// The engine was slow: what it decided while the connection before this one stood comes when a new one was made.
// covers: POL-06, F055
#[tokio::test]
async fn nothing_is_sent_on_a_new_connection_before_its_gate_was_read() {
    let server = Server::start(|request| {
        let (_, count) = asked(request);
        vec![Act::Bytes(match request[7] {
            6 | 16 => echo(request),
            _ => registers(request, &vec![0; usize::from(count)]),
        })]
    })
    .await;
    let (engine, mut inbox) = mpsc::channel(64);
    let (errands, waiting) = mpsc::unbounded_channel();
    let (stop, stopping) = watch::channel(None);
    let clock = Clock::new(true, 0).unwrap();
    let beat = Progress::default().part("press-1", clock.now().boottime_ns);
    let shared = Arc::new(Shared::new(Arc::new(spec(server.port))));
    let task = MachineTask::new(
        shared,
        &Ports::default(),
        clock,
        engine,
        waiting,
        stopping,
        beat,
    );
    assert!(errands.send(write(1)).is_ok());
    let task = tokio::spawn(task.run());
    let first = next(&mut inbox, outcome).await;
    assert!(matches!(first, Outcome::NotSent { .. }), "{first:?}");
    assert_eq!(server.count(6) + server.count(16), 0);
    next(&mut inbox, |input| {
        matches!(input, Input::Gate { reading: Ok(_), .. }).then_some(())
    })
    .await;
    assert!(errands.send(write(2)).is_ok());
    let second = next(&mut inbox, outcome).await;
    assert!(matches!(second, Outcome::DeviceReplied(_)), "{second:?}");
    assert_eq!(server.count(6) + server.count(16), 1);
    stop.send_replace(Some("the test is over"));
    timeout(WAIT_MAX, task).await.unwrap().unwrap();
}
