//! What is said to a server may be secret, and only the right server may hear it.

// Of both at once another test tells.
#![cfg(any(
    all(feature = "tls-rustls", not(feature = "tls-native-tls")),
    all(feature = "tls-native-tls", not(feature = "tls-rustls"))
))]

#[path = "support/alone.rs"]
mod alone;

use redis_lock_client::redis::{ClientTlsConfig, TlsCertificates};
use redis_lock_client::{ClientBuilder, Error, LockClient, Servers};
use redis_lock_testing::{
    Authority, Certificate, Cluster, SOON, Server, Setup, binary, eventually, sentinel, tag,
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

/// Runs a test in a process in which the system trusts this authority.
#[track_caller]
fn run_trusting(authority: &Authority, url: &str, test: &str) {
    let trusted = authority.pem.path();
    let trusted = ("SSL_CERT_FILE", trusted.to_str().unwrap());
    alone::run(test, url, &[trusted]);
}

#[test]
fn a_server_is_talked_to_by_a_certificate_that_is_trusted_and_no_other() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let refused = "the_certificate_is_refused";
    for (certificate, test) in [
        (
            authority.certificate(HERE),
            "locks_are_taken_and_waited_for",
        ),
        (stranger.certificate(HERE), refused),
        (authority.certificate("elsewhere.example"), refused),
        (authority.certificate_until(HERE, 2002), refused),
    ] {
        let server = Setup::tested().tls(&certificate, None).start().unwrap();
        let url = format!("rediss://{}", server.tls_addr());
        run_trusting(&authority, &url, test);
    }
}

#[test]
fn a_cluster_is_talked_to_by_its_certificates() {
    let authority = Authority::new();
    let certificate = authority.certificate(HERE);
    let cluster = Cluster::of(&Setup::tested().tls(&certificate, None));
    let ports = cluster.nodes.iter().map(|node| node.tls_addr().port());
    // From now on each says that it is where it speaks TLS.
    for (node, port) in cluster.nodes.iter().zip(ports.clone()) {
        let announce = format!("CONFIG SET cluster-announce-port {port}");
        node.client().call(&announce);
    }
    let ports: Vec<_> = ports.map(|port| format!(":{port}@")).collect();
    eventually("all nodes know that of each other", || {
        cluster.nodes.iter().all(|node| {
            let nodes = node.client().bulk("CLUSTER NODES");
            ports.iter().all(|port| nodes.contains(port))
        })
    });
    let url = format!("rediss-cluster://{}", cluster.nodes[0].tls_addr());
    run_trusting(&authority, &url, "locks_are_taken_and_waited_for");
    run_trusting(&Authority::new(), &url, "the_certificate_is_refused");
}

#[test]
fn sentinels_and_their_primary_are_talked_to_by_certificates() {
    let authority = Authority::new();
    let certificate = authority.certificate(HERE);
    // The servers speak it to each other, too.
    let trusted = authority.pem.path().to_str().unwrap();
    let trusting = ["--tls-replication", "yes", "--tls-ca-cert-file", trusted];
    let tls = |setup: Setup| setup.options(&trusting).tls(&certificate, None);
    let primary = tls(Setup::tested()).start().unwrap();
    let of_it = Setup::tested().replica_of(primary.tls_addr());
    let _replicas = [(); 2].map(|()| tls(of_it.clone()).start().unwrap());
    let setups = [(); 3].map(|()| tls(Setup::of(binary())));
    let sentinels = sentinel::watch(setups, primary.tls_addr(), primary.addr().ip());
    let sentinels = sentinels.each_ref();
    let addrs = sentinels.map(|sentinel| sentinel.tls_addr().to_string());
    let url = format!("rediss-sentinel://{}/locks", addrs.join(","));
    run_trusting(&authority, &url, "locks_are_taken_and_waited_for");
    run_trusting(&Authority::new(), &url, "the_certificate_is_refused");
}

#[tokio::test]
#[ignore = "needs a process of its own"]
async fn locks_are_taken_and_waited_for() {
    let client = patient().connect(alone::told()).await.unwrap();
    // In a cluster on each node.
    for slots in [0..5461, 5461..10923, 10923..16384] {
        let lock = client.lock(format!("{{{}}}lock", tag(|slot| slots.contains(&slot), 0)));
        let guard = lock.acquire().await.unwrap();
        let waiting = tokio::spawn(lock.acquire_within(SOON));
        while lock.info().await.unwrap().waiting == 0 {
            tokio::task::yield_now().await;
        }
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
    let session = client.session().await.unwrap();
    let guard = session.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a process of its own"]
async fn the_certificate_is_refused() {
    assert_distrust(&patient().connect(alone::told()).await.unwrap_err());
}

#[track_caller]
fn assert_distrust(error: &Error) {
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(!error.is_retryable(), "{error:?}");
    let told = error.to_string().to_lowercase();
    assert!(told.contains("certificate"), "{told}");
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

/// A lock by a client that trusts this authority, and shows this certificate.
async fn lock(
    server: &Server,
    authority: &Authority,
    shown: Option<Certificate>,
) -> Result<(), Error> {
    let client_tls = shown.map(|shown| ClientTlsConfig {
        client_cert: std::fs::read(shown.pem).unwrap(),
        client_key: std::fs::read(shown.key).unwrap(),
    });
    let certificates = TlsCertificates {
        client_tls,
        root_cert: Some(std::fs::read(authority.pem.path()).unwrap()),
    };
    let url = format!("rediss://{}", server.tls_addr());
    let servers = Servers::with_certificates(&url, certificates)?;
    let client = patient().connect(servers).await?;
    client.lock("lock").acquire().await?.release().await
}

#[tokio::test]
async fn an_authority_of_the_clients_own_is_trusted_and_no_other() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let certificate = authority.certificate(HERE);
    let server = Setup::tested().tls(&certificate, None).start().unwrap();
    lock(&server, &authority, None).await.unwrap();
    assert_distrust(&lock(&server, &stranger, None).await.unwrap_err());
    // None of the system's has signed it.
    let url = format!("rediss://{}", server.tls_addr());
    assert_distrust(&patient().connect(url).await.unwrap_err());
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_one_is_asked_for() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let certificate = authority.certificate(HERE);
    let setup = Setup::tested().tls(&certificate, Some(&clients));
    let server = setup.start().unwrap();
    let own = clients.certificate("client");
    lock(&server, &authority, Some(own)).await.unwrap();
    let of_another = authority.certificate("client");
    for wrong in [None, Some(of_another)] {
        assert!(lock(&server, &authority, wrong).await.is_err());
    }
}
