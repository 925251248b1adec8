use super::*;
use crate::keys::KeyRef;
use crate::request::Owner;

fn hold() -> HoldId {
    HoldId {
        key: KeyRef { db: 0, name: b"k" }.into(),
        owner: Owner::new(b"x").unwrap(),
    }
}

fn token() -> FencingToken {
    FencingToken::new(7).unwrap()
}

fn ended(token: FencingToken, by: EndedBy) -> Ended {
    Ended {
        owner: hold().owner,
        token,
        by,
    }
}

/// What is on its way to this client, for no hold in particular.
fn delivery_to(client: u64) -> Delivery {
    Delivery {
        recipient: ClientId(client).into(),
        ties: false,
    }
}

/// Grants of one owner on one lock, numbered from 1.
#[derive(Default)]
struct Story {
    deliveries: Deliveries,
    holds: i64,
}

impl Story {
    fn with_holds(holds: i64) -> Self {
        Self {
            holds,
            ..Self::default()
        }
    }

    fn grant(&mut self, waiter: u64, hold: Option<i64>) {
        let before = self.holds;
        self.holds = hold.unwrap_or(before + 1);
        let told = Told::by_grant(hold.map(|n| HoldNumber::new(n).unwrap()));
        let delivery = delivery_to(waiter);
        self.deliveries
            .send(self::hold(), token(), delivery, told, before, self.holds);
    }

    fn delivered(&mut self, waiter: u64) {
        self.deliveries.delivered(ClientId(waiter));
    }

    fn lost(&mut self, waiter: u64) {
        if let Some(lost) = self.deliveries.lost(ClientId(waiter)) {
            assert_eq!(lost, (hold(), token()));
        }
    }

    #[track_caller]
    fn gives_back(&mut self, expected: i64) {
        let ended = ended(token(), EndedBy::Undelivered);
        let left = self.holds - expected;
        assert_eq!(self.deliveries.left(&hold(), &ended, self.holds), left);
        assert_eq!(self.deliveries.end(&hold(), &ended, self.holds), left);
        self.holds = left;
    }

    #[track_caller]
    fn is_over(&self) {
        assert!(self.deliveries.by_hold.is_empty() && self.deliveries.by_recipient.is_empty());
    }
}

#[test]
fn a_grant_that_is_heard_of_stays() {
    let mut story = Story::default();
    story.grant(1, None);
    story.delivered(1);
    story.is_over();
}

#[test]
fn a_grant_that_nobody_hears_of_is_given_back() {
    for hold in [None, Some(1)] {
        let mut story = Story::default();
        story.grant(1, hold);
        story.lost(1);
        story.gives_back(1);
        story.is_over();
    }
}

#[test]
fn a_lost_confirmation_takes_nothing_back() {
    let mut story = Story::default();
    story.grant(1, Some(1));
    story.grant(2, Some(1));
    story.lost(2);
    story.gives_back(0);
    story.delivered(1);
    story.is_over();
}

#[test]
fn a_hold_that_another_reply_will_confirm_stays() {
    let mut story = Story::default();
    story.grant(1, Some(1));
    story.grant(2, Some(1));
    story.lost(1);
    story.gives_back(0);
    story.delivered(2);
    story.is_over();
}

#[test]
fn a_hold_that_nobody_confirms_in_the_end_is_given_back() {
    for settle_between in [false, true] {
        let mut story = Story::default();
        story.grant(1, Some(1));
        story.grant(2, Some(1));
        story.lost(1);
        if settle_between {
            story.gives_back(0);
        }
        story.lost(2);
        story.gives_back(1);
        story.is_over();
    }
}

#[test]
fn of_two_holds_the_one_that_is_heard_of_stays() {
    for (lost, heard) in [(1, 2), (2, 1)] {
        let mut story = Story::default();
        story.grant(1, None);
        story.grant(2, None);
        story.lost(lost);
        story.delivered(heard);
        story.gives_back(1);
        story.is_over();
    }
}

#[test]
fn two_holds_of_which_nobody_hears_are_both_given_back() {
    let mut story = Story::default();
    story.grant(1, None);
    story.grant(2, Some(2));
    story.grant(3, Some(2));
    for waiter in [1, 2, 3] {
        story.lost(waiter);
    }
    story.gives_back(2);
    story.is_over();
}

#[test]
fn holds_from_before_are_never_given_back() {
    let mut story = Story::with_holds(2);
    story.grant(1, None);
    story.lost(1);
    story.gives_back(1);
    assert_eq!(story.holds, 2);
    story.is_over();
}

#[test]
fn a_reply_to_the_same_hold_speaks_for_it() {
    let mut story = Story::default();
    story.grant(1, Some(1));
    story.deliveries.told(hold, Told::at_least(1));
    story.lost(1);
    story.gives_back(0);
    story.is_over();
}

#[test]
fn a_renewal_speaks_for_one_hold_only() {
    let mut story = Story::default();
    story.grant(1, None);
    story.grant(2, None);
    story.deliveries.told(hold, Told::at_least(1));
    story.lost(1);
    story.lost(2);
    story.gives_back(1);
    story.is_over();
}

#[test]
fn a_nested_hold_speaks_for_itself_alone() {
    let mut story = Story::default();
    story.grant(1, None);
    story.holds += 1;
    story.deliveries.told(hold, Told::ONE_MORE);
    story.lost(1);
    story.gives_back(1);
    assert_eq!(story.holds, 1);
    story.is_over();
}

#[test]
fn a_release_that_leaves_holds_speaks_for_one_of_them() {
    let mut story = Story::with_holds(1);
    story.grant(1, None);
    story.holds -= 1;
    story
        .deliveries
        .released(hold, Told::by_release(ReleaseExtent::One), story.holds);
    story.lost(1);
    story.gives_back(0);
    story.is_over();
}

#[test]
fn after_the_last_release_nothing_is_on_its_way() {
    let mut story = Story::default();
    story.grant(1, None);
    story.deliveries.ended(hold);
    story.is_over();
    assert_eq!(story.deliveries.lost(ClientId(1)), None);
}

#[test]
fn a_new_token_ends_what_was_on_its_way_before() {
    let mut story = Story::default();
    story.grant(1, None);
    let newer = FencingToken::new(8).unwrap();
    story
        .deliveries
        .send(self::hold(), newer, delivery_to(2), Told::ONE_MORE, 0, 1);
    let older = ended(token(), EndedBy::Undelivered);
    assert_eq!(story.deliveries.end(&hold(), &older, 1), 1);
    assert_eq!(story.deliveries.lost(ClientId(1)), None);
    assert_eq!(story.deliveries.lost(ClientId(2)), Some((hold(), newer)));
    let newer = ended(newer, EndedBy::Undelivered);
    assert_eq!(story.deliveries.end(&hold(), &newer, 1), 0);
    story.is_over();
}

#[test]
fn it_is_known_which_grant_ties_a_hold_to_its_connection() {
    let mut story = Story::default();
    story.grant(1, None);
    assert_eq!(story.deliveries.tied_by(ClientId(1)), None);
    story.deliveries.tie(ClientId(1));
    assert_eq!(story.deliveries.tied_by(ClientId(1)), Some(hold()));
    story.delivered(1);
    assert_eq!(story.deliveries.tied_by(ClientId(1)), None);
    story.is_over();
}

#[test]
fn a_session_that_is_over_leaves_nothing_on_its_way() {
    let session = ended(token(), EndedBy::Session);
    let mut story = Story::with_holds(1);
    assert_eq!(story.deliveries.end(&hold(), &session, 1), 0);
    story.grant(1, None);
    assert_eq!(story.deliveries.end(&hold(), &session, 2), 0);
    story.is_over();
}

#[test]
fn what_is_on_its_way_stands_as_long_as_the_hold_that_it_speaks_for() {
    let mut story = Story::with_holds(1);
    story.grant(1, None);
    story
        .deliveries
        .send_renewal(hold(), token(), delivery_to(2), 2);
    let other = FencingToken::new(8).unwrap();
    let stand = |story: &Story, token, holds| {
        [1, 2].map(|client| {
            story
                .deliveries
                .stands(ClientId(client).into(), token, holds)
        })
    };
    assert_eq!(stand(&story, token(), 2), [true, true]);
    assert_eq!(stand(&story, token(), 1), [false, false]);
    assert_eq!(stand(&story, other, 2), [false, false]);
    let session = ended(token(), EndedBy::Session);
    assert_eq!(story.deliveries.end(&hold(), &session, 2), 0);
    assert_eq!(stand(&story, token(), 2), [false, false]);
}

#[test]
fn one_loss_is_told_until_it_is_settled() {
    let mut story = Story::default();
    story.grant(1, None);
    story.grant(2, None);
    assert!(story.deliveries.lost(ClientId(1)).is_some());
    assert!(story.deliveries.lost(ClientId(2)).is_none());
    story.gives_back(2);
    story.is_over();
}

#[test]
fn replies_speak_in_the_order_of_their_commands() {
    // A nested hold on top of one that two will hear of.
    let mut story = Story::default();
    story.grant(1, Some(1));
    story.grant(2, Some(1));
    story.holds += 1;
    story.deliveries.told(hold, Told::ONE_MORE);
    story.lost(2);
    story.gives_back(0);
    story.delivered(1);
    story.is_over();
    // A renewal speaks for the first of two.
    let mut story = Story::default();
    story.grant(1, None);
    story.grant(2, None);
    story.deliveries.told(hold, Told::at_least(1));
    story.lost(2);
    story.gives_back(1);
    // A release of one of three.
    let mut story = Story::default();
    for waiter in [1, 2, 3] {
        story.grant(waiter, None);
    }
    story.holds -= 1;
    let told = Told::by_release(ReleaseExtent::One);
    story.deliveries.released(hold, told, story.holds);
    story.lost(3);
    story.gives_back(1);
    assert_eq!(story.holds, 1);
}

#[test]
fn a_release_of_a_numbered_hold_tells_how_many_are_left() {
    let mut story = Story::with_holds(3);
    story.grant(1, None);
    story.holds = 3;
    let fourth = ReleaseExtent::Hold(HoldNumber::new(4).unwrap());
    story.deliveries.released(hold, Told::by_release(fourth), 3);
    story.lost(1);
    story.gives_back(0);
    story.is_over();
}

#[test]
fn several_replies_in_a_row_say_what_each_says() {
    let replies = [
        Told::ONE_MORE,
        Told::at_least(3),
        Told::by_release(ReleaseExtent::One),
        Told::by_release(ReleaseExtent::Hold(HoldNumber::new(2).unwrap())),
        Told::at_least(1),
    ];
    for first in replies {
        for second in replies {
            for third in replies {
                for holds in 0..6 {
                    let in_turn = third.after(second.after(first.after(holds)));
                    assert_eq!(first.and(second).and(third).after(holds), in_turn);
                }
            }
        }
    }
}

#[test]
fn it_is_known_whether_anything_is_on_its_way() {
    let mut story = Story::default();
    assert!(story.deliveries.is_empty());
    story.grant(1, None);
    assert!(!story.deliveries.is_empty());
    story.delivered(1);
    assert!(story.deliveries.is_empty());
}

#[test]
fn a_numbered_release_unsays_what_was_said_before() {
    let mut story = Story::with_holds(3);
    story.grant(1, None);
    story.holds = 1;
    let second = ReleaseExtent::Hold(HoldNumber::new(2).unwrap());
    story
        .deliveries
        .released(hold, Told::by_release(second), story.holds);
    story.grant(2, None);
    story.lost(2);
    story.gives_back(1);
    story.delivered(1);
    story.is_over();
}

#[test]
fn holds_that_no_grant_added_are_never_given_back() {
    let mut story = Story::with_holds(2);
    story.grant(1, None);
    story.grant(2, None);
    story.lost(1);
    story.gives_back(1);
    // Such as were stored by hand: nobody was told of them.
    story.holds += 5;
    story.lost(2);
    story.gives_back(1);
    story.is_over();
}

#[test]
fn many_replies_in_a_row_take_no_more_room() {
    let mut story = Story::default();
    story.grant(1, None);
    for _ in 0..5 {
        story.deliveries.told(hold, Told::ONE_MORE);
    }
    assert_eq!(story.deliveries.by_hold[&hold()].replies.len(), 2);
}
