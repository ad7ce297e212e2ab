//! Owns: the simulated CPU against plc-comm-slmp, a client that nobody of this project wrote.
//! May call: the rig, the simulator.
//! Never: take the client's word for an effect: what was written is looked up in the device.

use crate::rig::{Form, cpu_with, program};
use holdfast::core::melsec::{Code, Frame, Transport};
use holdfast::simulator::{Hole, Place, Simulator, SimulatorSpec};
use plc_comm_slmp::{
    SlmpAddress, SlmpBlockRead, SlmpBlockWrite, SlmpClient, SlmpConnectionOptions,
    SlmpCpuOperationStatus, SlmpDeviceAddress, SlmpPlcProfile, SlmpTargetAddress,
    SlmpTransportMode,
};

/// The CPU's own port speaks 3E to it, an Ethernet module 4E.
fn profile(frame: Frame) -> SlmpPlcProfile {
    match frame {
        Frame::E3 => SlmpPlcProfile::QnUDV,
        Frame::E4 => SlmpPlcProfile::QnUDVQj71E71100,
    }
}

fn place(frame: Frame, text: &str) -> SlmpDeviceAddress {
    SlmpAddress::parse(text, profile(frame)).unwrap()
}

async fn client(form: Form, simulator: &Simulator) -> SlmpClient {
    let at = simulator.address();
    let way = match form.2 {
        Transport::Tcp => SlmpTransportMode::Tcp,
        Transport::Udp => SlmpTransportMode::Udp,
    };
    let (host, own) = (at.ip().to_string(), SlmpTargetAddress::default());
    let options = SlmpConnectionOptions::new(host, at.port(), way, own, profile(form.0));
    SlmpClient::connect(options.unwrap()).await.unwrap()
}

/// What it reads and writes, by every command that it has for devices.
async fn devices(form: Form) {
    let simulator = cpu_with(SimulatorSpec {
        mc: Some(program(form)),
        holes: vec![Hole {
            at: Place::holding(9000),
            count: 1,
        }],
        ..SimulatorSpec::default()
    })
    .await;
    let device = simulator.device();
    device.set_holding(10, 0x1234);
    device.set_holding(11, 0xFFFE);
    device.set_coil(3, true);
    device.set_coil(16, true);
    let plc = client(form, &simulator).await;
    let at = |text| place(form.0, text);

    let words = plc.read_words(at("D10"), 2).await.unwrap();
    assert_eq!(words, [0x1234, 0xFFFE], "{form:?}");
    assert_eq!(
        plc.read_bits(at("M2"), 3).await.unwrap(),
        [false, true, false]
    );
    let some = plc.read_random(&[at("D11")], &[at("D10")]).await.unwrap();
    assert_eq!(
        (some.word_values, some.dword_values),
        (vec![0xFFFE], vec![0xFFFE_1234])
    );
    plc.write_words(at("D20"), &[7, 0xFFFF]).await.unwrap();
    plc.write_bits(at("M30"), &[true, false, true])
        .await
        .unwrap();
    plc.write_random_words(&[(at("D40"), 5)], &[(at("D42"), 0x1234_5678)])
        .await
        .unwrap();
    plc.write_random_bits(&[(at("M50"), true)]).await.unwrap();
    let words = [20, 21, 40, 42, 43].map(|at| device.holding(at));
    assert_eq!(words, [7, 0xFFFF, 5, 0x5678, 0x1234], "{form:?}");
    let bits = [30, 31, 32, 50].map(|at| device.coil(at));
    assert_eq!(bits, [true, false, true, true]);
    if form.0 == Frame::E4 {
        blocks(&plc, &simulator).await;
    }

    let effects = device.effects();
    let refused = plc.write_words(at("D9000"), &[1]).await.unwrap_err();
    assert!(
        refused.end_code.is_some_and(|code| code != 0),
        "{refused:?}"
    );
    assert_eq!(device.effects(), effects, "{form:?}");
    plc.close().await.unwrap();
}

/// Blocks of words and of bits in one request, which it offers over an Ethernet module alone.
async fn blocks(plc: &SlmpClient, simulator: &Simulator) {
    let (device, at) = (simulator.device(), |text| place(Frame::E4, text));
    let block = |device, points| SlmpBlockRead { device, points };
    let (words, bits) = ([block(at("D10"), 2)], [block(at("M0"), 2)]);
    let read = plc.read_block(&words, &bits).await.unwrap();
    assert_eq!(
        (read.word_values, read.bit_values),
        (vec![0x1234, 0xFFFE], vec![0x0008, 0x4001])
    );
    let block = |device, values| SlmpBlockWrite { device, values };
    let words = [block(at("D60"), vec![1, 2])];
    let bits = [block(at("M64"), vec![0x8001])];
    plc.write_block(&words, &bits).await.unwrap();
    assert_eq!([60, 61].map(|at| device.holding(at)), [1, 2]);
    let bits = [64, 65, 79].map(|at| device.coil(at));
    assert_eq!(bits, [true, false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plc_comm_slmp_reads_and_writes_the_simulator() {
    for frame in [Frame::E3, Frame::E4] {
        for transport in [Transport::Tcp, Transport::Udp] {
            devices(Form(frame, Code::Binary, transport)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plc_comm_slmp_names_and_stops_the_simulated_cpu() {
    for frame in [Frame::E3, Frame::E4] {
        let form = Form(frame, Code::Binary, Transport::Tcp);
        let simulator = crate::rig::cpu(form).await;
        let plc = client(form, &simulator).await;
        // As it knows them, the CPU's own port does not tell its name.
        if frame == Frame::E4 {
            let named = plc.read_type_name().await.unwrap();
            let found = (named.model.trim_end(), named.model_code);
            assert_eq!(found, ("Q06UDVCPU", 0x0368));
        }
        let state = async || plc.read_cpu_operation_state().await.unwrap().status;
        assert_eq!(state().await, SlmpCpuOperationStatus::Run, "{frame:?}");
        plc.remote_stop().await.unwrap();
        assert_eq!(state().await, SlmpCpuOperationStatus::Stop, "{frame:?}");
        assert_eq!(simulator.device().operating_state(), 2);
        plc.close().await.unwrap();
    }
}
