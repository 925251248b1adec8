//! One program at a time works; the others wait. The work stops when the lock is lost.
//!
//! Start a server with `make run`, then
//! `cargo run -p redis-lock-client --example mutex [URL]`.

use std::time::Duration;

use redis_lock_client::{Error, LockClient};

#[tokio::main]
async fn main() {
    let server = std::env::args().nth(1);
    let server = server.unwrap_or_else(|| "redis://127.0.0.1".into());
    if let Err(error) = work(&server).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn work(server: &str) -> Result<(), Error> {
    let client = LockClient::builder()
        .on_failure(|error| eprintln!("in the background: {error}"))
        .connect(server)
        .await?;
    let lock = client.lock("orders:42");
    lock.run(|hold| async move {
        // Whatever is written carries the token, so that a late write is refused.
        println!("I hold orders:42 with token {}", hold.token());
        tokio::time::sleep(Duration::from_millis(200)).await;
    })
    .await
}
