//! A hold that lasts as long as a connection.
//!
//! The server renews such a hold and ends it when the connection closes. The
//! client renews it all the same, over that very connection: each answer shows
//! that both are still there, and the hold is relied upon from it for no longer
//! than a lease, as any other. When the connection closes the hold is lost at
//! once; when it is lost for another reason the connection is closed, or the
//! server would keep up what nobody relies on.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::Cmd;

use crate::commands;
use crate::error::Error;
use crate::hold::{Hold, Lost};
use crate::link::{Link, ServerSideName};

/// The connection that a hold is tied to.
pub(crate) struct Session {
    link: Mutex<Option<Link>>,
    /// What the server called it when it tied the hold. In a cluster the link may
    /// have another connection by now.
    name: Option<ServerSideName>,
    response: Duration,
}

impl Session {
    pub(crate) fn new(link: Link, name: Option<ServerSideName>, response: Duration) -> Self {
        Self {
            link: Mutex::new(Some(link)),
            name,
            response,
        }
    }

    fn link(&self) -> Option<Link> {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.clone()
    }

    /// Gives the connection away. It closes when the receiver drops it.
    pub(crate) fn take(&self) -> Option<Link> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.take()
    }

    /// Sends a renewal over this connection. Says why the hold is lost, if it is.
    pub(crate) async fn renew(&self, key: &[u8], cmd: &Cmd) -> Result<Option<Lost>, Error> {
        let Some(link) = self.link() else {
            return Ok(Some(Lost::Disconnected));
        };
        let asked = async {
            if !commands::found(&link.ask_within(self.response, key, cmd).await?)? {
                return Ok(Some(Lost::Refused));
            }
            let is_the_same = link.name_at(self.response, key).await? == self.name;
            Ok((!is_the_same).then_some(Lost::Disconnected))
        };
        match asked.await {
            Err(Error::Unavailable(cause)) if cause.is_connection_dropped() => {
                Ok(Some(Lost::Disconnected))
            }
            answered => answered,
        }
    }
}

/// Has a hold lost when its connection closes, and its connection closed when
/// the hold is lost. Ends with the hold.
pub(crate) fn watch(hold: &Arc<Hold>) {
    let Some(link) = hold.session.as_ref().and_then(Session::link) else {
        return;
    };
    let interrupted = link.interrupted();
    let lost = hold.lost();
    let hold = Arc::downgrade(hold);
    tokio::spawn(async move {
        let upgrade = || Weak::upgrade(&hold);
        tokio::pin!(lost);
        loop {
            tokio::select! {
                why = &mut lost => {
                    // Who releases it closes the connection after that.
                    if why != Lost::Released
                        && let Some(hold) = upgrade()
                    {
                        drop(hold.session.as_ref().and_then(Session::take));
                    }
                    return;
                }
                () = interrupted.notified() => {
                    // In a cluster it may have been the connection to another node.
                    if let Some(hold) = upgrade() {
                        let _ = hold.renew().await;
                    }
                }
            }
        }
    });
}
