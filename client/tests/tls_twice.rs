//! A build with both TLS libraries, which has no certificates of the system.

#![cfg(all(feature = "tls-rustls", feature = "tls-native-tls"))]

use redis_lock_client::{LockClient, Tls};
use redis_lock_testing::{Authority, SOON, TlsServer};

#[tokio::test]
async fn whom_to_trust_has_to_be_said() {
    let authority = Authority::new();
    let server = TlsServer::start(&authority.certificate("127.0.0.1"));
    let patient = || {
        LockClient::builder()
            .connect_timeout(SOON)
            .response_timeout(SOON)
    };
    let url = format!("rediss://{}", server.addr());
    let error = patient().connect(&url).await.unwrap_err();
    assert_eq!(error.code(), "ADDRESS", "{error:?}");
    assert!(error.to_string().contains("tls-native-tls"), "{error}");
    let tls = Tls::new().ca_pem(authority.pem());
    let client = patient().tls(tls).connect(&url).await.unwrap();
    let guard = client.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
}
