//! Owns: the way from a configured sink to the place that it names.
//! May call: config, sink.
//! Never: connect: a place is reached when the first batch is due, so that none can keep the gateway from its
//! machines.

use crate::config::SinkKind;
use crate::sink::file::FileSinkConfig;
use crate::sink::{Sink, file};

/// The sink that `kind` describes.
#[must_use]
pub(super) fn sink(kind: &SinkKind) -> Sink {
    match kind {
        SinkKind::File {
            path,
            rotate_bytes,
            files_max,
        } => file::sink(FileSinkConfig {
            dir: path.clone(),
            file_bytes_max: *rotate_bytes,
            keep: files_max.and_then(|files| usize::try_from(files).ok()),
        }),
    }
}
