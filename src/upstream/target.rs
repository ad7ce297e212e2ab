//! Owns: where the books are, and how the way there is secured.
//! May call: trouble.
//! Never: fall back from TLS to none; take a certificate unverified; keep a password in a message.
//!
//! # sslmode
//! `require`, `verify-ca` and `verify-full` all mean `verify-full`: the certificate is signed by a CA in `ca_pem`
//! (else by one that the system trusts) and names the host. `disable` means none. Without `sslmode`: `verify-full`, but none to a host that is this
//! computer (`localhost`, 127.0.0.0/8, ::1, a Unix socket) unless a CA is given. `prefer` and `allow` are
//! refused: they are no TLS whenever somebody in between wishes so.

use super::trouble::{UpstreamError, says};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::net::IpAddr;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// Longest time until a connection stands, in milliseconds.
pub(super) const CONNECT_MS_MAX: u64 = 10_000;
/// Idle time after which the system asks whether the server is still there, in seconds.
const KEEPALIVE_S: u64 = 30;
/// Longest time that sent bytes may stay unacknowledged, in milliseconds.
const UNACKNOWLEDGED_MS_MAX: u64 = 30_000;

/// Where distributions keep the certificates that the system trusts.
const SYSTEM_CAS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// Where the books are.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// `postgres://user@host:port/database?sslmode=…`, without a password.
    pub url: String,
    /// The user's password.
    pub password: Option<String>,
    /// Certificates of the CAs that are trusted for this instead of the system's, as PEM.
    pub ca_pem: Option<Vec<u8>>,
}

/// The password is nobody's business.
impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// A target, understood.
pub(super) struct Parts {
    pub(super) config: Config,
    /// `None`: without TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// `host:port/database`, for messages.
    pub(super) place: String,
    /// Every host is this computer.
    pub(super) is_here: bool,
}

impl Target {
    /// Understands the target.
    pub(super) fn parts(&self) -> Result<Parts, UpstreamError> {
        let (url, mode) = split_sslmode(&self.url)?;
        let mut config = Config::from_str(&url).map_err(|error| {
            UpstreamError::Mend(format!(
                "{}; expected postgres://user@host:port/database",
                says(&error)
            ))
        })?;
        if config.get_password().is_some() {
            return Err(UpstreamError::Mend(
                "the url holds a password; put it into a file and name that: password_file".into(),
            ));
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(UpstreamError::Mend(
                "the url names no host; expected postgres://user@host:port/database".into(),
            ));
        }
        let wants_tls = match mode.as_deref() {
            Some("disable") => false,
            Some("require" | "verify-ca" | "verify-full") => true,
            None => self.ca_pem.is_some() || !is_here(&config),
            Some(other) => {
                return Err(UpstreamError::Mend(format!(
                    "sslmode={other}; expected verify-full, or disable for a connection without TLS"
                )));
            }
        };
        config.ssl_mode(if wants_tls {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        if let Some(password) = &self.password {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("holdfast");
        }
        config
            .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
            .tcp_user_timeout(Duration::from_millis(UNACKNOWLEDGED_MS_MAX))
            .keepalives_idle(Duration::from_secs(KEEPALIVE_S));
        let tls = if wants_tls { Some(self.tls()?) } else { None };
        Ok(Parts {
            tls,
            place: place(&config),
            is_here: is_here(&config),
            config,
        })
    }

    fn tls(&self) -> Result<Arc<ClientConfig>, UpstreamError> {
        let system;
        let pem = match &self.ca_pem {
            Some(pem) => pem,
            None => {
                system = system_cas()?;
                &system
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| bad_ca(&error))?;
            let added = roots.add(certificate);
            // The system's are many, and one that is not understood here is no reason to do without the others.
            if self.ca_pem.is_some() {
                added.map_err(|error| bad_ca(&error))?;
            }
        }
        if roots.is_empty() {
            return Err(bad_ca(&"no certificate in it"));
        }
        let config =
            ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(|error| bad_ca(&error))?
                .with_root_certificates(roots)
                .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

/// The certificates that the system trusts.
fn system_cas() -> Result<Vec<u8>, UpstreamError> {
    let found = SYSTEM_CAS.iter().find_map(|path| std::fs::read(path).ok());
    found.ok_or_else(|| {
        UpstreamError::Mend(format!(
            "TLS without ca_file, and none of {} is there; name the CA that signed the server's \
             certificate: ca_file",
            SYSTEM_CAS.join(", ")
        ))
    })
}

fn bad_ca(error: &dyn std::fmt::Display) -> UpstreamError {
    UpstreamError::Mend(format!(
        "ca_file: {error}; expected certificates as PEM (-----BEGIN CERTIFICATE-----)"
    ))
}

/// The URL without its `sslmode`, and that.
fn split_sslmode(url: &str) -> Result<(String, Option<String>), UpstreamError> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(UpstreamError::Mend(
            "expected a url such as postgres://user@host:port/database".into(),
        ));
    }
    let Some((base, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), None));
    };
    let mut mode = None;
    let mut rest = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", value)) => mode = Some(value.to_owned()),
            _ => rest.push(pair),
        }
    }
    let url = if rest.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", rest.join("&"))
    };
    Ok((url, mode))
}

/// Whether every host is this computer.
fn is_here(config: &Config) -> bool {
    let hosts = config.get_hosts().iter().all(|host| match host {
        Host::Tcp(name) => {
            name == "localhost" || IpAddr::from_str(name).is_ok_and(|address| address.is_loopback())
        }
        Host::Unix(_) => true,
    });
    hosts && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

fn place(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => config
            .get_hostaddrs()
            .first()
            .map(ToString::to_string)
            .unwrap_or_default(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config
        .get_dbname()
        .or(config.get_user())
        .unwrap_or_default();
    format!("{host}:{port}/{database}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tls(url: &str, ca_pem: Option<&[u8]>) -> Result<bool, String> {
        let target = Target {
            url: url.into(),
            password: None,
            ca_pem: ca_pem.map(<[u8]>::to_vec),
        };
        let parts = target.parts().map_err(|error| error.to_string())?;
        Ok(parts.tls.is_some())
    }

    #[test]
    fn without_tls_only_on_this_computer_or_when_told() {
        for url in [
            "postgres://w@127.0.0.1/books",
            "postgres://w@localhost:5433/books",
            "postgres://w@%2Fvar%2Frun%2Fpostgresql/books",
            "postgres://w@db.example/books?sslmode=disable",
            "postgres://w@db.example/books?application_name=x&sslmode=disable",
        ] {
            assert_eq!(tls(url, None), Ok(false), "{url}");
        }
        for url in [
            "postgres://w@db.example/books",
            "postgres://w@10.0.0.1/books?sslmode=require",
            "postgres://w@127.0.0.1,db.example/books",
            "postgres://w@127.0.0.1/books?sslmode=verify-full",
        ] {
            // Where the system has no CAs it is an error, and never a connection in clear.
            assert_ne!(tls(url, None), Ok(false), "{url}");
        }
    }

    #[test]
    fn what_would_be_less_than_it_seems_is_refused() {
        for (url, word) in [
            (
                "postgres://w@db.example/books?sslmode=prefer",
                "sslmode=prefer",
            ),
            ("postgres://w:secret@127.0.0.1/books", "password_file"),
            ("mysql://w@127.0.0.1/books", "postgres://"),
            ("postgres:///books", "names no host"),
        ] {
            let refused = tls(url, None).unwrap_err();
            assert!(refused.contains(word), "{url}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
        let refused = tls("postgres://w@127.0.0.1/books", Some(b"garbage")).unwrap_err();
        assert!(refused.contains("ca_file"), "{refused}");
    }
}
