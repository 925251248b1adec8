//! Takes a lock, works, gives it back.
//!
//! Start a server with `make run`, then
//! `cargo run -p redis-lock-client --example quickstart [URL]`.

use std::time::Duration;

use redis_lock_client::{Error, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let server = std::env::args().nth(1);
    let server = server.unwrap_or_else(|| "redis://127.0.0.1".into());
    let client = LockClient::connect(server).await?;
    let lock = client.lock("orders:42");
    let Some(guard) = lock.acquire_within(Duration::from_secs(5)).await? else {
        println!("orders:42 is busy");
        return Ok(());
    };
    println!("I hold orders:42 with token {}", guard.token());
    guard.release().await
}
