//! A network that can swallow everything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Passes bytes on between clients and a server, until it is told to swallow them.
pub struct Proxy {
    addr: SocketAddr,
    swallows: Arc<AtomicBool>,
}

impl Proxy {
    /// A way to this server.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let swallows = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&swallows);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { break };
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let ways = [
                    (client.try_clone().unwrap(), server.try_clone().unwrap()),
                    (server, client),
                ];
                for (from, to) in ways {
                    let swallows = Arc::clone(&shared);
                    std::thread::spawn(move || pass_on(from, to, &swallows));
                }
            }
        });
        Self { addr, swallows }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on nothing arrives, and neither end hears that the other closes.
    pub fn swallow(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, swallows: &AtomicBool) {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        if swallows.load(Ordering::SeqCst) {
            // Both streams stay open as long as the test runs.
            std::mem::forget((from, to));
            return;
        }
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            let _ = to.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}
