//! A network between clients and a server, which loses, delays and holds back
//! what it is told to.
//!
//! Each connection is a link of two ways. What is read on a way goes into a
//! queue; at the other end of that the proxy's fate decides what becomes of it,
//! one piece after the other, so that nothing overtakes.
//!
//! What a link says of an end: if one side closes, the other is closed when all
//! that was sent before has arrived. Both are shut down then, so that what lies
//! unread is lost, as with a process that dies. A link that swallows does not
//! tell; it stays open until [`Proxy::close_swallowing`], or until the fate is
//! no longer [`Fate::Swallowed`].

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::{Result, local, pack};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

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
    /// Commands are swallowed, and all that follows on their connection. Nobody
    /// is told.
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
    /// The server answers commands that have this word with this error, and does
    /// nothing else.
    Refuses(&'static str, &'static str),
    /// Messages of channels are taken out from between the replies.
    MessagesLost,
    /// Messages of channels come twice.
    MessagesDoubled,
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
    seen: HashMap<Vec<u8>, usize>,
    /// Replies and messages that were lost or kept back.
    lost: u64,
    refused: u64,
    /// Connections on which commands were swallowed.
    swallowed: u64,
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

/// A direction of a link.
struct Direction {
    upwards: bool,
    dice: StdRng,
    is_silent: bool,
    /// The beginning of a command.
    partial: Vec<u8>,
}

type Pieces = Receiver<(Instant, Vec<u8>)>;

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
                seen: HashMap::new(),
                lost: 0,
                refused: 0,
                swallowed: 0,
                is_over: false,
            }),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&network);
        thread::spawn(move || accepting.accept(&listener, seed));
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
        self.network.change(|state| {
            state.fates_from.insert(source, fate);
        });
    }

    /// From now on swallows what goes by on those connections that `choose` says.
    pub fn swallow_on(&self, mut choose: impl FnMut() -> bool) {
        for link in &self.network.state().links {
            if choose() {
                link.swallows.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Closes the connections that swallow.
    pub fn close_swallowing(&self) {
        self.network.state().close_swallowing();
        self.network.changed.notify_all();
    }

    /// Closes all connections for their clients. What lies in the proxy may still arrive.
    pub fn hang_up(&self) {
        for link in &self.network.state().links {
            let _ = link.client.shutdown(Shutdown::Both);
        }
    }

    /// Tells the clients that nothing more will come, and still takes what they send.
    pub fn half_close(&self) {
        for link in &self.network.state().links {
            let _ = link.client.shutdown(Shutdown::Write);
        }
    }

    /// How many commands of this name have come by. Each counts that comes in one
    /// piece.
    pub fn seen(&self, name: &str) -> usize {
        let state = self.network.state();
        state.seen.get(name.as_bytes()).copied().unwrap_or_default()
    }

    /// How many replies were lost or kept back.
    pub fn lost(&self) -> u64 {
        self.network.state().lost
    }

    /// On how many connections commands were swallowed.
    pub fn swallowed(&self) -> u64 {
        self.network.state().swallowed
    }

    /// How many commands were refused.
    pub fn refused(&self) -> u64 {
        self.network.state().refused
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

    fn close_swallowing(&self) {
        let swallowing = |link: &&Arc<Link>| link.swallows.load(Ordering::SeqCst);
        self.links
            .iter()
            .filter(swallowing)
            .for_each(|link| link.close());
    }

    /// Whether what goes this way has to wait.
    fn keeps_back(&self, link: &Link, way: &Direction) -> bool {
        !link.is_closed()
            && match self.fate_from(link.source) {
                Fate::KeptBack => true,
                Fate::CommandsHeld => way.upwards && !link.is_newer,
                _ => false,
            }
    }

    /// These replies, where each message of a channel comes this many times. One that is
    /// not all there comes as it is.
    fn repeat_messages(&mut self, mut piece: &[u8], times: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        while !piece.is_empty() {
            let heard = first_array(piece, b">").or_else(|| first_array(piece, b"*"));
            let message = heard.filter(|(_, words)| words[0].ends_with(b"message"));
            let (length, times_sent) = message.map_or((1, 1), |(length, _)| (length, times));
            sent.extend(piece[..length].repeat(times_sent));
            self.lost += u64::from(times_sent == 0);
            piece = &piece[length..];
        }
        sent
    }

    /// These commands, where each of this word is another that fails with this
    /// error. One that has only begun is left over.
    fn refuse(
        &mut self,
        word: &str,
        error: &str,
        mut piece: Vec<u8>,
        rest: &mut Vec<u8>,
    ) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some((length, words)) = first_array(&piece, b"*") {
            if words.contains(&word.as_bytes()) {
                self.refused += 1;
                let script = format!("return redis.error_reply('{error}')");
                sent.extend(pack(&["EVAL", &script, "0"]));
            } else {
                sent.extend(&piece[..length]);
            }
            piece.drain(..length);
        }
        let has_begun = piece.first() == Some(&b'*');
        (if has_begun { rest } else { &mut sent }).extend(piece);
        sent
    }
}

impl Link {
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

    /// Changes fates. Connections that lost something by one that is over are
    /// closed.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        let swallowed =
            |state: &State, link: &Link| state.fate_from(link.source) == Fate::Swallowed;
        let mut over = state.links.clone();
        over.retain(|link| swallowed(&state, link) && link.swallows.load(Ordering::SeqCst));
        change(&mut state);
        over.retain(|link| !swallowed(&state, link));
        over.iter().for_each(|link| link.close());
        self.changed.notify_all();
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, mut seed: u64) {
        loop {
            let accepted = listener.accept();
            let source = accepted.as_ref().map(|(_, addr)| addr.ip());
            let (fate, server) = {
                let state = self.state();
                if state.is_over {
                    return;
                }
                let fate = source.map_or(state.fate, |source| state.fate_from(source));
                (fate, state.server)
            };
            // A client whose connection is closed at once tries again.
            if let Ok((client, addr)) = accepted
                && fate != Fate::Down
                && let Ok(server) = TcpStream::connect_timeout(&server, CONNECT_TIMEOUT)
            {
                seed = seed.wrapping_add(1);
                let _ = self.carry(client, server, addr.ip(), seed);
            }
        }
    }

    fn carry(
        self: &Arc<Self>,
        client: TcpStream,
        server: TcpStream,
        source: IpAddr,
        seed: u64,
    ) -> std::io::Result<()> {
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
            let way = Direction {
                upwards,
                dice: StdRng::seed_from_u64(seed),
                is_silent: false,
                partial: Vec::new(),
            };
            let (sender, pieces) = channel();
            let (network, reading) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || network.read(&reading, upwards, &sender));
            let (network, link) = (Arc::clone(self), Arc::clone(&link));
            thread::spawn(move || network.deliver(&link, way, pieces));
        }
        Ok(())
    }

    /// Reads until the end, and notes when each piece is due.
    fn read(&self, link: &Link, upwards: bool, pieces: &Sender<(Instant, Vec<u8>)>) {
        let mut from = if upwards { &link.client } else { &link.server };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut state = self.state();
            let mut rest = &buffer[..length];
            while upwards && let Some((length, words)) = first_array(rest, b"*") {
                *state.seen.entry(words[0].into()).or_default() += 1;
                rest = &rest[length..];
            }
            let delay = match state.fate_from(link.source) {
                Fate::Delayed(delay) => delay,
                _ => Duration::ZERO,
            };
            drop(state);
            let piece = (Instant::now() + delay, buffer[..length].to_vec());
            if pieces.send(piece).is_err() {
                return;
            }
        }
    }

    /// Delivers what arrives, and then that it has come to an end.
    fn deliver(self: &Arc<Self>, link: &Arc<Link>, mut way: Direction, pieces: Pieces) {
        let mut to = if way.upwards {
            &link.server
        } else {
            &link.client
        };
        for (due, piece) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let passes = self.passes(link, &mut way, piece);
            if passes.is_some_and(|piece| to.write_all(&piece).is_err()) {
                break;
            }
        }
        let mut state = self.once_let_go(link, &way);
        if !link.swallows.load(Ordering::SeqCst) {
            link.close();
            state.links.retain(|link| !link.is_closed());
            self.changed.notify_all();
        }
    }

    /// Waits as long as things are kept back, and sees whether they vanish then.
    fn once_let_go(&self, link: &Link, way: &Direction) -> MutexGuard<'_, State> {
        let kept_back = |state: &mut State| state.keeps_back(link, way);
        let state = self.changed.wait_while(self.state(), kept_back);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.fate_from(link.source) == Fate::Swallowed {
            link.swallows.store(true, Ordering::SeqCst);
        }
        state
    }

    /// What is to be sent instead of this piece, if anything.
    fn passes(
        self: &Arc<Self>,
        link: &Arc<Link>,
        way: &mut Direction,
        piece: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let mut state = self.once_let_go(link, way);
        if way.is_silent || link.swallows.load(Ordering::SeqCst) {
            return None;
        }
        let piece = [std::mem::take(&mut way.partial), piece].concat();
        match state.fate_from(link.source) {
            Fate::CommandsSwallowed if way.upwards => {
                state.swallowed += 1;
                way.is_silent = true;
            }
            Fate::RepliesKeptBack if way.is_reply_of_a_lock(&piece) => {
                state.lost += 1;
                let (network, link) = (Arc::clone(self), Arc::clone(link));
                thread::spawn(move || {
                    let is_kept = |state: &mut State| {
                        state.fate_from(link.source) == Fate::RepliesKeptBack && !link.is_closed()
                    };
                    drop(network.changed.wait_while(network.state(), is_kept));
                    let _ = (&link.client).write_all(&piece);
                });
            }
            Fate::RepliesLost(percent) if way.loses(percent, &piece) => {
                state.lost += 1;
                link.close();
            }
            Fate::RepliesSwallowed(percent) if way.loses(percent, &piece) => {
                state.lost += 1;
                way.is_silent = true;
            }
            Fate::Refuses(word, error) if way.upwards => {
                return Some(state.refuse(word, error, piece, &mut way.partial));
            }
            Fate::MessagesLost if !way.upwards => return Some(state.repeat_messages(&piece, 0)),
            Fate::MessagesDoubled if !way.upwards => return Some(state.repeat_messages(&piece, 2)),
            _ => return Some(piece),
        }
        None
    }
}

impl Direction {
    /// Throws the dice for a reply to a lock command.
    fn loses(&mut self, percent: u32, piece: &[u8]) -> bool {
        self.is_reply_of_a_lock(piece) && self.dice.random_range(0..100) < percent
    }

    /// Those are numbers and nulls.
    fn is_reply_of_a_lock(&self, piece: &[u8]) -> bool {
        let is_one = matches!(piece[0], b':' | b'_') || piece.starts_with(b"$-1");
        !self.upwards && is_one && piece.len() < 24
    }
}

/// The length of the first command or push, if all of it is there, and its words.
/// One that has other things than words is none.
fn first_array<'bytes>(bytes: &'bytes [u8], kind: &[u8]) -> Option<(usize, Vec<&'bytes [u8]>)> {
    let mut at = 0;
    let number = |at: &mut usize, kind| {
        let rest = bytes.get(*at..)?;
        let length = rest.windows(2).position(|two| two == b"\r\n")?;
        *at += length + 2;
        let digits = rest[..length].strip_prefix(kind)?;
        std::str::from_utf8(digits).ok()?.parse::<usize>().ok()
    };
    let mut words = Vec::new();
    for _ in 0..number(&mut at, kind)? {
        let length = number(&mut at, b"$")?;
        words.push(bytes.get(at..at + length)?);
        at += length + 2;
    }
    (at <= bytes.len() && !words.is_empty()).then_some((at, words))
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
        let fates = [(Fate::MessagesLost, 0), (Fate::MessagesDoubled, 2)];
        // RESP2 and RESP3.
        for ((fate, times), kind) in fates
            .into_iter()
            .flat_map(|one| ["*", ">"].map(|kind| (one, kind)))
        {
            let message = format!("{kind}3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\n>3*\r\n");
            let subscribed = format!("{kind}3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
            let (proxy, _server, client, mut accepted) = connection();
            proxy.set(fate);
            let replies =
                |message: &str| format!(":1\r\n{message}{subscribed}+OK\r\n{message}:2\r\n");
            accepted.write_all(replies(&message).as_bytes()).unwrap();
            drop(accepted);
            let arrived = replies(&message.repeat(times));
            assert_eq!(read_all(client), arrived.as_bytes());
            assert_eq!(proxy.lost(), if times == 0 { 2 } else { 0 });
        }
    }

    #[test]
    fn what_follows_a_reply_that_is_kept_back_overtakes_it() {
        let (proxy, _server, mut client, mut accepted) = connection();
        proxy.set(Fate::RepliesKeptBack);
        accepted.write_all(b":1\r\n").unwrap();
        while proxy.lost() == 0 {
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
        assert_eq!(proxy.refused(), 1);
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
