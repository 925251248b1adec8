//! A worker of which one works and the others wait. However the one ends, even
//! by `kill -9`, the next goes on at once.
//!
//! Start a server with `make run`, then `cargo run -p redis-lock-client --example session` twice, and
//! kill the one that has the lock.

use std::time::Duration;

use redis_lock_client::{Error, LockClient};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1);
    let server = server.unwrap_or_else(|| "redis://127.0.0.1".into());
    let client = LockClient::connect(server).await?;
    let session = client.session().await?;
    let guard = session.lock("worker").acquire().await?;
    println!("working with token {}", guard.token());
    tokio::select! {
        () = work() => guard.release().await,
        why = guard.lost() => Err(Error::Lost(why)),
    }
}

async fn work() {
    sleep(Duration::from_secs(60)).await;
}
