//! Modules with a fault planted in them are caught, each by a scene that leaves
//! nothing to luck, and that finds nothing wrong without the fault. And whoever was told that
//! it holds a lock holds it, whatever becomes of other connections of the same owner.

mod support;

use std::path::Path;

use redis_lock_chaos::history::{Breach, Promise};
use redis_lock_chaos::report::write_history;
use redis_lock_chaos::scene::Scene;
use redis_lock_testing::{Setup, binary};

/// A scene is played again if the machine stood still just then.
const ATTEMPTS: usize = 5;

const OPTIONS: [&str; 4] = ["", " HOLD 1", " SESSION", " HOLD 1 SESSION"];

/// What is promised even to those who go from one primary to the next.
const KEPT_OVER_FAIL_OVERS: [Promise; 3] =
    [Promise::Exclusion, Promise::Tokens, Promise::Possession];

/// A scene is a paragraph: what it shows, its faults and the promises that each breaks, and
/// its lines ([`redis_lock_chaos::scene`]). It is played once, so many `times` for `{n}` from
/// 1 on until something is wrong, or with what `lost` takes along, where only what is kept
/// over fail-overs counts. A fault that takes each fiftieth chance takes one of 55. With the
/// fault `none` nothing may be wrong. Each round has the next of [`OPTIONS`] for `{options}`.
const SCENES: &str = "
a lease that keeps nobody out
once: expiry-ignored exclusion
a takes l LEASE 5000
b takes l LEASE 5000

a release by anybody
once: owner-not-checked exclusion possession
a takes l LEASE 5000
b releases l
c takes l LEASE 5000
a renews l 5000

a token that is used again
once: token-reused tokens
a takes l LEASE 5000
a releases l
b takes l LEASE 5000

a stack in place of a queue
once: last-in-first-out order
a takes l LEASE 9000
b waits l LEASE 100 BLOCK 5000
c waits l LEASE 100 BLOCK 5000
a releases l
b answered
c answered

a lock that is handed to nobody
once: hand-off-skipped liveness
a takes l LEASE 5000
b waits l LEASE 5000 BLOCK 2500
a releases l
b answered

a shared lock that lets everybody in
once: limit-ignored exclusion
a takes l LEASE 5000 LIMIT 2
b takes l LEASE 5000 LIMIT 2
c takes l LEASE 5000 LIMIT 2

a hold that outlives its session
once: session-outlived liveness
a takes l LEASE 1000 SESSION
a pings l
b waits l LEASE 1000 BLOCK 2500
a closes l
b answered

a deadlock that nobody is told of
once: deadlock-missed deadlock
a takes 1 LEASE 5000
b takes 2 LEASE 5000
a' waits 2 LEASE 5000 BLOCK 700
b' asks 1 LEASE 5000 BLOCK 700
until b' seen
b' answered
a' answered

a reader that passes the queue
once: reader-barges order
a takes l LEASE 5000 SHARED
b waits l LEASE 5000 BLOCK 1000
c takes l LEASE 5000 SHARED
c releases l if held
a releases l
b answered

a waiter that is forgotten, the second in line
once: waiter-dropped liveness
55 times: waiter-dropped/50 liveness
a takes l LEASE 5000
b waits l LEASE 5000 BLOCK 900
c waits l LEASE 5000 BLOCK 900
a releases l
b answered
b releases l
c answered
c releases l if held

a lease that begins too early
once: lease-from-enqueue exclusion
a takes l LEASE 5000
b waits l LEASE 1000 BLOCK 3000
after 700 ms
# Its token shows that the grant came later.
d takes another LEASE 100
a releases l
b answered
c takes l LEASE 5000 BLOCK 3000
c renews l 5000

a renewal that takes a lock
once: late-renewal possession
55 times: late-renewal/50 possession
a takes l LEASE 5000
a releases l
a renews l 5000
a releases l if held

a token that its owner gets again
once: own-token-again tokens
55 times: own-token-again/50 tokens
a takes l LEASE 5000
a releases l
a takes l LEASE 5000
a releases l

a lease that replicas do not know
once: expiry-not-propagated liveness
replica in step
a takes l LEASE 1500
primary fails over
b asks l LEASE 100 BLOCK 4000
until b seen
b answered

a lock that is handed on late
3 times: rechecks-late liveness
a takes {n} LEASE 60
b asks {n} LEASE 100 BLOCK 2000
until b seen
b answered

a place that is not kept
once: place-not-kept order
a takes l LEASE 9000
b queues l LEASE 100 QUEUE 5000
c queues l LEASE 100 QUEUE 5000
b repeats l LEASE 100 QUEUE 5000
a releases l
b told
c told

a grant to a place of which nobody hears
once: grant-unheard liveness
primary set lock.claim-timeout 1000
a takes l LEASE 9000
b queues l LEASE 1000 QUEUE 9000
b deaf
# Nobody may suppose any more that it was granted before.
after 1200 ms
c waits l LEASE 1000 BLOCK 5000
a releases l
c answered

a session that is kept up unclaimed
once: unclaimed-kept liveness
a takes l LEASE 9000
b queues l LEASE 1000 SESSION QUEUE 5000
c waits l LEASE 1000 BLOCK 2500
a releases l
b told
c answered

a grant to a place that has ended
once: place-outlived possession
a takes l LEASE 9000
b queues l LEASE 1000 SESSION QUEUE 5000
a at once: kills b ending l, takes another LEASE 1000, releases l

a grant that waits for no replica, or for what was written before it
lost: acknowledgement-not-awaited exclusion
lost: offset-too-early exclusion
# Nothing is told before the replica has acknowledged it, however long that takes.
replica in step
primary set lock.min-replicas 1 lock.replicas-timeout 600000
a pings l
replica cut off
a asks l LEASE 60000
until a withheld
primary lost
a answered
b takes l LEASE 60000

a hand-off that waits for no replica
lost: hand-off-not-covered possession
replica in step
primary set lock.min-replicas 1 lock.replicas-timeout 600000
a takes l LEASE 60000
b waits l LEASE 60000 BLOCK 0
replica cut off
a releases l
until b withheld
primary lost
b answered
b' renews l 60000

a message that waits for no replica
lost: hand-off-not-covered possession
replica in step
primary set lock.min-replicas 1 lock.replicas-timeout 600000
all set lock.claim-timeout 60000
a takes l LEASE 60000
b queues l LEASE 60000 QUEUE 60000
replica cut off
a releases l
until b withheld
primary lost
b told
b' renews l 60000

a renewal that waits for no replica
lost: renewal-not-covered exclusion
replica in step
primary set lock.min-replicas 1 lock.replicas-timeout 600000
a takes l LEASE 1500
replica cut off
a would renew l 60000
until a withheld
primary lost
a answered
b takes l LEASE 60000 BLOCK 6000

a grant in the grace period
lost: grace-ignored exclusion
replica in step
all set lock.max-lease 60000 lock.grace-period 72000
a pings l
replica cut off
a takes l LEASE 60000
primary lost
b takes l LEASE 60000

a reentry in the grace period
lost: reentry-in-grace exclusion
replica in step
all set lock.max-lease 60000 lock.grace-period 72000
a takes l LEASE 60000 HOLD 1
replica in step
replica cut off
a releases l
b takes l LEASE 60000 HOLD 1
primary lost
a' takes l LEASE 60000 HOLD 1

a primary that hands on without its replica
lost: not-fenced exclusion
replica in step
primary set min-replicas-to-write 1 min-replicas-max-lag 1
b pings l
until other taken
a takes l LEASE 4000
b asks l LEASE 60000 BLOCK 7000
until b seen
replica in step
replica cut off
replica promoted
until other refused
# On a slow machine the old primary may have been right to hand it on.
within 4000 ms
c takes l LEASE 60000 BLOCK 7000
b answered

what is told after a connection was killed stays
4 times: none
x' pings l
x takes l LEASE 60000 HOLD 1 SESSION
x pings l
n waits l LEASE 60000 BLOCK 5000
x' at once: kills x ending l, takes l LEASE 60000 {options}
x' renews l 60000 if held
x' releases l if held
n answered
n renews l 60000
n releases l

what is told after a connection closed stays
80 times: none
x' pings l
x takes l LEASE 60000 HOLD 1 SESSION
x pings l
n waits l LEASE 60000 BLOCK 5000
x closes l
x' takes l LEASE 60000 {options}
after 3 ms
x' renews l 60000 if held
x' releases l if held
n answered
n renews l 60000
n releases l

a hold survives another request of its owner
20 times: none
a takes l LEASE 60000
x waits l LEASE 60000 HOLD 1 BLOCK 5000
x' waits l LEASE 60000 HOLD 1 BLOCK 5000
n waits l LEASE 60000 BLOCK 5000
a at once: releases l, kills x'
x answered
after 3 ms
x renews l 60000
x releases l
n answered
n releases l
";

struct Case {
    name: &'static str,
    /// How often, or `once`, or `lost`.
    times: &'static str,
    fault: &'static str,
    promises: Vec<&'static str>,
    lines: Vec<&'static str>,
}

/// A scene with each of its faults.
fn cases() -> Vec<Case> {
    let case = |scene: &'static str| {
        let mut lines = scene.lines().filter(|line| !line.starts_with('#'));
        let name = lines.next().unwrap_or_default();
        let (faults, lines): (Vec<&str>, Vec<&str>) =
            lines.partition(|line| line.contains(": ") && !line.contains("at once"));
        let faults = faults.into_iter().map(move |fault| {
            let (times, fault) = fault.split_once(": ").unwrap();
            let mut promises = fault.split(' ');
            Case {
                name,
                times: times.trim_end_matches(" times"),
                fault: promises.next().unwrap(),
                promises: promises.collect(),
                lines: lines.clone(),
            }
        });
        faults.collect::<Vec<_>>()
    };
    SCENES.trim().split("\n\n").flat_map(case).collect()
}

impl Case {
    /// What is wrong with this fault, or `none`.
    fn breaches(&self, fault: &str) -> Vec<Breach> {
        let mut setup = Setup::of(binary()).module(support::module_with_faults(), &[]);
        let planted = ("REDISLOCK_PLANTED_FAULT".into(), fault.into());
        setup.environment.push(planted);
        let mut scene = Scene::start(&setup);
        for round in 1..=self.times.parse().unwrap_or(1) {
            let lines = self.lines.join("\n").replace("{n}", &round.to_string());
            scene.play(&lines.replace(" {options}", OPTIONS[round % OPTIONS.len()]));
            if !scene.breaches_so_far().is_empty() {
                break;
            }
        }
        // For somebody else to judge: the name says what it has to find.
        if let Some(folder) = std::env::var_os("REDISLOCK_HISTORIES") {
            let (name, promises) = (self.name, self.promises.join(" and "));
            let file = format!("{name} is a breach of {promises}.{fault}.jsonl");
            let path = Path::new(&folder).join(file.replace('/', "-"));
            write_history(&scene.history(), &path).unwrap();
        }
        let mut breaches = scene.breaches();
        let is_lost = self.times == "lost";
        breaches.retain(|one| !is_lost || KEPT_OVER_FAIL_OVERS.contains(&one.promise));
        breaches
    }

    /// Plays the scene with and without the fault. Returns what does not come out right.
    fn play(&self) -> Option<String> {
        let Self { name, fault, .. } = self;
        let is_caught = || {
            let found = self.breaches(fault);
            let is_found = |name: &str| found.iter().any(|one| one.promise.to_string() == name);
            self.promises.iter().all(|name| is_found(name))
        };
        let is_caught = self.promises.is_empty() || (0..ATTEMPTS).any(|_| is_caught());
        let breaches = self.breaches("none");
        if !is_caught {
            return Some(format!("{name}: {fault} breaks no {:?}", self.promises));
        }
        let is_sound = breaches.is_empty();
        (!is_sound).then(|| format!("{name}: without a fault: {breaches:#?}"))
    }
}

#[test]
fn each_planted_fault_is_caught_by_its_scene_and_nothing_else_is() {
    support::play(cases(), |case| case.play());
}
