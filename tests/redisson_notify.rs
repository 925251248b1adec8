//! Redisson's waiters, who listen on a channel, are told of a release.

use redis_lock_testing::{Cluster, Play, tag};

const CHANNEL: &str = "redisson_lock__channel:{k}";

/// On a server with this setting, `ears` hear the channel of `k`.
#[track_caller]
fn heard_with(notify: &str) -> Play {
    let mut play = Play::start();
    play.run(&format!(
        "o > CONFIG SET lock.redisson-notify {notify} -> OK
        ears > SUBSCRIBE {CHANNEL} -> _"
    ));
    play
}

fn release(key: &str) -> String {
    format!("o > LOCK.ACQUIRE {key} a -> token \n o > LOCK.RELEASE {key} a -> 1")
}

/// What is told of the release of `k`, or of what comes after it.
fn told(message: &str) -> String {
    format!("ears < ['message', '{CHANNEL}', '{message}']")
}

#[test]
fn a_final_release_that_no_waiter_takes_over_is_published_once() {
    for notify in ["auto", "publish"] {
        heard_with(notify).run(&format!(
            "tagged > SUBSCRIBE redisson_lock__channel:{{tag}}k -> _
            o > LOCK.ACQUIRE k a -> token
            o > LOCK.ACQUIRE k a -> token
            o > LOCK.RELEASE k a -> 0
            b > LOCK.ACQUIRE k b BLOCK 0 -> ..
            o > LOCK.RELEASE k a HOLD 1 -> 1
            o > LOCK.RELEASE k a HOLD 1 -> 1
            o > LOCK.RELEASE k a -> null
            o > PUBLISH {CHANNEL} before
            {}
            b < token
            b > LOCK.RELEASE k b -> 1
            {}
            {}
            tagged < ['message', 'redisson_lock__channel:{{tag}}k', '0']",
            told("before"),
            told("0"),
            release("{tag}k")
        ));
    }
}

#[test]
fn a_release_in_a_transaction_or_a_script_is_published() {
    let script = "redis.call('LOCK.ACQUIRE','k','a') return redis.call('LOCK.RELEASE','k','a')";
    let told = told("0");
    heard_with("auto").run(&format!(
        "o >> LOCK.ACQUIRE k a | LOCK.RELEASE k a -> token | 1
        {told}
        o > EVAL \"{script}\" 0 -> 1
        {told}"
    ));
}

#[test]
fn a_subscriber_of_a_replica_is_told_if_it_is_asked_for() {
    let mut play = Play::start().with_replica();
    let (release, told, end) = (release("k"), told("0"), told("end"));
    play.run(&format!(
        "ears at r
        ears > SUBSCRIBE {CHANNEL} -> _
        {release}
        o > PUBLISH {CHANNEL} end
        {end}
        o > CONFIG SET lock.redisson-notify publish -> OK
        {release}
        {told}"
    ));
    play.run("in step");
}

#[test]
fn in_a_cluster_sharded_subscribers_are_told() {
    let mut play = Play::moving();
    let replica = Cluster::add_replica(&play.server, &play.with_names("$id0"));
    play.others.insert("r".into(), replica);
    let key = tag(|slot| slot < 5000, 0);
    let release = release(&key);
    let told = "['smessage', '$channel', '0']";
    // Nobody listens to the primary at first.
    play.name("channel", format!("redisson_lock__channel:{{{key}}}"))
        .run(&format!(
            "beside@r > SSUBSCRIBE $channel
            {release}
            o > SPUBLISH $channel end
            beside@r < ['smessage', '$channel', 'end']
            o > CONFIG SET lock.redisson-notify spublish
            {release}
            beside@r < {told}"
        ));
    for notify in ["auto", "spublish"] {
        play.run(&format!(
            "o > CONFIG SET lock.redisson-notify {notify}
            {notify} > SSUBSCRIBE $channel
            {release}
            {notify} < {told}"
        ));
    }
    play.run("sound");
}

#[test]
fn who_begins_to_listen_is_told_however_many_locks_nobody_heard_of() {
    let mut play = Play::start();
    for n in 0..1200 {
        play.run(&release(&format!("other{n}")));
    }
    let (release, told) = (release("k"), told("0"));
    play.run(&format!(
        "ears > SUBSCRIBE {CHANNEL} -> _ \n {release} \n {told} \n {release} \n {told}"
    ));
}

#[test]
fn who_listens_is_told_before_the_module_goes() {
    let (release, told) = (release("k"), told("0"));
    heard_with("auto").run(&format!(
        "o > CONFIG SET hz 1 -> OK
        {release}
        o > MODULE UNLOAD lock -> OK
        {told}"
    ));
}

#[test]
fn nothing_is_published_if_nothing_is_to_be() {
    let (release, end) = (release("k"), told("end"));
    heard_with("no").run(&format!("{release} \n o > PUBLISH {CHANNEL} end \n {end}"));
}

#[test]
fn who_listens_is_told_by_default() {
    Play::start().run(
        "o > CONFIG GET lock.redisson-notify -> ['lock.redisson-notify', 'auto']
        o > CONFIG SET lock.redisson-notify spublish -> OK
        o > CONFIG SET lock.redisson-notify auto -> OK
        o > CONFIG SET lock.redisson-notify perhaps -> !ERR",
    );
}
