//! A lock on the majority of independent servers.
//!
//! Start five servers with `make run PORT=7001` to `7005`, then
//! `cargo run -p redis-lock-client --example redlock redis://127.0.0.1:7001 ... redis://127.0.0.1:7005`.

use std::time::Duration;

use redis_lock_client::{Error, Redlock};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let servers: Vec<String> = std::env::args().skip(1).collect();
    let client = Redlock::connect(servers).await?;
    let lock = client.lock("orders:42");
    let Some(guard) = lock.acquire_within(Duration::from_secs(5)).await? else {
        println!("orders:42 is busy");
        return Ok(());
    };
    println!("held for {:?} at least", guard.valid_for());
    guard.release().await
}
