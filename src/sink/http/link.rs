//! Owns: one kept-alive connection to the receiver, and one request on it with the whole of its answer.
//! May call: tls, secret, upstream's reading of ca_file; reply for the shape of an answer.
//! Never: use a connection again of which it is not known where it stands; send without TLS where TLS is
//! configured; follow a redirection.

use super::super::tls;
use super::HttpSinkConfig;
use super::reply::Reply;
use crate::secret::{self, Secret};
use crate::upstream::read_ca;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// Longest answer that is read.
pub(super) const REPLY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A connection that is not free again after so long, in milliseconds, is given up.
const READY_MS_MAX: u64 = 1_000;
/// Where events go, after the configured URL.
const PATH: &str = "/v1/events:batch";

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum LinkError {
    /// Passes by itself.
    Passing(String),
    /// A person must mend it.
    Mend(String),
}

/// Why one try on one connection gave no answer.
enum Failed {
    /// It was closed before any of the answer came.
    Closed(String),
    Other(LinkError),
}

/// The way to the receiver.
pub(super) struct Link {
    config: HttpSinkConfig,
    open: Option<Open>,
}

struct Open {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    token: Option<Secret>,
    /// It has carried an answer.
    used: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Without it a connection whose peer is silent would live on in its task.
        self.driver.abort();
    }
}

impl Link {
    pub(super) fn new(config: HttpSinkConfig) -> Self {
        Self { config, open: None }
    }

    /// Sends a batch. A connection that was closed while nothing was under way is opened anew, once; so is one
    /// whose token is refused while another stands in its file.
    pub(super) async fn post(&mut self, body: String) -> Result<Reply, LinkError> {
        let body = Bytes::from(body);
        for last in [false, true] {
            let mut open = match self.kept().await {
                Some(open) => open,
                None => self.connect().await?,
            };
            let kept = open.used;
            let within = Duration::from_millis(self.config.reply_ms_max);
            let answer =
                tokio::time::timeout(within, exchange(&mut open, &self.config, body.clone()));
            let answered = answer.await.unwrap_or_else(|_| {
                let reason = format!(
                    "no answer from {} within {} ms",
                    self.config.url, self.config.reply_ms_max
                );
                Err(Failed::Other(LinkError::Passing(reason)))
            });
            match answered {
                Ok(reply) if reply.status == 401 && !last && self.has_new_token(&open) => {}
                Ok(reply) => {
                    open.used = true;
                    // The next try begins with what the files hold then.
                    if !matches!(reply.status, 401 | 403 | 407) {
                        self.open = Some(open);
                    }
                    return Ok(reply);
                }
                Err(Failed::Closed(_)) if kept && !last => {}
                Err(Failed::Closed(reason)) => return Err(LinkError::Passing(reason)),
                Err(Failed::Other(error)) => return Err(error),
            }
        }
        Err(LinkError::Passing(format!(
            "{}: no connection lasts",
            self.config.url
        )))
    }

    /// The connection of the last request, if it is still there.
    async fn kept(&mut self) -> Option<Open> {
        let mut open = self.open.take()?;
        let within = Duration::from_millis(READY_MS_MAX);
        let ready = tokio::time::timeout(within, open.sender.ready()).await;
        matches!(ready, Ok(Ok(()))).then_some(open)
    }

    fn has_new_token(&self, open: &Open) -> bool {
        let path = self.config.token_file.as_ref();
        path.and_then(|path| secret::read(path).ok())
            .is_some_and(|now| Some(now) != open.token)
    }

    async fn connect(&self) -> Result<Open, LinkError> {
        let read = |path| secret::read(path).map_err(|error| LinkError::Mend(error.to_string()));
        let token = self.config.token_file.as_deref().map(read).transpose()?;
        let ms = self.config.connect_ms_max;
        let connecting = open_stream(&self.config);
        let connected = tokio::time::timeout(Duration::from_millis(ms), connecting).await;
        let (sender, driver) = connected.unwrap_or_else(|_| {
            let reason = format!("no connection to {} within {ms} ms", self.config.url);
            Err(LinkError::Passing(reason))
        })?;
        Ok(Open {
            sender,
            driver,
            token,
            used: false,
        })
    }
}

type Connection = (SendRequest<Full<Bytes>>, JoinHandle<()>);

async fn open_stream(config: &HttpSinkConfig) -> Result<Connection, LinkError> {
    let uri: Uri = config
        .url
        .parse()
        .map_err(|error| LinkError::Mend(format!("{}: {error}", config.url)))?;
    let secure = uri.scheme_str() == Some("https");
    let host = uri
        .host()
        .unwrap_or_default()
        .trim_matches(['[', ']'])
        .to_owned();
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let passing = |error: io::Error| LinkError::Passing(format!("{}: {error}", config.url));
    let stream = TcpStream::connect((host.as_str(), port))
        .await
        .map_err(passing)?;
    stream.set_nodelay(true).map_err(passing)?;
    if !secure {
        return handshake(config, stream).await;
    }
    let mend = |reason: String| LinkError::Mend(format!("{}: {reason}", config.url));
    let pem = config.ca_file.as_deref().map(read_ca).transpose();
    let pem = pem.map_err(mend)?;
    let trusted = tls::client_config(pem.as_deref()).map_err(mend)?;
    let name = ServerName::try_from(host).map_err(|error| mend(error.to_string()))?;
    let stream = TlsConnector::from(trusted).connect(name, stream).await;
    let stream = stream.map_err(|error| {
        if tls::needs_a_person(&error) {
            mend(format!("TLS: {error}; expected a certificate for this host name, signed by an authority in ca_file"))
        } else {
            LinkError::Passing(format!("{}: TLS: {error}", config.url))
        }
    })?;
    handshake(config, stream).await
}

async fn handshake(
    config: &HttpSinkConfig,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Connection, LinkError> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| LinkError::Passing(format!("{}: {error}", config.url)))?;
    let driver = tokio::spawn(async move {
        // Whoever waits for an answer on it learns of its end.
        let _ = connection.await;
    });
    Ok((sender, driver))
}

async fn exchange(open: &mut Open, config: &HttpSinkConfig, body: Bytes) -> Result<Reply, Failed> {
    let request = request(config, open.token.as_ref(), body).map_err(Failed::Other)?;
    let answer = open.sender.send_request(request).await;
    let answer =
        answer.map_err(|error| Failed::Closed(format!("{}: no answer: {error}", config.url)))?;
    let status = answer.status().as_u16();
    let text = |headers: &HeaderMap, name| {
        let value = headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok());
        value.map(str::to_owned)
    };
    let content_type = text(answer.headers(), header::CONTENT_TYPE).unwrap_or_default();
    let retry_after = text(answer.headers(), header::RETRY_AFTER);
    let whole = Limited::new(answer.into_body(), REPLY_BYTES_MAX)
        .collect()
        .await;
    let whole = whole.map_err(|error| {
        // What was committed is not known: sent again, the receiver says what it holds.
        let reason = format!(
            "{}: the answer (status {status}) did not come whole: {error}",
            config.url
        );
        Failed::Other(LinkError::Passing(reason))
    })?;
    Ok(Reply {
        status,
        content_type,
        retry_after,
        body: whole.to_bytes().to_vec(),
    })
}

fn request(
    config: &HttpSinkConfig,
    token: Option<&Secret>,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, LinkError> {
    let mend = |reason: String| LinkError::Mend(format!("{}: {reason}", config.url));
    let uri: Uri = config
        .url
        .parse()
        .map_err(|error| mend(format!("{error}")))?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    let path = format!("{}{PATH}", uri.path().trim_end_matches('/'));
    let mut request = Request::post(path)
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, application/problem+json")
        .header(
            header::USER_AGENT,
            concat!("holdfast/", env!("CARGO_PKG_VERSION")),
        );
    if let Some(token) = token {
        let value = HeaderValue::try_from(format!("Bearer {}", token.reveal()));
        let mut value = value
            .map_err(|_| mend("the token holds characters that a header cannot carry".into()))?;
        value.set_sensitive(true);
        request = request.header(header::AUTHORIZATION, value);
    }
    request
        .body(Full::new(body))
        .map_err(|error| mend(error.to_string()))
}
