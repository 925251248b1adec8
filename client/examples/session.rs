//! A worker of which one works and the others wait. However the one ends, even
//! by `kill -9`, the next goes on at once.
//!
//! Start a server with `make run`, then
//! `cargo run -p redis-lock-client --example session [URL]` twice, and kill the one that
//! has the lock.

use std::time::Duration;

use redis_lock_client::{Error, LockClient};

#[tokio::main]
async fn main() {
    let server = std::env::args().nth(1);
    let server = server.unwrap_or_else(|| "redis://127.0.0.1".into());
    if let Err(error) = lead(&server).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn lead(server: &str) -> Result<(), Error> {
    let client = LockClient::connect(server).await?;
    let session = client.session().await?;
    let guard = session.lock("worker").acquire().await?;
    println!("working with token {}", guard.token());
    let told_to_end = tokio::select! {
        () = tokio::time::sleep(Duration::from_secs(60)) => false,
        ended = tokio::signal::ctrl_c() => ended.is_ok(),
        why = guard.lost() => return Err(Error::Lost(why)),
    };
    println!("told to end: {told_to_end}");
    guard.release().await
}
