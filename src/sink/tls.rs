//! Owns: whom a connection to another computer trusts.
//! May call: nothing of this crate.
//! Never: take a certificate unverified; fall back to a connection without TLS.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::io;
use std::sync::Arc;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore, crypto};

/// Trusts the authorities in `ca_pem` and no others; without it, those of this computer.
///
/// # Errors
/// In words, what must be mended.
pub(super) fn client_config(ca_pem: Option<&[u8]>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match ca_pem {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let added = certificate
                    .map_err(|error| error.to_string())
                    .and_then(|found| roots.add(found).map_err(|error| error.to_string()));
                added.map_err(|error| {
                    format!("ca_file: {error}; expected certificates as PEM (-----BEGIN CERTIFICATE-----)")
                })?;
            }
            if roots.is_empty() {
                return Err(
                    "ca_file: found no certificate; expected PEM (-----BEGIN CERTIFICATE-----)"
                        .into(),
                );
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(
                    "this computer has no authorities to trust; name them: ca_file = …".into(),
                );
            }
        }
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Whether a handshake failed for what a person must mend. A certificate that is not yet, or no longer, valid may
/// be a matter of this computer's clock, and passes.
pub(super) fn needs_a_person(error: &io::Error) -> bool {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidCertificate(why)) => !matches!(
            why,
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        ),
        _ => false,
    }
}
