//! Owns: the Unix socket and its limits: connections, body, header time, waiting requests, stopping.
//! May call: routes, roles.
//! Never: take over a socket on which somebody still answers; cut a request short while it may finish.

use super::backend::Backend;
use super::roles::{Roles, peer};
use super::routes::{App, router};
use crate::patience::Patience;
use axum::body::Body;
use axum::http::Request;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt as _;

/// Most connections served at once; more wait in the kernel's queue.
pub const CONNECTIONS_COUNT_MAX: usize = 256;
/// Longest body of a request.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Longest time for a request's head, and for an idle connection, in milliseconds.
pub const HEADER_MS_MAX: u64 = 10_000;
/// Longest time for a request's body to arrive, in milliseconds.
pub const BODY_MS_MAX: u64 = 10_000;
/// Longest time in which a caller may take nothing of its answer, in milliseconds.
pub const UNREAD_MS_MAX: u64 = 10_000;
/// Most requests that wait for an outcome, and streams, at once: fewer than connections, so that one
/// that does not wait is always answered.
pub const WAITING_COUNT_MAX: usize = 192;
/// Longest `wait`, in milliseconds.
pub const WAIT_MS_MAX: u64 = 300_000;
/// How long requests under way may take once the gateway is stopping, in milliseconds.
pub const STOP_MS_MAX: u64 = 5_000;
/// Pause after an accept that failed for want of descriptors, in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`CONNECTIONS_COUNT_MAX`].
    pub connections: usize,
    /// See [`BODY_BYTES_MAX`].
    pub body_bytes: usize,
    /// See [`HEADER_MS_MAX`].
    pub header_ms: u64,
    /// See [`BODY_MS_MAX`].
    pub body_ms: u64,
    /// See [`UNREAD_MS_MAX`].
    pub unread_ms: u64,
    /// See [`WAITING_COUNT_MAX`].
    pub waiting: usize,
    /// See [`WAIT_MS_MAX`].
    pub wait_ms: u64,
    /// See [`STOP_MS_MAX`].
    pub stop_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: CONNECTIONS_COUNT_MAX,
            body_bytes: BODY_BYTES_MAX,
            header_ms: HEADER_MS_MAX,
            body_ms: BODY_MS_MAX,
            unread_ms: UNREAD_MS_MAX,
            waiting: WAITING_COUNT_MAX,
            wait_ms: WAIT_MS_MAX,
            stop_ms: STOP_MS_MAX,
        }
    }
}

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Operator.
    #[error(
        "{0}: another process answers on this socket; stop it first, or configure another path under [api] unix"
    )]
    InUse(PathBuf),
    /// Operator.
    #[error(
        "{0}: something that is not a socket is in the way; move it, or configure another path under [api] unix"
    )]
    NotASocket(PathBuf),
    /// Operator: directory missing, or not writable.
    #[error("{path}: the socket cannot be opened: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// Opens the socket, mode 0660. A socket file that nobody answers on is replaced.
///
/// # Errors
/// [`BindError`].
pub async fn bind(socket: &Path) -> Result<UnixListener, BindError> {
    let failed = |error| BindError::Io {
        path: socket.to_owned(),
        error,
    };
    match std::fs::symlink_metadata(socket) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket(socket.to_owned()));
        }
        Ok(_) => match UnixStream::connect(socket).await {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::NotFound
                ) => {}
            // Full queue: somebody is there.
            Ok(_) => return Err(BindError::InUse(socket.to_owned())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(BindError::InUse(socket.to_owned()));
            }
            Err(error) => return Err(failed(error)),
        },
    }
    // Made under another name and renamed, so that it is never there with looser permissions.
    let mut fresh = socket.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    std::fs::rename(&fresh, socket).map_err(failed)?;
    Ok(listener)
}

/// Opens the socket and serves until `shutdown` is true; then finishes what is under way, and removes it.
///
/// # Errors
/// [`BindError`].
pub async fn serve(
    backend: Arc<dyn Backend>,
    socket: &Path,
    roles: watch::Receiver<Arc<Roles>>,
    limits: Limits,
    shutdown: watch::Receiver<bool>,
) -> Result<(), BindError> {
    let listener = bind(socket).await?;
    serve_on(listener, backend, roles, limits, shutdown).await;
    // Gone already is as good.
    let _ = std::fs::remove_file(socket);
    Ok(())
}

/// Serves on a socket opened by [`bind`] until `shutdown` is true.
pub async fn serve_on(
    listener: UnixListener,
    backend: Arc<dyn Backend>,
    roles: watch::Receiver<Arc<Roles>>,
    limits: Limits,
    mut shutdown: watch::Receiver<bool>,
) {
    let app = App::new(backend, roles, limits, shutdown.clone());
    let router = router(app);
    let free = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            // Taken before the accept: beyond the limit callers wait in the kernel's queue.
            let permit = free.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stopped(&mut shutdown) => break,
            next = next => next,
        };
        while connections.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::warn!("api: a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                continue;
            }
        };
        let router = router.clone();
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            let _permit = permit;
            connection(stream, router, limits, shutdown).await;
        });
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_millis(limits.stop_ms), finish)
        .await
        .is_err()
    {
        log::warn!("api: {} request(s) did not end in time", connections.len());
        connections.shutdown().await;
    }
}

/// Resolves once the gateway is stopping.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

async fn connection(
    stream: UnixStream,
    router: axum::Router,
    limits: Limits,
    mut shutdown: watch::Receiver<bool>,
) {
    let actor = match peer(&stream) {
        Ok(actor) => actor,
        Err(error) => {
            log::warn!("api: the kernel does not say who is calling: {error}");
            return;
        }
    };
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(actor.clone());
        router.clone().oneshot(request)
    });
    let unread = Duration::from_millis(limits.unread_ms);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_ms))
        .max_buf_size(BODY_BYTES_MAX)
        .serve_connection(TokioIo::new(Patience::new(stream, unread)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        log::debug!("api: a connection ended early: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let first = bind(&path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert!(matches!(bind(&path).await, Err(BindError::InUse(_))));
        drop(first);
        assert!(path.exists());
        let second = bind(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
        drop(second);
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path).await, Err(BindError::NotASocket(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
