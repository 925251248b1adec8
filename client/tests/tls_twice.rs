//! A build with both TLS libraries.

#![cfg(all(feature = "tls-rustls", feature = "tls-native-tls"))]

use redis_lock_client::redis::TlsCertificates;
use redis_lock_client::{LockClient, Servers};
use redis_lock_testing::{Authority, SOON, Setup};

#[tokio::test]
async fn whom_to_trust_can_be_said() {
    let authority = Authority::new();
    let certificate = authority.certificate("127.0.0.1");
    let server = Setup::tested().tls(&certificate, None).start().unwrap();
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: Some(std::fs::read(authority.pem.path()).unwrap()),
    };
    let url = format!("rediss://{}", server.tls_addr());
    let servers = Servers::with_certificates(&url, certificates).unwrap();
    let builder = LockClient::builder().connect_timeout(SOON);
    let client = builder.response_timeout(SOON).connect(servers).await;
    let guard = client.unwrap().lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
}
