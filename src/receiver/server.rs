//! Owns: listening, TLS, connections and their limits, the paths there are, stopping.
//! May call: batch, gate, metrics, problem, pool; patience, secret.
//! Never: serve without TLS where TLS is configured; cut a request short while it may finish.

use super::batch::{App, ingest};
use super::gate::Gate;
use super::metrics::{MEDIA_TYPE, Metrics};
use super::mqtt::MqttStats;
use super::pool::{Connect, Pool};
use super::problem::Problem;
use super::{Settings, TlsFiles};
use crate::patience::Patience;
use crate::secret;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, crypto};

/// How long requests under way may take once the receiver is stopping, in milliseconds: longer than one call to
/// the books.
pub const STOP_MS_MAX: u64 = 40_000;
/// Pause after an accept that failed for want of descriptors, in milliseconds.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The books are asked whether they are there at most so often, in milliseconds.
const READY_MS: u64 = 1_000;

/// Why there is no receiver. Operator.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// The address.
    #[error(
        "{listen}: cannot be listened on: {error}; is another process there, or is it not an address of this computer?"
    )]
    Bind {
        /// Which.
        listen: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// A token, a certificate, a key.
    #[error("{0}")]
    Files(String),
}

/// Listens, and does not serve yet.
pub struct Receiver {
    listener: TcpListener,
    settings: Settings,
    connect: Connect,
    mqtt: Option<Arc<MqttStats>>,
    gate: watch::Sender<Arc<Gate>>,
    tls: watch::Sender<Option<TlsAcceptor>>,
}

/// What may change while it serves.
struct Changing {
    gate: Arc<Gate>,
    tls: Option<TlsAcceptor>,
}

/// Reads the files again.
#[derive(Clone)]
pub struct Reloader {
    settings: Settings,
    gate: watch::Sender<Arc<Gate>>,
    tls: watch::Sender<Option<TlsAcceptor>>,
}

impl Reloader {
    /// Tokens, gateways, certificate and key as they are now; all or nothing.
    ///
    /// # Errors
    /// [`ReceiverError`]: nothing has changed then. What else differs takes a restart, and is named.
    pub fn reload(&self, new: &Settings) -> Result<(), ReceiverError> {
        let old = &self.settings;
        let fixed = [
            ("listen", old.listen != new.listen),
            ("[tls]", old.tls.is_some() != new.tls.is_some()),
            ("[database] connections", old.books != new.books),
            ("[limits]", old.limits != new.limits),
        ];
        let names: Vec<&str> = fixed
            .iter()
            .filter(|(_, differs)| *differs)
            .map(|(name, _)| *name)
            .collect();
        if !names.is_empty() {
            return Err(ReceiverError::Files(format!(
                "{} cannot change while running: restart the receiver for it",
                names.join(", ")
            )));
        }
        let Changing { gate, tls } = changing(new)?;
        self.gate.send_replace(gate);
        self.tls.send_replace(tls);
        Ok(())
    }
}

fn changing(settings: &Settings) -> Result<Changing, ReceiverError> {
    let gate = Gate::open(
        &settings.gateways,
        settings.metrics_token_file.as_ref(),
        settings.limits.in_flight_per_gateway,
    );
    Ok(Changing {
        gate: Arc::new(gate.map_err(ReceiverError::Files)?),
        tls: settings.tls.as_ref().map(acceptor).transpose()?,
    })
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ReceiverError> {
    let wrong = |path: &std::path::Path, error: &dyn std::fmt::Display, expected: &str| {
        ReceiverError::Files(format!("{}: {error}; expected {expected}", path.display()))
    };
    let chain_of = |error: &dyn std::fmt::Display| {
        wrong(
            &files.certificate_file,
            error,
            "the certificate and those above it, as PEM",
        )
    };
    let pem = std::fs::read(&files.certificate_file).map_err(|error| chain_of(&error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| chain_of(&error))?;
    if chain.is_empty() {
        return Err(chain_of(&"no certificate in it"));
    }
    let key_of = |error: &dyn std::fmt::Display| {
        wrong(
            &files.key_file,
            error,
            "the certificate's private key, as PEM",
        )
    };
    secret::judge(&files.key_file).map_err(|error| ReceiverError::Files(error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key_file).map_err(|error| key_of(&error))?;
    let mut config =
        ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| key_of(&error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| key_of(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Receiver {
    /// Reads tokens and certificate, and listens.
    ///
    /// # Errors
    /// [`ReceiverError`].
    pub async fn bind(settings: Settings, connect: Connect) -> Result<Self, ReceiverError> {
        let Changing { gate, tls } = changing(&settings)?;
        let listen = settings.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| ReceiverError::Bind { listen, error })?;
        Ok(Self {
            listener,
            settings,
            connect,
            mqtt: None,
            gate: watch::Sender::new(gate),
            tls: watch::Sender::new(tls),
        })
    }

    /// Shows what `stats` counts among its metrics.
    pub fn show(&mut self, stats: Arc<MqttStats>) {
        self.mqtt = Some(stats);
    }

    /// Where it listens, with the port that the system chose if 0 was configured.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// For a change of its files while it serves.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader {
            settings: self.settings.clone(),
            gate: self.gate.clone(),
            tls: self.tls.clone(),
        }
    }

    /// Serves until `stop` is true; then finishes what is under way, for as long as [`STOP_MS_MAX`].
    pub async fn serve(self, mut stop: watch::Receiver<bool>) {
        let limits = self.settings.limits;
        let app = Arc::new(App {
            gate: self.gate.subscribe(),
            pool: Pool::new(self.connect, self.settings.books),
            limits,
            in_flight: Arc::new(Semaphore::new(limits.in_flight)),
            metrics: Metrics::new(self.mqtt.as_deref()),
            stopping: stop.clone(),
        });
        let ready = Arc::new(Mutex::new(None));
        let free = Arc::new(Semaphore::new(limits.connections));
        let mut connections = JoinSet::new();
        loop {
            let next = async {
                // Taken before the accept: beyond the limit callers wait in the kernel's queue.
                let permit = Arc::clone(&free).acquire_owned().await;
                (permit, self.listener.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                () = stopped(&mut stop) => break,
                next = next => next,
            };
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    log::warn!("receiver: a connection could not be accepted: {error}");
                    tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                    continue;
                }
            };
            let tls = self.tls.borrow().clone();
            let caller = Caller {
                app: Arc::clone(&app),
                ready: Arc::clone(&ready),
                from_here: peer.ip().to_canonical().is_loopback(),
            };
            let stop = stop.clone();
            connections.spawn(async move {
                let _permit = permit;
                connection(stream, tls, caller, stop).await;
            });
        }
        drop(self.listener);
        let finish = async {
            while connections.join_next().await.is_some() {}
            // Callers may be gone whose events are still on their way into the books.
            let all = u32::try_from(limits.in_flight).unwrap_or(u32::MAX);
            let _ = app.in_flight.acquire_many(all).await;
        };
        if tokio::time::timeout(Duration::from_millis(STOP_MS_MAX), finish)
            .await
            .is_err()
        {
            log::warn!(
                "receiver: requests under way did not end in time; their senders will send them again"
            );
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same.
    let _ = stop.wait_for(|stop| *stop).await;
}

type Ready = Arc<Mutex<Option<(Instant, Result<(), String>)>>>;

/// What is known of a connection.
#[derive(Clone)]
struct Caller {
    app: Arc<App>,
    ready: Ready,
    from_here: bool,
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    caller: Caller,
    stop: watch::Receiver<bool>,
) {
    let limits = caller.app.limits;
    let _counted = caller.app.metrics.connection();
    // Answers are one write; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return http(stream, caller, stop).await;
    };
    let within = Duration::from_millis(limits.header_ms);
    let mut stopping = stop.clone();
    let accepted = tokio::select! {
        () = stopped(&mut stopping) => return,
        accepted = tokio::time::timeout(within, tls.accept(stream)) => accepted,
    };
    match accepted {
        Ok(Ok(stream)) => http(stream, caller, stop).await,
        Ok(Err(error)) => log::info!("receiver: a TLS handshake failed: {error}"),
        Err(_) => log::info!("receiver: a TLS handshake did not end in time"),
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    caller: Caller,
    mut stop: watch::Receiver<bool>,
) {
    let limits = caller.app.limits;
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let caller = caller.clone();
        async move { Ok::<_, Infallible>(route(&caller, request.map(Body::new)).await) }
    });
    let unread = Duration::from_millis(limits.unread_ms);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.header_ms))
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Patience::new(stream, unread)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        log::debug!("receiver: a connection ended early: {error}");
    }
}

async fn route(caller: &Caller, request: Request<Body>) -> Response {
    let get = request.method() == Method::GET || request.method() == Method::HEAD;
    match request.uri().path() {
        "/v1/events:batch" if request.method() == Method::POST => {
            ingest(&caller.app, request).await
        }
        "/healthz" if get => "ok\n".into_response(),
        "/readyz" if get => readyz(caller).await,
        "/metrics" if get => metrics(caller, &request),
        path @ ("/v1/events:batch" | "/healthz" | "/readyz" | "/metrics") => {
            let detail = format!("found {} for {path}", request.method());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
                .closing()
                .into_response()
        }
        _ => {
            let detail = "events go to POST /v1/events:batch; beside it there are /healthz, /readyz and /metrics";
            Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
                .closing()
                .into_response()
        }
    }
}

fn metrics(caller: &Caller, request: &Request<Body>) -> Response {
    if !caller
        .app
        .gate
        .borrow()
        .may_measure(request.headers(), caller.from_here)
    {
        let detail = "metrics are for callers on this computer, or for whoever has the token in metrics_token_file";
        return Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).into_response();
    }
    let mut response = caller.app.metrics.render().into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response
}

/// Whether a batch would find the books.
async fn readyz(caller: &Caller) -> Response {
    if *caller.app.stopping.borrow() {
        return Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "the receiver is stopping",
        )
        .into_response();
    }
    // One asks, the others wait for its answer: a caller cannot make connections.
    let mut known = caller.ready.lock().await;
    let fresh = known
        .as_ref()
        .filter(|(at, _)| at.elapsed() < Duration::from_millis(READY_MS));
    let found = match fresh {
        Some((_, found)) => found.clone(),
        None => {
            let found = caller
                .app
                .pool
                .take()
                .await
                .map(drop)
                .map_err(|error| error.to_string());
            *known = Some((Instant::now(), found.clone()));
            found
        }
    };
    match found {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => {
            log::warn!("receiver: the books cannot be reached: {reason}");
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store_unavailable",
                "the books cannot be reached; the log says why",
            )
            .into_response()
        }
    }
}
