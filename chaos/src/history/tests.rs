//! Histories written by hand, an operation a line:
//!
//! ```text
//! # what the scene shows
//! owner sent-answered request options -> outcome         in milliseconds
//! ! effect from-until [on lock]                          something done to the server
//! = the promises that are broken, or good, [+ if this line is there too]...
//! ```
//!
//! Effects and outcomes have their names in a history. `lock 100` asks for a lease of 100 ms.
//! `wait` is one that waits for a second and was seen in the queue 5 ms later, `place` one for
//! at most 8 s by a place, whose grant lasts 400 ms unclaimed. All are about lock `l` and on
//! one connection, but for `on lock`, and `at 1` for connection 1 of another client, where
//! sessions are.

use serde::de::DeserializeOwned;

use super::*;
use crate::words::word_after;

const SCENES: &str = "
# tokens rise with each holding, over all locks, and belong to one each
// One after the other.
a 0-1 lock 100 -> 1
a 10-11 lock 100 -> 1
a 20-21 release
b 22-23 lock 100 -> 2
b 30-31 release
a 32-33 lock 100 -> 3
= good

# a later holding has a token of its own, and a greater one
a 0-1 lock 100 -> 7
= tokens + a 2-3 release + b 4-5 lock 100 -> 7
= tokens + b 4-5 lock 100 on another -> 6
// Re-entry keeps it.
= tokens + a 10-11 lock 100 -> 8
= good + a 95-101 lock 100 -> 8

# tokens that may be in any order
// Of grants at one time.
= good + a 0-2 lock 100 -> 7 + b 1-5 lock 100 on another -> 6
// Of a request that is sent again, and reports an old grant.
= good + a 0-5 lock 100 -> Lost + b 6-7 lock 100 on another -> 8 + a 10-11 lock 100 -> 7

# two owners at one time
= exclusion + a 0-1 lock 100 -> 1 + b 50-51 lock 100 -> 2
// Behind a longer hold of the same owner.
a 0-1 lock 500 -> 1
b 600-601 lock 1000 -> 2
b 610-611 renew 2000
c 700-701 lock 2 -> 3
c 710-711 lock 50 -> 3
= exclusion

# a hold without a token excludes others until its release
a 0-1 lock 100 -> GrantedWithoutToken
= exclusion + b 50-51 lock 100 -> 2
= exclusion + b 50-51 lock 100 -> GrantedWithoutToken
= good + a 40-45 release + b 42-51 lock 100 -> 2

# a lease that is over protects nobody, and the tolerance covers its last moments
a 0-1 lock 50 -> 1
= good + b 50-51 lock 100 -> 2
= good + b 47-48 lock 100 -> 2
= exclusion + b 41-42 lock 100 -> 2

# a queued grant counts from its renewal
a 0-1000 lock 10 queued 5 -> 1
b 1050-1051 lock 100 -> 2
= good
= exclusion + a 1001-1002 renew 100

# what ends a hold
a 0-1 lock 1000 -> 1
// A renewal sets the end of the lease and may shorten it.
= good + b 100-101 lock 100 -> 2 + a 10-11 renew 20
= exclusion possession + b 100-101 lock 100 -> 2 + a 10-11 renew 20 -> NotHeld
// A release ends it when it is sent, but not that of an inner hold.
= good + b 11-12 lock 100 -> 2 + a 10-30 release
= exclusion + b 20-21 lock 100 -> 2 + a 10-11 release -> StillHeld
// Lost ones may come into force later.
= good + b 50-51 lock 100 -> 2 + a 10-30 release -> Lost + a 40-41 renew 1000
= good + b 50-51 lock 100 -> 2 + a 10-30 renew 20 -> Lost
// Those of others excuse nothing.
= exclusion + b 50-51 lock 100 -> 2 + c 2-30 lock 1000 -> Lost + d 3-30 release -> Lost
// Interferences end the holds before them and no others.
= good + b 20-21 lock 1000 -> 2 + ! EndsHolds 5-10
= exclusion + b 20-21 lock 1000 -> 2 + ! EndsHolds 5-10 on another
= exclusion + b 20-21 lock 1000 -> 2 + ! HoldsCommandsBack 5-10

# nobody is told that it lost what it certainly holds
a 0-1 lock 1000 -> 1
= possession + a 10-11 renew 100 -> NotHeld
= possession + a 10-11 release -> NotHeld
= possession + a 10-11 lock 100 -> NotAvailable
= good + a 980-1001 renew 100 -> NotHeld
// An owner whose every answer came has counted its holds right.
= possession + a 20-21 lock 100 -> HOLDCOUNT
= good + a 20-21 lock 100 -> HOLDCOUNT + a 10-11 lock 100 -> Lost

# an interference and a grant after it, or meanwhile, which is not certain
b 20-21 lock 1000 -> 2
= exclusion + a 11-12 lock 1000 -> 1 + ! EndsHolds 5-10
= good + a 6-7 lock 1000 -> 1 + ! EndsHolds 5-30

# waiters are granted in the order in which they were seen to queue
= good + a 0-100 lock 10 queued 5 -> 1 + b 6-200 lock 10 queued 8 -> 2
// They pass each other, but what was held back was not seen in the queue.
a 0-200 lock 10 queued 5 -> 2
b 6-190 lock 10 queued 8 -> 1
= order
= good + ! HoldsCommandsBack 1-4

# a newcomer, or a reader, that passes the queue
a 0-200 lock 10 queued 5 -> 2
= order + b 6-8 lock 1 -> 1
= order + b 6-8 lock 100 SHARED -> 1

# waiters that may come in any order
// They were not seen to queue.
= good + a 0-200 lock 10 queued 7 -> 2 + b 6-190 lock 10 queued 8 -> 1
// The place of an older request that failed meanwhile counts.
a 1-200 lock 10 queued 5 -> 2
b 6-190 lock 10 queued 8 -> 1
= good + b 0-9 lock 10 -> KILLED
= good + b 0-2 lock 10 -> Lost

# a connected client has an answer in the end
= liveness + a 0-1000 lock 10 -> Silent
= liveness + a 0- lock 10 -> Pending
// Who was told something or lost its connection has one.
a 0-1000 lock 10 -> Lost
b 0-1000 lock 10 -> NotAvailable
c 0-1000 lock 10 -> UNBLOCKED
= good

# readers may hold a lock together but not with a writer
a 0-1 lock 100 SHARED -> 1
b 2-3 lock 100 SHARED -> 2
c 4-5 lock 100 SHARED -> 3
= good
= exclusion + w 10-11 lock 100 -> 4

# nor a writer with a reader
= exclusion + w 0-1 lock 100 -> 1 + a 10-11 lock 100 SHARED -> 2

# no more hold a lock than the strictest of them says
a 0-1 lock 100 LIMIT 2 -> 1
b 2-3 lock 100 LIMIT 2 -> 2
= good
= exclusion + c 10-11 lock 100 LIMIT 5 -> 3
= good + a 5-6 release + c 10-11 lock 15 SHARED -> 3
// Two holds of one owner count once.
= good + a 1-2 lock 100 LIMIT 2 -> 1

# the tokens of readers rise too and belong to one each
a 0-1 lock 100 SHARED -> 7
= tokens + b 2-3 lock 100 SHARED -> 7
= tokens + b 2-3 lock 100 SHARED -> 6

# only who asked for a looser mode is told to release it
a 10-11 lock 100 -> UPGRADE
= good + a 0-1 lock 100 SHARED -> 1
= possession + a 0-1 lock 100 -> 1

# a session keeps its lock as long as its connection answers
s 0-1 lock 100 SESSION -> 1
= good + b 250-251 lock 10 -> 2
= exclusion + b 250-251 lock 100 -> 2 + s 300-301 ping at 1
= good + b 250-251 lock 10 -> 2 + s 300-301 ping at 2
= good + b 250-251 lock 10 -> 2 + s 300-301 ping at 1 -> Lost

# a session ends with its connection or a release
s 0-1 lock 1000 SESSION -> 1
b 60-61 lock 100 -> 2
= good + s 50-51 ping at 1 + s 52-53 close at 1
= good + s 50-51 release at 1 + s 90-91 ping at 1

# a server that stood still could not keep a session
s 0-1 lock 100 SESSION -> 1
s 300-301 ping at 1
b 250-251 lock 100 -> 2
= good + ! StopsTheServer 20-200
= good + ! HoldsCommandsBack 20-200
= exclusion + ! StopsTheServer 270-280

# a lock whose session ended goes to the next waiter promptly
s 0-1 lock 1000 SESSION -> 1
s 50-51 ping at 1
s 52-53 close at 1
= good + b 10-60 wait -> 3
= liveness + b 10-1010 wait -> NotAvailable
= liveness + b 10-800 wait -> 3
// Somebody else had it in between, or may have.
= good + b 10-800 wait -> 3 + c 9-201 wait -> 2 + c 700-701 release
= good + b 10-800 wait -> 3 + c 9-20 lock 600 -> Lost
= liveness + b 10-800 wait -> 3 + c 9-20 lock 60 -> Lost
= good + b 10-800 wait -> 3 + c 9-20 wait -> GivenUp
= good + b 10-800 wait -> 3 + ! StopsTheServer 60-600
= good + b 10-800 wait -> 3 + ! HoldsCommandsBack 2-8

# a refusal must name a cycle of waits that begins with the refused
a 0-1 lock 1000 on 1 -> 1
b 2-3 lock 1000 on 2 -> 2
b 50-51 release on 2
a 10-60 wait on 2 -> 3
= good + b 40-41 wait on 1 -> deadlock 'b' waits for '1' held by 'a', 'a' waits for '2' held by 'b'
= deadlock + b 40-41 wait on 1 -> deadlock 'b' waits for '1' held by 'a'
= deadlock + b 40-41 wait on 1 -> deadlock 'a' waits for '2' held by 'b', 'b' waits for '1' held by 'a'

# a refusal for a hold or a wait that was over, or that never was
b 2-3 lock 1000 on 2 -> 2
b 50-51 release on 2
b 40-41 wait on 1 -> deadlock 'b' waits for '1' held by 'a', 'a' waits for '2' held by 'b'
= deadlock + a 0-1 lock 1000 on 1 -> 1 + a 10-60 wait on 2 -> 3 + a 20-21 release on 1
= deadlock + a 0-1 lock 1000 on 1 -> 1 + a 10-30 wait on 2 -> UNBLOCKED
= good + a 0-1 lock 1000 on 1 -> 1 + a 10-30 wait on 2 -> Lost + a 20-21 release on 1 -> Lost
= deadlock + a 0-1 lock 1000 on another -> 1 + a 10-60 wait on 2 -> 3

# owners that wait for each other for long
a 0-1 lock 1000 on 1 -> 1
b 2-3 lock 1000 on 2 -> 2
a 10-1200 wait on 2 -> NotAvailable
= deadlock + b 40-1100 wait on 1 -> NotAvailable
// Its request may have been held back, and not have been looked at.
= good + b 40-1100 wait on 1 -> NotAvailable + ! HoldsCommandsBack 30-50
// It was told early, and may have been unblocked still earlier.
= good + b 40-300 wait on 1 -> NotAvailable
= good + b 40-300 wait on 1 -> Lost
= good + b 40-1100 wait unseen on 1 -> NotAvailable

# the token of a holding that is over never comes back
a 10-11 lock 100 -> 7
= tokens + a 0-1 lock 100 -> 7 + a 2-3 release
= tokens + a 0-1 lock 100 -> 7 + a 2-3 release + b 4-5 lock 100 -> 8 + b 6-7 release
= good + a 0-1 lock 100 -> 7 + a 2-3 release + ! BringsBack 5-6
// Nor that of one that was told to be over.
= tokens + a 0-1 lock 5 -> 7 + a 7-8 renew 10 -> NotHeld

# a waiter that gets nothing was not passed either
a 0-1 lock 1000 -> 1
a 980-981 release
= order + b 2-1010 wait -> NotAvailable + c 20-990 wait -> 2
= good + b 2-1010 wait -> Lost + c 20-990 wait -> 2
= good + b 2-1010 wait -> NotAvailable + c 3-990 wait -> 2
= good + b 2-1010 wait -> NotAvailable + c 20-990 wait -> 2 + ! EndsWaits 900-901

# a lock that is released does not stay free
a 0-1 lock 1000 -> 1
a 10-11 release
= liveness + b 2-8005 wait BLOCK 8000 -> NotAvailable
= liveness + b 2-6010 wait BLOCK 8000 -> 2
= good + b 2-200 wait BLOCK 8000 -> 2
= good + b 2-6010 wait BLOCK 8000 -> 2 + ! StopsClients 20-6000
= good + b 2-400 wait BLOCK 8000 -> 2 + ! EndsHolds 5-300
// And nobody is told of a hold that it can not have.
= possession + a 20-21 renew 100
= possession + a 20-21 release
= possession + a 20-21 release -> StillHeld
= good + a 20-21 release hold 1
= good + a 20-21 renew 100 + ! BringsBack 12-14

# a lock whose lease is over does not stay free
a 0-1 lock 300 -> 1
= good + b 2-310 wait -> 2
= liveness + b 2-800 wait -> 2
// A longer lease by a renewal counts, and so does a shorter one.
= good + b 2-800 wait -> 2 + a 5-6 renew 700
= liveness + b 2-650 wait -> 2 + a 3-4 renew 700 + a 5-6 renew 100

# nobody renews a lease that was over long ago
a 0-1 lock 100 -> 1
= possession + a 5000-5001 renew 100
= good + a 101-102 renew 100
= good + a 5000-5001 renew 100 + ! ChangesLeases 50-4900
= good + a 5000-5001 renew 100 + a 10-400 lock 4600 -> Lost

# a looser request of long ago lets nobody in
a 20-21 release
a 30-31 lock 1000 -> 2
b 50-51 lock 100 SHARED -> 3
= exclusion + a 0-1 lock 100 SHARED -> 1
// One that was lost may have been the one that was granted.
= good + a 0-1 lock 100 SHARED -> Lost

# nor does a looser re-entry
a 0-1 lock 1000 -> 1
= exclusion + a 10-11 lock 1000 SHARED -> 1 + b 50-51 lock 100 SHARED -> 2

# what is told after a session closed is kept
s 0-1 lock 1000 SESSION -> 1
s 52-53 close at 1
= exclusion + b 100-101 lock 100 -> 2 + s 54-55 lock 1000 at 2 -> 1
// What was told before ended with the connection.
= good + b 100-101 lock 100 -> 2 + s 40-41 lock 1000 at 2 -> 1
= possession + s 54-55 lock 1000 at 2 -> 1 + s 80-81 renew 100 at 2 -> NotHeld

# a hold outlives another request of its owner that was lost
a 0-1 lock 1000 -> 1
x 2-21 wait -> 2
x 3-20 wait -> Lost
a 15-16 release
b 30-31 lock 1000 -> 3
= exclusion

# another token names no hold
a 0-1 lock 1000 -> 1
= good + a 10-11 renew 100 fence 2 -> NotHeld
= good + a 10-11 renew 100 fence 1
= possession + a 10-11 renew 100 fence 1 -> NotHeld
= possession + a 10-11 renew 100 fence 2

# the lease of a waiter began after the grants before it
a 0-1 lock 890 -> 1
b 2-900 wait -> 3
c 1100-1101 lock 100 -> 4
= good
= exclusion + d 880-881 lock 10 on another -> 2

# places and blocked waiters stand in one line
a 0-1 lock 50 -> 1
= good + p 10-101 place -> told 2 + b 20-101 lock 10 queued 25 -> 3
= order + p 10-101 place -> told 3 + b 20-101 lock 10 queued 25 -> 2

# a server that took over forgot the places
a 0-1 lock 50 -> 1
p 10-1101 place -> told 3
b 20-1101 lock 10 queued 25 -> 2
= good + ! HoldsCommandsBack 500-600
= order + ! HoldsCommandsBack 2-3

# a grant to a place, and who claims it in time
a 0-1 lock 10000 -> 1
a 100-101 release
// One that nobody claims goes to the next in line promptly. A claim makes it last.
= good + p 10-101 place -> told 2 + n 20-550 place -> told 3
= liveness + p 10-101 place -> told 2 + n 20-1000 place -> told 3
= good + p 10-101 place -> told 2 + n 20-1000 place -> told 3 + p 300-301 renew 5000
// A session that nobody claims is not kept up.
= liveness + p 10-101 place SESSION -> told 2 + n 20-2000 place -> told 3
= good + p 10-101 place SESSION -> told 2 + n 20-2000 place -> told 3 + p 300-301 renew 5000
// A claimed grant keeps others out.
= good + p 10-101 place -> told 2 + o 3000-3001 lock 10 -> 3
= exclusion + p 10-101 place -> told 2 + o 3000-3001 lock 10 -> 3 + p 200-201 renew 5000

# a claim that comes in time is not refused
// Another grant shows that this one came later.
a 0-1 lock 10000 -> 0
a 100-101 release
p 10-101 place -> told 2
o 99-100 lock 10 on another -> 1
= possession + p 400-401 renew 5000 -> NotHeld
= good + p 500-501 renew 5000 -> NotHeld
// The message may tell of what was granted to an earlier request.
= good + p 400-401 renew 5000 -> NotHeld + p 5-8 place -> Lost

# a place that was bound to a connection ends with it
p 50-51 close at 1
// It may have been granted before.
= good + o 40-100 lock 10 on another -> 1 + p 10-101 place SESSION -> told 2
= possession + o 60-100 lock 10 on another -> 1 + p 10-101 place SESSION -> told 2
= good + o 60-100 lock 10 on another -> 1 + p 10-101 place SESSION -> NotAvailable

# a place whose client hears no more may be granted the lock until its time is over
a 0-1 lock 10000 -> 1
a 100-101 release
n 20-5600 place -> told 3
// Its connection ended, or stalled.
= liveness + gone 10-50 place -> Lost
= good + gone 10-50 place -> GivenUp

# an addition that was acknowledged is there later
a 10-11 add 7
= good + r 20-21 read -> elements 5 7
= updates + r 20-21 read -> elements 5 6
= good + r 5-12 read -> elements 5 6
= good + r 20-21 read on another -> elements 5 6

# of one that was refused, or whose answer was lost, nothing is promised
= good + a 10-11 add 7 -> NOTHELD + b 10-11 add 8 -> Lost + r 20-21 read -> elements 5

# over a fail-over, operations on the old primary and on the new one make one history
! HoldsCommandsBack 100-900
// A new primary may grant what the old one told nobody, or when its lease is over.
= good + a 0-500 lock 2000 -> Lost + b 600-601 lock 1000 -> 2
= good + a 0-1 lock 300 -> 1 + a 200-201 renew 300 + b 499-500 lock 1000 -> 2
// It must not grant what the old one granted.
= exclusion + a 0-1 lock 2000 -> 1 + b 600-601 lock 1000 -> 2
// An old primary must not renew what the new one granted, nor grant it.
= exclusion + a 0-1 lock 700 -> 1 + b 710-711 lock 1000 -> 2 + a 690-720 renew 700
= exclusion + b 600-601 lock 1000 -> 2 + a 610-611 lock 300 -> 3
// A new primary must know of a hold that was told.
= possession + a 0-1 lock 2000 -> 1 + a 600-601 renew 2000 -> NotHeld
// Its tokens are greater and its own.
= tokens + a 0-1 lock 2000 -> 1 + a 600-601 lock 2000 -> 2
= tokens + a 0-1 lock 2000 -> 7 + a 10-11 release + b 600-601 lock 1000 -> 6
= tokens + a 0-1 lock 300 -> 7 + b 600-601 lock 1000 -> 7

# an answer that nobody believes is no hold and no excuse
// The second renewal was answered NOREPLICAS, the first holds on.
a 0-1 lock 1000 -> 1
a 100-101 renew 1000
a 200-700 renew 1000 -> Lost
b 1000-1001 lock 1000 -> 2
= exclusion + ! HoldsCommandsBack 100-900
";

/// All scenes come out as they say.
#[test]
fn histories_are_judged_right() {
    let (mut scene, mut base, mut wrong) = ("", Vec::new(), Vec::new());
    for line in SCENES.lines().filter(|line| !line.starts_with("//")) {
        if let Some(name) = line.strip_prefix("# ") {
            (scene, base) = (name, Vec::new());
        } else if let Some(verdict) = line.strip_prefix("= ") {
            let mut more = verdict.split(" + ");
            let expected = more.next().unwrap_or_default();
            let breaches = check(&history(base.iter().copied().chain(more)), TOLERANCE);
            let found = breaches.iter().map(|one| one.promise.to_string());
            let found: Vec<String> = found.collect();
            if found.join(" ") != expected.trim_start_matches("good") {
                wrong.push(format!("{scene}: {verdict}: {breaches:#?}"));
            }
        } else if !line.is_empty() {
            base.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_no_cycle_is_not_read_as_one() {
    assert_eq!(Link::parse_all("nonsense"), None);
}

/// From when until when, if it had an end.
fn times(text: &str) -> (Nanos, Option<Nanos>) {
    let (from, until) = text.split_once('-').unwrap();
    let [from, until] = [from, until].map(|ms| ms.parse::<u64>().ok().map(|ms| ms * MS));
    (from.unwrap(), until)
}

/// What has this name in a history.
fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    serde_json::from_value(name.into()).ok()
}

fn interference(words: &[&str]) -> Interference {
    let (from, until) = times(words[1]);
    Interference {
        what: "test".into(),
        effect: named(words[0]).unwrap(),
        lock: words.get(3).map(ToString::to_string),
        from,
        until: until.unwrap(),
    }
}

fn operation(line: &str) -> Operation {
    let (asked, heard) = line.split_once(" -> ").unwrap_or((line, ""));
    let words: Vec<&str> = asked.split_whitespace().collect();
    let option = |name| word_after(&words, name);
    let number = |name| option(name).map(|word| word.parse::<u64>().unwrap());
    let (sent, answered) = times(words[1]);
    let fence = number("fence").map(|token| token as i64);
    let asked = Acquire::of(&words, 400);
    let acquire = |lease_ms, block_ms, claim_ms| {
        Request::Acquire(Acquire {
            lease_ms,
            block_ms,
            claim_ms,
            ..asked
        })
    };
    let later = |ms| Some(sent + ms * MS);
    let seen = number("queued").map(|ms| ms * MS);
    let (request, queued, usual) = match words[2] {
        "lock" => {
            let lease_ms = number("lock").unwrap();
            (acquire(lease_ms, asked.block_ms, None), seen, "Pending")
        }
        "wait" => {
            let block_ms = asked.block_ms.or(Some(1000));
            (acquire(1000, block_ms, None), later(5), "Pending")
        }
        "place" => (acquire(5000, Some(8000), Some(400)), later(1), "Pending"),
        "renew" => {
            let lease_ms = number("renew").unwrap();
            (Request::Renew { lease_ms, fence }, None, "Renewed")
        }
        "release" => {
            let (hold, all) = (number("hold"), false);
            (Request::Release { hold, fence, all }, None, "Released")
        }
        "ping" => (Request::Ping, None, "Done"),
        "close" => (Request::Close, None, "Done"),
        "add" => {
            let element = number("add").unwrap();
            (Request::Add { element }, None, "Done")
        }
        "read" => (Request::Read, None, "Pending"),
        other => panic!("{other}"),
    };
    let at = option("at").or(asked.session.then_some("1"));
    Operation {
        client: usize::from(at.is_some()),
        connection: at.map_or(0, |number| number.parse().unwrap()),
        lock: option("on").unwrap_or("l").into(),
        owner: words[0].into(),
        request,
        sent,
        answered,
        queued: queued.filter(|_| !words.contains(&"unseen")),
        outcome: outcome(if heard.is_empty() { usual } else { heard }),
    }
}

/// A number is the token of a grant, and capitals are an error's code.
fn outcome(heard: &str) -> Outcome {
    match heard.split_once(' ').unwrap_or((heard, "")) {
        ("elements", all) => {
            let elements = all.split(' ').map(|element| element.parse().unwrap());
            Outcome::Elements(elements.collect())
        }
        ("told", token) => Outcome::Told {
            token: token.parse().unwrap(),
            lease_ms: 400,
        },
        ("deadlock", cycle) => Outcome::Deadlock(Link::parse_all(cycle).unwrap()),
        (word, _) => match word.parse() {
            Ok(token) => Outcome::Granted(token),
            Err(_) => named(word).unwrap_or_else(|| Outcome::Error(word.into())),
        },
    }
}

fn history<'l>(lines: impl IntoIterator<Item = &'l str>) -> History {
    let mut history = History::default();
    for line in lines {
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
