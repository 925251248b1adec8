//! Who is told of a place in a queue: one entry for each wait, and for each hold that
//! came of one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Notify, mpsc};

use crate::message::{Message, Told};
use crate::mutex::locked;

/// Key and owner.
type Name = (Vec<u8>, Vec<u8>);

/// The waits of a client.
pub(crate) struct Register {
    mailboxes: Mutex<HashMap<Name, Arc<Mailbox>>>,
    /// Grants whose wait has ended: they are given back.
    orphans: mpsc::UnboundedSender<Orphan>,
}

/// A grant whose wait has ended.
pub(crate) struct Orphan {
    pub(crate) name: Name,
    pub(crate) token: u64,
}

/// Where the message for one wait arrives.
#[derive(Default)]
struct Mailbox {
    /// What was told, and by which link.
    told: Mutex<Option<(u64, Told)>>,
    told_now: Notify,
}

/// One wait in the register, for as long as this lives. A hold keeps the entry of its
/// wait, so that a late or doubled message of its grant is not taken for an orphan.
pub(crate) struct Entry {
    register: Arc<Register>,
    name: Name,
    mailbox: Arc<Mailbox>,
    granted: Option<u64>,
}

impl Register {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Orphan>) {
        let (orphans, found) = mpsc::unbounded_channel();
        let mailboxes = Mutex::default();
        (Arc::new(Self { mailboxes, orphans }), found)
    }

    fn mailboxes(&self) -> MutexGuard<'_, HashMap<Name, Arc<Mailbox>>> {
        locked(&self.mailboxes)
    }

    pub(crate) fn enter(self: &Arc<Self>, key: &[u8], owner: &[u8]) -> Entry {
        let (mailbox, name) = (Arc::new(Mailbox::default()), (key.to_vec(), owner.to_vec()));
        self.mailboxes().insert(name.clone(), Arc::clone(&mailbox));
        Entry {
            register: Arc::clone(self),
            name,
            mailbox,
            granted: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mailboxes().is_empty()
    }

    /// Passes a message that came by this link to its wait.
    pub(crate) fn hear(&self, link: u64, message: &[u8]) {
        let Some(Message { key, owner, told }) = Message::read(message) else {
            return;
        };
        let name = (key, owner);
        let mailbox = self.mailboxes().get(&name).cloned();
        match (mailbox, told) {
            (Some(mailbox), told) => mailbox.hear(link, told),
            (None, Told::Granted { token, .. }) => _ = self.orphans.send(Orphan { name, token }),
            (None, _) => {}
        }
    }
}

impl Mailbox {
    /// A late end of an earlier place does not hide a grant.
    fn hear(&self, link: u64, now: Told) {
        let mut told = locked(&self.told);
        if matches!(now, Told::Granted { .. }) || !matches!(*told, Some((_, Told::Granted { .. })))
        {
            *told = Some((link, now));
        }
        self.told_now.notify_one();
    }

    fn take(&self) -> Option<(u64, Told)> {
        locked(&self.told).take()
    }
}

impl Entry {
    /// Waits for what is told, and takes it.
    pub(crate) async fn told(&self) -> (u64, Told) {
        loop {
            if let Some(told) = self.mailbox.take() {
                return told;
            }
            self.mailbox.told_now.notified().await;
        }
    }

    /// Notes that its wait was granted with this token, so that a message which tells the
    /// same is no orphan.
    pub(crate) fn granted(mut self, token: u64) -> Self {
        self.granted = Some(token);
        self
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        {
            let mut mailboxes = self.register.mailboxes();
            if mailboxes
                .get(&self.name)
                .is_some_and(|mailbox| Arc::ptr_eq(mailbox, &self.mailbox))
            {
                mailboxes.remove(&self.name);
            }
        }
        if let Some((_, Told::Granted { token, .. })) = self.mailbox.take()
            && self.granted != Some(token)
        {
            let name = std::mem::take(&mut self.name);
            let _ = self.register.orphans.send(Orphan { name, token });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANT: &[u8] = b"1:0,1:k,1:o,2:42,4:2000,";

    #[tokio::test]
    async fn a_message_reaches_its_wait_and_a_grant_is_not_hidden() {
        let (register, mut orphans) = Register::new();
        let entry = register.enter(b"k", b"o");
        register.hear(1, GRANT);
        register.hear(1, b"1:0,1:k,1:o,1:0,1:0,");
        assert!(matches!(
            entry.told().await,
            (1, Told::Granted { token: 42, .. })
        ));
        drop(entry);
        assert!(orphans.try_recv().is_err());
        assert!(register.is_empty());
    }

    #[test]
    fn a_grant_that_nobody_took_is_an_orphan() {
        let (register, mut orphans) = Register::new();
        let (older, newer) = (register.enter(b"k", b"o"), register.enter(b"k", b"o"));
        drop(older);
        register.hear(1, GRANT);
        assert!(orphans.try_recv().is_err(), "the newer wait has it");
        drop(newer);
        assert_eq!(orphans.try_recv().unwrap().token, 42);
        register.hear(1, GRANT);
        assert_eq!(orphans.try_recv().unwrap().token, 42);
    }
}
