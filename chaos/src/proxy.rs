//! A proxy between clients and the server whose connections can stall: bytes
//! vanish in both directions, and nobody is told.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(100);

struct Link {
    client: TcpStream,
    server: TcpStream,
    stalled: AtomicBool,
    closed: AtomicBool,
}

/// The proxy, with its live connections.
pub struct Proxy {
    /// Where it listens.
    pub port: u16,
    links: Arc<Mutex<Vec<Arc<Link>>>>,
}

impl Proxy {
    /// Begins to forward connections to whoever has the port in `upstream`.
    pub fn start(upstream: Arc<AtomicU16>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let links: Arc<Mutex<Vec<Arc<Link>>>> = Arc::default();
        let accepted = Arc::clone(&links);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, upstream.load(Ordering::SeqCst)));
                // A client whose connection is closed at once tries again.
                if let Ok(server) = TcpStream::connect_timeout(&addr, LOOK_EVERY)
                    && let Ok(link) = forward(client, server)
                {
                    let mut links = accepted.lock().unwrap_or_else(PoisonError::into_inner);
                    links.retain(|link| !link.closed.load(Ordering::SeqCst));
                    links.push(link);
                }
            }
        });
        Ok(Self { port, links })
    }

    fn links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.clone()
    }

    /// Stalls those of the live connections that `choose` says.
    pub fn stall(&self, mut choose: impl FnMut() -> bool) {
        for link in self.links() {
            if choose() {
                link.stalled.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Closes the connections that stall.
    pub fn close_stalled(&self) {
        for link in self.links() {
            if link.stalled.load(Ordering::SeqCst) {
                link.close();
            }
        }
    }
}

impl Link {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Either end may be closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// Moves bytes until one end closes. The other end of a stalled connection
    /// does not hear of that.
    fn pump(&self, from: &TcpStream, to: &TcpStream) {
        let mut buffer = [0; 4096];
        loop {
            let (mut from, mut to) = (from, to);
            let moved = match from.read(&mut buffer) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) if self.stalled.load(Ordering::SeqCst) => Ok(()),
                Ok(length) => to.write_all(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
                Err(error) => Err(error),
            };
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            if moved.is_err() {
                if self.stalled.load(Ordering::SeqCst) {
                    return;
                }
                return self.close();
            }
        }
    }
}

fn forward(client: TcpStream, server: TcpStream) -> io::Result<Arc<Link>> {
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_EVERY))?;
    }
    let link = Arc::new(Link {
        client,
        server,
        stalled: AtomicBool::new(false),
        closed: AtomicBool::new(false),
    });
    for upwards in [true, false] {
        let link = Arc::clone(&link);
        thread::spawn(move || {
            if upwards {
                link.pump(&link.client, &link.server);
            } else {
                link.pump(&link.server, &link.client);
            }
        });
    }
    Ok(link)
}
