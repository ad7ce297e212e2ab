//! Owns: the way from a configured sink to the place that it names.
//! May call: config, sink.
//! Never: connect: a place is reached when the first batch is due, so that none can keep the gateway from its
//! machines.

use crate::config::{SinkKind, SinkSpec};
use crate::sink::file::FileSinkConfig;
use crate::sink::http::HttpSinkConfig;
use crate::sink::mqtt::{ACK_MS_DEFAULT, MqttSinkConfig};
use crate::sink::postgres::PostgresSinkConfig;
use crate::sink::{Sink, file, http, mqtt, postgres};

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
        SinkKind::Mqtt {
            url,
            topic,
            ack_topic,
            password_file,
            ca_file,
            client_id,
            ack_ms,
        } => mqtt::sink(MqttSinkConfig {
            url: url.clone(),
            password_file: password_file.clone(),
            ca_file: ca_file.clone(),
            client_id: client_id
                .clone()
                .unwrap_or_else(|| format!("{gateway}-{}", spec.name)),
            gateway: gateway.to_owned(),
            topic: topic.clone(),
            ack_topic: ack_topic.clone(),
            ack_ms: ack_ms.unwrap_or(ACK_MS_DEFAULT),
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
    }
}
