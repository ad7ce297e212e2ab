//! Owns: a client of the receiver's interface, of raw bytes.
//! May call: nothing of the crate.
//! Never: mend what it is told to send.
#![allow(dead_code, reason = "each part of the suite uses some of it")]

use serde_json::Value as Json;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long any condition may take to come true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Json {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{self:?}"))
    }
    /// The statuses, in the order of the batch.
    pub(crate) fn statuses(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{self:?}");
        let json = self.json();
        let lines = json["results"].as_array().unwrap();
        for (index, line) in lines.iter().enumerate() {
            assert_eq!(line["index"], index, "{self:?}");
        }
        lines
            .iter()
            .map(|line| line["status"].as_str().unwrap().to_owned())
            .collect()
    }
    /// A problem with this status and code.
    pub(crate) fn refused(&self, status: u16, code: &str) -> Json {
        assert!(
            self.head.contains("content-type: application/problem+json"),
            "{self:?}"
        );
        let json = self.json();
        assert_eq!(
            (self.status, json["code"].as_str()),
            (status, Some(code)),
            "{self:?}"
        );
        json
    }
}

/// A client of raw bytes.
pub(crate) struct Caller(pub(crate) TcpStream);

impl Caller {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub(crate) async fn post(&mut self, token: &str, media: &str, body: &str) -> Answer {
        self.ask(token, media, body).await;
        self.answer().await.expect("an answer")
    }

    /// Sends a batch and waits for nothing.
    pub(crate) async fn ask(&mut self, token: &str, media: &str, body: &str) {
        let head = format!(
            "POST /v1/events:batch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: {media}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.send(&format!("{head}{body}")).await;
    }

    pub(crate) async fn get(&mut self, path: &str, more: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n{more}\r\n"))
            .await;
        self.answer().await.expect("an answer")
    }

    /// Who does not listen any more is noticed by what it answers.
    pub(crate) async fn send(&mut self, text: &str) {
        let _ = self.0.write_all(text.as_bytes()).await;
    }

    /// The next answer; `None`: closed without one.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        let read = async {
            let mut bytes = Vec::new();
            let mut chunk = vec![0; 65_536];
            loop {
                if let Some(answer) = whole(&bytes) {
                    return Some(answer);
                }
                match self.0.read(&mut chunk).await {
                    Ok(0) | Err(_) => return None,
                    Ok(n) => bytes.extend_from_slice(&chunk[..n]),
                }
            }
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("an answer, or the end of the connection")
    }
}

fn whole(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.unwrap_or("0").parse().unwrap();
    let text = bytes.get(end + 4..end + 4 + length)?;
    Some(Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        text: String::from_utf8(text.to_vec()).unwrap(),
        head,
    })
}
