//! Owns: topic templates: `holdfast/{gateway}/events`, filled by a sender, matched by a receiver.
//! May call: nothing.
//! Never: let a name put a level or a wildcard into a topic.

/// Longest topic, in bytes (MQTT 5, 1.5.4).
const TOPIC_BYTES_MAX: usize = 65_535;
/// What may stand between braces.
const PLACEHOLDERS: [&str; 3] = ["{gateway}", "{source}", "{type}"];

/// A topic with placeholders in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate(String);

impl TopicTemplate {
    /// Whatever `text` is; see [`TopicTemplate::check`].
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it is a template.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let text = &self.0;
        if text.is_empty() || text.len() > TOPIC_BYTES_MAX {
            return Err(format!("a topic has 1 to {TOPIC_BYTES_MAX} bytes"));
        }
        if text.contains(['+', '#', '\0']) || text.starts_with('$') {
            return Err("a topic has no wildcards (+, #), and does not begin with $".into());
        }
        let known = PLACEHOLDERS.iter().fold(text.clone(), |rest, placeholder| {
            rest.replace(placeholder, "")
        });
        if known.contains(['{', '}']) {
            return Err(format!("in braces only {}", PLACEHOLDERS.join(", ")));
        }
        Ok(())
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether a topic of this template tells the gateway: `{gateway}` is one of its levels.
    #[must_use]
    pub fn names_gateway(&self) -> bool {
        self.0.split('/').any(|level| level == "{gateway}")
    }

    /// The topic of one event. Levels are filled one by one, so that no name is taken for a placeholder.
    #[must_use]
    pub fn fill(&self, gateway: &str, source: &str, event_type: &str) -> String {
        let names = [gateway, source, event_type].map(one_level);
        let mut filled = String::with_capacity(self.0.len() + 64);
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find('{') {
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            let found = PLACEHOLDERS
                .iter()
                .zip(&names)
                .find(|(p, _)| rest.starts_with(**p));
            let (placeholder, name) = found.map_or(("{", "{"), |(p, name)| (*p, name.as_str()));
            filled.push_str(name);
            rest = &rest[placeholder.len()..];
        }
        filled + rest
    }

    /// What a receiver subscribes to, to get all of them.
    #[must_use]
    pub fn filter(&self) -> String {
        let levels: Vec<&str> = self
            .0
            .split('/')
            .map(|level| if level.contains('{') { "+" } else { level })
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
                "{gateway}" => return None,
                other if other.contains('{') || other == here => {}
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
        let template = TopicTemplate::new("plant/{gateway}/{source}-x/{type}");
        assert_eq!(template.check(), Ok(()));
        let topic = template.fill("gw-1", "press-1", "piece.good");
        assert_eq!(topic, "plant/gw-1/press-1-x/piece.good");
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
        let twice = TopicTemplate::new("{gateway}/a/{gateway}");
        assert_eq!(twice.gateway_of("g/a/g"), Some("g"));
        assert_eq!(twice.gateway_of("g/a/h"), None);
    }

    #[test]
    fn a_name_never_changes_the_shape_of_a_topic() {
        let template = TopicTemplate::new("plant/{gateway}/{source}");
        assert!(template.names_gateway());
        assert!(!TopicTemplate::new("plant/gw-{gateway}").names_gateway());
        assert_eq!(
            template.fill("a/b+#", "{gateway}", ""),
            "plant/a_b__/{gateway}"
        );
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for text in [
            "",
            "a/+/b",
            "a/#",
            "$SYS/x",
            "a/{gateways}/b",
            "a/{/b",
            "a}",
        ] {
            assert!(TopicTemplate::new(text).check().is_err(), "{text}");
        }
    }
}
