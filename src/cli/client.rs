//! Owns: talking to the gateway's interface over its Unix socket.
//! May call: hyper, exit codes.
//! Never: send a request again by itself; only the caller knows whether that is meant.

use super::exit::Failure;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// How long a full queue at the socket is waited for, in milliseconds.
const CONNECT_MS_MAX: u64 = 10_000;
/// Pause between two looks at a full queue, in milliseconds.
const CONNECT_PAUSE_MS: u64 = 20;
/// How long an answer may take, beyond a wait that was asked for, in milliseconds.
const ANSWER_MS_MAX: u64 = 30_000;

/// A way to the gateway.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Raw {
    /// HTTP status.
    pub status: u16,
    /// `Operation-Replayed: true` was there.
    pub replayed: bool,
    /// The body.
    pub text: String,
}

impl Raw {
    /// The body as a type.
    ///
    /// # Errors
    /// [`Failure::NotReachable`]: whatever answers is no gateway of this version.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.text).map_err(|error| {
            Failure::NotReachable(format!(
                "the answer is not one of this version's gateway: {error}; compare `holdfast version` with the gateway's"
            ))
        })
    }
}

impl Client {
    /// A way to the gateway at `socket`.
    #[must_use]
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// `GET`.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn get(&self, path: &str) -> Result<Raw, Failure> {
        self.call(Method::GET, path, String::new(), 0).await
    }

    /// `GET` whose answer may take `wait_ms` longer.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn get_waiting(&self, path: &str, wait_ms: u64) -> Result<Raw, Failure> {
        self.call(Method::GET, path, String::new(), wait_ms).await
    }

    /// `POST` whose answer may take `wait_ms` longer.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn post(&self, path: &str, body: String, wait_ms: u64) -> Result<Raw, Failure> {
        self.call(Method::POST, path, body, wait_ms).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: String,
        wait_ms: u64,
    ) -> Result<Raw, Failure> {
        let longest = Duration::from_millis(ANSWER_MS_MAX + wait_ms);
        let is_post = method == Method::POST;
        let exchange = async {
            let response = self.send(method, path, body, None).await?;
            let status = response.status().as_u16();
            let replayed = response.headers().contains_key("operation-replayed");
            let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
            let bytes = body
                .collect()
                .await
                .map_err(|error| lost(is_post, &*error))?;
            let text = String::from_utf8_lossy(&bytes.to_bytes()).into_owned();
            Ok(Raw {
                status,
                replayed,
                text,
            })
        };
        let raw = timeout(longest, exchange)
            .await
            .map_err(|_| lost(is_post, &"it took too long"))??;
        if raw.status < 400 || raw.status == 503 && path == "/readyz" {
            return Ok(raw);
        }
        let body: Json = raw.parse()?;
        Err(Failure::Problem {
            status: raw.status,
            body,
        })
    }

    /// Opens the event stream behind `last`, or at what is new; calls `each` with every event's data until it says
    /// to stop, or the stream ends.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn stream(
        &self,
        last: Option<&str>,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<(), Failure> {
        let response = self
            .send(Method::GET, "/v1/stream", String::new(), last)
            .await?;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if status != 200 {
            let bytes = body.collect().await.map_err(|error| lost(false, &error))?;
            let body = serde_json::from_slice(&bytes.to_bytes()).unwrap_or(Json::Null);
            return Err(Failure::Problem { status, body });
        }
        let mut pending = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| lost(false, &error))?;
            pending.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            while let Some(end) = pending.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = pending.drain(..end + 2).collect();
                let data = data_of(&String::from_utf8_lossy(&block));
                if !data.is_empty() && !each(&data) {
                    return Ok(());
                }
            }
            if pending.len() > ANSWER_BYTES_MAX {
                return Err(lost(false, &"an event is too long"));
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
        last_event_id: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        let is_post = method == Method::POST;
        let stream = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| lost(false, &error))?;
        // Ends with the exchange; what goes wrong on it is reported by the sender.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "holdfast")
            .header("content-type", "application/json");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Failure::Usage(format!("{path:?} cannot be asked for: {error}")))?;
        sender
            .send_request(request)
            .await
            .map_err(|error| lost(is_post, &error))
    }

    async fn connect(&self) -> Result<UnixStream, Failure> {
        let give_up = Instant::now() + Duration::from_millis(CONNECT_MS_MAX);
        loop {
            let error = match UnixStream::connect(&self.socket).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let socket = self.socket.display();
            match error.kind() {
                // The queue is full: many call at once.
                ErrorKind::WouldBlock if Instant::now() < give_up => {
                    sleep(Duration::from_millis(CONNECT_PAUSE_MS)).await;
                }
                ErrorKind::PermissionDenied => {
                    return Err(Failure::NotPermitted(format!(
                        "{socket}: this user may not use the gateway's socket; ask for membership in its group"
                    )));
                }
                _ => {
                    return Err(Failure::NotReachable(format!(
                        "{socket}: no gateway answers ({error}); is it running (systemctl status holdfast), and is this its socket (--socket, HOLDFAST_SOCKET)?"
                    )));
                }
            }
        }
    }
}

fn lost(is_post: bool, why: &(impl std::fmt::Display + ?Sized)) -> Failure {
    let then = if is_post {
        "it may have been recorded: ask with `holdfast op ID`, or send the same request with the same id again"
    } else {
        "ask again"
    };
    Failure::NotReachable(format!("the gateway's answer was lost ({why}); {then}"))
}

/// The `data` lines of one event.
fn data_of(block: &str) -> String {
    let lines: Vec<&str> = block
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(|data| data.strip_prefix(' ').unwrap_or(data))
        .collect();
    lines.join("\n")
}

/// Percent-encodes what is not unreserved in a URI (RFC 3986, 2.3).
#[must_use]
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// A path with those parameters that have a value.
#[must_use]
pub fn with_params(path: &str, params: &[(&str, Option<&str>)]) -> String {
    let params: Vec<String> = params
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", encode((*value)?))))
        .collect();
    if params.is_empty() {
        return path.to_owned();
    }
    format!("{path}?{}", params.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_uri_cannot_hold_is_encoded() {
        assert_eq!(encode("press-1/7 ü"), "press-1%2F7%20%C3%BC");
        assert_eq!(
            with_params(
                "/v1/x",
                &[("a", Some("1 2")), ("b", None), ("c", Some("z"))]
            ),
            "/v1/x?a=1%202&c=z"
        );
        assert_eq!(with_params("/v1/x", &[("a", None)]), "/v1/x");
    }

    #[test]
    fn an_events_data_is_put_together_again() {
        assert_eq!(
            data_of("event: x\nid: 4\ndata: {\"a\":\ndata: 1}\n\n"),
            "{\"a\":\n1}"
        );
        assert_eq!(data_of(": keep-alive\n\n"), "");
    }
}
