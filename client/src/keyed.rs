//! Asynchronous mutexes by name. They are fair: first come, first served.
//! A mutex is made when it is asked for and forgotten when it is idle.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::mutex::locked;

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

impl<K, T> Clone for KeyedMutex<K, T> {
    fn clone(&self) -> Self {
        Self {
            map: Arc::clone(&self.map),
        }
    }
}

impl<K, T> Default for KeyedMutex<K, T> {
    fn default() -> Self {
        Self {
            map: Arc::default(),
        }
    }
}

impl<K: Clone + Eq + Hash, T: Content> KeyedMutex<K, T> {
    fn slot(&self, key: &K) -> Slot<K, T> {
        let mut map = locked(&self.map);
        Slot {
            mutex: Some(Arc::clone(map.entry(key.clone()).or_default())),
            map: Arc::clone(&self.map),
            key: key.clone(),
        }
    }

    /// Waits for its permit. A caller that stops waiting leaves the queue.
    pub(crate) async fn lock(&self, key: &K) -> Permit<K, T> {
        let slot = self.slot(key);
        Permit {
            content: slot.mutex().lock_owned().await,
            _slot: slot,
        }
    }

    /// Takes the permit if nobody has it or waits for it.
    pub(crate) fn try_lock(&self, key: &K) -> Option<Permit<K, T>> {
        let slot = self.slot(key);
        Some(Permit {
            content: slot.mutex().try_lock_owned().ok()?,
            _slot: slot,
        })
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.map.lock().unwrap().len()
    }
}

/// One that waits for a mutex, or has it.
struct Slot<K: Clone + Eq + Hash, T: Content> {
    /// There until this is dropped.
    mutex: Option<Arc<AsyncMutex<T>>>,
    map: Arc<Map<K, T>>,
    key: K,
}

impl<K: Clone + Eq + Hash, T: Content> Slot<K, T> {
    fn mutex(&self) -> Arc<AsyncMutex<T>> {
        self.mutex.clone().unwrap_or_default()
    }
}

impl<K: Clone + Eq + Hash, T: Content> Drop for Slot<K, T> {
    fn drop(&mut self) {
        // Newcomers have to wait for the map, and so have those that leave.
        let mut map = locked(&self.map);
        self.mutex = None;
        let is_idle = map.get(&self.key).is_some_and(|mutex| {
            let is_last = Arc::strong_count(mutex) == 1;
            is_last && mutex.try_lock().is_ok_and(|content| content.is_idle())
        });
        if is_idle {
            map.remove(&self.key);
        }
    }
}

/// The right to what a mutex protects. It ends when this is dropped.
pub(crate) struct Permit<K: Clone + Eq + Hash, T: Content> {
    content: OwnedMutexGuard<T>,
    _slot: Slot<K, T>,
}

impl<K: Clone + Eq + Hash, T: Content> Deref for Permit<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.content
    }
}

impl<K: Clone + Eq + Hash, T: Content> DerefMut for Permit<K, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn permits_come_in_the_order_of_asking() {
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

    #[test]
    fn many_that_leave_at_once_leave_nothing() {
        let mutexes = KeyedMutex::<u32, ()>::default();
        for key in 0..2_000 {
            std::thread::scope(|scope| {
                for slot in [mutexes.slot(&key), mutexes.slot(&key)] {
                    scope.spawn(move || drop(slot));
                }
            });
        }
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
