//! Owns: what a message from the broker is: an event or not, whose, and where it is answered.
//! May call: core's reading of events, the forms in `upstream`.
//! Never: answer on a topic that is not the sender's own; refuse a batch for one message.

use crate::core::event::{digest, sha256_text};
use crate::core::outbox::Verdict;
use crate::core::wire::{Notation, from_json};
use crate::upstream::Row;
use crate::upstream::ack::AckMessage;
use crate::upstream::topic::TopicTemplate;
use rumqttc::mqttbytes::v5::Publish;
use std::str::from_utf8;

/// Longest correlation data that is handed back, in bytes.
const CORRELATION_BYTES_MAX: usize = 1024;
/// Longest gateway name, in bytes.
const GATEWAY_BYTES_MAX: usize = 128;

/// Where one message is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) topic: String,
    pub(super) correlation: Option<Vec<u8>>,
}

/// One message, judged as far as that needs no books.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) publish: Publish,
    pub(super) gateway: String,
    pub(super) row: Row,
    /// `None`: nobody waits for an answer.
    pub(super) reply: Option<Reply>,
    key: String,
    digest: Option<String>,
}

impl Item {
    /// Reads `publish`, which came on a topic of `events`; `acks` are the topics that may be answered on.
    pub(super) fn new(publish: Publish, events: &TopicTemplate, acks: &TopicTemplate) -> Self {
        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
        let named = events
            .gateway_of(&topic)
            .filter(|name| name.len() <= GATEWAY_BYTES_MAX);
        let gateway = named.unwrap_or("?").to_owned();
        let reply = reply(&publish, &acks.fill(&gateway, "", ""));
        let (row, key, digest) = match named {
            Some(_) => read(&publish.payload),
            None => (
                Row::malformed(
                    "no_gateway",
                    &format!("topic {topic:?} names no gateway"),
                    publish.payload.to_vec(),
                ),
                String::new(),
                None,
            ),
        };
        Self {
            publish,
            gateway,
            row,
            reply,
            key,
            digest,
        }
    }

    /// What to tell the sender.
    pub(super) fn ack(&self, verdict: &Verdict) -> AckMessage {
        AckMessage::of(&self.key, self.digest.clone(), verdict)
    }
}

fn read(payload: &[u8]) -> (Row, String, Option<String>) {
    let Ok(text) = from_utf8(payload) else {
        let row = Row::malformed("not_utf8", "the message is no text in UTF-8", payload);
        return (row, String::new(), None);
    };
    match from_json(text, Notation::Native) {
        Ok(event) => {
            let digest = sha256_text(&digest(&event));
            (Row::from_event(&event), event.key.to_string(), Some(digest))
        }
        Err(error) => {
            let row = Row::malformed(error.code, &error.reason, payload);
            (row, error.key.unwrap_or_default(), None)
        }
    }
}

/// Where to answer: on the sender's own topic or nowhere. A publisher must not make us publish to others.
fn reply(publish: &Publish, own_topic: &str) -> Option<Reply> {
    let properties = publish.properties.as_ref()?;
    let topic = properties.response_topic.as_ref()?;
    if topic != own_topic {
        log::warn!(
            "mqtt: a message on {:?} asks to be answered on {topic:?}; only {own_topic:?} may be: not answered",
            String::from_utf8_lossy(&publish.topic)
        );
        return None;
    }
    let correlation = properties.correlation_data.as_ref();
    if correlation.is_some_and(|data| data.len() > CORRELATION_BYTES_MAX) {
        return None;
    }
    Some(Reply {
        topic: topic.clone(),
        correlation: correlation.map(|data| data.to_vec()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rumqttc::mqttbytes::QoS;
    use rumqttc::mqttbytes::v5::PublishProperties;

    const GOOD: &str = "{\"source\":\"press-1\",\"epoch\":\"7\",\"sequence\":\"42\",\"type\":\"piece.good\",\"schema\":1,\
        \"time\":\"2026-11-30T08:00:00.123456Z\",\"quality\":\"good\",\"qty\":1,\"body\":{\"lot\":\"A\"},\
        \"digest\":\"sha256:9dc201dcaf899754f6330df101045ad9ec78535634054e4d0c14473cfe653889\"}";

    fn item(topic: &str, payload: &str, response: Option<&str>, correlation: usize) -> Item {
        let properties = PublishProperties {
            response_topic: response.map(str::to_owned),
            correlation_data: Some(vec![b'c'; correlation].into()),
            ..PublishProperties::default()
        };
        let publish = Publish::new(
            topic,
            QoS::AtLeastOnce,
            payload.to_owned(),
            Some(properties),
        );
        let template = |text| TopicTemplate::new(text);
        Item::new(
            publish,
            &template("plant/{gateway}/events"),
            &template("plant/{gateway}/acks"),
        )
    }

    #[test]
    fn an_event_is_read_and_answered_with_its_key_and_digest() {
        let item = item("plant/gw-1/events", GOOD, Some("plant/gw-1/acks"), 5);
        assert_eq!(item.row.defect, None);
        assert_eq!(
            (item.gateway.as_str(), item.row.sequence),
            ("gw-1", Some(42))
        );
        let reply = item.reply.as_ref().unwrap();
        assert_eq!(
            (reply.topic.as_str(), reply.correlation.as_deref()),
            ("plant/gw-1/acks", Some(b"ccccc".as_slice()))
        );
        let ack = item.ack(&Verdict::Accepted);
        assert_eq!(
            (ack.key.as_str(), ack.status.as_str()),
            ("press-1/7/42", "accepted")
        );
        assert!(GOOD.contains(&ack.digest.unwrap()));
    }

    // covers: F085
    #[test]
    fn nobody_is_answered_but_the_sender_on_its_own_topic() {
        for response in [
            "plant/gw-2/acks",
            "plant/gw-1/acks/x",
            "$SYS/x",
            "cmd/press-1",
            "",
        ] {
            let item = item("plant/gw-1/events", GOOD, Some(response), 5);
            assert_eq!(
                (item.reply.as_ref(), item.row.defect.as_ref()),
                (None, None),
                "{response}"
            );
        }
        let long = item(
            "plant/gw-1/events",
            GOOD,
            Some("plant/gw-1/acks"),
            CORRELATION_BYTES_MAX + 1,
        );
        assert_eq!(long.reply, None);
        assert_eq!(item("plant/gw-1/events", GOOD, None, 5).reply, None);
    }

    #[test]
    fn what_is_no_event_becomes_a_dead_letter_as_it_came() {
        let altered = GOOD.replace("\"qty\":1", "\"qty\":2");
        for (payload, key) in [
            ("", ""),
            ("{", ""),
            ("[1]", ""),
            (altered.as_str(), "press-1/7/42"),
        ] {
            let item = item("plant/gw-1/events", payload, Some("plant/gw-1/acks"), 5);
            let defect = item.row.defect.as_ref().expect("it is none");
            assert_eq!(defect.item, payload.as_bytes());
            assert_eq!(
                item.ack(&Verdict::Malformed { reason: "x".into() }).key,
                key
            );
            assert!(item.reply.is_some());
        }
        let elsewhere = item("plant//events", GOOD, Some("plant/gw-1/acks"), 5);
        assert_eq!(elsewhere.row.defect.unwrap().code, "no_gateway");
        assert_eq!(elsewhere.reply, None);
    }
}
