//! What is said to a server may be secret, and only the right server may hear it.

// Of both at once another test tells.
#![cfg(any(
    all(feature = "tls-rustls", not(feature = "tls-native-tls")),
    all(feature = "tls-native-tls", not(feature = "tls-rustls"))
))]

#[path = "support/alone.rs"]
mod alone;

use redis_lock_client::{ClientBuilder, Error, LockClient, Tls};
use redis_lock_testing::{
    Authority, Certificate, Cluster, SOON, Sentinels, TlsProxy, TlsServer, eventually, tag,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

const HERE: &str = "127.0.0.1";

/// The machine that tests may be busy with others.
fn patient() -> ClientBuilder {
    LockClient::builder()
        .connect_timeout(SOON)
        .response_timeout(SOON)
}

/// Runs a test that trusts this authority with a server that shows this certificate.
#[track_caller]
fn run_trusting(authority: &Authority, certificate: &Certificate, test: &str) {
    let server = TlsServer::start(certificate);
    let url = format!("rediss://{}", server.addr());
    let trusted = authority.file();
    let trusted = ("SSL_CERT_FILE", trusted.to_str().unwrap());
    alone::run(test, &url, &[trusted]);
}

#[test]
fn a_certificate_of_a_trusted_authority_is_accepted() {
    let authority = Authority::new();
    let certificate = authority.certificate(HERE);
    run_trusting(&authority, &certificate, "locks_are_taken_and_waited_for");
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let certificate = stranger.certificate(HERE);
    run_trusting(&authority, &certificate, "the_certificate_is_refused");
}

#[test]
fn a_certificate_with_another_name_is_refused() {
    let authority = Authority::new();
    let certificate = authority.certificate("elsewhere.example");
    run_trusting(&authority, &certificate, "the_certificate_is_refused");
}

#[test]
fn a_certificate_that_has_expired_is_refused() {
    let authority = Authority::new();
    let certificate = authority.expired_certificate(HERE);
    run_trusting(&authority, &certificate, "the_certificate_is_refused");
}

#[test]
fn a_cluster_is_talked_to_by_its_certificates() {
    let authority = Authority::new();
    let certificate = authority.certificate(HERE);
    let cluster = Cluster::start();
    let ways = cluster.nodes.iter();
    let ways = ways.map(|node| TlsProxy::to(node.addr(), &certificate));
    let ways: Vec<_> = ways.collect();
    // From now on each says that it is where its way begins.
    for (node, way) in (0..).zip(&ways) {
        let port = way.addr().port();
        let mut client = cluster.client(node);
        client.call(&format!("CONFIG SET cluster-announce-port {port}"));
    }
    let ports = ways.iter().map(|way| format!(":{}@", way.addr().port()));
    let ports: Vec<_> = ports.collect();
    eventually("all nodes know that of each other", || {
        cluster.nodes.iter().all(|node| {
            let nodes = node.client().bulk("CLUSTER NODES");
            ports.iter().all(|port| nodes.contains(port))
        })
    });
    let url = format!("rediss-cluster://{}", ways[0].addr());
    let trusted = authority.file();
    let trusted = ("SSL_CERT_FILE", trusted.to_str().unwrap());
    alone::run("locks_of_each_node_are_waited_for", &url, &[trusted]);
    let stranger = Authority::new();
    let strange = stranger.file();
    let strange = ("SSL_CERT_FILE", strange.to_str().unwrap());
    alone::run("the_certificate_is_refused", &url, &[strange]);
}

#[test]
fn sentinels_and_their_primary_are_talked_to_by_certificates() {
    let authority = Authority::new();
    let certificate = authority.certificate(HERE);
    let mut way = None;
    let group = Sentinels::start_behind(|primary| {
        // The sentinels themselves speak plainly to it.
        let proxy = TlsProxy::mixed(primary, &certificate);
        way.insert(proxy).addr()
    });
    let ways = group.addrs().map(|addr| TlsProxy::to(addr, &certificate));
    let sentinels = ways.each_ref().map(|way| way.addr().to_string());
    let url = format!("rediss-sentinel://{}/locks", sentinels.join(","));
    let trusted = authority.file();
    let trusted = ("SSL_CERT_FILE", trusted.to_str().unwrap());
    alone::run("locks_are_taken_and_waited_for", &url, &[trusted]);
    let stranger = Authority::new();
    let strange = stranger.file();
    let strange = ("SSL_CERT_FILE", strange.to_str().unwrap());
    alone::run("the_certificate_is_refused", &url, &[strange]);
}

#[tokio::test]
#[ignore = "needs a process of its own"]
async fn locks_of_each_node_are_waited_for() {
    let client = patient().connect(alone::told()).await.unwrap();
    for slots in [0..5461, 5461..10923, 10923..16384] {
        let lock = client.lock(format!("{{{}}}lock", tag(|slot| slots.contains(&slot), 0)));
        let guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn(lock.acquire_within(SOON));
        let is_waiting = async || lock.info().await.unwrap().waiting == 1;
        while !is_waiting().await {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_ends_a_handshake_may_do_better_later() {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let url = format!("rediss://{}", listener.local_addr().unwrap());
    let (connected, accepted) = tokio::join!(patient().connect(url), async {
        let (mut client, _) = listener.accept().await?;
        // It has begun to speak.
        client.read_u8().await
    });
    accepted.unwrap();
    let error = connected.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

/// What certificates of its own lead a client to.
async fn connect(server: &TlsServer, tls: Tls) -> Result<LockClient, Error> {
    let url = format!("rediss://{}", server.addr());
    patient().tls(tls).connect(url).await
}

#[tokio::test]
async fn an_authority_of_the_clients_own_is_trusted() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = TlsServer::start(&authority.certificate(HERE));
    let tls = Tls::new().ca_pem(authority.pem());
    let client = connect(&server, tls).await.unwrap();
    let guard = client.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
    let tls = Tls::new().ca_pem(stranger.pem());
    assert_distrust(&connect(&server, tls).await.unwrap_err());
    // None of the system's has signed it.
    assert_distrust(&connect(&server, Tls::new()).await.unwrap_err());
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_one_is_asked_for() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let certificate = authority.certificate(HERE);
    let server = TlsServer::start_for_clients_of(&certificate, &clients);
    let trusting = || Tls::new().ca_pem(authority.pem());
    let shown = clients.certificate("client");
    let tls = trusting().client_certificate(shown.pem, shown.key_pem);
    let client = connect(&server, tls).await.unwrap();
    let guard = client.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert!(connect(&server, trusting()).await.is_err());
    let of_another = authority.certificate("client");
    let tls = trusting().client_certificate(of_another.pem, of_another.key_pem);
    assert!(connect(&server, tls).await.is_err());
}

#[tokio::test]
#[ignore = "needs a process of its own"]
async fn locks_are_taken_and_waited_for() {
    let client = patient().connect(alone::told()).await.unwrap();
    let lock = client.lock("lock");
    let guard = lock.acquire().await.unwrap();
    let waiting = tokio::spawn(lock.acquire_within(SOON));
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap().unwrap();
    next.release().await.unwrap();
}

/// The system's own library has no way not to trust what the system trusts.
#[cfg(feature = "tls-rustls")]
#[test]
fn with_an_authority_of_its_own_a_client_trusts_no_other() {
    let authority = Authority::new();
    let certificate = authority.certificate(HERE);
    run_trusting(&authority, &certificate, "only_a_stranger_is_trusted");
}

#[cfg(feature = "tls-rustls")]
#[tokio::test]
#[ignore = "needs a process of its own"]
async fn only_a_stranger_is_trusted() {
    patient().connect(alone::told()).await.unwrap();
    let stranger = Authority::new();
    let tls = Tls::new().ca_pem(stranger.pem());
    let connected = patient().tls(tls).connect(alone::told()).await;
    assert_distrust(&connected.unwrap_err());
}

#[tokio::test]
#[ignore = "needs a process of its own"]
async fn the_certificate_is_refused() {
    assert_distrust(&patient().connect(alone::told()).await.unwrap_err());
}

fn assert_distrust(error: &Error) {
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(!error.is_retryable(), "{error:?}");
    let told = error.to_string().to_lowercase();
    assert!(told.contains("certificate"), "{told}");
}
