//! A proxy between a client and a server, whose connections lose things.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to what goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Passes,
    /// Of replies to lock commands so many percent are swallowed and their
    /// connection is closed.
    RepliesLost(u32),
    /// Of replies to lock commands so many percent are swallowed, and all that
    /// follows on their connection. Nobody is told.
    RepliesSwallowed(u32),
    /// Commands on the connections of before lie in the proxy until it changes.
    CommandsHeld,
}

/// The proxy.
pub struct Proxy {
    /// Where it listens.
    pub addr: SocketAddr,
    fate: Arc<watch::Sender<Fate>>,
    lost: Arc<AtomicU64>,
}

impl Proxy {
    /// Begins to forward connections to this server. The seed decides what is
    /// lost.
    pub async fn start(server: SocketAddr, mut seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let fate = Arc::new(watch::Sender::new(Fate::Passes));
        let lost = Arc::new(AtomicU64::new(0));
        let (fates, losses) = (Arc::clone(&fate), Arc::clone(&lost));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(server).await else {
                    continue;
                };
                seed = seed.wrapping_add(1);
                tokio::spawn(forward(
                    client,
                    server,
                    fates.subscribe(),
                    Arc::clone(&losses),
                    StdRng::seed_from_u64(seed),
                ));
            }
        });
        Self { addr, fate, lost }
    }

    /// From now on.
    pub fn set(&self, fate: Fate) {
        self.fate.send_replace(fate);
    }

    /// How many replies were lost.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }
}

async fn forward(
    client: TcpStream,
    server: TcpStream,
    mut fate: watch::Receiver<Fate>,
    lost: Arc<AtomicU64>,
    mut rng: StdRng,
) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let replies_fate = fate.clone();
    let is_newer = *fate.borrow() == Fate::CommandsHeld;
    let upwards = async move {
        let mut buffer = [0; 4096];
        while let Ok(1..) = from_client.read(&mut buffer[..1]).await {
            let Ok(more) =
                from_client
                    .try_read(&mut buffer[1..])
                    .or_else(|error| match error.kind() {
                        std::io::ErrorKind::WouldBlock => Ok(0),
                        _ => Err(error),
                    })
            else {
                return;
            };
            if !is_newer {
                // What its client does then is not seen either.
                let _ = fate.wait_for(|fate| *fate != Fate::CommandsHeld).await;
            }
            if to_server.write_all(&buffer[..1 + more]).await.is_err() {
                return;
            }
        }
    };
    let mut dice = move |percent| rng.random_range(0..100) < percent;
    let downwards = async move {
        let mut buffer = [0; 4096];
        let mut swallows = false;
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            let reply = &buffer[..length];
            // The replies to lock commands are numbers and nulls.
            let is_of_a_lock = matches!(reply[0], b':' | b'_') && length < 24;
            let fate = *replies_fate.borrow();
            match fate {
                Fate::RepliesLost(percent) if is_of_a_lock && dice(percent) => {
                    lost.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Fate::RepliesSwallowed(percent) if is_of_a_lock && dice(percent) => {
                    lost.fetch_add(1, Ordering::SeqCst);
                    swallows = true;
                }
                _ => {}
            }
            if !swallows && to_client.write_all(reply).await.is_err() {
                return;
            }
        }
    };
    // One end closes both.
    tokio::select! {
        () = upwards => {}
        () = downwards => {}
    }
}
