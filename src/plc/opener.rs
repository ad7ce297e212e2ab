//! Owns: which session a link's protocol and transport make.
//! May call: exchange, modbus, melsec, wire of this room; core spec.
//! Never: open a second connection to a device: the caller has closed the first.

use super::exchange::Session;
use super::metered::{Clock, Tally};
use super::port::{OnPort, Port, Ports};
use super::wire::RetiredPorts;
use super::{melsec, modbus};
use crate::core::melsec::{Device, Kind};
use crate::core::spec::{Address, LinkSpec, ModbusArea};
use std::io::ErrorKind;
use std::sync::Arc;

/// Opens one link's connections.
pub(super) struct Opener {
    retired: RetiredPorts,
    /// The line that it shares with others.
    pub(super) port: Option<Arc<Port>>,
}

impl Opener {
    pub(super) fn new(link: &LinkSpec, ports: &Ports) -> Self {
        Self {
            retired: RetiredPorts::default(),
            port: match link {
                LinkSpec::ModbusRtu(link) => Some(ports.get(&link.way)),
                LinkSpec::ModbusTcp(_) | LinkSpec::Mc(_) => None,
            },
        }
    }

    /// The next connection; it has proven nothing yet.
    pub(super) async fn open(
        &mut self,
        link: &LinkSpec,
        clock: Clock,
        tally: Arc<Tally>,
    ) -> std::io::Result<Session> {
        match link {
            LinkSpec::ModbusTcp(link) => modbus::Session::open(link, clock, tally)
                .await
                .map(Session::Modbus),
            LinkSpec::ModbusRtu(link) => {
                let Some(port) = &self.port else {
                    return Err(ErrorKind::NotConnected.into());
                };
                OnPort::open(port, link, clock, tally)
                    .await
                    .map(Session::Shared)
            }
            LinkSpec::Mc(link) => melsec::open(link, &mut self.retired, clock, tally)
                .await
                .map(Session::Framed),
        }
    }
}

/// What is read of a device of which the configuration names no place.
pub(super) fn first_place(link: &LinkSpec) -> Address {
    match link {
        LinkSpec::ModbusTcp(_) | LinkSpec::ModbusRtu(_) => Address::Modbus {
            area: ModbusArea::Holding,
            offset: 0,
        },
        // The operating state of the CPU.
        LinkSpec::Mc(link) => Address::Melsec {
            device: Device::of(Kind::Sd, link.family),
            number: 203,
        },
    }
}
