use super::*;

const TOLERANCE: Nanos = 10 * MS;

/// One operation of `owner` on lock `l`, sent and answered at these milliseconds.
fn operation(owner: &str, sent_ms: u64, answered_ms: u64, request: Request) -> Operation {
    Operation {
        client: 0,
        connection: 0,
        lock: "l".into(),
        owner: owner.into(),
        request,
        sent: sent_ms * MS,
        answered: Some(answered_ms * MS),
        queued: None,
        outcome: Outcome::Pending,
    }
}

fn granted(owner: &str, sent_ms: u64, answered_ms: u64, lease_ms: u64, token: i64) -> Operation {
    let request = Request::Acquire {
        lease_ms,
        block_ms: None,
        mode: Mode::Exclusive,
        session: false,
    };
    Operation {
        outcome: Outcome::Granted(token),
        ..operation(owner, sent_ms, answered_ms, request)
    }
}

fn queued(owner: &str, sent_ms: u64, seen_ms: u64, answered_ms: u64, token: i64) -> Operation {
    Operation {
        queued: Some(seen_ms * MS),
        ..granted(owner, sent_ms, answered_ms, 10, token)
    }
}

fn renewed(owner: &str, sent_ms: u64, answered_ms: u64, lease_ms: u64) -> Operation {
    Operation {
        outcome: Outcome::Renewed,
        ..operation(owner, sent_ms, answered_ms, Request::Renew { lease_ms })
    }
}

fn released(owner: &str, sent_ms: u64, answered_ms: u64) -> Operation {
    Operation {
        outcome: Outcome::Released,
        ..operation(owner, sent_ms, answered_ms, Request::Release)
    }
}

fn with(outcome: Outcome, operation: Operation) -> Operation {
    Operation {
        outcome,
        ..operation
    }
}

fn interference(effect: Effect, from_ms: u64, until_ms: u64) -> Interference {
    Interference {
        what: "test".into(),
        effect,
        lock: None,
        from: from_ms * MS,
        until: until_ms * MS,
    }
}

#[track_caller]
fn assert_found(
    operations: impl Into<Vec<Operation>>,
    interferences: impl Into<Vec<Interference>>,
    expected: &[Promise],
) {
    let history = History {
        operations: operations.into(),
        interferences: interferences.into(),
    };
    let breaches = check(&history, TOLERANCE);
    let found: Vec<Promise> = breaches.iter().map(|breach| breach.promise).collect();
    assert_eq!(found, expected, "{breaches:#?}");
}

#[track_caller]
fn assert_good(operations: impl Into<Vec<Operation>>) {
    assert_found(operations, [], &[]);
}

#[track_caller]
fn assert_breach(operations: impl Into<Vec<Operation>>, promise: Promise) {
    assert_found(operations, [], &[promise]);
}

#[test]
fn one_after_the_other_with_rising_tokens_is_good() {
    assert_good([
        granted("a", 0, 1, 100, 1),
        granted("a", 10, 11, 100, 1),
        released("a", 20, 21),
        granted("b", 22, 23, 100, 2),
        released("b", 30, 31),
        granted("a", 32, 33, 100, 3),
    ]);
}

#[test]
fn a_token_belongs_to_one_holding() {
    assert_breach(
        [
            granted("a", 0, 1, 100, 7),
            released("a", 2, 3),
            granted("b", 4, 5, 100, 7),
        ],
        Promise::Tokens,
    );
}

#[test]
fn tokens_rise_over_all_locks() {
    let mut elsewhere = granted("b", 4, 5, 100, 6);
    elsewhere.lock = "another".into();
    assert_breach([granted("a", 0, 1, 100, 7), elsewhere], Promise::Tokens);
}

#[test]
fn tokens_of_grants_at_one_time_may_be_in_any_order() {
    let mut elsewhere = granted("b", 1, 5, 100, 6);
    elsewhere.lock = "another".into();
    assert_good([granted("a", 0, 2, 100, 7), elsewhere]);
}

#[test]
fn a_resent_request_may_report_an_old_grant() {
    let lost = with(Outcome::Lost, granted("a", 0, 5, 100, 0));
    let mut elsewhere = granted("b", 6, 7, 100, 8);
    elsewhere.lock = "another".into();
    assert_good([lost, elsewhere, granted("a", 10, 11, 100, 7)]);
}

#[test]
fn re_entry_keeps_the_token() {
    assert_breach(
        [granted("a", 0, 1, 100, 7), granted("a", 10, 11, 100, 8)],
        Promise::Tokens,
    );
    assert_good([granted("a", 0, 1, 100, 7), granted("a", 95, 101, 100, 8)]);
}

#[test]
fn two_owners_at_one_time_are_a_breach() {
    assert_breach(
        [granted("a", 0, 1, 100, 1), granted("b", 50, 51, 100, 2)],
        Promise::Exclusion,
    );
}

#[test]
fn the_breach_is_seen_behind_a_longer_hold_of_the_same_owner() {
    assert_breach(
        [
            granted("a", 0, 1, 500, 1),
            granted("b", 600, 601, 1000, 2),
            renewed("b", 610, 611, 2000),
            granted("c", 700, 701, 10, 3),
            granted("c", 710, 711, 50, 3),
        ],
        Promise::Exclusion,
    );
}

#[test]
fn a_lease_that_is_over_protects_nobody() {
    assert_good([granted("a", 0, 1, 50, 1), granted("b", 50, 51, 100, 2)]);
}

#[test]
fn the_tolerance_covers_the_last_moments_of_a_lease() {
    assert_good([granted("a", 0, 1, 50, 1), granted("b", 40, 41, 100, 2)]);
    assert_breach(
        [granted("a", 0, 1, 50, 1), granted("b", 30, 31, 100, 2)],
        Promise::Exclusion,
    );
}

#[test]
fn a_queued_grant_counts_from_its_renewal() {
    let waiter = queued("a", 0, 5, 1000, 1);
    let other = granted("b", 1050, 1051, 100, 2);
    assert_good([waiter.clone(), other.clone()]);
    assert_breach(
        [waiter, renewed("a", 1001, 1002, 100), other],
        Promise::Exclusion,
    );
}

#[test]
fn a_renewal_sets_the_end_of_the_lease_and_may_shorten_it() {
    let long = granted("a", 0, 1, 1000, 1);
    assert_good([
        long.clone(),
        renewed("a", 10, 11, 20),
        granted("b", 100, 101, 100, 2),
    ]);
    let refused = with(Outcome::NotHeld, renewed("a", 10, 11, 20));
    assert_found(
        [long, refused, granted("b", 100, 101, 100, 2)],
        [],
        &[Promise::Exclusion, Promise::Possession],
    );
}

#[test]
fn a_release_ends_the_hold_when_it_is_sent() {
    assert_good([
        granted("a", 0, 1, 1000, 1),
        released("a", 10, 30),
        granted("b", 11, 12, 100, 2),
    ]);
}

#[test]
fn a_release_of_an_inner_hold_does_not() {
    let inner = with(Outcome::StillHeld, released("a", 10, 11));
    assert_breach(
        [
            granted("a", 0, 1, 1000, 1),
            inner,
            granted("b", 20, 21, 100, 2),
        ],
        Promise::Exclusion,
    );
}

#[test]
fn a_lost_release_or_renewal_may_come_into_force_later() {
    let release = with(Outcome::Lost, released("a", 10, 30));
    assert_good([
        granted("a", 0, 1, 1000, 1),
        release,
        renewed("a", 40, 41, 1000),
        granted("b", 50, 51, 100, 2),
    ]);
    let renewal = with(Outcome::Lost, renewed("a", 10, 30, 20));
    assert_good([
        granted("a", 0, 1, 1000, 1),
        renewal,
        granted("b", 50, 51, 100, 2),
    ]);
}

#[test]
fn lost_operations_excuse_no_breach_of_others() {
    let lost = with(Outcome::Lost, granted("c", 2, 30, 1000, 0));
    assert_breach(
        [
            granted("a", 0, 1, 1000, 1),
            lost,
            with(Outcome::Lost, released("d", 3, 30)),
            granted("b", 50, 51, 100, 2),
        ],
        Promise::Exclusion,
    );
}

#[test]
fn nobody_is_told_that_it_lost_what_it_certainly_holds() {
    let renewal = with(Outcome::NotHeld, renewed("a", 10, 11, 100));
    assert_breach([granted("a", 0, 1, 1000, 1), renewal], Promise::Possession);
    let release = with(Outcome::NotHeld, released("a", 10, 11));
    assert_breach([granted("a", 0, 1, 1000, 1), release], Promise::Possession);
    let re_entry = with(Outcome::NotAvailable, granted("a", 10, 11, 100, 0));
    assert_breach([granted("a", 0, 1, 1000, 1), re_entry], Promise::Possession);
    let late = with(Outcome::NotHeld, renewed("a", 980, 1001, 100));
    assert_good([granted("a", 0, 1, 1000, 1), late]);
}

#[test]
fn an_owner_whose_every_answer_came_has_counted_its_holds_right() {
    let held = granted("a", 0, 1, 1000, 1);
    let miscounted = with(
        Outcome::Error("HOLDCOUNT".into()),
        granted("a", 20, 21, 100, 0),
    );
    assert_breach([held.clone(), miscounted.clone()], Promise::Possession);
    let lost = with(Outcome::Lost, granted("a", 10, 11, 100, 0));
    assert_good([held, lost, miscounted]);
}

#[test]
fn an_interference_ends_the_holds_before_it_and_no_others() {
    let operations = [granted("a", 0, 1, 1000, 1), granted("b", 20, 21, 1000, 2)];
    let deletion = interference(Effect::EndsHolds, 5, 10);
    assert_found(operations.clone(), [deletion.clone()], &[]);
    let mut elsewhere = deletion.clone();
    elsewhere.lock = Some("another".into());
    assert_found(operations.clone(), [elsewhere], &[Promise::Exclusion]);
    let pause = interference(Effect::HoldsCommandsBack, 5, 10);
    assert_found(operations, [pause], &[Promise::Exclusion]);
    assert_found(
        [granted("a", 11, 12, 1000, 1), granted("b", 20, 21, 1000, 2)],
        [deletion],
        &[Promise::Exclusion],
    );
}

#[test]
fn a_grant_during_an_interference_is_not_certain() {
    let deletion = interference(Effect::EndsHolds, 5, 30);
    assert_found(
        [granted("a", 6, 7, 1000, 1), granted("b", 20, 21, 1000, 2)],
        [deletion],
        &[],
    );
}

#[test]
fn waiters_are_granted_in_the_order_in_which_they_were_seen_to_queue() {
    assert_good([queued("a", 0, 5, 100, 1), queued("b", 6, 8, 200, 2)]);
    assert_breach(
        [queued("a", 0, 5, 200, 2), queued("b", 6, 8, 190, 1)],
        Promise::Order,
    );
}

#[test]
fn a_newcomer_that_passes_the_queue_is_a_breach_of_order() {
    assert_breach(
        [queued("a", 0, 5, 200, 2), granted("b", 6, 8, 1, 1)],
        Promise::Order,
    );
}

#[test]
fn waiters_that_were_not_seen_to_queue_may_come_in_any_order() {
    assert_good([queued("a", 0, 7, 200, 2), queued("b", 6, 8, 190, 1)]);
}

#[test]
fn what_was_held_back_was_not_seen_in_the_queue() {
    assert_found(
        [queued("a", 0, 5, 200, 2), queued("b", 6, 8, 190, 1)],
        [interference(Effect::HoldsCommandsBack, 1, 4)],
        &[],
    );
}

#[test]
fn the_place_of_an_older_lost_request_counts() {
    let lost = with(Outcome::Lost, granted("b", 0, 2, 10, 0));
    assert_good([lost, queued("a", 1, 5, 200, 2), queued("b", 6, 8, 190, 1)]);
}

#[test]
fn an_operation_without_an_answer_is_a_breach_of_liveness() {
    let silent = with(Outcome::Silent, granted("a", 0, 1000, 10, 0));
    assert_breach([silent], Promise::Liveness);
    let pending = Operation {
        answered: None,
        ..with(Outcome::Pending, granted("a", 0, 1000, 10, 0))
    };
    assert_breach([pending], Promise::Liveness);
}

#[test]
fn an_operation_that_was_told_something_or_lost_its_connection_is_not() {
    assert_good([
        with(Outcome::Lost, granted("a", 0, 1000, 10, 0)),
        with(Outcome::NotAvailable, granted("b", 0, 1000, 10, 0)),
        with(
            Outcome::Error("UNBLOCKED".into()),
            granted("c", 0, 1000, 10, 0),
        ),
    ]);
}
