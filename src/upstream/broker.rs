//! Owns: how a broker is reached: its URL, its password, its certificate authority.
//! May call: secret, ca.
//! Never: show a password; connect.

use crate::secret;
use rumqttc::{MqttOptions, TlsConfiguration, Transport};
use std::path::PathBuf;

/// Silence after which the broker is asked whether it is there, in seconds.
pub const KEEP_ALIVE_S: u16 = 15;
/// Longest time a connection may take to come up, in seconds.
pub const CONNECT_S_MAX: u64 = 10;
/// Largest packet that is taken from a broker, in bytes.
pub const PACKET_BYTES_MAX: u32 = 2 * 1024 * 1024;

/// Where a broker is, and who we are to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// `mqtt://[user@]host[:1883]` or `mqtts://[user@]host[:8883]`.
    pub url: String,
    /// The user's password.
    pub password_file: Option<PathBuf>,
    /// The certificate authority in PEM; none: those of the system.
    pub ca_file: Option<PathBuf>,
}

/// The parts of a broker's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    /// Over TLS.
    pub tls: bool,
    /// User name.
    pub user: Option<String>,
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl BrokerUrl {
    /// Reads `url`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let expected = "expected mqtt://[user@]host[:port] or mqtts://[user@]host[:port]";
        let (scheme, rest) = url.split_once("://").ok_or(expected)?;
        let tls = match scheme {
            "mqtt" => false,
            "mqtts" => true,
            _ => return Err(expected.into()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err("a password does not belong into a URL; name a password_file".into());
        }
        let default = if tls { 8883 } else { 1883 };
        let (host, port) = match place
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
        {
            Some((host, "")) => (host, default),
            Some((host, port)) => (host, port_of(port.strip_prefix(':').ok_or(expected)?)?),
            None => match place.rsplit_once(':') {
                Some((host, port)) => (host, port_of(port)?),
                None => (place, default),
            },
        };
        if host.is_empty() || host.contains(['/', '?', '@', ' ']) || user.is_some_and(str::is_empty)
        {
            return Err(expected.into());
        }
        Ok(Self {
            tls,
            user: user.map(str::to_owned),
            host: host.to_owned(),
            port,
        })
    }
}

fn port_of(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("{text:?} is no port")),
    }
}

impl Broker {
    /// Options for a connection under `client_id`, with the files as they are now.
    ///
    /// # Errors
    /// What a person must mend.
    pub fn options(&self, client_id: &str) -> Result<MqttOptions, String> {
        let url =
            BrokerUrl::parse(&self.url).map_err(|wrong| format!("url {:?}: {wrong}", self.url))?;
        let mut options = MqttOptions::new(client_id, (url.host.clone(), url.port));
        options.set_keep_alive(KEEP_ALIVE_S);
        options.set_max_packet_size(Some(PACKET_BYTES_MAX));
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        network.set_connection_timeout(CONNECT_S_MAX);
        options.set_network_options(network);
        match (&url.user, &self.password_file) {
            (Some(user), Some(file)) => {
                let password = secret::read(file).map_err(|error| error.to_string())?;
                options.set_credentials(user.clone(), password.reveal().to_owned());
            }
            (Some(user), None) => {
                options.set_username(user.clone());
            }
            (None, Some(_)) => {
                return Err(format!(
                    "url {:?} names no user for password_file; write mqtt://user@…",
                    self.url
                ));
            }
            (None, None) => {}
        }
        if url.tls {
            options.set_transport(Transport::Tls(self.tls()?));
        }
        Ok(options)
    }

    fn tls(&self) -> Result<TlsConfiguration, String> {
        match &self.ca_file {
            Some(file) => Ok(TlsConfiguration::Simple {
                ca: super::ca::read_ca(file)?,
                alpn: None,
                client_auth: None,
            }),
            None => TlsConfiguration::try_default_rustls()
                .map_err(|error| format!("the system's certificate authorities: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_url_is_read_or_refused() {
        let read = |url| BrokerUrl::parse(url).map(|u| (u.tls, u.user, u.host, u.port));
        assert_eq!(
            read("mqtt://localhost"),
            Ok((false, None, "localhost".into(), 1883))
        );
        assert_eq!(
            read("mqtts://gw@b.plant:9/"),
            Ok((true, Some("gw".into()), "b.plant".into(), 9))
        );
        assert_eq!(read("mqtt://[::1]:1"), Ok((false, None, "::1".into(), 1)));
        for url in [
            "",
            "http://a",
            "mqtt://",
            "mqtt://a:0",
            "mqtt://a:b",
            "mqtt://u:p@a",
            "mqtt://a/b",
            "mqtt://@a",
        ] {
            assert!(read(url).is_err(), "{url}");
        }
    }

    // covers: CFG-04
    #[test]
    fn a_password_stands_in_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p");
        let broker = Broker {
            url: "mqtt://u@h".into(),
            password_file: Some(file.clone()),
            ca_file: None,
        };
        assert!(broker.options("c").unwrap_err().contains("cannot be read"));
        std::fs::write(&file, "secret\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(broker.options("c").is_ok());
        let nobody = Broker {
            url: "mqtt://h".into(),
            ..broker
        };
        assert!(nobody.options("c").unwrap_err().contains("no user"));
    }
}
