//! Histories written by hand, an operation a line:
//!
//! ```text
//! owner sent-answered request options -> outcome         in milliseconds
//! ! effect from-until [on lock]                          something done to the server
//! ```
//!
//! `lock 100` asks for a lease of 100 ms. `wait` is one that waits for a second and was seen
//! in the queue 5 ms later, `place` one for at most 8 s by a place, whose grant lasts 400 ms
//! unclaimed. All are about lock `l` and on one connection, but for `on lock`, and `at 1` for
//! connection 1 of another client, where sessions are.

use super::*;
use Promise::{Deadlock, Exclusion, Liveness, Order, Possession, Tokens};

fn times(text: &str) -> (Nanos, Nanos) {
    let (from, until) = text.split_once('-').unwrap();
    let [from, until]: [u64; 2] = [from, until].map(|ms| ms.parse().unwrap());
    (from * MS, until * MS)
}

fn interference(words: &[&str]) -> Interference {
    let effect = match words[0] {
        "ends-holds" => Effect::EndsHolds,
        "changes-leases" => Effect::ChangesLeases,
        "brings-back" => Effect::BringsBack,
        "ends-waits" => Effect::EndsWaits,
        "holds-back" => Effect::HoldsCommandsBack,
        "stops-server" => Effect::StopsTheServer,
        "stops-clients" => Effect::StopsClients,
        other => panic!("{other}"),
    };
    let (from, until) = times(words[1]);
    Interference {
        what: "test".into(),
        effect,
        lock: words.get(3).map(ToString::to_string),
        from,
        until,
    }
}

fn operation(line: &str) -> Operation {
    let (asked, heard) = line.split_once(" -> ").unwrap_or((line, ""));
    let words: Vec<&str> = asked.split_whitespace().collect();
    let option = |name| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1).copied()
    };
    let number = |name| option(name).map(|word| word.parse::<u64>().unwrap());
    let (sent, answered) = times(words[1]);
    let fence = number("fence").map(|token| token as i64);
    let (mode, session) = match option("limit") {
        Some(limit) => (Mode::Limited(limit.parse().unwrap()), false),
        None if words.contains(&"shared") => (Mode::Shared, false),
        None => (Mode::Exclusive, words.contains(&"session")),
    };
    let acquire = |lease_ms, block_ms, claim_ms| Request::Acquire {
        lease_ms,
        block_ms,
        mode,
        session,
        claim_ms,
    };
    let later = |ms| Some(sent + ms * MS);
    let seen = number("queued").map(|ms| ms * MS);
    let (request, queued, usual) = match words[2] {
        "lock" => {
            let lease_ms = number("lock").unwrap();
            (acquire(lease_ms, number("block"), None), seen, "pending")
        }
        "wait" => {
            let block_ms = number("block").or(Some(1000));
            (acquire(1000, block_ms, None), later(5), "pending")
        }
        "place" => (acquire(5000, Some(8000), Some(400)), later(1), "pending"),
        "renew" => {
            let lease_ms = number("renew").unwrap();
            (Request::Renew { lease_ms, fence }, None, "renewed")
        }
        "release" => {
            let hold = number("hold");
            (Request::Release { hold, fence }, None, "released")
        }
        "ping" => (Request::Ping, None, "done"),
        "close" => (Request::Close, None, "done"),
        other => panic!("{other}"),
    };
    let at = option("at").or(session.then_some("1"));
    Operation {
        client: usize::from(at.is_some()),
        connection: at.map_or(0, |number| number.parse().unwrap()),
        lock: option("on").unwrap_or("l").into(),
        owner: words[0].into(),
        request,
        sent,
        answered: Some(answered),
        queued: queued.filter(|_| !words.contains(&"unseen")),
        outcome: outcome(if heard.is_empty() { usual } else { heard }),
    }
}

/// A number is the token of a grant, and capitals are an error's code.
fn outcome(heard: &str) -> Outcome {
    match heard.split_once(' ').unwrap_or((heard, "")) {
        ("pending", _) => Outcome::Pending,
        ("lost", _) => Outcome::Lost,
        ("given-up", _) => Outcome::GivenUp,
        ("silent", _) => Outcome::Silent,
        ("without-token", _) => Outcome::GrantedWithoutToken,
        ("not-available", _) => Outcome::NotAvailable,
        ("renewed", _) => Outcome::Renewed,
        ("released", _) => Outcome::Released,
        ("still-held", _) => Outcome::StillHeld,
        ("not-held", _) => Outcome::NotHeld,
        ("done", _) => Outcome::Done,
        ("told", token) => Outcome::Told {
            token: token.parse().unwrap(),
            lease_ms: 400,
        },
        ("deadlock", cycle) => Outcome::Deadlock(Link::parse_all(cycle).unwrap()),
        (word, _) => match word.parse() {
            Ok(token) => Outcome::Granted(token),
            Err(_) => Outcome::Error(word.into()),
        },
    }
}

fn history(text: &str) -> History {
    let mut history = History::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("! ") {
            Some(done) => {
                let words: Vec<&str> = done.split_whitespace().collect();
                history.interferences.push(interference(&words));
            }
            None => history.operations.push(operation(line)),
        }
    }
    history
}

#[track_caller]
fn assert_found(expected: &[Promise], text: &str) {
    let breaches = check(&history(text), TOLERANCE);
    let found: Vec<Promise> = breaches.iter().map(|breach| breach.promise).collect();
    assert_eq!(found, expected, "{breaches:#?}");
}

#[track_caller]
fn assert_good(text: &str) {
    assert_found(&[], text);
}

#[track_caller]
fn assert_breach(promise: Promise, text: &str) {
    assert_found(&[promise], text);
}

/// Adds lines to others.
fn and(first: &str, last: &str) -> String {
    format!("{first}\n{last}")
}

#[test]
fn one_after_the_other_with_rising_tokens_is_good() {
    assert_good(
        "a 0-1 lock 100 -> 1
         a 10-11 lock 100 -> 1
         a 20-21 release
         b 22-23 lock 100 -> 2
         b 30-31 release
         a 32-33 lock 100 -> 3",
    );
}

#[test]
fn a_token_belongs_to_one_holding() {
    assert_breach(
        Tokens,
        "a 0-1 lock 100 -> 7
         a 2-3 release
         b 4-5 lock 100 -> 7",
    );
}

#[test]
fn tokens_rise_over_all_locks() {
    assert_breach(
        Tokens,
        "a 0-1 lock 100 -> 7
         b 4-5 lock 100 on another -> 6",
    );
}

#[test]
fn tokens_of_grants_at_one_time_may_be_in_any_order() {
    assert_good(
        "a 0-2 lock 100 -> 7
         b 1-5 lock 100 on another -> 6",
    );
}

#[test]
fn a_resent_request_may_report_an_old_grant() {
    assert_good(
        "a 0-5 lock 100 -> lost
         b 6-7 lock 100 on another -> 8
         a 10-11 lock 100 -> 7",
    );
}

#[test]
fn re_entry_keeps_the_token() {
    assert_breach(
        Tokens,
        "a 0-1 lock 100 -> 7
         a 10-11 lock 100 -> 8",
    );
    assert_good(
        "a 0-1 lock 100 -> 7
         a 95-101 lock 100 -> 8",
    );
}

#[test]
fn two_owners_at_one_time_are_a_breach() {
    assert_breach(
        Exclusion,
        "a 0-1 lock 100 -> 1
         b 50-51 lock 100 -> 2",
    );
}

#[test]
fn a_hold_without_a_token_excludes_others_until_its_release() {
    let locked = "a 0-1 lock 100 -> without-token";
    assert_breach(Exclusion, &and(locked, "b 50-51 lock 100 -> 2"));
    assert_breach(Exclusion, &and(locked, "b 50-51 lock 100 -> without-token"));
    assert_good(&and(
        locked,
        "a 40-45 release
         b 42-51 lock 100 -> 2",
    ));
}

#[test]
fn the_breach_is_seen_behind_a_longer_hold_of_the_same_owner() {
    assert_breach(
        Exclusion,
        "a 0-1 lock 500 -> 1
         b 600-601 lock 1000 -> 2
         b 610-611 renew 2000
         c 700-701 lock 2 -> 3
         c 710-711 lock 50 -> 3",
    );
}

#[test]
fn a_lease_that_is_over_protects_nobody() {
    assert_good(
        "a 0-1 lock 50 -> 1
         b 50-51 lock 100 -> 2",
    );
}

#[test]
fn the_tolerance_covers_the_last_moments_of_a_lease() {
    assert_good(
        "a 0-1 lock 50 -> 1
         b 47-48 lock 100 -> 2",
    );
    assert_breach(
        Exclusion,
        "a 0-1 lock 50 -> 1
         b 41-42 lock 100 -> 2",
    );
}

#[test]
fn a_queued_grant_counts_from_its_renewal() {
    let both = "a 0-1000 lock 10 queued 5 -> 1
                b 1050-1051 lock 100 -> 2";
    assert_good(both);
    assert_breach(Exclusion, &and(both, "a 1001-1002 renew 100"));
}

#[test]
fn a_renewal_sets_the_end_of_the_lease_and_may_shorten_it() {
    let both = "a 0-1 lock 1000 -> 1
                b 100-101 lock 100 -> 2";
    assert_good(&and(both, "a 10-11 renew 20"));
    let refused = and(both, "a 10-11 renew 20 -> not-held");
    assert_found(&[Exclusion, Possession], &refused);
}

#[test]
fn a_release_ends_the_hold_when_it_is_sent() {
    assert_good(
        "a 0-1 lock 1000 -> 1
         a 10-30 release
         b 11-12 lock 100 -> 2",
    );
}

#[test]
fn a_release_of_an_inner_hold_does_not() {
    assert_breach(
        Exclusion,
        "a 0-1 lock 1000 -> 1
         a 10-11 release -> still-held
         b 20-21 lock 100 -> 2",
    );
}

#[test]
fn a_lost_release_or_renewal_may_come_into_force_later() {
    assert_good(
        "a 0-1 lock 1000 -> 1
         a 10-30 release -> lost
         a 40-41 renew 1000
         b 50-51 lock 100 -> 2",
    );
    assert_good(
        "a 0-1 lock 1000 -> 1
         a 10-30 renew 20 -> lost
         b 50-51 lock 100 -> 2",
    );
}

#[test]
fn lost_operations_excuse_no_breach_of_others() {
    assert_breach(
        Exclusion,
        "a 0-1 lock 1000 -> 1
         c 2-30 lock 1000 -> lost
         d 3-30 release -> lost
         b 50-51 lock 100 -> 2",
    );
}

#[test]
fn nobody_is_told_that_it_lost_what_it_certainly_holds() {
    let held = "a 0-1 lock 1000 -> 1";
    for told in [
        "a 10-11 renew 100 -> not-held",
        "a 10-11 release -> not-held",
        "a 10-11 lock 100 -> not-available",
    ] {
        assert_breach(Possession, &and(held, told));
    }
    assert_good(&and(held, "a 980-1001 renew 100 -> not-held"));
}

#[test]
fn an_owner_whose_every_answer_came_has_counted_its_holds_right() {
    let miscounted = "a 0-1 lock 1000 -> 1
                      a 20-21 lock 100 -> HOLDCOUNT";
    assert_breach(Possession, miscounted);
    assert_good(&and(miscounted, "a 10-11 lock 100 -> lost"));
}

#[test]
fn an_interference_ends_the_holds_before_it_and_no_others() {
    let both = "a 0-1 lock 1000 -> 1
                b 20-21 lock 1000 -> 2";
    assert_good(&and(both, "! ends-holds 5-10"));
    assert_breach(Exclusion, &and(both, "! ends-holds 5-10 on another"));
    assert_breach(Exclusion, &and(both, "! holds-back 5-10"));
    assert_breach(
        Exclusion,
        "a 11-12 lock 1000 -> 1
         b 20-21 lock 1000 -> 2
         ! ends-holds 5-10",
    );
}

#[test]
fn a_grant_during_an_interference_is_not_certain() {
    assert_good(
        "a 6-7 lock 1000 -> 1
         b 20-21 lock 1000 -> 2
         ! ends-holds 5-30",
    );
}

#[test]
fn waiters_are_granted_in_the_order_in_which_they_were_seen_to_queue() {
    assert_good(
        "a 0-100 lock 10 queued 5 -> 1
         b 6-200 lock 10 queued 8 -> 2",
    );
    assert_breach(
        Order,
        "a 0-200 lock 10 queued 5 -> 2
         b 6-190 lock 10 queued 8 -> 1",
    );
}

#[test]
fn a_newcomer_that_passes_the_queue_is_a_breach_of_order() {
    assert_breach(
        Order,
        "a 0-200 lock 10 queued 5 -> 2
         b 6-8 lock 1 -> 1",
    );
}

#[test]
fn waiters_that_were_not_seen_to_queue_may_come_in_any_order() {
    assert_good(
        "a 0-200 lock 10 queued 7 -> 2
         b 6-190 lock 10 queued 8 -> 1",
    );
}

#[test]
fn what_was_held_back_was_not_seen_in_the_queue() {
    assert_good(
        "a 0-200 lock 10 queued 5 -> 2
         b 6-190 lock 10 queued 8 -> 1
         ! holds-back 1-4",
    );
}

#[test]
fn the_place_of_an_older_request_that_failed_meanwhile_counts() {
    let passed = "a 1-200 lock 10 queued 5 -> 2
                  b 6-190 lock 10 queued 8 -> 1";
    assert_good(&and("b 0-9 lock 10 -> KILLED", passed));
    assert_good(&and("b 0-2 lock 10 -> lost", passed));
}

#[test]
fn an_operation_without_an_answer_is_a_breach_of_liveness() {
    assert_breach(Liveness, "a 0-1000 lock 10 -> silent");
    let mut pending = history("a 0-1000 lock 10 -> pending");
    pending.operations[0].answered = None;
    let breaches = check(&pending, TOLERANCE);
    assert_eq!(breaches.len(), 1, "{breaches:?}");
    assert_eq!(breaches[0].promise, Liveness);
}

#[test]
fn an_operation_that_was_told_something_or_lost_its_connection_is_not() {
    assert_good(
        "a 0-1000 lock 10 -> lost
         b 0-1000 lock 10 -> not-available
         c 0-1000 lock 10 -> UNBLOCKED",
    );
}

#[test]
fn readers_may_hold_a_lock_together_but_not_with_a_writer() {
    let readers = "a 0-1 lock 100 shared -> 1
                   b 2-3 lock 100 shared -> 2
                   c 4-5 lock 100 shared -> 3";
    assert_good(readers);
    assert_breach(Exclusion, &and(readers, "w 10-11 lock 100 -> 4"));
    assert_breach(
        Exclusion,
        "w 0-1 lock 100 -> 1
         a 10-11 lock 100 shared -> 2",
    );
}

#[test]
fn no_more_hold_a_lock_than_the_strictest_of_them_says() {
    let two = "a 0-1 lock 100 limit 2 -> 1
               b 2-3 lock 100 limit 2 -> 2";
    assert_good(two);
    assert_breach(Exclusion, &and(two, "c 10-11 lock 100 limit 5 -> 3"));
    let later = "a 5-6 release
                 c 10-11 lock 15 shared -> 3";
    assert_good(&and(two, later));
}

#[test]
fn two_holds_of_one_owner_count_once() {
    assert_good(
        "a 0-1 lock 100 limit 2 -> 1
         a 2-3 lock 100 limit 2 -> 1
         b 4-5 lock 100 limit 2 -> 2",
    );
}

#[test]
fn the_tokens_of_readers_rise_too_and_belong_to_one_each() {
    for token in [7, 6] {
        let later = format!("b 2-3 lock 100 shared -> {token}");
        assert_breach(Tokens, &and("a 0-1 lock 100 shared -> 7", &later));
    }
}

#[test]
fn a_reader_that_passes_a_waiting_writer_is_a_breach_of_order() {
    assert_breach(
        Order,
        "w 0-200 lock 10 queued 5 -> 2
         r 6-8 lock 100 shared -> 1",
    );
}

#[test]
fn only_who_asked_for_a_looser_mode_is_told_to_release_it() {
    let refused = "a 10-11 lock 100 -> UPGRADE";
    assert_good(&and("a 0-1 lock 100 shared -> 1", refused));
    assert_breach(Possession, &and("a 0-1 lock 100 -> 1", refused));
}

#[test]
fn a_session_keeps_its_lock_as_long_as_its_connection_answers() {
    let session = "s 0-1 lock 100 session -> 1
                   b 250-251 lock 10 -> 2";
    assert_good(session);
    assert_breach(
        Exclusion,
        "s 0-1 lock 100 session -> 1
         s 300-301 ping at 1
         b 250-251 lock 100 -> 2",
    );
    assert_good(&and(session, "s 300-301 ping at 2"));
    assert_good(&and(session, "s 300-301 ping at 1 -> lost"));
}

#[test]
fn a_session_ends_with_its_connection_or_a_release() {
    let both = "s 0-1 lock 1000 session -> 1
                b 60-61 lock 100 -> 2";
    let closed = "s 50-51 ping at 1
                  s 52-53 close at 1";
    assert_good(&and(both, closed));
    let released = "s 50-51 release at 1
                    s 90-91 ping at 1";
    assert_good(&and(both, released));
}

#[test]
fn a_server_that_stood_still_could_not_keep_a_session() {
    let both = "s 0-1 lock 100 session -> 1
                s 300-301 ping at 1
                b 250-251 lock 100 -> 2";
    assert_good(&and(both, "! stops-server 20-200"));
    assert_good(&and(both, "! holds-back 20-200"));
    assert_breach(Exclusion, &and(both, "! stops-server 270-280"));
}

#[test]
fn a_lock_whose_session_ended_goes_to_the_next_waiter_promptly() {
    let closed = "s 0-1 lock 1000 session -> 1
                  s 50-51 ping at 1
                  s 52-53 close at 1";
    let late = and(closed, "b 10-800 wait -> 3");
    assert_good(&and(closed, "b 10-60 wait -> 3"));
    assert_breach(Liveness, &late);
    // Somebody else had it in between, or may have.
    let other = "c 9-201 wait -> 2
                 c 700-701 release";
    assert_good(&and(&late, other));
    assert_good(&and(&late, "c 9-20 lock 600 -> lost"));
    assert_breach(Liveness, &and(&late, "c 9-20 lock 60 -> lost"));
    assert_good(&and(&late, "c 9-20 wait -> given-up"));
    assert_good(&and(&late, "! stops-server 60-600"));
    assert_good(&and(&late, "! holds-back 2-8"));
    assert_breach(Liveness, &and(closed, "b 10-1010 wait -> not-available"));
}

/// `a` holds 1 and waits for 2, which `b` holds; `b` asks for 1 at 40 ms.
const OTHERS: &str = "a 0-1 lock 1000 on 1 -> 1
                      b 2-3 lock 1000 on 2 -> 2
                      b 50-51 release on 2";
const A_WAITS: &str = "a 10-60 wait on 2 -> 3";
const B_IS_REFUSED: &str = "b 40-41 wait on 1 -> deadlock \
    'b' waits for '1' held by 'a', 'a' waits for '2' held by 'b'";

fn both_want_each_others_lock(of_a: &str, of_b: &str) -> String {
    and(&and(OTHERS, of_a), of_b)
}

#[test]
fn a_refusal_that_names_a_cycle_of_waits_is_good() {
    assert_good(&both_want_each_others_lock(A_WAITS, B_IS_REFUSED));
}

#[test]
fn a_refusal_must_name_a_cycle_that_begins_with_the_refused() {
    for cycle in [
        "'b' waits for '1' held by 'a'",
        "'a' waits for '2' held by 'b', 'b' waits for '1' held by 'a'",
    ] {
        let refused = format!("b 40-41 wait on 1 -> deadlock {cycle}");
        assert_breach(Deadlock, &both_want_each_others_lock(A_WAITS, &refused));
    }
    assert_eq!(Link::parse_all("nonsense"), None);
}

#[test]
fn a_refusal_for_a_hold_or_a_wait_that_was_over_is_a_breach() {
    let cycle = both_want_each_others_lock(A_WAITS, B_IS_REFUSED);
    assert_breach(Deadlock, &and(&cycle, "a 20-21 release on 1"));
    let gave_up = "a 10-30 wait on 2 -> UNBLOCKED";
    assert_breach(Deadlock, &both_want_each_others_lock(gave_up, B_IS_REFUSED));
    let lost = both_want_each_others_lock("a 10-30 wait on 2 -> lost", B_IS_REFUSED);
    assert_good(&and(&lost, "a 20-21 release on 1 -> lost"));
    let never_asked = cycle.replacen("on 1", "on another", 1);
    assert_breach(Deadlock, &never_asked);
}

#[test]
fn owners_that_wait_for_each_other_for_long_are_a_breach() {
    let cycle = "a 0-1 lock 1000 on 1 -> 1
                 b 2-3 lock 1000 on 2 -> 2
                 a 10-1200 wait on 2 -> not-available";
    let long = "b 40-1100 wait on 1 -> not-available";
    assert_breach(Deadlock, &and(cycle, long));
    // Its request may have been held back, and not have been looked at.
    assert_good(&and(&and(cycle, long), "! holds-back 30-50"));
    // It was told early, and may have been unblocked still earlier.
    assert_good(&and(cycle, "b 40-300 wait on 1 -> not-available"));
    assert_good(&and(cycle, "b 40-300 wait on 1 -> lost"));
    assert_good(&and(cycle, "b 40-1100 wait unseen on 1 -> not-available"));
}

#[test]
fn the_token_of_a_holding_that_is_over_never_comes_back() {
    let over = "a 0-1 lock 100 -> 7
                a 2-3 release";
    let at_once = and(over, "a 10-11 lock 100 -> 7");
    assert_breach(Tokens, &at_once);
    let between = "b 4-5 lock 100 -> 8
                   b 6-7 release";
    assert_breach(Tokens, &and(&at_once, between));
    assert_good(&and(&at_once, "! brings-back 5-6"));
    assert_breach(
        Tokens,
        "a 0-1 lock 10 -> 7
         a 20-21 renew 10 -> not-held
         a 30-31 lock 100 -> 7",
    );
}

#[test]
fn a_waiter_that_gets_nothing_was_not_passed_either() {
    let history = |outcome, sent| {
        format!(
            "a 0-1 lock 1000 -> 1
             b 2-1010 wait -> {outcome}
             a 980-981 release
             c {sent}-990 wait -> 2"
        )
    };
    assert_breach(Order, &history("not-available", 20));
    assert_good(&history("lost", 20));
    assert_good(&history("not-available", 3));
    let unblocked = and(&history("not-available", 20), "! ends-waits 900-901");
    assert_good(&unblocked);
}

#[test]
fn a_lock_that_is_released_does_not_stay_free() {
    let history = |end| {
        format!(
            "a 0-1 lock 1000 -> 1
             b 2-{end}
             a 10-11 release"
        )
    };
    let never = history("8005 wait block 8000 -> not-available");
    assert_breach(Liveness, &never);
    let late = history("6010 wait block 8000 -> 2");
    assert_breach(Liveness, &late);
    assert_good(&history("200 wait block 8000 -> 2"));
    assert_good(&and(&late, "! stops-clients 20-6000"));
    let soon = history("400 wait block 8000 -> 2");
    assert_good(&and(&soon, "! ends-holds 5-300"));
}

#[test]
fn a_lock_whose_lease_is_over_does_not_stay_free() {
    let held = "a 0-1 lock 300 -> 1";
    assert_good(&and(held, "b 2-310 wait -> 2"));
    let late = and(held, "b 2-800 wait -> 2");
    assert_breach(Liveness, &late);
    // A shorter lease by a renewal counts, a longer one as well.
    assert_good(&and(&late, "a 5-6 renew 700"));
    assert_breach(
        Liveness,
        "a 0-1 lock 700 -> 1
         a 5-6 renew 100
         b 2-650 wait -> 2",
    );
}

#[test]
fn nobody_is_told_of_a_hold_that_it_can_not_have() {
    let over = "a 0-1 lock 1000 -> 1
                a 10-11 release";
    let renewed = and(over, "a 20-21 renew 100");
    assert_breach(Possession, &renewed);
    assert_breach(Possession, &and(over, "a 20-21 release"));
    assert_breach(Possession, &and(over, "a 20-21 release -> still-held"));
    assert_good(&and(over, "a 20-21 release hold 1"));
    assert_good(&and(&renewed, "! brings-back 12-14"));
}

#[test]
fn nobody_renews_a_lease_that_was_over_long_ago() {
    let held = "a 0-1 lock 100 -> 1";
    let late = and(held, "a 5000-5001 renew 100");
    assert_breach(Possession, &late);
    assert_good(&and(held, "a 101-102 renew 100"));
    assert_good(&and(&late, "! changes-leases 50-4900"));
    assert_good(&and(&late, "a 10-400 lock 4600 -> lost"));
}

#[test]
fn a_looser_request_of_long_ago_lets_nobody_in() {
    let later = "a 20-21 release
                 a 30-31 lock 1000 -> 2
                 b 50-51 lock 100 shared -> 3";
    assert_breach(Exclusion, &and("a 0-1 lock 100 shared -> 1", later));
    // One that was lost may have been the one that was granted.
    assert_good(&and("a 0-1 lock 100 shared -> lost", later));
    assert_breach(
        Exclusion,
        "a 0-1 lock 1000 -> 1
         a 10-11 lock 1000 shared -> 1
         b 50-51 lock 100 shared -> 2",
    );
}

#[test]
fn what_is_told_after_a_session_closed_is_kept() {
    let closed = "s 0-1 lock 1000 session -> 1
                  s 52-53 close at 1";
    let other = and(closed, "b 100-101 lock 100 -> 2");
    let told = "s 54-55 lock 1000 at 2 -> 1";
    assert_breach(Exclusion, &and(&other, told));
    // What was told before ended with the connection.
    assert_good(&and(&other, "s 40-41 lock 1000 at 2 -> 1"));
    let denied = and(told, "s 80-81 renew 100 at 2 -> not-held");
    assert_breach(Possession, &and(closed, &denied));
}

#[test]
fn a_hold_outlives_another_request_of_its_owner_that_was_lost() {
    assert_breach(
        Exclusion,
        "a 0-1 lock 1000 -> 1
         x 2-21 wait -> 2
         x 3-20 wait -> lost
         a 15-16 release
         b 30-31 lock 1000 -> 3",
    );
}

#[test]
fn another_token_names_no_hold() {
    let held = "a 0-1 lock 1000 -> 1";
    assert_good(&and(held, "a 10-11 renew 100 fence 2 -> not-held"));
    assert_good(&and(held, "a 10-11 renew 100 fence 1"));
    assert_breach(
        Possession,
        &and(held, "a 10-11 renew 100 fence 1 -> not-held"),
    );
    assert_breach(Possession, &and(held, "a 10-11 renew 100 fence 2"));
}

#[test]
fn the_lease_of_a_waiter_began_after_the_grants_before_it() {
    let both = "a 0-1 lock 890 -> 1
                b 2-900 wait -> 3
                c 1100-1101 lock 100 -> 4";
    assert_good(both);
    assert_breach(Exclusion, &and(both, "d 880-881 lock 10 on another -> 2"));
}

#[test]
fn places_and_blocked_waiters_stand_in_one_line() {
    let line = |of_place, blocked| {
        format!(
            "a 0-1 lock 50 -> 1
             p 10-101 place -> told {of_place}
             b 20-101 lock 10 queued 25 -> {blocked}"
        )
    };
    assert_good(&line(2, 3));
    assert_breach(Order, &line(3, 2));
}

#[test]
fn a_server_that_took_over_forgot_the_places() {
    let passed = "a 0-1 lock 50 -> 1
                  p 10-1101 place -> told 3
                  b 20-1101 lock 10 queued 25 -> 2";
    assert_good(&and(passed, "! holds-back 500-600"));
    assert_breach(Order, &and(passed, "! holds-back 2-3"));
}

/// `a` gives the lock back at 100 ms, when it is granted to a place.
const AFTER_A_GRANT_THAT_IS_TOLD: &str = "a 0-1 lock 10000 -> 1
                                          a 100-101 release
                                          p 10-101 place -> told 2";

#[test]
fn a_grant_that_nobody_claims_goes_to_the_next_in_line_promptly() {
    let next = |end| {
        and(
            AFTER_A_GRANT_THAT_IS_TOLD,
            &format!("n 20-{end} place -> told 3"),
        )
    };
    assert_good(&next(550));
    assert_breach(Liveness, &next(1000));
    // A claim makes it last.
    assert_good(&and(&next(1000), "p 300-301 renew 5000"));
}

#[test]
fn a_session_that_nobody_claims_is_not_kept_up() {
    let unclaimed = "a 0-1 lock 10000 -> 1
                     a 100-101 release
                     p 10-101 place session -> told 2
                     n 20-2000 place -> told 3";
    assert_breach(Liveness, unclaimed);
    assert_good(&and(unclaimed, "p 300-301 renew 5000"));
}

#[test]
fn a_claim_that_comes_in_time_is_not_refused() {
    // Another grant shows that this one came later.
    let refused = |claimed_ms: u64| {
        format!(
            "a 0-1 lock 10000 -> 0
             a 100-101 release
             p 10-101 place -> told 2
             o 99-100 lock 10 on another -> 1
             p {claimed_ms}-{} renew 5000 -> not-held",
            claimed_ms + 1
        )
    };
    assert_breach(Possession, &refused(400));
    assert_good(&refused(500));
    // The message may tell of what was granted to an earlier request.
    assert_good(&and(&refused(400), "p 5-8 place -> lost"));
}

#[test]
fn a_claimed_grant_keeps_others_out() {
    let other = and(AFTER_A_GRANT_THAT_IS_TOLD, "o 3000-3001 lock 10 -> 3");
    assert_good(&other);
    assert_breach(Exclusion, &and(&other, "p 200-201 renew 5000"));
}

#[test]
fn a_place_that_was_bound_to_a_connection_ends_with_it() {
    let place = |before_ms, outcome| {
        format!(
            "o {before_ms}-100 lock 10 on another -> 1
             p 10-101 place session -> {outcome}
             p 50-51 close at 1"
        )
    };
    // It may have been granted before.
    assert_good(&place(40, "told 2"));
    assert_breach(Possession, &place(60, "told 2"));
    assert_good(&place(60, "not-available"));
}

#[test]
fn a_place_whose_client_hears_no_more_may_be_granted_the_lock_until_its_time_is_over() {
    let silent = |outcome| {
        format!(
            "a 0-1 lock 10000 -> 1
             gone 10-50 place -> {outcome}
             a 100-101 release
             n 20-5600 place -> told 3"
        )
    };
    // Its connection ended, or stalled.
    assert_breach(Liveness, &silent("lost"));
    assert_good(&silent("given-up"));
}

/// Over a fail-over, from 100 to 900 ms, just these breaches are found: operations on the old
/// primary and on the new one make one history, and none is excused.
#[track_caller]
fn assert_found_over_fail_over(expected: &[Promise], text: &str) {
    assert_found(expected, &and(text, "! holds-back 100-900"));
}

#[test]
fn a_new_primary_may_grant_what_the_old_one_told_nobody() {
    let unknown = "a 0-500 lock 2000 -> lost
                   b 600-601 lock 1000 -> 2";
    assert_found_over_fail_over(&[], unknown);
}

#[test]
fn a_new_primary_may_grant_when_the_lease_of_the_old_one_is_over() {
    let over = "a 0-1 lock 300 -> 1
                a 200-201 renew 300
                b 499-500 lock 1000 -> 2";
    assert_found_over_fail_over(&[], over);
}

#[test]
fn a_new_primary_must_not_grant_what_the_old_one_granted() {
    let both = "a 0-1 lock 2000 -> 1
                b 600-601 lock 1000 -> 2";
    assert_found_over_fail_over(&[Exclusion], both);
}

#[test]
fn an_old_primary_must_not_renew_what_the_new_one_granted() {
    let renewed = "a 0-1 lock 700 -> 1
                   b 710-711 lock 1000 -> 2
                   a 690-720 renew 700";
    assert_found_over_fail_over(&[Exclusion], renewed);
}

#[test]
fn an_old_primary_must_not_grant_what_the_new_one_granted() {
    let both = "b 600-601 lock 1000 -> 2
                a 610-611 lock 300 -> 3";
    assert_found_over_fail_over(&[Exclusion], both);
}

#[test]
fn an_answer_that_nobody_believes_is_no_hold_and_no_excuse() {
    // The second renewal was answered NOREPLICAS, the first holds on.
    let believed = "a 0-1 lock 1000 -> 1
                    a 100-101 renew 1000
                    a 200-700 renew 1000 -> lost
                    b 1000-1001 lock 1000 -> 2";
    assert_found_over_fail_over(&[Exclusion], believed);
}

#[test]
fn a_new_primary_must_know_of_a_hold_that_was_told() {
    let forgotten = "a 0-1 lock 2000 -> 1
                     a 600-601 renew 2000 -> not-held";
    assert_found_over_fail_over(&[Possession], forgotten);
}

#[test]
fn the_tokens_of_a_new_primary_are_greater_and_its_own() {
    let known = "a 0-1 lock 2000 -> 1
                 a 600-601 lock 2000 -> 2";
    let less = "a 0-1 lock 2000 -> 7
                a 10-11 release
                b 600-601 lock 1000 -> 6";
    let same = "a 0-1 lock 300 -> 7
                b 600-601 lock 1000 -> 7";
    for tokens in [known, less, same] {
        assert_found_over_fail_over(&[Tokens], tokens);
    }
}
