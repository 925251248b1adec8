//! Whoever messages are for that come by a connection.

/// It hears what is published on channels to which its connection is subscribed.
pub(crate) trait Ear: Send + Sync + 'static {
    /// Called by the connection, which must not wait.
    fn hear(&self, channel: &[u8], message: &[u8]);
}
