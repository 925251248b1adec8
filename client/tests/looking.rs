//! Who has a lock, who waits for it, taking it away, and commands under its guard.

mod support;

use std::time::Duration;

use redis_lock_client::{Error, LockClient, Lost, Mode, redis};

use support::{connect_blocking, granted, queue, soon, start, take};

#[tokio::test]
async fn holders_and_those_who_wait_are_shown() {
    let (server, client) = start().await;
    let one = client.lock("lock").limit(2).acquire().await.unwrap();
    let session = client.session().await.unwrap();
    let two = session.lock("lock").limit(2).acquire().await.unwrap();
    let job = client.job().named("three").unwrap();
    let third = queue(&server, &job.lock("lock").limit(2), 0).await;
    let blocking = connect_blocking(&server, LockClient::builder()).await;
    let fourth = queue(&server, &blocking.lock("lock").shared(), 1).await;

    let info = client.lock("lock").info().await.unwrap();
    assert_eq!(info.mode, Some(Mode::Limited(2)));
    assert_eq!((info.holding, info.waiting), (2, 2));
    assert_eq!(info.token, Some(two.token()));
    assert!(info.ttl.unwrap() > Duration::from_secs(20));
    for guard in [&one, &two] {
        let mut holders = info.holders.iter();
        let holder = holders.find(|holder| holder.owner == guard.owner());
        let holder = holder.unwrap();
        assert_eq!((holder.token, holder.holds), (Some(guard.token()), 1));
        assert!(holder.ttl.unwrap() > Duration::from_secs(20));
        assert_eq!(holder.client.is_some(), guard.token() == two.token());
    }
    let [place, blocked] = &info.waiters[..] else {
        panic!("{:?}", info.waiters);
    };
    assert_eq!(
        (&place.owner[..], place.mode),
        (job.owner(), Mode::Limited(2))
    );
    assert!(place.client.is_none() && place.addr.is_none() && place.channel.is_some());
    assert!(place.timeout.unwrap() > Duration::from_secs(100));
    assert!(place.waited < Duration::from_secs(10));
    assert_eq!(blocked.mode, Mode::Shared);
    assert!(blocked.client.is_some() && blocked.addr.is_some() && blocked.channel.is_none());
    one.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    two.release().await.unwrap();
    drop(granted(fourth).await);
}

#[tokio::test]
async fn a_lock_is_broken_only_where_the_token_is_still_the_newest() {
    let (server, client) = start().await;
    let lock = client.lock("lock");
    assert!(!lock.break_lock(None).await.unwrap());
    let guard = take(&client, "lock").await;
    assert!(!lock.break_lock(guard.token() - 1).await.unwrap());
    guard.renew().await.unwrap();
    let next = queue(&server, &lock, 0).await;
    assert!(lock.break_lock(guard.token()).await.unwrap());
    let next = granted(next).await;
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Refused)), "{error:?}");
    assert_eq!(soon("the loss", guard.lost()).await, Lost::Refused);
    assert!(lock.break_lock(None).await.unwrap());
    assert!(next.release().await.is_err());
    assert_eq!(server.client().int("EXISTS lock"), 0);
}

#[tokio::test]
async fn a_guarded_command_runs_only_while_its_hold_lasts() {
    let (server, client) = start().await;
    let session = client.session().await.unwrap();
    let job = client.job();
    let incr = |key: &str| redis::Cmd::new().arg("INCR").arg(key).to_owned();
    for (count, lock) in (1..).zip([
        client.lock("lock"),
        client.lock("lock").shared(),
        session.lock("lock"),
        job.lock("lock"),
    ]) {
        let guard = lock.acquire().await.unwrap();
        let counted: i64 = guard.guarded(&incr("counter")).await.unwrap();
        assert_eq!(counted, count);
        let mut scan = redis::cmd("HSCAN");
        scan.arg("lock").cursor_arg(0).arg("COUNT").arg(9);
        let (next, _): (u64, Vec<Vec<u8>>) = guard.guarded(&scan).await.unwrap();
        assert_eq!(next, 0);
        // A command's own error keeps its code.
        let error = guard.guarded::<i64>(&incr("lock")).await.unwrap_err();
        assert_eq!(error.code(), "WRONGTYPE", "{error:?}");
        assert_eq!(server.client().int("LOCK.BREAK lock"), 1);
        let error = guard.guarded::<i64>(&incr("counter")).await.unwrap_err();
        assert!(matches!(error, Error::NotHeld { .. }), "{error:?}");
        assert_eq!(error.code(), "NOTHELD");
        assert_eq!(server.client().bulk("GET counter"), count.to_string());
        drop(guard);
    }
}
