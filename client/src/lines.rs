//! Tasks of this process that wait for the same thing, in lines by name: first come,
//! first served.
//!
//! What is offered to the first in line stays on offer until its task is polled. A task
//! that is not polled in time misses its turn: the offer is taken back, and the task
//! comes to the end of the line when it is polled at last.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::mutex::locked;

/// The lines by their names, and what is offered to whom.
pub(crate) struct Lines<K, T> {
    state: Mutex<State<K, T>>,
    /// Told when a line has ended.
    ended: Notify,
}

struct State<K, T> {
    lines: HashMap<K, Line>,
    /// Who came first has the least number.
    came: u64,
    offered: HashMap<u64, (T, Instant)>,
}

#[derive(Default)]
struct Line {
    waiting: BTreeMap<u64, Option<Waker>>,
    emptied: Arc<Notify>,
}

/// A position in a line. Completes with what is offered, or with none if the turn was
/// missed. Whoever drops it leaves the line, and what was offered.
pub(crate) struct Position<K: Eq + Hash, T> {
    lines: Arc<Lines<K, T>>,
    name: K,
    serial: u64,
}

impl<K, T> Default for Lines<K, T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                lines: HashMap::new(),
                came: 0,
                offered: HashMap::new(),
            }),
            ended: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, T> Lines<K, T> {
    /// Comes to the end of this line. If it is a new line, returns what is told when
    /// nobody is left in it: somebody has to see to it that the first is offered
    /// something, and to end the line.
    pub(crate) fn enter(self: &Arc<Self>, name: &K) -> (Position<K, T>, Option<Arc<Notify>>) {
        let mut state = locked(&self.state);
        state.came += 1;
        let serial = state.came;
        let is_new = !state.lines.contains_key(name);
        let line = state.lines.entry(name.clone()).or_default();
        line.waiting.insert(serial, None);
        let emptied = is_new.then(|| Arc::clone(&line.emptied));
        let position = Position {
            lines: Arc::clone(self),
            name: name.clone(),
            serial,
        };
        (position, emptied)
    }

    /// Offers something to the first in line, or returns it where nobody waits.
    pub(crate) fn offer(&self, name: &K, offer: T) -> Result<(), T> {
        let mut offer = Some(offer);
        self.offer_if(name, || offer.take());
        offer.map_or(Ok(()), Err)
    }

    /// Offers what this makes, if anybody waits and it makes something.
    pub(crate) fn offer_if(&self, name: &K, make: impl FnOnce() -> Option<T>) -> bool {
        let mut state = locked(&self.state);
        let Some(line) = state.lines.get_mut(name).filter(|line| !line.is_empty()) else {
            return false;
        };
        let Some(offer) = make() else {
            return false;
        };
        let Some((serial, waker)) = line.waiting.pop_first() else {
            return false;
        };
        line.tell_if_empty();
        state.offered.insert(serial, (offer, Instant::now()));
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Returns whether nobody waits in this line.
    pub(crate) fn is_empty(&self, name: &K) -> bool {
        let state = locked(&self.state);
        state.lines.get(name).is_none_or(Line::is_empty)
    }

    /// Ends a line in which nobody waits. Returns whether it has ended.
    pub(crate) fn end_if_empty(&self, name: &K) -> bool {
        let mut state = locked(&self.state);
        let ends = state.lines.get(name).is_none_or(Line::is_empty);
        if ends {
            state.lines.remove(name);
            drop(state);
            self.ended.notify_waiters();
        }
        ends
    }

    /// Waits until all lines in which nobody waits have ended.
    pub(crate) async fn settled(&self) {
        loop {
            let ended = self.ended.notified();
            if !locked(&self.state).lines.values().any(Line::is_empty) {
                return;
            }
            ended.await;
        }
    }

    /// Takes back what nobody has taken for this long.
    pub(crate) fn take_back(&self, after: Duration) -> Vec<T> {
        let mut state = locked(&self.state);
        let missed = |(_, since): &mut (T, Instant)| since.elapsed() >= after;
        let taken = state.offered.extract_if(|_, offered| missed(offered));
        taken.map(|(_, (offer, _))| offer).collect()
    }
}

impl Line {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn tell_if_empty(&self) {
        if self.is_empty() {
            self.emptied.notify_one();
        }
    }
}

impl<K: Eq + Hash, T> Future for Position<K, T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = locked(&self.lines.state);
        if let Some((offer, _)) = state.offered.remove(&self.serial) {
            return Poll::Ready(Some(offer));
        }
        let line = state.lines.get_mut(&self.name);
        match line.and_then(|line| line.waiting.get_mut(&self.serial)) {
            Some(waker) => {
                if !waker.as_ref().is_some_and(|it| it.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    }
}

impl<K: Eq + Hash, T> Drop for Position<K, T> {
    fn drop(&mut self) {
        let mut state = locked(&self.lines.state);
        let offered = state.offered.remove(&self.serial);
        if let Some(line) = state.lines.get_mut(&self.name)
            && line.waiting.remove(&self.serial).is_some()
        {
            line.tell_if_empty();
        }
        drop(state);
        // Whoever is offered it next comes into the same lines.
        drop(offered);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    type Texts = Arc<Lines<&'static str, &'static str>>;

    fn lines() -> Texts {
        Arc::default()
    }

    #[tokio::test(start_paused = true)]
    async fn offers_go_to_the_first_in_line() {
        let lines = lines();
        let (mut first, is_new) = lines.enter(&"line");
        assert!(is_new.is_some());
        let (mut second, is_new) = lines.enter(&"line");
        assert!(is_new.is_none());
        assert_eq!(lines.offer(&"other", "one"), Err("one"));
        assert_eq!(lines.offer(&"line", "one"), Ok(()));
        assert_eq!((&mut second).now_or_never(), None);
        assert_eq!((&mut first).now_or_never(), Some(Some("one")));
        assert_eq!(lines.offer(&"line", "two"), Ok(()));
        assert_eq!(lines.offer(&"line", "three"), Err("three"));
        assert_eq!(second.await, Some("two"));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_offered_nothing_stays_the_first() {
        let lines = lines();
        assert!(!lines.offer_if(&"line", || unreachable!("nobody waits")));
        let (position, _) = lines.enter(&"line");
        assert!(!lines.offer_if(&"line", || None));
        assert!(lines.offer_if(&"line", || Some("one")));
        assert_eq!(position.await, Some("one"));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_is_offered_nothing_and_leaves_what_was_offered() {
        let lines: Arc<Lines<&str, Arc<()>>> = Arc::default();
        let (first, _) = lines.enter(&"line");
        let (second, _) = lines.enter(&"line");
        let (third, _) = lines.enter(&"line");
        drop(first);
        let offered = Arc::new(());
        assert!(lines.offer(&"line", Arc::clone(&offered)).is_ok());
        drop(second);
        assert_eq!(Arc::strong_count(&offered), 1);
        assert!(lines.offer(&"line", Arc::clone(&offered)).is_ok());
        assert!(third.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn an_offer_that_is_not_taken_is_taken_back_and_the_turn_is_missed() {
        let lines = lines();
        let (position, _) = lines.enter(&"line");
        let after = Duration::from_secs(2);
        assert_eq!(lines.offer(&"line", "one"), Ok(()));
        tokio::time::advance(after / 2).await;
        assert!(lines.take_back(after).is_empty());
        tokio::time::advance(after / 2).await;
        assert_eq!(lines.take_back(after), ["one"]);
        assert_eq!(position.await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_tells_when_it_is_empty_and_is_forgotten_once_it_ends() {
        let lines = lines();
        let (first, emptied) = lines.enter(&"line");
        let (second, _) = lines.enter(&"line");
        let emptied = emptied.unwrap();
        drop(first);
        assert!(emptied.notified().now_or_never().is_none());
        assert!(!lines.end_if_empty(&"line"));
        assert!(lines.settled().now_or_never().is_some());
        drop(second);
        assert!(emptied.notified().now_or_never().is_some());
        let mut settled = Box::pin(lines.settled());
        assert!((&mut settled).now_or_never().is_none() && lines.is_empty(&"line"));
        assert!(lines.end_if_empty(&"line"));
        assert!(settled.now_or_never().is_some());
        assert!(locked(&lines.state).lines.is_empty());
        assert!(lines.enter(&"line").1.is_some());
    }
}
