//! Asynchronous mutexes by name. They are fair: who asks first comes first.
//! A mutex is made when it is asked for and forgotten when it is idle.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type Map<K, T> = Mutex<HashMap<K, Arc<AsyncMutex<T>>>>;

/// What a mutex protects.
pub(crate) trait Content: Default {
    /// Whether it need not be remembered.
    fn is_idle(&self) -> bool;
}

impl Content for () {
    fn is_idle(&self) -> bool {
        true
    }
}

/// The mutexes.
pub(crate) struct KeyedMutex<K, T> {
    map: Arc<Map<K, T>>,
}

impl<K, T> Default for KeyedMutex<K, T> {
    fn default() -> Self {
        Self {
            map: Arc::default(),
        }
    }
}

impl<K: Clone + Eq + Hash, T: Content> KeyedMutex<K, T> {
    fn seat(&self, key: &K) -> Seat<K, T> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        Seat {
            mutex: Arc::clone(map.entry(key.clone()).or_default()),
            map: Arc::clone(&self.map),
            key: key.clone(),
        }
    }

    /// Waits for its turn. Who stops waiting leaves the queue.
    pub(crate) async fn lock(&self, key: &K) -> Turn<K, T> {
        let seat = self.seat(key);
        Turn {
            content: Arc::clone(&seat.mutex).lock_owned().await,
            _seat: seat,
        }
    }

    /// Takes the turn if nobody has it or waits for it.
    pub(crate) fn try_lock(&self, key: &K) -> Option<Turn<K, T>> {
        let seat = self.seat(key);
        Some(Turn {
            content: Arc::clone(&seat.mutex).try_lock_owned().ok()?,
            _seat: seat,
        })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.map.lock().unwrap().len()
    }
}

/// Who waits for a mutex, or has it.
struct Seat<K: Clone + Eq + Hash, T: Content> {
    mutex: Arc<AsyncMutex<T>>,
    map: Arc<Map<K, T>>,
    key: K,
}

impl<K: Clone + Eq + Hash, T: Content> Drop for Seat<K, T> {
    fn drop(&mut self) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        // One is the map's and one is ours. Who comes now has to wait for the map.
        let is_last = Arc::strong_count(&self.mutex) == 2;
        if is_last && self.mutex.try_lock().is_ok_and(|content| content.is_idle()) {
            map.remove(&self.key);
        }
    }
}

/// The turn of one. It ends when this is dropped.
pub(crate) struct Turn<K: Clone + Eq + Hash, T: Content> {
    content: OwnedMutexGuard<T>,
    _seat: Seat<K, T>,
}

impl<K: Clone + Eq + Hash, T: Content> Deref for Turn<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.content
    }
}

impl<K: Clone + Eq + Hash, T: Content> DerefMut for Turn<K, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_come_in_the_order_of_asking_and_who_leaves_is_skipped() {
        let mutexes = KeyedMutex::<u8, ()>::default();
        let first = mutexes.lock(&1).await;
        assert!(mutexes.try_lock(&1).is_none());
        assert!(mutexes.try_lock(&2).is_some());
        let mut second = Box::pin(mutexes.lock(&1));
        let mut third = Box::pin(mutexes.lock(&1));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(futures_util::poll!(&mut third).is_pending());
        drop(second);
        drop(first);
        assert!(
            mutexes.try_lock(&1).is_none(),
            "a newcomer passed the queue"
        );
        drop(third.await);
        assert_eq!(mutexes.len(), 0);
    }

    #[derive(Default)]
    struct Kept(bool);

    impl Content for Kept {
        fn is_idle(&self) -> bool {
            !self.0
        }
    }

    #[tokio::test]
    async fn only_what_is_idle_is_forgotten() {
        let mutexes = KeyedMutex::<u8, Kept>::default();
        mutexes.lock(&1).await.0 = true;
        assert_eq!(mutexes.len(), 1);
        mutexes.lock(&1).await.0 = false;
        assert_eq!(mutexes.len(), 0);
    }
}
