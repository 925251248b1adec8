//! A server that is spoken to over TLS, and the certificates for it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

use super::TestServer;
use crate::{local, spawn};

/// Somebody who signs certificates. Nobody trusts it by itself.
pub struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
pub struct Certificate {
    /// The certificate.
    pub pem: String,
    /// Its private key.
    pub key_pem: String,
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
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("authority.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    /// Its own certificate, as PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The file with its own certificate, for as long as this lives.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// A certificate for a server of this name, or for a client.
    pub fn certificate(&self, name: &str) -> Certificate {
        self.sign(Self::params(name))
    }

    /// As [`Authority::certificate`], which was valid once.
    pub fn expired_certificate(&self, name: &str) -> Certificate {
        let mut params = Self::params(name);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(params)
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params
    }

    fn sign(&self, params: CertificateParams) -> Certificate {
        let key = KeyPair::generate().unwrap();
        Certificate {
            pem: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key_pem: key.serialize_pem(),
        }
    }
}

/// Speaks TLS in front of a server, whether or not that was built with any.
pub struct TlsProxy {
    addr: SocketAddr,
    child: Child,
    _dir: TempDir,
}

impl TlsProxy {
    /// A way to this server, which shows this certificate.
    pub fn to(server: SocketAddr, certificate: &Certificate) -> Self {
        Self::launch(server, certificate, None)
    }

    /// As [`TlsProxy::to`], which also lets through who does not speak TLS.
    pub fn mixed(server: SocketAddr, certificate: &Certificate) -> Self {
        Self::launch(server, certificate, Some(Path::new("--plain-too")))
    }

    fn launch(server: SocketAddr, certificate: &Certificate, option: Option<&Path>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name, content: &String| {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
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
            .arg(file("certificate.pem", &certificate.pem))
            .arg(file("key.pem", &certificate.key_pem))
            .args(option)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = spawn(command).unwrap();
        let mut line = String::new();
        let said = BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line);
        said.unwrap();
        let port = line.trim().parse();
        let port: u16 = port.unwrap_or_else(|_| panic!("the TLS proxy did not start: {line:?}"));
        Self {
            addr: local(port),
            child,
            _dir: dir,
        }
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

/// A server with the module that is spoken to over TLS.
pub struct TlsServer {
    /// The server, where it is spoken to in plain.
    pub plain: TestServer,
    proxy: TlsProxy,
}

impl TlsServer {
    /// One that shows this certificate.
    pub fn start(certificate: &Certificate) -> Self {
        Self::launch(certificate, None)
    }

    /// One that also wants a certificate of its clients, by this authority.
    pub fn start_for_clients_of(certificate: &Certificate, clients: &Authority) -> Self {
        Self::launch(certificate, Some(&clients.file()))
    }

    fn launch(certificate: &Certificate, clients: Option<&Path>) -> Self {
        let plain = TestServer::start();
        let proxy = TlsProxy::launch(plain.addr(), certificate, clients);
        Self { plain, proxy }
    }

    /// Where it speaks TLS.
    pub fn addr(&self) -> SocketAddr {
        self.proxy.addr()
    }
}
