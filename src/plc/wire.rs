//! Owns: opening what carries frames, and what the kernel is told about it.
//! May call: metered; the socket.
//! Never: reuse a local UDP port for which an old reply may still be on its way.

use super::metered::{Wire, is_readable};
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::timeout;

/// Local UDP ports that are not used again yet.
const RETIRED_PORTS_MAX: usize = 64;

const KEEPALIVE_IDLE_S: u64 = 20;
const KEEPALIVE_INTERVAL_S: u64 = 5;
const KEEPALIVE_PROBES: u32 = 3;

/// A TCP connection, within the timeout.
pub(super) async fn tcp(host: &str, port: u16, timeout_ms: u64) -> Result<Box<dyn Wire>> {
    let wait = Duration::from_millis(timeout_ms);
    let stream = timeout(wait, TcpStream::connect((host, port)))
        .await
        .map_err(|_| Error::from(ErrorKind::TimedOut))??;
    set_options(&stream, timeout_ms)?;
    Ok(Box::new(stream))
}

fn set_options(stream: &TcpStream, timeout_ms: u64) -> Result<()> {
    use rustix::net::sockopt as set;
    let user_timeout_ms = u32::try_from(timeout_ms).unwrap_or(u32::MAX);
    set::set_tcp_nodelay(stream, true)?;
    set::set_tcp_user_timeout(stream, user_timeout_ms)?;
    set::set_tcp_keepidle(stream, Duration::from_secs(KEEPALIVE_IDLE_S))?;
    set::set_tcp_keepintvl(stream, Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
    set::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    set::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// The local ports of the last connections, the newest last: a late reply to one of them must find nobody.
#[derive(Default)]
pub(super) struct RetiredPorts(VecDeque<u16>);

/// A UDP socket that hears only `host`, on a local port that was not used for the last connections.
pub(super) async fn udp(
    host: &str,
    port: u16,
    timeout_ms: u64,
    retired: &mut RetiredPorts,
) -> Result<Box<dyn Wire>> {
    let wait = Duration::from_millis(timeout_ms);
    let mut found = timeout(wait, lookup_host((host, port)))
        .await
        .map_err(|_| Error::from(ErrorKind::TimedOut))??;
    let peer = found.next().ok_or(ErrorKind::NotFound)?;
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Those that are refused stay open until the end, so that none is offered twice.
    let mut refused = Vec::new();
    let socket = loop {
        let socket = UdpSocket::bind(any).await?;
        if !retired.0.contains(&socket.local_addr()?.port()) {
            break socket;
        }
        refused.push(socket);
    };
    if retired.0.len() == RETIRED_PORTS_MAX {
        retired.0.pop_front();
    }
    retired.0.push_back(socket.local_addr()?.port());
    socket.connect(peer).await?;
    Ok(Box::new(Datagrams(socket)))
}

/// One frame a datagram, both ways.
struct Datagrams(UdpSocket);

impl AsyncRead for Datagrams {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = out.filled().len();
        loop {
            ready!(self.0.poll_recv(cx, out))?;
            // An empty datagram is nothing, and not the end.
            if out.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Datagrams {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.0.poll_send(cx, bytes)
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Wire for Datagrams {
    fn has_unread(&self) -> bool {
        is_readable(&self.0)
    }
    fn closed_by_peer(&self) -> Option<String> {
        None
    }
    /// An ICMP message wakes nobody who waits for a datagram.
    fn pending_error(&self) -> Option<String> {
        let error = self.0.take_error().ok()??;
        Some(match error.kind() {
            ErrorKind::ConnectionRefused => "nobody listens on that UDP port".into(),
            _ => error.to_string(),
        })
    }
    fn abort_on_close(&self) {}
}
