//! Owns: which session a link's protocol and transport make.
//! May call: exchange, modbus, melsec, wire of this room; core spec.
//! Never: open a second connection to a device: the caller has closed the first.

use super::exchange::Session;
use super::metered::{Clock, Tally};
use super::port::{OnPort, Port, Ports};
use super::wire::RetiredPorts;
use super::{melsec, modbus};
use crate::core::c24::C24Frame;
use crate::core::melsec::{Device, Family, Kind};
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
            port: link.on_line().map(|line| ports.get(line.way)),
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
            LinkSpec::ModbusRtu(_) | LinkSpec::C24(_) => {
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
        LinkSpec::Mc(link) => operating_state(link.family),
        LinkSpec::C24(link) => match link.frame {
            // Its commands know no SD.
            C24Frame::C1 => Address::Melsec {
                device: Device::of(Kind::D, link.family),
                number: 0,
            },
            _ => operating_state(link.family),
        },
    }
}

/// Of the CPU.
fn operating_state(family: Family) -> Address {
    Address::Melsec {
        device: Device::of(Kind::Sd, family),
        number: 203,
    }
}
