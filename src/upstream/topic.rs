//! Owns: topic templates: `holdfast/{gateway}/events`, filled by a sender, matched by a receiver.
//! May call: nothing.
//! Never: let a name put a level or a wildcard into a topic.

/// Longest topic, in bytes (MQTT 5, 1.5.4).
const TOPIC_BYTES_MAX: usize = 65_535;
/// What may stand between braces.
const PLACEHOLDERS: [&str; 3] = ["{gateway}", "{source}", "{type}"];

/// Levels with placeholders, each of which takes one whole level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate(String);

impl TopicTemplate {
    /// Checks `text`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > TOPIC_BYTES_MAX {
            return Err(format!("a topic has 1 to {TOPIC_BYTES_MAX} bytes"));
        }
        if text.contains(['+', '#', '\0']) || text.starts_with('$') {
            return Err("a topic without wildcards (+, #), that does not begin with $".into());
        }
        let strange = text
            .split('/')
            .find(|level| level.contains(['{', '}']) && !PLACEHOLDERS.contains(level));
        match strange {
            Some(level) => Err(format!(
                "{level:?} is no placeholder: {} each take one whole level",
                PLACEHOLDERS.join(", ")
            )),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether a topic of this template tells the gateway.
    #[must_use]
    pub fn names_gateway(&self) -> bool {
        self.0.split('/').any(|level| level == "{gateway}")
    }

    /// Whether it is one topic for all events of a gateway.
    #[must_use]
    pub fn is_per_gateway(&self) -> bool {
        self.0
            .split('/')
            .all(|level| level == "{gateway}" || !level.contains('{'))
    }

    /// The topic of one event.
    #[must_use]
    pub fn fill(&self, gateway: &str, source: &str, event_type: &str) -> String {
        let levels: Vec<String> = self
            .0
            .split('/')
            .map(|level| match level {
                "{gateway}" => one_level(gateway),
                "{source}" => one_level(source),
                "{type}" => one_level(event_type),
                fixed => fixed.to_owned(),
            })
            .collect();
        levels.join("/")
    }

    /// What a receiver subscribes to, to get all of them.
    #[must_use]
    pub fn filter(&self) -> String {
        let levels: Vec<&str> = self
            .0
            .split('/')
            .map(|level| if level.starts_with('{') { "+" } else { level })
            .collect();
        levels.join("/")
    }

    /// The gateway that `topic` names, if it is a topic of this template and names one.
    #[must_use]
    pub fn gateway_of<'a>(&self, topic: &'a str) -> Option<&'a str> {
        let mut found = topic.split('/');
        let mut gateway = None;
        for level in self.0.split('/') {
            let here = found.next()?;
            match level {
                "{gateway}" if gateway.is_none_or(|name| name == here) => gateway = Some(here),
                "{source}" | "{type}" => {}
                fixed if fixed == here => {}
                _ => return None,
            }
        }
        if found.next().is_some() {
            return None;
        }
        gateway.filter(|name| !name.is_empty())
    }
}

/// A name as one level: what would change the topic's shape becomes `_`. The key stands in the payload; the
/// topic only sorts.
fn one_level(name: &str) -> String {
    name.replace(['/', '+', '#', '\0'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_topic_is_matched_and_tells_its_gateway() {
        let template = TopicTemplate::new("plant/{gateway}/{source}/{type}").unwrap();
        let topic = template.fill("gw-1", "press-1", "piece.good");
        assert_eq!(topic, "plant/gw-1/press-1/piece.good");
        assert_eq!(template.filter(), "plant/+/+/+");
        assert_eq!(template.gateway_of(&topic), Some("gw-1"));
        for other in [
            "plant/gw-1/press-1",
            "plant/gw-1/a/b/c",
            "x/gw-1/a/b",
            "plant//a/b",
            "",
        ] {
            assert_eq!(template.gateway_of(other), None, "{other}");
        }
        assert!(!template.is_per_gateway());
    }

    #[test]
    fn a_name_never_changes_the_shape_of_a_topic() {
        let template = TopicTemplate::new("plant/{gateway}/events").unwrap();
        assert!(template.is_per_gateway() && template.names_gateway());
        assert_eq!(template.fill("a/b+#", "", ""), "plant/a_b__/events");
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for text in [
            "",
            "a/+/b",
            "a/#",
            "$SYS/x",
            "a/{gateways}/b",
            "a/x{gateway}",
            "a/{/b",
        ] {
            assert!(TopicTemplate::new(text).is_err(), "{text}");
        }
    }
}
