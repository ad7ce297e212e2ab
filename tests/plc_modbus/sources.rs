//! Owns: cases of handshakes: torn items, acknowledgements of the wrong item, of a lost reply.
//! May call: the scripted server.
//! Never: accept an item of two moments.

use crate::server::{Act, Server, asked, connected, echo, registers, scalar, spec};
use holdfast::core::contract::PresentedItem;
use holdfast::core::spec::{DataPoint, DataType, HandshakeSpec, Numbering};
use holdfast::plc::link::LinkError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const READY: u16 = 20;
const ACK: u16 = 21;
const ITEM: u16 = 220;
const DATA: u16 = 230;

fn handshake() -> HandshakeSpec {
    HandshakeSpec {
        ready: scalar(READY, DataType::Bool),
        ack: scalar(ACK, DataType::Bool),
        item: scalar(ITEM, DataType::U32),
        numbering: Numbering {
            first: 1,
            last: u32::MAX,
        },
        data: vec![DataPoint {
            name: "weight".into(),
            at: scalar(DATA, DataType::U32),
            unit: None,
        }],
        poll_ms: 100,
    }
}

type Registers = Arc<Mutex<HashMap<u16, u16>>>;

fn present(device: &Registers, number: u16) {
    let mut device = device.lock().unwrap();
    device.extend([
        (READY, 1),
        (ITEM + 1, number),
        (DATA, number),
        (DATA + 1, number),
    ]);
}

/// Serves `device`; `after` sees where each read began once it is answered.
async fn serve(device: &Registers, after: impl Fn(&Registers, u16) + Send + 'static) -> Server {
    let device = Arc::clone(device);
    Server::start(move |request| {
        let (start, count) = asked(request);
        if request[7] == 6 {
            device.lock().unwrap().insert(start, count);
            return vec![Act::Bytes(echo(request))];
        }
        let read = |at: u16| device.lock().unwrap().get(&at).copied().unwrap_or(0);
        let words: Vec<u16> = (start..start + count).map(read).collect();
        after(&device, start);
        vec![Act::Bytes(registers(request, &words))]
    })
    .await
}

// covers: EVT-06
#[tokio::test]
async fn an_item_that_changes_while_it_is_read_is_not_taken() {
    let device = Registers::default();
    present(&device, 7);
    let server = serve(&device, |device, start| {
        // Between its number and its data the device goes on to the next item, once.
        if start == ITEM && device.lock().unwrap().insert(0, 1).is_none() {
            present(device, 8);
        }
    })
    .await;
    let mut link = connected(&spec(server.port)).await;
    let torn = link.read_handshake(&handshake()).await.unwrap();
    assert!(torn.ready && torn.item.is_none(), "{torn:?}");
    let whole = link.read_handshake(&handshake()).await.unwrap();
    let item = PresentedItem {
        number: 8,
        words: vec![vec![8, 8]],
    };
    assert_eq!(
        (whole.ready, whole.ack, whole.item),
        (true, false, Some(item))
    );
    device.lock().unwrap().insert(READY, 0);
    let gone = link.read_handshake(&handshake()).await.unwrap();
    assert_eq!((gone.ready, gone.item), (false, None));
}

// covers: EVT-03
#[tokio::test]
async fn only_the_item_that_is_meant_is_acknowledged_and_only_once() {
    let device = Registers::default();
    present(&device, 8);
    let server = serve(&device, |_, _| ()).await;
    let mut link = connected(&spec(server.port)).await;
    let handshake = handshake();
    assert_eq!(link.acknowledge(&handshake, Some(7)).await, Ok(false));
    assert_eq!(link.acknowledge(&handshake, None).await, Ok(false));
    assert_eq!(server.count(6), 0);
    assert_eq!(link.acknowledge(&handshake, Some(8)).await, Ok(true));
    assert_eq!(link.acknowledge(&handshake, Some(8)).await, Ok(false));
    assert_eq!((server.count(6), device.lock().unwrap()[&ACK]), (1, 1));
    device.lock().unwrap().insert(READY, 0);
    assert_eq!(link.acknowledge(&handshake, Some(8)).await, Ok(false));
    assert_eq!(link.acknowledge(&handshake, None).await, Ok(true));
    assert_eq!((server.count(6), device.lock().unwrap()[&ACK]), (2, 0));
}

// covers: EVT-03
#[tokio::test]
async fn an_acknowledgement_without_a_reply_is_an_error_and_the_link_is_dropped() {
    let device = Registers::default();
    present(&device, 8);
    let kept = Arc::clone(&device);
    let server = Server::start(move |request| {
        let (start, count) = asked(request);
        let read = |at: u16| kept.lock().unwrap().get(&at).copied().unwrap_or(0);
        let words: Vec<u16> = (start..start + count).map(read).collect();
        match request[7] {
            6 => vec![Act::Pause(400)],
            _ => vec![Act::Bytes(registers(request, &words))],
        }
    })
    .await;
    let mut link = connected(&spec(server.port)).await;
    let ended = link.acknowledge(&handshake(), Some(8)).await;
    assert!(matches!(ended, Err(LinkError::NoReply(_))), "{ended:?}");
    assert!(
        !link.is_open(),
        "what was sent must not be followed by anything on this connection"
    );
}
