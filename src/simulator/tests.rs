//! Owns: proof that the simulated PLC is a correct Modbus server, by byte vectors from the specification.
//! May call: the simulator's public side, and a plain socket.
//! Never: use the gateway's client.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Long enough for loopback; only ever waited for in full where silence is the expected result.
pub(super) const SILENCE: Duration = Duration::from_millis(150);

pub(super) async fn start(spec: SimulatorSpec) -> (Simulator, Device, TcpStream) {
    let simulator = Simulator::start(spec).await.unwrap();
    let client = connect(&simulator).await;
    let device = simulator.device();
    (simulator, device, client)
}

pub(super) async fn connect(simulator: &Simulator) -> TcpStream {
    let client = TcpStream::connect(simulator.address()).await.unwrap();
    client.set_nodelay(true).unwrap();
    client
}

pub(super) fn hex(text: &str) -> Vec<u8> {
    let digit = |part: &str| u8::from_str_radix(part, 16).unwrap();
    text.split_whitespace().map(digit).collect()
}

/// One whole frame, by its length field.
pub(super) async fn receive(client: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; 6];
    timeout(LIMIT, client.read_exact(&mut frame))
        .await
        .unwrap()
        .unwrap();
    let length = usize::from(u16::from_be_bytes([frame[4], frame[5]]));
    frame.resize(6 + length, 0);
    timeout(LIMIT, client.read_exact(&mut frame[6..]))
        .await
        .unwrap()
        .unwrap();
    frame
}

pub(super) async fn ask(client: &mut TcpStream, request: &str) -> Vec<u8> {
    client.write_all(&hex(request)).await.unwrap();
    receive(client).await
}

pub(super) async fn is_silent(client: &mut TcpStream) -> bool {
    timeout(SILENCE, client.read_u8()).await.is_err()
}

fn values() -> SimulatorSpec {
    SimulatorSpec::from_toml(
        "[registers.holding]\n107 = [555, 0, 100]\n[registers.input]\n8 = 10\n\
         [registers.coil]\n19 = [true, false, true, true, false, false, true, true, true, true]\n\
         [registers.discrete]\n196 = [false, true]",
    )
    .unwrap()
}

// The examples of MODBUS Application Protocol V1.1b3, sections 6.1 to 6.12, in MBAP frames.
#[tokio::test]
async fn every_function_answers_as_the_specification_shows() {
    let (_simulator, device, mut client) = start(values()).await;
    for (request, reply) in [
        (
            "00 01 00 00 00 06 01 03 00 6B 00 03",
            "00 01 00 00 00 09 01 03 06 02 2B 00 00 00 64",
        ),
        (
            "00 02 00 00 00 06 01 04 00 08 00 01",
            "00 02 00 00 00 05 01 04 02 00 0A",
        ),
        (
            "00 03 00 00 00 06 01 01 00 13 00 0A",
            "00 03 00 00 00 05 01 01 02 CD 03",
        ),
        (
            "00 04 00 00 00 06 01 02 00 C4 00 02",
            "00 04 00 00 00 04 01 02 01 02",
        ),
        (
            "00 05 00 00 00 06 01 05 00 AC FF 00",
            "00 05 00 00 00 06 01 05 00 AC FF 00",
        ),
        (
            "00 06 00 00 00 06 01 06 00 01 00 03",
            "00 06 00 00 00 06 01 06 00 01 00 03",
        ),
        (
            "00 07 00 00 00 09 01 0F 00 13 00 0A 02 CD 01",
            "00 07 00 00 00 06 01 0F 00 13 00 0A",
        ),
        (
            "00 08 00 00 00 0B 01 10 00 01 00 02 04 00 0A 01 02",
            "00 08 00 00 00 06 01 10 00 01 00 02",
        ),
    ] {
        assert_eq!(ask(&mut client, request).await, hex(reply));
    }
    assert!(
        device.coil(172)
            && device.coil(19)
            && !device.coil(20)
            && device.coil(27)
            && !device.coil(28)
    );
    assert_eq!(device.holding_u32(1), 0x000A_0102);
    assert_eq!(device.effects(), 4, "reads have no effect");
    assert_eq!(device.effects_of_register(1), 2);
    assert_eq!(device.effects_of_coil(172), 1);
    assert_eq!(device.requests().len(), 8);
}

// models: F049
#[tokio::test]
async fn what_cannot_be_done_is_refused_without_effect() {
    let spec = SimulatorSpec {
        read_registers_max: 50,
        holes: vec![Hole {
            at: Place::holding(120),
            count: 1,
        }],
        ..SimulatorSpec::default()
    };
    let (_simulator, device, mut client) = start(spec).await;
    for (pdu, code) in [
        ("2B 0E 01 00", 1),
        ("03 00 00 00 33", 2),
        ("03 00 78 00 01", 2),
        ("03 00 77 00 02", 2),
        ("06 00 78 00 01", 2),
        ("03 FF FF 00 02", 2),
        ("03 00 00 00 00", 3),
        ("03 00 00 00 7E", 3),
        ("01 00 00 07 D1", 3),
        ("05 00 00 00 01", 3),
        ("10 00 00 00 02 03 00 01 00", 3),
        ("0F 00 00 00 09 01 FF", 3),
        ("06 00 00", 3),
    ] {
        let pdu = hex(pdu);
        let mut request = vec![0, 9, 0, 0, 0, u8::try_from(pdu.len() + 1).unwrap(), 1];
        request.extend_from_slice(&pdu);
        client.write_all(&request).await.unwrap();
        assert_eq!(
            receive(&mut client).await,
            [0, 9, 0, 0, 0, 3, 1, pdu[0] | 0x80, code],
            "{pdu:02X?}"
        );
    }
    assert_eq!(
        ask(&mut client, "00 0A 00 00 00 06 07 03 00 00 00 01").await,
        hex("00 0A 00 00 00 03 07 83 0B")
    );
    assert_eq!(
        ask(&mut client, "00 0B 00 00 00 06 01 03 00 79 00 32")
            .await
            .len(),
        109
    );
    assert_eq!(device.effects(), 0);
}

// models: F009
#[tokio::test]
async fn a_request_is_understood_however_tcp_splits_it() {
    let (_simulator, _device, mut client) = start(values()).await;
    let request = hex("00 01 00 00 00 06 01 03 00 6B 00 01");
    for byte in &request {
        client.write_all(&[*byte]).await.unwrap();
        client.flush().await.unwrap();
    }
    assert_eq!(
        receive(&mut client).await,
        hex("00 01 00 00 00 05 01 03 02 02 2B")
    );
    client
        .write_all(&[request.clone(), request].concat())
        .await
        .unwrap();
    receive(&mut client).await;
    receive(&mut client).await;
}

#[tokio::test]
async fn what_is_not_modbus_ends_the_connection() {
    let (simulator, _device, mut client) = start(values()).await;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let ended = timeout(LIMIT, client.read_u8()).await.unwrap();
    assert!(ended.is_err());
    assert_eq!(
        ask(
            &mut connect(&simulator).await,
            "00 01 00 00 00 06 01 03 00 00 00 01"
        )
        .await
        .len(),
        11
    );
}

// models: F055, F059
#[tokio::test]
async fn a_cut_link_refuses_and_comes_back_on_the_same_port() {
    let (simulator, device, mut client) = start(values()).await;
    for round in 0..3 {
        device.cut();
        assert!(timeout(LIMIT, client.read_u8()).await.unwrap().is_err());
        let refused = async {
            while TcpStream::connect(simulator.address()).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LIMIT, refused).await.unwrap();
        device.restore();
        client = timeout(LIMIT, async {
            loop {
                match TcpStream::connect(simulator.address()).await {
                    Ok(client) => break client,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        })
        .await
        .unwrap();
        ask(&mut client, "00 01 00 00 00 06 01 06 00 01 00 03").await;
        assert_eq!(device.effects(), round + 1);
    }
    let boots = device.boots();
    device.reboot();
    let ended = timeout(LIMIT, client.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!((device.boots(), device.holding(1)), (boots + 1, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_being_served_stops_at_a_cut() {
    for round in 1..=20 {
        let (_simulator, device, mut client) = start(values()).await;
        let burst = hex("00 02 00 00 00 06 01 06 00 01 00 03").repeat(300);
        let stream = tokio::spawn(async move { while client.write_all(&burst).await.is_ok() {} });
        let served = |device: &Device| device.effects() > round * 100;
        assert!(device.wait_for(LIMIT, served).await);
        device.cut();
        let at_cut = device.effects();
        timeout(LIMIT, stream).await.unwrap().unwrap();
        let free = |device: &Device| device.slots_taken() == 0;
        assert!(device.wait_for(LIMIT, free).await);
        assert_eq!(device.effects(), at_cut);
    }
}

#[tokio::test]
async fn a_connection_that_waits_to_be_accepted_is_cut_too() {
    let simulator = Simulator::start(values()).await.unwrap();
    let device = simulator.device();
    // On this one thread nobody accepts until this test waits, so the request stands in the backlog.
    let mut client = std::net::TcpStream::connect(simulator.address()).unwrap();
    let request = hex("00 01 00 00 00 06 01 06 00 01 00 03");
    io::Write::write_all(&mut client, &request).unwrap();
    device.cut();
    device.restore();
    assert!(
        !device
            .wait_for(SILENCE, |device| device.effects() > 0)
            .await
    );
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let ended = io::Read::read(&mut client, &mut [0]).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_stopped_simulator_frees_its_port_and_its_ledger_stays() {
    let (simulator, device, mut client) = start(values()).await;
    ask(&mut client, "00 01 00 00 00 06 01 06 00 01 00 03").await;
    let listen = simulator.address();
    simulator.stop().await;
    assert!(timeout(LIMIT, client.read_u8()).await.unwrap().is_err());
    let next = Simulator::start(SimulatorSpec { listen, ..values() })
        .await
        .unwrap();
    assert_eq!(next.address(), listen);
    assert_eq!((device.effects(), next.device().effects()), (1, 0));
}

#[tokio::test]
async fn nothing_on_an_old_connection_is_applied_after_a_cut() {
    let (_simulator, device, mut client) = start(values()).await;
    device.push_fault(Fault::next(Matching::Writes, Act::Hold(Span::ms(200))));
    client
        .write_all(&hex("00 01 00 00 00 06 01 06 00 01 00 03"))
        .await
        .unwrap();
    assert!(
        device
            .wait_for(LIMIT, |device| !device.requests().is_empty())
            .await
    );
    device.cut();
    assert!(
        !device
            .wait_for(SILENCE * 3, |device| device.effects() > 0)
            .await
    );
}

// models: F059, F060
#[tokio::test]
async fn a_black_hole_swallows_and_a_freeze_delays() {
    let (simulator, device, mut client) = start(values()).await;
    device.black_hole(true);
    client
        .write_all(&hex("00 01 00 00 00 06 01 06 00 01 00 03"))
        .await
        .unwrap();
    assert!(is_silent(&mut client).await);
    assert!(
        is_silent(&mut connect(&simulator).await).await,
        "accepted, no FIN"
    );
    device.black_hole(false);
    assert!(is_silent(&mut client).await, "swallowed for good");
    assert_eq!(device.effects(), 0);

    device.freeze(true);
    let aborted = connect(&simulator).await;
    client
        .write_all(&hex("00 02 00 00 00 06 01 06 00 01 00 04"))
        .await
        .unwrap();
    assert!(is_silent(&mut client).await);
    assert_eq!(device.effects(), 0);
    drop(aborted);
    device.freeze(false);
    assert_eq!(
        receive(&mut client).await,
        hex("00 02 00 00 00 06 01 06 00 01 00 04")
    );
    assert_eq!(device.holding(1), 4);
}

// models: F060
#[tokio::test]
async fn what_a_sender_reset_during_a_freeze_never_arrives() {
    let (_simulator, device, mut client) = start(values()).await;
    ask(&mut client, "00 01 00 00 00 06 01 03 00 01 00 01").await;
    device.freeze(true);
    client
        .write_all(&hex("00 02 00 00 00 06 01 06 00 01 00 04"))
        .await
        .unwrap();
    client.set_zero_linger().unwrap();
    drop(client);
    device.freeze(false);
    assert!(
        device
            .wait_for(LIMIT, |device| device.slots_taken() == 0)
            .await
    );
    assert_eq!(device.effects(), 0);
}

// models: F081
#[tokio::test]
async fn an_idle_connection_is_closed() {
    let spec = SimulatorSpec {
        idle_close: Span::ms(30),
        ..SimulatorSpec::default()
    };
    let (_simulator, _device, mut client) = start(spec).await;
    let ended = timeout(LIMIT, client.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
}

// models: F141
#[tokio::test]
async fn slots_are_limited_and_a_lost_connection_keeps_its_own() {
    let spec = SimulatorSpec {
        slots: 2,
        slot_timeout: Span(LIMIT * 100),
        ..SimulatorSpec::default()
    };
    let (simulator, device, client) = start(spec).await;
    let mut second = connect(&simulator).await;
    ask(&mut second, "00 01 00 00 00 06 01 03 00 01 00 01").await;
    let mut third = connect(&simulator).await;
    assert!(timeout(LIMIT, third.read_u8()).await.unwrap().is_err());
    drop(client);
    assert!(
        device
            .wait_for(LIMIT, |device| device.slots_taken() == 1)
            .await,
        "a FIN frees the slot"
    );
    device.cut();
    assert!(timeout(LIMIT, second.read_u8()).await.unwrap().is_err());
    assert_eq!(device.slots_taken(), 1, "nobody told the device");
}

#[tokio::test]
async fn done_registers_report_the_request_id_of_a_write() {
    let spec = SimulatorSpec {
        done: Some(DoneProgram {
            request_id: Place::holding(501),
            id: Place::holding(510),
            result: Some(Place::holding(512)),
            word_order: Order::HighFirst,
            delay: Span::ms(250),
            result_code: 9,
        }),
        ..SimulatorSpec::default()
    };
    let (_simulator, device, mut client) = start(spec).await;
    ask(
        &mut client,
        "00 01 00 00 00 0D 01 10 01 F4 00 03 06 00 32 00 01 00 07",
    )
    .await;
    assert_eq!(device.holding_u32(510), 0);
    assert!(
        device
            .wait_for(LIMIT, |device| device.holding_u32(510) == 0x0001_0007)
            .await
    );
    assert_eq!(device.holding(512), 9);
    assert_eq!(device.effects_of_register(500), 1);
}

#[tokio::test]
async fn counters_count_and_rules_act_each_time() {
    let spec = SimulatorSpec::from_toml(
        "[[counter]]\nat = \"input:0\"\nevery = \"20ms\"\nby = 2\n\
         [[rule]]\nwhen = \"coil:10\"\nadd = [{ at = \"holding:201\" }]\nclears = true",
    )
    .unwrap();
    let (_simulator, device, mut client) = start(spec).await;
    for _ in 0..2 {
        ask(&mut client, "00 01 00 00 00 06 01 05 00 0A FF 00").await;
    }
    assert!(!device.coil(10), "cleared by the PLC");
    ask(&mut client, "00 01 00 00 00 06 01 05 00 0A 00 00").await;
    assert_eq!(device.holding(201), 2);
    assert_eq!(device.effects_of_coil(10), 3);
    assert!(device.wait_for(LIMIT, |device| device.input(0) >= 4).await);
}

#[test]
fn the_documented_file_is_read_and_wrong_files_are_refused_with_a_position() {
    let text = include_str!("../../config/sim/press-1.toml");
    let spec = SimulatorSpec::from_toml(text).unwrap();
    assert_eq!(spec.mailbox.unwrap().opcodes.len(), 2);
    assert!(spec.faults.is_empty(), "a first session meets no fault");
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(example) if !example.starts_with(' ') => example,
        _ => line,
    });
    let struck = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(SimulatorSpec::from_toml(&struck).unwrap().faults.len(), 1);
    let other_lines = |header: &str| {
        let from = text.find(header).unwrap();
        let lines = text[from..].lines().take_while(|line| !line.is_empty());
        let lines = lines.map(|line| line.trim_start_matches("# "));
        SimulatorSpec::from_toml(&lines.collect::<Vec<_>>().join("\n")).unwrap()
    };
    let rtu = other_lines("# [rtu]");
    assert_eq!(rtu.others[0].registers.holding.len(), 1);
    assert_eq!(rtu.rtu.unwrap().baud, 19_200);
    assert_eq!(other_lines("# [mc]").mc.unwrap().read_words_max, 960);
    assert!(other_lines("# [c24]").line().unwrap().pty.is_some());
    for (text, says) in [
        ("unit = 1\nspeed = 3", &["line 2", "speed"][..]),
        (
            "listen = \"127.0.0.1:0\"\n[points]\nmode = \"holdin:1\"",
            &["line 3", "holdin:1", "expected coil:N"],
        ),
        ("idle_close = \"5\"", &["line 1", "\"5\"", "duration"]),
        (
            "[[fault]]\nact = \"explode\"",
            &["line 2", "explode", "drop_reply"],
        ),
        ("[registers.holding]\n70000 = 1", &["70000", "65535"]),
        (
            "[mailbox]\ncommand = \"holding:300\"\nstatus = \"holding:310\"",
            &["overlap"],
        ),
        (
            "[mailbox]\ncommand = \"holding:300\"\nstatus = \"holding:65520\"",
            &["65535"],
        ),
        ("slots = 0", &["slots", "at least 1"]),
    ] {
        let error = SimulatorSpec::from_toml(text).unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
    }
}

#[tokio::test]
async fn a_port_that_cannot_be_made_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plc.toml");
    let port = dir.path().join("not-there/com1");
    std::fs::write(&file, format!("[rtu]\npty = \"{}\"\n", port.display())).unwrap();
    let error = super::run_file(&file).await.unwrap_err().to_string();
    for said in ["not-there/com1", "No such file", "`pty`"] {
        assert!(error.contains(said), "{error}");
    }
    assert!(!error.contains("listen"), "{error}");
}
