//! Owns: opening what carries frames, and what the kernel is told about it.
//! May call: metered; the socket.
//! Never: reuse a local UDP port for which an old reply may still be on its way.

use super::metered::Wire;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

const KEEPALIVE_IDLE_S: u64 = 20;
const KEEPALIVE_INTERVAL_S: u64 = 5;
const KEEPALIVE_PROBES: u32 = 3;

/// A TCP connection, within the timeout.
pub(super) async fn tcp(host: &str, port: u16, timeout_ms: u64) -> std::io::Result<Box<dyn Wire>> {
    let wait = Duration::from_millis(timeout_ms);
    let stream = timeout(wait, TcpStream::connect((host, port)))
        .await
        .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    set_options(&stream, timeout_ms)?;
    Ok(Box::new(stream))
}

fn set_options(stream: &TcpStream, timeout_ms: u64) -> std::io::Result<()> {
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
