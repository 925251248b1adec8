//! The server, asked directly: what the client crate has no calls for.

use std::time::Duration;

use redis_lock_client::redis::aio::MultiplexedConnection;
use redis_lock_client::redis::{self, AsyncConnectionConfig, Cmd, FromRedisValue};

use crate::failure::Failure;

const CONNECT: Duration = Duration::from_secs(2);
const RESPONSE: Duration = Duration::from_secs(2);

/// A connection to the server.
pub struct Connection {
    wire: MultiplexedConnection,
    address: String,
}

impl Connection {
    /// Connects.
    pub async fn open(url: &str) -> Result<Self, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(RESPONSE));
        let client = redis::Client::open(url)?;
        let wire = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let address = client.get_connection_info().addr().to_string();
        Ok(Self { wire, address })
    }

    /// Where the server is, without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a command and reads its reply.
    pub async fn ask<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, Failure> {
        Ok(cmd.query_async(&mut self.wire).await?)
    }
}
