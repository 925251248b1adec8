//! A client that lives longer than a runtime in which it is used.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, Lost};
use redis_lock_testing::Server;
use tokio::runtime::{Builder, Runtime};

use support::{connect, connect_with_leases, free, soon, take, take_away};

/// Renewed after two seconds, and over after six.
const LEASE: Duration = Duration::from_secs(6);

/// A runtime that runs nothing unless it is told to.
fn idle_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn what_a_runtime_drops_before_it_ends_is_given_back() {
    let server = Server::start();
    let lasting = Runtime::new().unwrap();
    let client = lasting.block_on(connect(&server));
    let brief = idle_runtime();
    brief.block_on(async { drop(take(&client, "lock").await) });
    drop(brief);
    lasting.block_on(free(&server, "lock"));

    let mut stranger = server.client();
    take_away(&mut stranger, "lock");
    let brief = Runtime::new().unwrap();
    brief.spawn(client.lock("lock").acquire());
    server.await_info("lock_waiters", 1);
    drop(brief);
    server.await_info("lock_waiters", 0);
}

#[test]
fn with_the_runtime_of_its_client_all_ends_and_nothing_hangs() {
    let server = Server::start();
    let (brief, lasting) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let client = brief.block_on(connect_with_leases(&server, LEASE / 3));
    let held = brief.block_on(take(&client, "held"));
    let session = brief.block_on(client.session()).unwrap();
    let bound = brief.block_on(session.lock("bound").acquire()).unwrap();
    let waiting = lasting.spawn(client.lock("held").acquire());
    server.await_info("lock_waiters", 1);
    drop(brief);
    lasting.block_on(async {
        let told = soon("the end of the wait", waiting).await.unwrap();
        assert!(matches!(told, Err(Error::Stopped)), "{told:?}");
        let lock = client.lock("other");
        for told in [
            soon("an answer", lock.try_acquire()).await.err(),
            soon("an answer", lock.acquire()).await.err(),
            soon("an answer", lock.info()).await.err(),
            soon("an answer", client.session()).await.err(),
        ] {
            assert!(matches!(told, Some(Error::Stopped)), "{told:?}");
        }
        // Nobody renews it any more.
        soon("the loss", held.lost()).await;
        let error = soon("an answer", held.renew()).await.unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error:?}");
        assert_eq!(held.valid_for(), Duration::ZERO);
        assert_ne!(soon("the loss", bound.lost()).await, Lost::Released);
        assert_eq!(soon("the end", session.lost()).await, Lost::Disconnected);
        assert!(!session.is_alive() && bound.valid_for().is_zero());
        soon("nothing is left to do", client.flush()).await;
        drop((held, bound, session));
        let other = connect(&server).await;
        for key in ["held", "bound"] {
            let next = soon("the next grant", other.lock(key).acquire());
            next.await.unwrap().release().await.unwrap();
        }
    });
}
