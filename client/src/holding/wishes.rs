//! How often the guards of one hold want it renewed.

use std::collections::BTreeMap;

use crate::request::Renew;

/// How often the guards of one hold want it renewed.
#[derive(Default)]
pub(crate) struct Wishes {
    /// How often it was.
    renewed: u64,
    wishes: BTreeMap<Wish, usize>,
}

/// A guard's wish: that the hold is renewed until it was renewed this often in all.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wish(u64);

impl Wishes {
    /// Adds that of a guard, which counts from now.
    pub(crate) fn add(&mut self, renew: Renew) -> Wish {
        let wish = Wish(match renew {
            Renew::Never => return Wish::default(),
            Renew::AtMost(times) => self.renewed.saturating_add(times.into()),
            Renew::Always => u64::MAX,
        });
        *self.wishes.entry(wish).or_default() += 1;
        wish
    }

    /// Removes that of a guard that goes.
    pub(crate) fn remove(&mut self, wish: Wish) {
        if let Some(guards) = self.wishes.get_mut(&wish) {
            *guards -= 1;
            if *guards == 0 {
                self.wishes.remove(&wish);
            }
        }
    }

    /// It was renewed.
    pub(crate) fn renewed(&mut self) {
        self.renewed += 1;
    }

    /// Returns whether a guard wants it renewed again.
    pub(crate) fn want_more(&self) -> bool {
        let last = self.wishes.last_key_value();
        last.is_some_and(|(wish, _)| wish.0 > self.renewed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guard_wants_as_much_as_it_asked_for_while_it_is_there() {
        let mut wishes = Wishes::default();
        assert!(!wishes.want_more());
        let never = wishes.add(Renew::Never);
        assert!(!wishes.want_more());
        let twice = wishes.add(Renew::AtMost(2));
        wishes.renewed();
        assert!(wishes.want_more());
        let (once, always) = (wishes.add(Renew::AtMost(1)), wishes.add(Renew::Always));
        let again = wishes.add(Renew::Always);
        for _ in 0..10 {
            wishes.renewed();
            assert!(wishes.want_more());
        }
        wishes.remove(always);
        assert!(wishes.want_more(), "another is there");
        wishes.remove(again);
        assert!(!wishes.want_more());
        let thrice = wishes.add(Renew::AtMost(3));
        assert!(wishes.want_more(), "it counts from now");
        for wish in [never, twice, once, thrice] {
            wishes.remove(wish);
        }
        assert!(!wishes.want_more() && wishes.wishes.is_empty());
    }
}
