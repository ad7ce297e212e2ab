//! Owns: the parts of a URL that a configuration may name.
//! May call: nothing of this crate.
//! Never: resolve a name; accept what it does not understand.

use std::net::IpAddr;

/// A URL in parts, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Url<'a> {
    pub(super) scheme: &'a str,
    pub(super) user: Option<&'a str>,
    /// Without the brackets of an IPv6 address; may be a percent-encoded path of a Unix socket.
    pub(super) host: &'a str,
    pub(super) port: Option<u16>,
    pub(super) path: &'a str,
    /// Without the question mark.
    pub(super) query: &'a str,
}

impl<'a> Url<'a> {
    /// What is wrong with it, otherwise.
    pub(super) fn parse(text: &'a str) -> Result<Self, &'static str> {
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("no spaces or control characters");
        }
        let (scheme, rest) = text.split_once("://").ok_or("it has no ://")?;
        if rest.contains('#') {
            return Err("no fragment #…");
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        if user.is_some_and(str::is_empty) {
            return Err("nothing stands before the @");
        }
        let (host, port) = host_and_port(place)?;
        if host.is_empty() {
            return Err("it names no host");
        }
        let port = match port {
            None => None,
            Some(digits) => match digits.parse::<u16>() {
                Ok(port) if port > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => Some(port),
                _ => return Err("a port is a number from 1 to 65535"),
            },
        };
        Ok(Self {
            scheme,
            user,
            host,
            port,
            path,
            query,
        })
    }

    /// The first value of a key in the query.
    pub(super) fn query_value(&self, key: &str) -> Option<&'a str> {
        let mut pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

fn host_and_port(place: &str) -> Result<(&str, Option<&str>), &'static str> {
    if let Some(rest) = place.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("a [ without its ]")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("in brackets only an IPv6 address");
        }
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if after.is_empty() => Ok((host, None)),
            None => Err("after the ] only :port"),
        };
    }
    let (host, port) = match place.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (place, None),
    };
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '%');
    if host.chars().all(good) {
        Ok((host, port))
    } else {
        Err("a host is a name or an address; an IPv6 address stands in brackets")
    }
}

/// What does not leave this computer: loopback, or a Unix socket as PostgreSQL's URLs write it.
pub(super) fn is_local(host: &str) -> bool {
    let socket = host
        .get(..3)
        .is_some_and(|start| start.eq_ignore_ascii_case("%2f"));
    socket
        || host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_comes_apart_at_the_right_places() {
        let url = Url::parse("postgres://mes@db.plant:5433/books?sslmode=disable&x=1").unwrap();
        assert_eq!((url.scheme, url.user), ("postgres", Some("mes")));
        assert_eq!((url.host, url.port), ("db.plant", Some(5433)));
        assert_eq!(
            (url.path, url.query_value("sslmode")),
            ("/books", Some("disable"))
        );
        assert_eq!(url.query_value("ssl"), None);
        let url = Url::parse("https://[fd00::1]:8443/a/b").unwrap();
        assert_eq!(
            (url.host, url.port, url.path),
            ("fd00::1", Some(8443), "/a/b")
        );
        let url = Url::parse("mqtt://broker").unwrap();
        assert_eq!((url.host, url.port, url.path), ("broker", None, ""));
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "mes.plant:8443",
            "https://",
            "https://:80",
            "https://@host",
            "https://host:0",
            "https://host:+80",
            "https://host:65536",
            "https://fd00::1/",
            "https://[fd00::1",
            "https://[host]/",
            "https://[::1]80",
            "https://ho st/",
            "https://host/#part",
            "https://a\\b/",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_stays_on_this_computer_is_local() {
        for host in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.8.0.1",
            "::1",
            "%2Frun%2Fpostgresql",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "localhost.plant",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "::",
            "0.0.0.0",
            "mes",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
