//! Certificates, and servers that show them.

use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::NamedTempFile;

use crate::Setup;

/// Somebody who signs certificates. Nobody trusts it by itself.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: NamedTempFile,
}

/// The files of a certificate and of its private key, as PEM.
pub struct Certificate {
    /// The certificate.
    pub pem: NamedTempFile,
    /// Its private key.
    pub key: NamedTempFile,
}

fn file_of(pem: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(&file, pem).unwrap();
    file
}

impl Authority {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "it makes a key and a file")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "an authority of a test");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pem = file_of(&issuer.pem());
        Self { issuer, pem }
    }

    /// A certificate for a server of this name, or for a client.
    pub fn certificate(&self, name: &str) -> Certificate {
        self.certificate_until(name, 4096)
    }

    /// The same, which is valid until this year.
    pub fn certificate_until(&self, name: &str, year: i32) -> Certificate {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        Certificate {
            pem: file_of(&params.signed_by(&key, &self.issuer).unwrap().pem()),
            key: file_of(&key.serialize_pem()),
        }
    }
}

impl Setup {
    /// That also speaks TLS, at `Server::tls_addr`, where it shows this certificate. It wants
    /// one of its clients if their authority is given. What was built without TLS gives way to
    /// `redis-server`: it is the client that is tested.
    pub fn tls(mut self, certificate: &Certificate, clients: Option<&Authority>) -> Self {
        // Without a certificate it ends at once, and says what it lacks.
        let tried = Command::new(&self.binary)
            .args(["--tls-port", "1"])
            .output();
        if !String::from_utf8_lossy(&tried.unwrap().stdout).contains("tls-cert-file") {
            self.binary = "redis-server".into();
        }
        self.speaks_tls = true;
        self.options(&["--tls-cert-file", path(&certificate.pem)])
            .options(&["--tls-key-file", path(&certificate.key)])
            .options(&match clients {
                Some(authority) => ["--tls-ca-cert-file", path(&authority.pem)],
                None => ["--tls-auth-clients", "no"],
            })
    }
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}
