//! Moves an amount between two accounts, each under its lock. Jobs that take the same
//! locks in another order would wait for each other: the server tells one of them.
//!
//! Start a server with `make run`, then
//! `cargo run -p redis-lock-client --example job [URL]`.

use redis_lock_client::{Error, LockClient};

#[tokio::main]
async fn main() {
    let server = std::env::args().nth(1);
    let server = server.unwrap_or_else(|| "redis://127.0.0.1".into());
    if let Err(error) = transfer(&server).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn transfer(server: &str) -> Result<(), Error> {
    let client = LockClient::connect(server).await?;
    loop {
        // One owner for both locks, which operators see by its name.
        let job = client.job().named("transfer")?;
        let from = job.lock("account:1").acquire().await?;
        let to = match job.lock("account:2").acquire().await {
            Err(Error::Deadlock(cycle)) => {
                println!("once more, for {cycle}");
                from.release().await?;
                continue;
            }
            taken => taken?,
        };
        println!("moved, with tokens {} and {}", from.token(), to.token());
        to.release().await?;
        return from.release().await;
    }
}
