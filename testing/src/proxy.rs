//! A network between clients and a server, which loses, delays and holds back
//! what it is told to.
//!
//! Each connection is a link of two ways. What is read on a way goes into a queue, at whose
//! end the proxy's fate decides what becomes of it, one piece after the other.
//!
//! If one side closes, the other is closed when all that was sent before has arrived. Both are
//! shut down then, so that what lies unread is lost, as with a process that dies. A link that
//! swallows stays open until [`Proxy::close_swallowing`], or until the fate is no longer
//! [`Fate::Swallowed`].

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use redis::{Value, parse_redis_value};

use crate::{Result, local, pack};

/// What happens to what goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives.
    Passes,
    /// It arrives this much later, each way.
    Delayed(Duration),
    /// It arrives when this is over, even if its sender has closed meanwhile.
    KeptBack,
    /// It vanishes, and nobody is told before this is over. Then the connections
    /// that lost something are closed.
    Swallowed,
    /// There is no server: whoever connects is sent away.
    Down,
    /// Commands on the connections of before lie in the proxy until it changes,
    /// and what their clients do then is not seen before.
    CommandsHeld,
    /// Commands are swallowed, and all that follows on their connection. Nobody is told.
    CommandsSwallowed,
    /// Of replies to lock commands this many percent are swallowed and their
    /// connection is closed.
    RepliesLost(u32),
    /// Of replies to lock commands this many percent are swallowed, and all that
    /// follows on their connection. Nobody is told.
    RepliesSwallowed(u32),
    /// Replies to lock commands arrive when this is over. What follows on their connection
    /// overtakes them.
    RepliesKeptBack,
    /// The server answers commands that have this word with this error, and does nothing else.
    Refuses(&'static str, &'static str),
    /// Messages of channels come this many times between the replies.
    Messages(usize),
}

/// The proxy. It ends with its connections when it is dropped.
pub struct Proxy {
    addr: SocketAddr,
    network: Arc<Network>,
}

struct Network {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    fate: Fate,
    /// Those of connections from somewhere in particular.
    fates_from: HashMap<IpAddr, Fate>,
    server: SocketAddr,
    links: Vec<Arc<Link>>,
    dice: StdRng,
    affected: u64,
    is_over: bool,
}

/// A connection. What it says of itself changes under the lock of the state.
struct Link {
    client: TcpStream,
    server: TcpStream,
    /// Where its client is.
    source: IpAddr,
    /// Whether it began while commands were held, which so are not held here.
    is_newer: bool,
    swallows: AtomicBool,
    closed: AtomicBool,
}

/// Bytes, and when they are due at the other end.
type Piece = (Instant, Vec<u8>);

impl Proxy {
    /// Begins to forward connections to this server.
    pub fn to(server: SocketAddr) -> Result<Self> {
        Self::seeded(server, 1)
    }

    /// As [`Proxy::to`], where the seed decides which replies are lost.
    pub fn seeded(server: SocketAddr, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind(local(0))?;
        let addr = listener.local_addr()?;
        let network = Arc::new(Network {
            state: Mutex::new(State {
                fate: Fate::Passes,
                fates_from: HashMap::new(),
                server,
                links: Vec::new(),
                dice: StdRng::seed_from_u64(seed),
                affected: 0,
                is_over: false,
            }),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&network);
        thread::spawn(move || accepting.accept(&listener));
        Ok(Self { addr, network })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Leads who connects from now on to this server.
    pub fn lead_to(&self, server: SocketAddr) {
        self.network.state().server = server;
    }

    /// What happens from now on, wherever it comes from.
    pub fn set(&self, fate: Fate) {
        self.network.change(|state| {
            state.fate = fate;
            state.fates_from.clear();
        });
    }

    /// What happens from now on to connections from this address.
    pub fn set_from(&self, source: IpAddr, fate: Fate) {
        self.network
            .change(|state| _ = state.fates_from.insert(source, fate));
    }

    /// From now on swallows what goes by on those connections that `choose` says.
    pub fn swallow_on(&self, mut choose: impl FnMut() -> bool) {
        let state = self.network.state();
        let chosen = state.links.iter().filter(|_| choose());
        chosen.for_each(|link| link.swallow());
    }

    /// Closes the connections that swallow.
    pub fn close_swallowing(&self) {
        let state = self.network.state();
        let swallowing = state.links.iter().filter(|link| link.swallows());
        swallowing.for_each(|link| link.close());
        self.network.changed.notify_all();
    }

    /// Closes all connections for their clients, or one way of them. What lies in the proxy
    /// may still arrive.
    pub fn hang_up(&self, how: Shutdown) {
        for link in &self.network.state().links {
            let _ = link.client.shutdown(how);
        }
    }

    /// How often a fate of commands, replies or messages has befallen one of them. Of what
    /// is swallowed after that on its connection nothing counts.
    pub fn affected(&self) -> u64 {
        self.network.state().affected
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.network.state();
        state.is_over = true;
        state.links.drain(..).for_each(|link| link.close());
        self.network.changed.notify_all();
        drop(state);
        // It wakes the one who accepts.
        let _ = TcpStream::connect(self.addr);
    }
}

impl State {
    fn fate_from(&self, source: IpAddr) -> Fate {
        *self.fates_from.get(&source).unwrap_or(&self.fate)
    }

    /// Whether what goes this way has to wait.
    fn keeps_back(&self, link: &Link, upwards: bool) -> bool {
        !link.is_closed()
            && match self.fate_from(link.source) {
                Fate::KeptBack => true,
                Fate::CommandsHeld => upwards && !link.is_newer,
                _ => false,
            }
    }

    /// Takes these bytes, where some commands or messages are what `instead` says. The
    /// beginning of a command waits for its end, and that of a message does not.
    fn replaced(
        &mut self,
        bytes: &mut Vec<u8>,
        upwards: bool,
        instead: impl Fn(&[u8], &[Vec<u8>]) -> Option<Vec<u8>>,
    ) -> Vec<u8> {
        let (mut replaced, mut at) = (Vec::new(), 0);
        while let Some(first) = bytes.get(at) {
            let (length, words) = match first_words(&bytes[at..]) {
                Some(words) if !words.is_empty() => (pack(&words).len(), words),
                None if upwards && *first == b'*' => break,
                _ => (1, Vec::new()),
            };
            let this = &bytes[at..at + length];
            let other = instead(this, &words);
            self.affected += u64::from(other.is_some());
            replaced.extend(other.unwrap_or_else(|| this.into()));
            at += length;
        }
        bytes.drain(..at);
        replaced
    }
}

impl Link {
    fn swallows(&self) -> bool {
        self.swallows.load(Ordering::SeqCst)
    }

    fn swallow(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Either end may be closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes fates. Connections that lost something by one that is over are closed.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        let loses = |state: &State, link: &Link| state.fate_from(link.source) == Fate::Swallowed;
        let mut over = state.links.clone();
        over.retain(|link| link.swallows() && loses(&state, link));
        change(&mut state);
        over.retain(|link| !loses(&state, link));
        over.iter().for_each(|link| link.close());
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.state().is_over {
                return;
            }
            // A client whose connection is closed at once tries again.
            let _ = client.and_then(|client| self.carry(client));
        }
    }

    fn carry(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let source = client.peer_addr()?.ip();
        let server = self.state().server;
        if self.state().fate_from(source) == Fate::Down {
            return Ok(());
        }
        let server = TcpStream::connect_timeout(&server, Duration::from_secs(1))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut state = self.state();
        let link = Arc::new(Link {
            client,
            server,
            source,
            is_newer: state.fate_from(source) == Fate::CommandsHeld,
            swallows: AtomicBool::new(false),
            closed: AtomicBool::new(state.is_over),
        });
        state.links.push(Arc::clone(&link));
        drop(state);
        for upwards in [true, false] {
            let (sender, pieces) = channel();
            let (network, reading) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || network.read(&reading, upwards, &sender));
            let (network, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || network.deliver(&link, upwards, pieces));
        }
        Ok(())
    }

    /// Reads until the end, and notes when each piece is due.
    fn read(&self, link: &Link, upwards: bool, pieces: &Sender<Piece>) {
        let mut from = if upwards { &link.client } else { &link.server };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let delay = match self.state().fate_from(link.source) {
                Fate::Delayed(delay) => delay,
                _ => Duration::ZERO,
            };
            let piece = buffer[..length].to_vec();
            if pieces.send((Instant::now() + delay, piece)).is_err() {
                return;
            }
        }
    }

    /// Delivers what arrives, and then that it has come to an end.
    fn deliver(self: &Arc<Self>, link: &Arc<Link>, upwards: bool, pieces: Receiver<Piece>) {
        let mut to = if upwards { &link.server } else { &link.client };
        let (mut bytes, mut is_silent) = (Vec::new(), false);
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            bytes.extend(piece);
            let sent = self.passes(link, upwards, &mut bytes, &mut is_silent);
            if to.write_all(&sent).is_err() {
                break;
            }
        }
        let mut state = self.once_let_go(link, upwards);
        if !link.swallows() {
            link.close();
            state.links.retain(|link| !link.is_closed());
            self.changed.notify_all();
        }
    }

    /// Waits as long as things are kept back, and sees whether they vanish then.
    fn once_let_go(&self, link: &Link, upwards: bool) -> MutexGuard<'_, State> {
        let kept_back = |state: &mut State| state.keeps_back(link, upwards);
        let state = self.changed.wait_while(self.state(), kept_back);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.fate_from(link.source) == Fate::Swallowed {
            link.swallow();
        }
        state
    }

    /// Takes these bytes, and returns what is to be sent instead.
    fn passes(
        self: &Arc<Self>,
        link: &Arc<Link>,
        upwards: bool,
        bytes: &mut Vec<u8>,
        is_silent: &mut bool,
    ) -> Vec<u8> {
        let mut state = self.once_let_go(link, upwards);
        if *is_silent || link.swallows() {
            bytes.clear();
            return Vec::new();
        }
        // To lock commands those are numbers and nulls.
        let is_short = !upwards && bytes.len() < 24;
        let is_reply = is_short && matches!(bytes[..], [b':' | b'_', ..] | [b'$', b'-', ..]);
        let fate = state.fate_from(link.source);
        let mut chosen = |percent| is_reply && state.dice.random_ratio(percent, 100);
        match fate {
            Fate::CommandsSwallowed if upwards => *is_silent = true,
            Fate::RepliesKeptBack if is_reply => {
                let (network, link, reply) = (Arc::clone(self), Arc::clone(link), bytes.clone());
                thread::spawn(move || {
                    let is_kept = |state: &mut State| {
                        state.fate_from(link.source) == Fate::RepliesKeptBack && !link.is_closed()
                    };
                    drop(network.changed.wait_while(network.state(), is_kept));
                    let _ = (&link.client).write_all(&reply);
                });
            }
            Fate::RepliesLost(percent) if chosen(percent) => link.close(),
            Fate::RepliesSwallowed(percent) if chosen(percent) => *is_silent = true,
            Fate::Refuses(word, error) if upwards => {
                let script = format!("return redis.error_reply('{error}')");
                let refused = pack(&["EVAL", &script, "0"]);
                return state.replaced(bytes, upwards, |_, words| {
                    let has_it = words.iter().any(|it| it == word.as_bytes());
                    has_it.then(|| refused.clone())
                });
            }
            Fate::Messages(times) if !upwards => {
                return state.replaced(bytes, upwards, |message, words| {
                    let kind = words.first().filter(|kind| kind.ends_with(b"message"));
                    kind.map(|_| message.repeat(times))
                });
            }
            _ => return std::mem::take(bytes),
        }
        bytes.clear();
        state.affected += 1;
        Vec::new()
    }
}

/// The words of the first command or push, if it is all there and has no other things.
fn first_words(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let array = bytes.strip_prefix(b"*").or(bytes.strip_prefix(b">"))?;
    let Value::Array(parts) = parse_redis_value(&[b"*", array].concat()).ok()? else {
        return None;
    };
    let words = parts.into_iter().map(|part| match part {
        Value::BulkString(word) => Some(word),
        _ => None,
    });
    words.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A way to a listener, and both ends of a connection by it.
    fn connection() -> (Proxy, TcpListener, TcpStream, TcpStream) {
        let server = TcpListener::bind(local(0)).unwrap();
        let proxy = Proxy::to(server.local_addr().unwrap()).unwrap();
        let (client, accepted) = another(&proxy, &server);
        (proxy, server, client, accepted)
    }

    fn another(proxy: &Proxy, server: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(proxy.addr()).unwrap();
        (client, server.accept().unwrap().0)
    }

    fn read_all(mut stream: TcpStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut bytes);
        bytes
    }

    fn has_nothing(stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    #[test]
    fn what_is_kept_back_arrives_though_its_sender_has_closed() {
        let (proxy, server, mut client, accepted) = connection();
        proxy.set(Fate::KeptBack);
        client.write_all(b"late").unwrap();
        drop(client);
        // Whoever connects later is kept back as well.
        let (late_client, later) = another(&proxy, &server);
        drop(late_client);
        assert!(has_nothing(&later) && has_nothing(&accepted));
        proxy.set(Fate::Passes);
        assert_eq!(read_all(accepted), b"late");
        assert_eq!(read_all(later), b"");
    }

    #[test]
    fn what_is_delayed_arrives_in_order_and_late() {
        let (proxy, _server, mut client, accepted) = connection();
        let delay = Duration::from_millis(50);
        proxy.set(Fate::Delayed(delay));
        let sent = Instant::now();
        client.write_all(b"one").unwrap();
        client.write_all(b"two").unwrap();
        drop(client);
        assert_eq!(read_all(accepted), b"onetwo");
        assert!(sent.elapsed() >= delay);
    }

    #[test]
    fn only_messages_are_lost_or_come_twice() {
        // RESP2 and RESP3.
        for (times, kind) in [(0, "*"), (2, "*"), (0, ">"), (2, ">")] {
            let message = format!("{kind}3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\n>3*\r\n");
            let subscribed = format!("{kind}3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
            let (proxy, _server, client, mut accepted) = connection();
            proxy.set(Fate::Messages(times));
            let replies =
                |message: &str| format!(":1\r\n{message}{subscribed}*0\r\n{message}:2\r\n");
            accepted.write_all(replies(&message).as_bytes()).unwrap();
            drop(accepted);
            let arrived = replies(&message.repeat(times));
            assert_eq!(read_all(client), arrived.as_bytes());
            assert_eq!(proxy.affected(), 2);
        }
    }

    #[test]
    fn what_follows_a_reply_that_is_kept_back_overtakes_it() {
        let (proxy, _server, mut client, mut accepted) = connection();
        proxy.set(Fate::RepliesKeptBack);
        accepted.write_all(b":1\r\n").unwrap();
        while proxy.affected() == 0 {
            thread::yield_now();
        }
        accepted.write_all(b"+OK\r\n").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
        proxy.set(Fate::Passes);
        let mut late = [0; 4];
        client.read_exact(&mut late).unwrap();
        assert_eq!(&late, b":1\r\n");
    }

    #[test]
    fn only_the_command_that_is_refused_is_another() {
        let (proxy, _server, mut client, mut accepted) = connection();
        proxy.set(Fate::Refuses("SET", "ERR no"));
        let (ping, set) = (pack(&["PING"]), pack(&["SET", "a", "b"]));
        let (beginning, end) = set.split_at(9);
        client.write_all(&[&ping, beginning].concat()).unwrap();
        let mut arrived = vec![0; ping.len()];
        accepted.read_exact(&mut arrived).unwrap();
        assert_eq!(arrived, ping);
        client.write_all(&[end, &ping].concat()).unwrap();
        drop(client);
        let refused = pack(&["EVAL", "return redis.error_reply('ERR no')", "0"]);
        assert_eq!(read_all(accepted), [refused, ping].concat());
        assert_eq!(proxy.affected(), 1);
    }

    #[test]
    fn one_source_may_be_cut_off_alone() {
        let (proxy, _server, mut client, mut accepted) = connection();
        proxy.set_from(IpAddr::from([127, 0, 0, 2]), Fate::Swallowed);
        client.write_all(b"a").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        proxy.set_from(client.local_addr().unwrap().ip(), Fate::Swallowed);
        client.write_all(b"b").unwrap();
        drop(client);
        assert!(has_nothing(&accepted), "it heard of the end");
        proxy.set(Fate::Passes);
        let arrived = read_all(accepted);
        assert!(arrived.is_empty() || arrived == b"b", "{arrived:?}");
    }

    #[test]
    fn who_swallows_tells_nobody_until_it_is_closed() {
        let (proxy, server, client, accepted) = connection();
        proxy.swallow_on(|| true);
        let (_other, other_accepted) = another(&proxy, &server);
        drop(client);
        assert!(has_nothing(&accepted), "it heard of the end");
        proxy.close_swallowing();
        assert_eq!(read_all(accepted), b"");
        assert!(has_nothing(&other_accepted));
    }
}
