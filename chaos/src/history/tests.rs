use super::*;

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
        claim_ms: None,
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
        ..operation(
            owner,
            sent_ms,
            answered_ms,
            Request::Renew {
                lease_ms,
                fence: None,
            },
        )
    }
}

fn released(owner: &str, sent_ms: u64, answered_ms: u64) -> Operation {
    Operation {
        outcome: Outcome::Released,
        ..operation(
            owner,
            sent_ms,
            answered_ms,
            Request::Release {
                hold: None,
                fence: None,
            },
        )
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
fn a_hold_without_a_token_excludes_others_until_its_release() {
    let locked = with(Outcome::GrantedWithoutToken, granted("a", 0, 1, 100, 0));
    assert_breach(
        [locked.clone(), granted("b", 50, 51, 100, 2)],
        Promise::Exclusion,
    );
    assert_good([locked, released("a", 40, 45), granted("b", 42, 51, 100, 2)]);
}

#[test]
fn the_breach_is_seen_behind_a_longer_hold_of_the_same_owner() {
    assert_breach(
        [
            granted("a", 0, 1, 500, 1),
            granted("b", 600, 601, 1000, 2),
            renewed("b", 610, 611, 2000),
            granted("c", 700, 701, 2, 3),
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
    assert_good([granted("a", 0, 1, 50, 1), granted("b", 47, 48, 100, 2)]);
    assert_breach(
        [granted("a", 0, 1, 50, 1), granted("b", 41, 42, 100, 2)],
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
fn the_place_of_an_older_request_that_failed_meanwhile_counts() {
    let killed = Outcome::Error("KILLED".into());
    let killed = with(killed, granted("b", 0, 9, 10, 0));
    assert_good([killed, queued("a", 1, 5, 200, 2), queued("b", 6, 8, 190, 1)]);
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

fn in_mode(mode: Mode, operation: Operation) -> Operation {
    let request = match operation.request {
        Request::Acquire {
            lease_ms,
            block_ms,
            session,
            claim_ms,
            ..
        } => Request::Acquire {
            lease_ms,
            block_ms,
            mode,
            session,
            claim_ms,
        },
        other => other,
    };
    Operation {
        request,
        ..operation
    }
}

fn shared(operation: Operation) -> Operation {
    in_mode(Mode::Shared, operation)
}

fn limited(limit: usize, operation: Operation) -> Operation {
    in_mode(Mode::Limited(limit), operation)
}

#[test]
fn readers_may_hold_a_lock_together_but_not_with_a_writer() {
    let readers = [
        shared(granted("a", 0, 1, 100, 1)),
        shared(granted("b", 2, 3, 100, 2)),
        shared(granted("c", 4, 5, 100, 3)),
    ];
    assert_good(readers.clone());
    let mut with_writer = readers.to_vec();
    with_writer.push(granted("w", 10, 11, 100, 4));
    assert_breach(with_writer, Promise::Exclusion);
    assert_breach(
        [
            granted("w", 0, 1, 100, 1),
            shared(granted("a", 10, 11, 100, 2)),
        ],
        Promise::Exclusion,
    );
}

#[test]
fn no_more_hold_a_lock_than_the_strictest_of_them_says() {
    let two = [
        limited(2, granted("a", 0, 1, 100, 1)),
        limited(2, granted("b", 2, 3, 100, 2)),
    ];
    assert_good(two.clone());
    let mut three = two.to_vec();
    three.push(limited(5, granted("c", 10, 11, 100, 3)));
    assert_breach(three, Promise::Exclusion);
    let mut later = two.to_vec();
    later.push(released("a", 5, 6));
    later.push(shared(granted("c", 10, 11, 15, 3)));
    assert_good(later);
}

#[test]
fn two_holds_of_one_owner_count_once() {
    assert_good([
        limited(2, granted("a", 0, 1, 100, 1)),
        limited(2, granted("a", 2, 3, 100, 1)),
        limited(2, granted("b", 4, 5, 100, 2)),
    ]);
}

#[test]
fn the_tokens_of_readers_rise_too_and_belong_to_one_each() {
    assert_breach(
        [
            shared(granted("a", 0, 1, 100, 7)),
            shared(granted("b", 2, 3, 100, 7)),
        ],
        Promise::Tokens,
    );
    assert_breach(
        [
            shared(granted("a", 0, 1, 100, 7)),
            shared(granted("b", 2, 3, 100, 6)),
        ],
        Promise::Tokens,
    );
}

#[test]
fn a_reader_that_passes_a_waiting_writer_is_a_breach_of_order() {
    assert_breach(
        [
            queued("w", 0, 5, 200, 2),
            shared(granted("r", 6, 8, 100, 1)),
        ],
        Promise::Order,
    );
}

#[test]
fn only_who_asked_for_a_looser_mode_is_told_to_release_it() {
    let refused = with(
        Outcome::Error("UPGRADE".into()),
        granted("a", 10, 11, 100, 0),
    );
    assert_good([shared(granted("a", 0, 1, 100, 1)), refused.clone()]);
    assert_breach([granted("a", 0, 1, 100, 1), refused], Promise::Possession);
}

/// An operation of client 1, on a connection of its own.
fn in_session(operation: Operation) -> Operation {
    let request = match operation.request {
        Request::Acquire {
            lease_ms,
            block_ms,
            mode,
            claim_ms,
            ..
        } => Request::Acquire {
            lease_ms,
            block_ms,
            mode,
            session: true,
            claim_ms,
        },
        other => other,
    };
    Operation {
        client: 1,
        connection: 1,
        request,
        ..operation
    }
}

fn answered(request: Request, sent_ms: u64, answered_ms: u64) -> Operation {
    with(
        Outcome::Done,
        in_session(operation("s", sent_ms, answered_ms, request)),
    )
}

fn session(lease_ms: u64) -> Operation {
    in_session(granted("s", 0, 1, lease_ms, 1))
}

#[test]
fn a_session_keeps_its_lock_as_long_as_its_connection_answers() {
    let other = granted("b", 250, 251, 10, 2);
    assert_good([session(100), other.clone()]);
    assert_breach(
        [
            session(100),
            answered(Request::Ping, 300, 301),
            granted("b", 250, 251, 100, 2),
        ],
        Promise::Exclusion,
    );
    let elsewhere = Operation {
        connection: 2,
        ..answered(Request::Ping, 300, 301)
    };
    assert_good([session(100), elsewhere, other.clone()]);
    let unanswered = with(Outcome::Lost, answered(Request::Ping, 300, 301));
    assert_good([session(100), unanswered, other]);
}

#[test]
fn a_session_ends_with_its_connection_or_a_release() {
    let other = granted("b", 60, 61, 100, 2);
    assert_good([
        session(1000),
        answered(Request::Ping, 50, 51),
        answered(Request::Close, 52, 53),
        other.clone(),
    ]);
    assert_good([
        session(1000),
        in_session(released("s", 50, 51)),
        answered(Request::Ping, 90, 91),
        other,
    ]);
}

#[test]
fn a_server_that_stood_still_could_not_keep_a_session() {
    let operations = [
        session(100),
        answered(Request::Ping, 300, 301),
        granted("b", 250, 251, 100, 2),
    ];
    for effect in [Effect::StopsTheServer, Effect::HoldsCommandsBack] {
        assert_found(operations.clone(), [interference(effect, 20, 200)], &[]);
    }
    let later = interference(Effect::StopsTheServer, 270, 280);
    assert_found(operations, [later], &[Promise::Exclusion]);
}

#[test]
fn a_lock_whose_session_ended_goes_to_the_next_waiter_promptly() {
    let closed = || {
        vec![
            session(1000),
            answered(Request::Ping, 50, 51),
            answered(Request::Close, 52, 53),
        ]
    };
    let history = |waiters: &[Operation]| [closed(), waiters.to_vec()].concat();
    let waits = |owner, sent, answered, outcome| waits(owner, "l", sent, answered, outcome);
    let late = waits("b", 10, 800, Outcome::Granted(3));
    assert_good(history(&[waits("b", 10, 60, Outcome::Granted(3))]));
    assert_breach(history(std::slice::from_ref(&late)), Promise::Liveness);
    // Somebody else had it in between, or may have.
    let other = waits("c", 9, 201, Outcome::Granted(2));
    let gives_back = released("c", 700, 701);
    assert_good(history(&[late.clone(), other, gives_back]));
    let lost = with(Outcome::Lost, granted("c", 9, 20, 600, 0));
    assert_good(history(&[late.clone(), lost.clone()]));
    let short = with(Outcome::Lost, granted("c", 9, 20, 60, 0));
    assert_breach(history(&[late.clone(), short.clone()]), Promise::Liveness);
    let stalled = with(Outcome::GivenUp, waits("c", 9, 20, Outcome::Pending));
    assert_good(history(&[late.clone(), stalled]));
    let stop = interference(Effect::StopsTheServer, 60, 600);
    assert_found(history(std::slice::from_ref(&late)), [stop], &[]);
    let fail_over = interference(Effect::HoldsCommandsBack, 2, 8);
    assert_found(history(&[late]), [fail_over], &[]);
    let never = waits("b", 10, 1010, Outcome::NotAvailable);
    assert_breach(history(&[never]), Promise::Liveness);
}

fn on(lock: &str, operation: Operation) -> Operation {
    Operation {
        lock: lock.into(),
        ..operation
    }
}

/// A request that waits for up to a second.
fn waits(owner: &str, lock: &str, sent_ms: u64, answered_ms: u64, outcome: Outcome) -> Operation {
    let request = Request::Acquire {
        lease_ms: 1000,
        block_ms: Some(1000),
        mode: Mode::Exclusive,
        session: false,
        claim_ms: None,
    };
    Operation {
        queued: Some((sent_ms + 5) * MS),
        outcome,
        ..on(lock, operation(owner, sent_ms, answered_ms, request))
    }
}

fn refused(text: &str) -> Outcome {
    Outcome::Deadlock(Link::parse_all(text).unwrap())
}

const CYCLE: &str = "'b' waits for '1' held by 'a', 'a' waits for '2' held by 'b'";

/// `a` holds 1 and waits for 2, which `b` holds; `b` asks for 1 at 40 ms.
fn two_that_want_each_others_lock(of_b: Operation) -> Vec<Operation> {
    vec![
        on("1", granted("a", 0, 1, 1000, 1)),
        on("2", granted("b", 2, 3, 1000, 2)),
        waits("a", "2", 10, 60, Outcome::Granted(3)),
        of_b,
        on("2", released("b", 50, 51)),
    ]
}

#[test]
fn a_refusal_that_names_a_cycle_of_waits_is_good() {
    let b = waits("b", "1", 40, 41, refused(CYCLE));
    assert_good(two_that_want_each_others_lock(b));
}

#[test]
fn a_refusal_must_name_a_cycle_that_begins_with_the_refused() {
    for text in [
        "'b' waits for '1' held by 'a'",
        "'a' waits for '2' held by 'b', 'b' waits for '1' held by 'a'",
    ] {
        let b = waits("b", "1", 40, 41, refused(text));
        assert_breach(two_that_want_each_others_lock(b), Promise::Deadlock);
    }
    assert_eq!(Link::parse_all("nonsense"), None);
}

#[test]
fn a_refusal_for_a_hold_or_a_wait_that_was_over_is_a_breach() {
    let history = || two_that_want_each_others_lock(waits("b", "1", 40, 41, refused(CYCLE)));
    let mut released_before = history();
    released_before.push(on("1", released("a", 20, 21)));
    assert_breach(released_before, Promise::Deadlock);
    let mut gave_up = history();
    gave_up[2] = waits("a", "2", 10, 30, Outcome::Error("UNBLOCKED".into()));
    assert_breach(gave_up, Promise::Deadlock);
    let mut unknown = history();
    unknown.push(on("1", with(Outcome::Lost, released("a", 20, 21))));
    unknown[2] = waits("a", "2", 10, 30, Outcome::Lost);
    assert_good(unknown);
    let mut never_asked = history();
    never_asked[0].lock = "another".into();
    assert_breach(never_asked, Promise::Deadlock);
}

#[test]
fn owners_that_wait_for_each_other_for_long_are_a_breach() {
    let cycle = |of_b| {
        vec![
            on("1", granted("a", 0, 1, 1000, 1)),
            on("2", granted("b", 2, 3, 1000, 2)),
            waits("a", "2", 10, 1200, Outcome::NotAvailable),
            of_b,
        ]
    };
    let long = waits("b", "1", 40, 1100, Outcome::NotAvailable);
    assert_breach(cycle(long.clone()), Promise::Deadlock);
    // Its request may have been held back, and not have been looked at.
    let pause = interference(Effect::HoldsCommandsBack, 30, 50);
    assert_found(cycle(long.clone()), [pause], &[]);
    // It was told early, and may have been unblocked still earlier.
    assert_good(cycle(waits("b", "1", 40, 300, Outcome::NotAvailable)));
    assert_good(cycle(waits("b", "1", 40, 300, Outcome::Lost)));
    let unseen = Operation {
        queued: None,
        ..long
    };
    assert_good(cycle(unseen));
}

#[test]
fn the_token_of_a_holding_that_is_over_never_comes_back() {
    let over = [granted("a", 0, 1, 100, 7), released("a", 2, 3)];
    let again = granted("a", 10, 11, 100, 7);
    let at_once = [over.to_vec(), vec![again.clone()]].concat();
    assert_breach(at_once.clone(), Promise::Tokens);
    let later = [
        over.to_vec(),
        vec![granted("b", 4, 5, 100, 8), released("b", 6, 7), again],
    ];
    assert_breach(later.concat(), Promise::Tokens);
    let restored = interference(Effect::BringsBack, 5, 6);
    assert_found(at_once, [restored], &[]);
    let after_renewal = [
        granted("a", 0, 1, 10, 7),
        with(Outcome::NotHeld, renewed("a", 20, 21, 10)),
        granted("a", 30, 31, 100, 7),
    ];
    assert_breach(after_renewal, Promise::Tokens);
}

#[test]
fn a_waiter_that_gets_nothing_was_not_passed_either() {
    let history = |of_b, c_sent| {
        [
            granted("a", 0, 1, 1000, 1),
            waits("b", "l", 2, 1010, of_b),
            released("a", 980, 981),
            waits("c", "l", c_sent, 990, Outcome::Granted(2)),
        ]
    };
    assert_breach(history(Outcome::NotAvailable, 20), Promise::Order);
    assert_good(history(Outcome::Lost, 20));
    assert_good(history(Outcome::NotAvailable, 3));
    let unblocked = interference(Effect::EndsWaits, 900, 901);
    assert_found(history(Outcome::NotAvailable, 20), [unblocked], &[]);
}

#[test]
fn a_lock_that_is_released_does_not_stay_free() {
    let history = |answered, outcome| {
        [
            granted("a", 0, 1, 1000, 1),
            Operation {
                request: Request::Acquire {
                    lease_ms: 1000,
                    block_ms: Some(8000),
                    mode: Mode::Exclusive,
                    session: false,
                    claim_ms: None,
                },
                ..waits("b", "l", 2, answered, outcome)
            },
            released("a", 10, 11),
        ]
    };
    assert_breach(history(8005, Outcome::NotAvailable), Promise::Liveness);
    assert_breach(history(6010, Outcome::Granted(2)), Promise::Liveness);
    assert_good(history(200, Outcome::Granted(2)));
    let stopped = interference(Effect::StopsClients, 20, 6000);
    assert_found(history(6010, Outcome::Granted(2)), [stopped], &[]);
    let deleted = Interference {
        until: 300 * MS,
        ..interference(Effect::EndsHolds, 5, 10)
    };
    assert_found(history(400, Outcome::Granted(2)), [deleted], &[]);
}

#[test]
fn a_lock_whose_lease_is_over_does_not_stay_free() {
    let waiter = |answered| waits("b", "l", 2, answered, Outcome::Granted(2));
    assert_good([granted("a", 0, 1, 300, 1), waiter(310)]);
    assert_breach([granted("a", 0, 1, 300, 1), waiter(800)], Promise::Liveness);
    // A shorter lease by a renewal counts, a longer one as well.
    let renewal = |lease| renewed("a", 5, 6, lease);
    assert_good([granted("a", 0, 1, 300, 1), renewal(700), waiter(800)]);
    assert_breach(
        [granted("a", 0, 1, 700, 1), renewal(100), waiter(650)],
        Promise::Liveness,
    );
}

#[test]
fn nobody_is_told_of_a_hold_that_it_can_not_have() {
    let over = [granted("a", 0, 1, 1000, 1), released("a", 10, 11)];
    let and = |last: Operation| [over.to_vec(), vec![last]].concat();
    assert_breach(and(renewed("a", 20, 21, 100)), Promise::Possession);
    assert_breach(and(released("a", 20, 21)), Promise::Possession);
    let inner = with(Outcome::StillHeld, released("a", 20, 21));
    assert_breach(and(inner), Promise::Possession);
    let first_again = Operation {
        request: Request::Release {
            hold: Some(1),
            fence: None,
        },
        ..released("a", 20, 21)
    };
    assert_good(and(first_again));
    let brought_back = interference(Effect::BringsBack, 12, 14);
    assert_found(and(renewed("a", 20, 21, 100)), [brought_back], &[]);
}

#[test]
fn nobody_renews_a_lease_that_was_over_long_ago() {
    let late = renewed("a", 5000, 5001, 100);
    assert_breach(
        [granted("a", 0, 1, 100, 1), late.clone()],
        Promise::Possession,
    );
    assert_good([granted("a", 0, 1, 100, 1), renewed("a", 101, 102, 100)]);
    let persisted = interference(Effect::ChangesLeases, 50, 4900);
    assert_found([granted("a", 0, 1, 100, 1), late.clone()], [persisted], &[]);
    let lost = with(Outcome::Lost, granted("a", 10, 400, 4600, 0));
    assert_good([granted("a", 0, 1, 100, 1), lost, late]);
}

#[test]
fn a_looser_request_of_long_ago_lets_nobody_in() {
    let history = |looser| {
        [
            looser,
            released("a", 20, 21),
            granted("a", 30, 31, 1000, 2),
            shared(granted("b", 50, 51, 100, 3)),
        ]
    };
    let once = shared(granted("a", 0, 1, 100, 1));
    assert_breach(history(once.clone()), Promise::Exclusion);
    // One that was lost may have been the one that was granted.
    assert_good(history(with(Outcome::Lost, once)));
    let re_entry = [
        granted("a", 0, 1, 1000, 1),
        shared(granted("a", 10, 11, 1000, 1)),
        shared(granted("b", 50, 51, 100, 2)),
    ];
    assert_breach(re_entry, Promise::Exclusion);
}

#[test]
fn what_is_told_after_a_session_closed_is_kept() {
    let told = |sent| Operation {
        client: 1,
        connection: 2,
        ..granted("s", sent, sent + 1, 1000, 1)
    };
    let closed = answered(Request::Close, 52, 53);
    let other = granted("b", 100, 101, 100, 2);
    let history = |told| [session(1000), closed.clone(), told, other.clone()];
    assert_breach(history(told(54)), Promise::Exclusion);
    // What was told before ended with the connection.
    assert_good(history(told(40)));
    let renewal = Operation {
        client: 1,
        connection: 2,
        ..renewed("s", 80, 81, 100)
    };
    let denied = with(Outcome::NotHeld, renewal);
    assert_breach(
        [session(1000), closed, told(54), denied],
        Promise::Possession,
    );
}

#[test]
fn a_hold_outlives_another_request_of_its_owner_that_was_lost() {
    let twin = with(Outcome::Lost, waits("x", "l", 3, 20, Outcome::Pending));
    assert_breach(
        [
            granted("a", 0, 1, 1000, 1),
            waits("x", "l", 2, 21, Outcome::Granted(2)),
            twin,
            released("a", 15, 16),
            granted("b", 30, 31, 1000, 3),
        ],
        Promise::Exclusion,
    );
}

#[test]
fn another_token_names_no_hold() {
    let renewal = |outcome, token| {
        let request = Request::Renew {
            lease_ms: 100,
            fence: Some(token),
        };
        Operation {
            request,
            ..with(outcome, renewed("a", 10, 11, 100))
        }
    };
    let held = || granted("a", 0, 1, 1000, 1);
    assert_good([held(), renewal(Outcome::NotHeld, 2)]);
    assert_good([held(), renewal(Outcome::Renewed, 1)]);
    assert_breach([held(), renewal(Outcome::NotHeld, 1)], Promise::Possession);
    assert_breach([held(), renewal(Outcome::Renewed, 2)], Promise::Possession);
}

#[test]
fn the_lease_of_a_waiter_began_after_the_grants_before_it() {
    let waiter = waits("b", "l", 2, 900, Outcome::Granted(3));
    let other = || granted("c", 1100, 1101, 100, 4);
    let elsewhere = on("another", granted("d", 880, 881, 10, 2));
    let before = || granted("a", 0, 1, 890, 1);
    assert_good([before(), waiter.clone(), other()]);
    assert_breach([before(), waiter, elsewhere, other()], Promise::Exclusion);
}

/// A place for at most 8000 ms, whose grant lasts 400 ms unclaimed.
fn place(owner: &str, sent_ms: u64, answered_ms: u64, outcome: Outcome) -> Operation {
    let request = Request::Acquire {
        lease_ms: 5000,
        block_ms: Some(8000),
        mode: Mode::Exclusive,
        session: false,
        claim_ms: Some(400),
    };
    Operation {
        queued: Some((sent_ms + 1) * MS),
        outcome,
        ..operation(owner, sent_ms, answered_ms, request)
    }
}

fn grant_told(token: i64) -> Outcome {
    let lease_ms = 400;
    Outcome::Told { token, lease_ms }
}

fn told(owner: &str, sent_ms: u64, answered_ms: u64, token: i64) -> Operation {
    place(owner, sent_ms, answered_ms, grant_told(token))
}

#[test]
fn places_and_blocked_waiters_stand_in_one_line() {
    let line = |place_token, blocked_token| {
        [
            granted("a", 0, 1, 50, 1),
            told("place", 10, 101, place_token),
            queued("blocked", 20, 25, 101, blocked_token),
        ]
    };
    assert_good(line(2, 3));
    assert_breach(line(3, 2), Promise::Order);
}

#[test]
fn a_server_that_took_over_forgot_the_places() {
    let passed = [
        granted("a", 0, 1, 50, 1),
        told("place", 10, 1101, 3),
        queued("blocked", 20, 25, 1101, 2),
    ];
    let fail_over = interference(Effect::HoldsCommandsBack, 500, 600);
    assert_found(passed.clone(), [fail_over], &[]);
    let before = interference(Effect::HoldsCommandsBack, 2, 3);
    assert_found(passed, [before], &[Promise::Order]);
}

/// `a` gives the lock back at 100 ms, when it is granted to a place.
fn after_a_grant_that_is_told(others: &[Operation]) -> Vec<Operation> {
    let told = [
        granted("a", 0, 1, 10_000, 1),
        released("a", 100, 101),
        told("place", 10, 101, 2),
    ];
    [&told, others].concat()
}

#[test]
fn a_grant_that_nobody_claims_goes_to_the_next_in_line_promptly() {
    let next = |answered_ms| told("next", 20, answered_ms, 3);
    assert_good(after_a_grant_that_is_told(&[next(550)]));
    let late = after_a_grant_that_is_told(&[next(1000)]);
    assert_breach(late.clone(), Promise::Liveness);
    // A claim makes it last.
    let claim = renewed("place", 300, 301, 5000);
    assert_good([late, vec![claim]].concat());
}

#[test]
fn a_session_that_nobody_claims_is_not_kept_up() {
    let granted = after_a_grant_that_is_told(&[told("next", 20, 2000, 3)]);
    let mut unclaimed: Vec<Operation> = granted.clone();
    unclaimed[2] = in_session(unclaimed[2].clone());
    assert_breach(unclaimed.clone(), Promise::Liveness);
    let claimed = renewed("place", 300, 301, 5000);
    assert_good([unclaimed, vec![claimed]].concat());
}

#[test]
fn a_claim_that_comes_in_time_is_not_refused() {
    let claim = |sent_ms| {
        with(
            Outcome::NotHeld,
            renewed("place", sent_ms, sent_ms + 1, 5000),
        )
    };
    // Another grant shows that this one came later.
    let later = |sent_ms| {
        let before = Operation {
            lock: "another".into(),
            ..granted("other", 99, 100, 10, 1)
        };
        let mut all = after_a_grant_that_is_told(&[before, claim(sent_ms)]);
        all[0].outcome = Outcome::Granted(0);
        all
    };
    assert_breach(later(400), Promise::Possession);
    assert_good(later(500));
    // The message may tell of what was granted to an earlier request.
    let lost = place("place", 5, 8, Outcome::Lost);
    assert_good([later(400), vec![lost]].concat());
}

#[test]
fn a_claimed_grant_keeps_others_out() {
    let claim = renewed("place", 200, 201, 5000);
    let other = granted("other", 3000, 3001, 10, 3);
    let mut both = after_a_grant_that_is_told(&[other, claim]);
    assert_breach(both.clone(), Promise::Exclusion);
    both.pop();
    assert_good(both);
}

#[test]
fn a_place_that_was_bound_to_a_connection_ends_with_it() {
    let place = |outcome| in_session(place("place", 10, 101, outcome));
    let close = in_session(Operation {
        outcome: Outcome::Done,
        ..operation("place", 50, 51, Request::Close)
    });
    let before = |sent_ms| Operation {
        lock: "another".into(),
        ..granted("other", sent_ms, 100, 10, 1)
    };
    let told = place(grant_told(2));
    // It may have been granted before.
    assert_good([before(40), told.clone(), close.clone()]);
    assert_breach([before(60), told, close.clone()], Promise::Possession);
    assert_good([before(60), place(Outcome::NotAvailable), close]);
}

#[test]
fn a_place_whose_client_hears_no_more_may_be_granted_the_lock_until_its_time_is_over() {
    let silent = |outcome, told_ms| {
        [
            granted("a", 0, 1, 10_000, 1),
            place("gone", 10, 50, outcome),
            released("a", 100, 101),
            told("next", 20, told_ms, 3),
        ]
    };
    // Its connection ended, or stalled.
    assert_breach(silent(Outcome::Lost, 5600), Promise::Liveness);
    assert_good(silent(Outcome::GivenUp, 5600));
}
