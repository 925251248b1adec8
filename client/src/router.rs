//! Which link leads to a key, and what to do if a node says that another one has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::command::is_repeatable;
use crate::connection::{Closed, Connection, Timeouts};
use crate::error::Error;
use crate::link::Link;
use crate::mutex::locked;
use crate::register::Register;
use crate::servers::{Servers, beside};
use crate::slots::{self, Address, Map, Tags, slot_of};

/// How often the sentinels are asked whether the primary is still the one.
const LOOK_UP: Duration = Duration::from_secs(10);

/// How soon the map of a cluster may be asked for again.
const MAP_AGE_MIN: Duration = Duration::from_millis(100);

/// How many times a command follows its key to other nodes.
pub(crate) const REDIRECTIONS_MAX: u32 = 8;

/// The links of a client, opened when they are needed.
pub(crate) struct Router {
    servers: Servers,
    pub(crate) timeouts: Timeouts,
    pub(crate) register: Arc<Register>,
    pub(crate) runtime: Handle,
    /// What the channels of this client begin with.
    channel: String,
    tags: Tags,
    /// By host and port. Without a cluster there is one, with an empty name.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    map: Mutex<Option<Map>>,
    /// When the map was last asked for. Locked while it is.
    asked_at: tokio::sync::Mutex<Option<Instant>>,
}

/// One node, and the link to it.
#[derive(Default)]
struct Node {
    current: Mutex<Option<Arc<Link>>>,
    /// The result of the last opening, for all that wait for it; nothing while it is under way.
    opening: Mutex<Option<watch::Receiver<Option<Opened>>>>,
}

type Opened = Result<Arc<Link>, Error>;

/// An answer, when its command was sent, and by what.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) sent_at: Moment,
    /// The link by which messages about its place come.
    pub(crate) link: Option<Arc<Link>>,
    /// Whether it was sent before, and may have been carried out then.
    pub(crate) is_resent: bool,
}

impl Router {
    pub(crate) fn new(servers: Servers, timeouts: Timeouts, register: Arc<Register>) -> Arc<Self> {
        Arc::new(Self {
            servers,
            timeouts,
            register,
            runtime: Handle::current(),
            channel: format!("redislock:{:032x}", rand::random::<u128>()),
            tags: Tags::default(),
            nodes: Mutex::default(),
            map: Mutex::default(),
            asked_at: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.servers.is_cluster()
    }

    /// The channel for the places of a key: in a cluster it is in the key's slot.
    pub(crate) fn channel_for(&self, key: &[u8]) -> Vec<u8> {
        match self.servers.is_cluster() {
            true => format!("{}{{{}}}", self.channel, self.tags.tag_for(key)).into_bytes(),
            false => self.channel.clone().into_bytes(),
        }
    }

    /// Sends a command to the node of a key. If another node has the key, the command
    /// follows it there. If the connection closes, the command is sent again, as long as
    /// that does no harm. With a `channel`, this listens to that first, on the same node.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        key: &[u8],
        command: &Cmd,
        channel: Option<&[u8]>,
    ) -> Result<Answer, Error> {
        let within = self.timeouts.response;
        let (give_up_at, mut backoff) = (Instant::now() + within, Backoff::default());
        let (mut redirections, mut ahead, mut is_resent) = (0, None::<Address>, false);
        loop {
            let link = match &ahead {
                Some(address) => self.link_to(address.clone()).await,
                None => self.link(key).await,
            };
            let unsent = |error: Error| if is_resent { error } else { error.unsent() };
            let link = link.map_err(unsent)?;
            let sent_at = Moment::now();
            let asked = async {
                if let Some(channel) = channel {
                    self.listen_by(&link, channel).await.map_err(unsent)?;
                }
                match &ahead {
                    Some(_) => link.commands.ask_ahead(command, within).await,
                    None => link.ask(command).await,
                }
            };
            let error = match asked.await {
                Ok(value) => {
                    return Ok(Answer {
                        value,
                        sent_at,
                        link: Some(link),
                        is_resent,
                    });
                }
                Err(error) => error,
            };
            ahead = None;
            let led_to = link.commands.host();
            let again = match error.code() {
                "MOVED" | "ASK" if self.servers.is_cluster() && redirections < REDIRECTIONS_MAX => {
                    redirections += 1;
                    // A channel can't be listened to ahead of its slot.
                    let is_ahead = error.code() == "ASK" && channel.is_none();
                    ahead = redirected(&error, led_to).filter(|_| is_ahead);
                    ahead.is_some() || self.learn(key, &error, led_to)
                }
                // The node may have left the cluster. Others are asked who has the slot.
                "CLUSTERDOWN" => {
                    let map = &mut *locked(&self.map);
                    map.iter_mut().for_each(|map| map.set(slot_of(key), None));
                    false
                }
                "READONLY" | "MASTERDOWN" => {
                    self.retire(&link);
                    false
                }
                _ if error.is_closed() && is_repeatable(command) => {
                    is_resent = true;
                    backoff.pause_before(Some(give_up_at)).await
                }
                _ => false,
            };
            if !again {
                return Err(self.servers.explain(error));
            }
        }
    }

    /// Listens to a channel on the node that has a key, as far as is known.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        key: &[u8],
        channel: &[u8],
    ) -> Result<Arc<Link>, Error> {
        let link = self.link(key).await?;
        let listened = self.listen_by(&link, channel).await;
        if let Err(error) = &listened {
            self.learn(key, error, link.commands.host());
        }
        listened.map(|()| link)
    }

    async fn listen_by(&self, link: &Arc<Link>, channel: &[u8]) -> Result<(), Error> {
        if link.listens_to(channel) {
            return Ok(());
        }
        let (link, channel) = (Arc::clone(link), channel.to_vec());
        self.spawned(async move { link.listen(&channel).await })
            .await
    }

    /// The link to the node that has a key.
    pub(crate) async fn link(self: &Arc<Self>, key: &[u8]) -> Result<Arc<Link>, Error> {
        let address = self.address_of(key).await?;
        let linked = self.link_to(address).await;
        if linked.is_err() && self.servers.is_cluster() {
            // Another node may have taken its place.
            let _ = self.ask_for_map().await;
        }
        linked
    }

    /// The link to the node that has a key, as far as there is one.
    pub(crate) fn known_link(&self, key: &[u8]) -> Option<Weak<Link>> {
        let address = match self.servers.is_cluster() {
            true => locked(&self.map).as_ref().and_then(|map| map.of(key)),
            false => Some(Address::default()),
        };
        let node = locked(&self.nodes).get(&address?).cloned()?;
        node.current().as_ref().map(Arc::downgrade)
    }

    /// Where a key is, as far as is known.
    pub(crate) async fn address_of(self: &Arc<Self>, key: &[u8]) -> Result<Address, Error> {
        if !self.servers.is_cluster() {
            return Ok(Address::default());
        }
        if let Some(address) = locked(&self.map).as_ref().and_then(|map| map.of(key)) {
            return Ok(address);
        }
        self.ask_for_map().await?;
        let map = locked(&self.map);
        map.as_ref()
            .and_then(|map| map.of(key))
            .ok_or_else(|| Error::from_line("CLUSTERDOWN no node tells which one has this key"))
    }

    /// Learns from `MOVED` where one key's slot is now. Returns false if the error tells
    /// no address.
    pub(crate) fn learn(&self, key: &[u8], error: &Error, led_to: &str) -> bool {
        let moved = Some(error).filter(|error| error.code() == "MOVED");
        let Some(address) = moved.and_then(|moved| redirected(moved, led_to)) else {
            return false;
        };
        if let Some(map) = &mut *locked(&self.map) {
            map.set(slot_of(key), Some(address));
        }
        true
    }

    /// Asks for the map once for all that want it meanwhile, unless it was just asked for.
    async fn ask_for_map(self: &Arc<Self>) -> Result<(), Error> {
        let this = Arc::clone(self);
        self.spawned(async move {
            let mut asked_at = this.asked_at.lock().await;
            if asked_at.is_some_and(|asked_at| asked_at.elapsed() < MAP_AGE_MIN) {
                return Ok(());
            }
            let seeds = this.servers.seeds();
            let known = locked(&this.map).as_ref().map(Map::primaries);
            let known = known.into_iter().flatten();
            let known = known.filter_map(|(host, port)| Some(beside(seeds.first()?, &host, port)));
            let asked = slots::ask(known.chain(seeds.to_vec()), this.timeouts).await;
            *asked_at = Some(Instant::now());
            *locked(&this.map) = Some(asked?);
            Ok(())
        })
        .await
    }

    async fn link_to(self: &Arc<Self>, address: Address) -> Opened {
        let node = Arc::clone(locked(&self.nodes).entry(address.clone()).or_default());
        let mut opening = {
            let mut opening = locked(&node.opening);
            if let Some(link) = node.current() {
                return Ok(link);
            }
            let is_under_way = |told: &&watch::Receiver<Option<Opened>>| {
                told.borrow().is_none() && told.has_changed().is_ok()
            };
            match opening.as_ref().filter(is_under_way) {
                Some(told) => told.clone(),
                None => {
                    let (tell, told) = watch::channel(None);
                    let (this, node) = (Arc::clone(self), Arc::clone(&node));
                    self.runtime.spawn(async move {
                        tell.send_replace(Some(this.open_link(&node, &address).await));
                    });
                    opening.insert(told).clone()
                }
            }
        };
        match opening.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(opened)) => opened.clone(),
            Ok(None) | Err(_) => Err(Error::Stopped),
        }
    }

    async fn open_link(self: &Arc<Self>, node: &Node, address: &Address) -> Opened {
        let info = self.info_of(address).await?;
        let replaced = locked(&node.current).take();
        let kills = replaced
            .as_ref()
            .map_or(&[][..], |replaced| &replaced.kills);
        let opened = Link::open(
            &info,
            self.timeouts,
            self.servers.is_cluster(),
            &self.register,
            kills,
        );
        let opened = opened.await;
        *locked(&node.current) = match &opened {
            Ok(link) => Some(Arc::clone(link)),
            // The next link still has to end the old one's connections.
            Err(_) => replaced,
        };
        let link = opened?;
        if self.servers.is_behind_sentinels() {
            tokio::spawn(follow(Arc::downgrade(self), Arc::downgrade(&link)));
        }
        Ok(link)
    }

    async fn info_of(&self, address: &Address) -> Result<ConnectionInfo, Error> {
        match self.servers.seeds().first() {
            Some(seed) => Ok(beside(seed, &address.0, address.1)),
            None => self.servers.primary(self.timeouts.connect).await,
        }
    }

    /// Opens a connection of its own to a node.
    pub(crate) async fn open(
        self: &Arc<Self>,
        address: &Address,
        closed: &Closed,
    ) -> Result<Connection, Error> {
        let (this, address, closed) = (Arc::clone(self), address.clone(), closed.clone());
        self.spawned(async move {
            let info = this.info_of(&address).await?;
            Connection::open(&info, this.timeouts.connect, None, &closed).await
        })
        .await
    }

    /// Has the next command open a new link: this one is of no use. Commands that wait for
    /// their replies by it still get them.
    fn retire(&self, link: &Arc<Link>) {
        for node in locked(&self.nodes).values() {
            locked(&node.current).take_if(|current| Arc::ptr_eq(current, link));
        }
    }

    /// Runs work in the client's runtime. It goes on even if nobody polls the future that
    /// waits for it.
    pub(crate) fn spawned<T: Send + 'static, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + use<T, W>
    where
        W: Future<Output = Result<T, Error>> + Send + 'static,
    {
        // Not an async function, which would have room for all of the work.
        let done = self.runtime.spawn(work);
        async { done.await.unwrap_or(Err(Error::Stopped)) }
    }
}

impl Node {
    fn current(&self) -> Option<Arc<Link>> {
        let current = locked(&self.current);
        current.clone().filter(|link| !link.closed.is_closed())
    }
}

/// Closes a link if its server is not the primary any more: such a server may go on answering.
async fn follow(router: Weak<Router>, link: Weak<Link>) {
    loop {
        sleep(LOOK_UP).await;
        let (Some(router), Some(link)) = (router.upgrade(), link.upgrade()) else {
            return;
        };
        if link.closed.is_closed() {
            return;
        }
        let within = router.timeouts.connect;
        if let Ok(primary) = router.servers.primary(within).await
            && link.commands.addr() != primary.addr()
        {
            link.closed.close();
        }
    }
}

/// Host and port in `MOVED slot host:port`. A node without a host has the one to which the
/// client was led.
fn redirected(error: &Error, led_to: &str) -> Option<Address> {
    let told = error.to_string();
    let (host, port) = told.split(' ').nth(2)?.rsplit_once(':')?;
    let host = if host.is_empty() { led_to } else { host };
    Some((host.into(), port.parse().ok()?))
}
