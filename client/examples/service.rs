//! A service of which one instance works and the others stand by. It stops
//! the work when the lock is lost, and gives the lock back when it is told to
//! end, so that another instance takes over at once.
//!
//! Start a server with `make run`, then
//! `cargo run -p redis-lock-client --example service [URL]` twice.

use std::time::Duration;

use redis_lock_client::{Error, LockClient, LockGuard};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1);
    let server = server.unwrap_or_else(|| "redis://127.0.0.1".into());
    let client = LockClient::connect(server).await?;
    tokio::select! {
        failed = lead(&client) => failed?,
        _ = tokio::signal::ctrl_c() => println!("told to end"),
    }
    // Where we held the lock, its guard was dropped just now.
    client.flush().await;
    Ok(())
}

/// Becomes the leader again and again.
async fn lead(client: &LockClient) -> Result<(), Error> {
    // The lock is renewed until this stops, but not if the work hangs for hours.
    let leadership = client.lock("service:leader").max_renewals(1000);
    loop {
        println!("standing by");
        let guard = leadership.acquire().await?;
        println!("leading with token {}", guard.token());
        tokio::select! {
            () = work(&guard) => guard.release().await?,
            why = guard.lost() => println!("no longer leading: {why}"),
        }
    }
}

/// One round of work. It may be dropped wherever it waits.
async fn work(guard: &LockGuard) {
    for step in 1..=10 {
        // Whatever is written carries the token, so that a late write is refused.
        println!("step {step}, token {}", guard.token());
        sleep(Duration::from_secs(1)).await;
    }
}
