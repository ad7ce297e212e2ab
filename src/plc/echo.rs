//! Owns: a line that gives back what is sent on it.
//! May call: metered of this room.
//! Never: take a reply for an echo: only the request's own bytes are one.

use super::metered::Skip;

/// A transceiver that turns around late may swallow so many bytes at the front of a local echo.
const BYTES_LOST_MAX: usize = 2;

/// The request under way, on a line that may give its bytes back before the reply.
pub(super) struct Asked {
    echo: bool,
    frame_bytes_max: usize,
    request: Option<Vec<u8>>,
    /// Its own bytes are still to come back.
    echo_due: bool,
}

impl Asked {
    pub(super) fn new(echo: bool, frame_bytes_max: usize) -> Self {
        Self {
            echo,
            frame_bytes_max,
            request: None,
            echo_due: false,
        }
    }

    pub(super) fn nothing(&mut self) {
        self.request = None;
    }

    pub(super) fn set(&mut self, request: &[u8]) {
        self.request = Some(request.to_vec());
        self.echo_due = self.echo;
    }

    /// The request whose reply may come now.
    pub(super) fn replied(&self) -> Option<&[u8]> {
        self.request.as_deref().filter(|_| !self.echo_due)
    }

    /// The request that `bytes` may be a reply to; else what becomes of them.
    pub(super) fn expects(&mut self, bytes: &[u8]) -> Result<&[u8], Skip> {
        let Some(request) = &self.request else {
            return Err(match bytes.len() {
                0 => Skip::Nothing,
                all => Skip::Noise(all, "bytes came that nobody had asked for".into()),
            });
        };
        if self.echo_due {
            let skip = skip(request, bytes, self.frame_bytes_max);
            self.echo_due = !matches!(skip, Skip::Echo(_));
            return Err(skip);
        }
        Ok(request)
    }
}

/// Where the `request`'s own bytes end in what came, if they are there.
pub(super) fn own_bytes(request: &[u8], came: &[u8]) -> Option<usize> {
    (0..=BYTES_LOST_MAX).find_map(|lost| {
        let own = request.get(lost..).filter(|own| !own.is_empty())?;
        let at = came.windows(own.len()).position(|part| part == own)?;
        Some(at + own.len())
    })
}

/// Skips to the end of the request's own bytes.
fn skip(request: &[u8], bytes: &[u8], frame_bytes_max: usize) -> Skip {
    if let Some(end) = own_bytes(request, bytes) {
        return Skip::Echo(end);
    }
    // What is longer than two frames cannot be the beginning of an echo any more.
    match bytes.len().checked_sub(2 * frame_bytes_max) {
        Some(more) if more > 0 => Skip::Noise(more, "the request's echo did not come".into()),
        _ => Skip::Nothing,
    }
}

/// Why an echo that nobody expects leaves the line in doubt.
pub(super) fn unexpected() -> String {
    "the request's own bytes came back: local echo? Set echo = true, or switch the transceiver's echo off".into()
}
