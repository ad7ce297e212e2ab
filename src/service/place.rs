//! Owns: the way from a configured sink to the place that it names.
//! May call: config, sink.
//! Never: connect: a place is reached when the first batch is due, so that none can keep the gateway from its
//! machines.

use crate::config::{SinkKind, SinkSpec};
use crate::core::outbox::Verdict;
use crate::core::record::{EventRecord, Position};
use crate::sink::file::FileSinkConfig;
use crate::sink::http::HttpSinkConfig;
use crate::sink::postgres::PostgresSinkConfig;
use crate::sink::{AckLevel, Delivery, Lane, Sink, file, http, postgres};

/// The sink that `spec` describes, of the gateway of that name.
#[must_use]
pub(super) fn sink(gateway: &str, spec: &SinkSpec) -> Sink {
    match &spec.kind {
        SinkKind::File {
            path,
            rotate_bytes,
            files_max,
        } => file::sink(FileSinkConfig {
            dir: path.clone(),
            file_bytes_max: *rotate_bytes,
            keep: files_max.and_then(|files| usize::try_from(files).ok()),
        }),
        SinkKind::Http {
            url,
            token_file,
            ca_file,
        } => http::sink(HttpSinkConfig {
            token_file: token_file.clone(),
            ca_file: ca_file.clone(),
            ..HttpSinkConfig::new(gateway, url)
        }),
        SinkKind::Postgres {
            url,
            password_file,
            ca_file,
            lanes,
        } => postgres::sink(PostgresSinkConfig {
            gateway: gateway.to_owned(),
            url: url.clone(),
            password_file: password_file.clone(),
            ca_file: ca_file.clone(),
            lanes: *lanes,
        }),
        SinkKind::Mqtt { .. } => absent("mqtt", AckLevel::Broker),
    }
}

fn absent(kind: &'static str, ack_level: AckLevel) -> Sink {
    Sink {
        kind,
        ack_level,
        lanes: vec![Box::new(Absent(kind))],
    }
}

/// Stands in for a kind of sink that this program does not have: nothing is sent, and nothing is lost.
struct Absent(&'static str);

impl Lane for Absent {
    fn deliver<'a>(&'a mut self, batch: &'a [(Position, EventRecord)]) -> Delivery<'a> {
        let reason = format!("this program has no {} sink: use one that has", self.0);
        Box::pin(async move { vec![Verdict::Stop { reason }; batch.len()] })
    }
}
