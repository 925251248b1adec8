//! Where a node's connections lead.

use std::sync::Arc;

use super::Node;
#[cfg(feature = "cluster")]
use crate::commands;
use crate::error::Error;
use crate::servers::connection::Connection;
use crate::servers::ear::Ear;

/// A node of a cluster by host and port; elsewhere the only server that there is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Address(pub(super) Option<(String, u16)>);

impl Node {
    /// Where connections for this key lead: nowhere in particular but in a
    /// cluster.
    pub(crate) async fn address(self: &Arc<Self>, key: &[u8]) -> Result<Address, Error> {
        #[cfg(feature = "cluster")]
        if self.target.is_cluster() {
            return self.address_in_cluster(key).await;
        }
        let _ = key;
        Ok(Address::default())
    }

    #[cfg(feature = "cluster")]
    async fn address_in_cluster(self: &Arc<Self>, key: &[u8]) -> Result<Address, Error> {
        if let Some(known) = self.slots.address_of(key) {
            return Ok(Address(Some(known)));
        }
        let connection = self.connection().await?;
        let learned = self.learn_slots(&connection).await;
        learned.inspect_err(|error| self.give_up_by(&connection, key, error))?;
        self.known_address(key)
    }

    #[cfg(feature = "cluster")]
    pub(super) async fn learn_slots(&self, connection: &Connection) -> Result<(), Error> {
        let (within, cmd) = (self.timeouts.response, commands::cluster_slots());
        let slots = connection.ask_any(within, &cmd).await;
        let slots = slots.map_err(|error| self.explain(error))?;
        self.slots.learn(slots, self.target.host())
    }

    #[cfg(feature = "cluster")]
    pub(super) fn known_address(&self, key: &[u8]) -> Result<Address, Error> {
        match self.slots.address_of(key) {
            Some(found) => Ok(Address(Some(found))),
            None => Err(Error::unavailable(
                "the cluster names no node for the slot of this key",
            )),
        }
    }

    /// Opens a connection of its own to this address. If that fails, the next one
    /// looks anew for the server that has its key.
    pub(crate) async fn open(self: &Arc<Self>, address: Address) -> Result<Arc<Connection>, Error> {
        let this = Arc::clone(self);
        let opened = self.runtime.spawn(async move {
            let within = this.timeouts.connect;
            #[cfg(feature = "cluster")]
            if let Some((host, port)) = &address.0 {
                return this.target.open_at(host, *port, within, &this.places).await;
            }
            let _ = address;
            this.target.open(within, &this.places).await
        });
        let opened = opened
            .await
            .unwrap_or_else(|error| Err(Error::from_task(error)));
        opened.inspect_err(|_| self.look_up_again())
    }

    /// All servers, replicas of a cluster too, by name.
    pub(crate) async fn servers(self: &Arc<Self>) -> Result<Vec<(String, Address)>, Error> {
        if let Some(address) = self.target.address(self.timeouts.connect).await? {
            return Ok(vec![(address, Address::default())]);
        }
        #[cfg(feature = "cluster")]
        {
            let nodes = self.call(b"", &commands::cluster_slots()).await?.value;
            let nodes = crate::servers::slots::nodes(nodes, self.target.host())?.into_iter();
            Ok(nodes
                .map(|(host, port)| (format!("{host}:{port}"), Address(Some((host, port)))))
                .collect())
        }
        #[cfg(not(feature = "cluster"))]
        Ok(Vec::new())
    }

    /// Opens a connection to one of [`Node::servers`] for messages alone.
    pub(crate) async fn open_to_hear<E: Ear>(
        &self,
        server: &str,
        address: &Address,
        ear: &Arc<E>,
    ) -> Result<Arc<Connection>, Error> {
        let within = self.timeouts.connect;
        #[cfg(feature = "cluster")]
        if let Some((host, port)) = &address.0 {
            return self.target.open_at(host, *port, within, ear).await;
        }
        let _ = address;
        self.target.open_to(server, within, ear).await
    }

    /// Returns whether keys are on several nodes.
    pub(crate) fn is_cluster(&self) -> bool {
        self.target.is_cluster()
    }

    /// Has the next connection look anew for the server that has its key.
    pub(crate) fn look_up_again(&self) {
        self.target.look_up_again();
        #[cfg(feature = "cluster")]
        self.slots.forget();
    }
}
