//! A way to a server over TLS, and the certificates for it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use tempfile::NamedTempFile;

use crate::spawn;

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

/// Speaks TLS in front of a server, whether or not that was built with any.
pub struct TlsProxy {
    addr: SocketAddr,
    child: Child,
}

impl TlsProxy {
    /// A way to this server, which shows this certificate, and wants one of its clients if
    /// their authority is given.
    pub fn to(server: SocketAddr, certificate: &Certificate, clients: Option<&Authority>) -> Self {
        Self::launch(server, certificate, clients.map(|it| it.pem.path()))
    }

    /// As [`TlsProxy::to`], which also lets through who does not speak TLS.
    pub fn mixed(server: SocketAddr, certificate: &Certificate) -> Self {
        Self::launch(server, certificate, Some(Path::new("--plain-too")))
    }

    fn launch(server: SocketAddr, certificate: &Certificate, option: Option<&Path>) -> Self {
        // Built here, and not together with the test: see its first lines. Cargo
        // then becomes the program.
        let mut command = Command::new(env!("CARGO"));
        // What Cargo tells the test of its package would have Cargo build anew.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["run", "--quiet", "--locked"])
            .args(["--package", "redis-lock-tls-proxy", "--"])
            .arg(server.to_string())
            .args([certificate.pem.path(), certificate.key.path()])
            .args(option)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn(command).unwrap();
        let mut line = String::new();
        let said = BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line);
        said.unwrap();
        let addr = line.trim().parse();
        let addr = addr.unwrap_or_else(|_| panic!("the TLS proxy did not start: {line:?}"));
        Self { addr, child }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
