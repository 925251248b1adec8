//! A lock around a piece of work, with redis-rs.

use std::env;
use std::time::Duration;

use redis::{Client, Connection, RedisResult, cmd};
use uuid::Uuid;

const LEASE_MS: u64 = 60_000; // longer than the work takes
const BLOCK_MS: u64 = 30_000; // how long to wait for the lock

fn connect(url: &str) -> RedisResult<Connection> {
    let redis = Client::open(url)?.get_connection()?;
    // The read time-out, if there is one, must exceed BLOCK. Asynchronous
    // connections have one of 500 ms: see `set_response_timeout` there.
    redis.set_read_timeout(Some(Duration::from_millis(BLOCK_MS + 10_000)))?;
    Ok(redis)
}

/// A lock that is held until it is dropped.
struct Held<'c> {
    redis: &'c mut Connection,
    key: &'c str,
    owner: String,
    /// The fencing token.
    token: i64,
}

/// Takes the lock, if that can be done within `block_ms`.
fn lock<'c>(
    redis: &'c mut Connection,
    key: &'c str,
    block_ms: u64,
) -> RedisResult<Option<Held<'c>>> {
    let owner = Uuid::new_v4().to_string();
    // With HOLD 1 it does no harm to send the command again when its
    // connection breaks.
    let token: Option<i64> = cmd("LOCK.ACQUIRE")
        .arg(key)
        .arg(&owner)
        .arg(("LEASE", LEASE_MS, "BLOCK", block_ms, "HOLD", 1))
        .query(redis)?;
    Ok(token.map(|token| Held {
        redis,
        key,
        owner,
        token,
    }))
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // If this fails, the lock ends with its lease.
        let released: RedisResult<Option<i64>> = cmd("LOCK.RELEASE")
            .arg(self.key)
            .arg(&self.owner)
            .arg(("FENCE", self.token))
            .query(self.redis);
        if let Ok(None) = released {
            eprintln!("{}: the lease ended before the work did", self.key);
        }
    }
}

fn main() -> RedisResult<()> {
    let url = env::var("REDIS_URL").unwrap_or("redis://localhost:6379".into());
    // A connection of its own, because nothing else gets through while it waits.
    let mut redis = connect(&url)?;
    match lock(&mut redis, "orders:42", BLOCK_MS)? {
        // Whatever is written under the lock carries the token, and late writes fail:
        // UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
        Some(held) => println!("orders:42 is mine, with token {}", held.token),
        None => println!("orders:42 is busy"),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
