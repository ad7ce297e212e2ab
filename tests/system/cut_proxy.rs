//! Owns: a way to a server that can be cut where it hurts: the request arrived, the reply is lost.
//! May call: nothing.
//! Never: change a byte that it lets through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// A port of 127.0.0.1 that leads to a server.
pub(crate) struct CutProxy {
    pub(crate) port: u16,
    swallow: Arc<AtomicBool>,
}

impl CutProxy {
    pub(crate) async fn to(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let swallow = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&swallow);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
                    continue;
                };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, None));
                tokio::spawn(pass(from_server, to_client, Some(Arc::clone(&flag))));
            }
        });
        Self { port, swallow }
    }

    /// The next reply of the server is lost, and the connection with it.
    pub(crate) fn lose_next_reply(&self) {
        self.swallow.store(true, Ordering::SeqCst);
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, swallow: Option<Arc<AtomicBool>>) {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut bytes).await.unwrap_or(0);
        let is_cut = swallow
            .as_ref()
            .is_some_and(|flag| flag.swap(false, Ordering::SeqCst) && count > 0);
        if count == 0 || is_cut || to.write_all(&bytes[..count]).await.is_err() {
            let _ = to.shutdown().await;
            return;
        }
    }
}
