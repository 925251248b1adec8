//! Speaks TLS to clients and plain TCP to a server.
//!
//! It is a program of its own, because what a test links is linked by the client
//! that it tests, too: a cryptography that the test brings along would hide that
//! the client has none.
//!
//! Usage: `redis-lock-tls-proxy server-address certificates.pem key.pem [client-authority.pem
//! | --plain-too]`. The first line it writes is the address where it listens. With an
//! authority only clients with a certificate of that are let through; `--plain-too` lets
//! through whoever does not speak TLS.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// TLS begins with this byte, and no command does.
const HANDSHAKE: u8 = 22;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, certificates, key, authority @ ..] = &arguments[..] else {
        return Err("the first lines of main.rs say what it needs".into());
    };
    let server: SocketAddr = server.parse()?;
    let plain_too = authority == ["--plain-too"];
    let authority = authority.first().filter(|_| !plain_too);
    let acceptor = acceptor(certificates, key, authority)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        tokio::spawn(pass_on(client, acceptor.clone(), server, plain_too));
    }
}

fn acceptor(
    certificates: &str,
    key: &str,
    authority: Option<&String>,
) -> Result<TlsAcceptor, Box<dyn std::error::Error>> {
    let builder = match authority {
        None => ServerConfig::builder().with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(authority)?)?;
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build()?;
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
    };
    let chain = CertificateDer::pem_file_iter(certificates)?.collect::<Result<_, _>>()?;
    let config = builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Whoever ends a connection or refuses the certificate is not asked why.
async fn pass_on(
    mut client: TcpStream,
    acceptor: TlsAcceptor,
    server: SocketAddr,
    plain_too: bool,
) -> std::io::Result<()> {
    let mut first = [0];
    let is_plain = plain_too && client.peek(&mut first).await? == 1 && first[0] != HANDSHAKE;
    let mut server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    if is_plain {
        copy_bidirectional(&mut client, &mut server).await?;
    } else {
        let mut client = acceptor.accept(client).await?;
        copy_bidirectional(&mut client, &mut server).await?;
    }
    Ok(())
}
