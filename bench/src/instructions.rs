//! Counts the instructions that a server spends on a lock, beside what it spends on
//! plain commands, or on Redisson's scripts, in the lock's place.
//!
//! Each is a fixed script against a fresh server under valgrind's callgrind, so a figure
//! is nearly the same in each run. What counts is the ratio: compilers and libraries
//! differ from machine to machine, and meet both sides.
//!
//! Counted is everything but the server's clockwork (`serverCron`): the turns of the
//! event loop, the commands, the replies, what goes to the AOF and to replicas.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use redis::Value;
use redis_lock_testing::{Connection, SOON, Server, Setup, Told, comes_true, info_field, pack};

use crate::Subject;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    subject: Subject,
    /// The table of an earlier run
    #[arg(long, default_value = "docs/bench/instructions.md")]
    table: PathBuf,
    /// Fail where a ratio is worse than that of the table, instead of writing it
    #[arg(long)]
    check: bool,
    /// The module that calls what any module has to, and decides nothing
    #[arg(long, default_value = "target/release/libredislockfloor.so")]
    floor: PathBuf,
    /// Count only what has this in its name, and write nothing
    #[arg(long)]
    only: Option<String>,
    /// Keep the profiles in this folder, for callgrind_annotate
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// How much worse than in the table a ratio may be.
const SLACK: f64 = 1.03;

const WARM_UP: usize = 100;
const TURNS: usize = 500;
const STARTS: usize = 3;

/// How many commands go in one write, and how often.
const A_WRITE: usize = 500;
const WRITES: usize = 20;

/// As Redisson names them.
const OWNER: &str = "3b8a7e52-1d0c-4f6e-9a27-000000000000:1";
const OTHER: &str = "3b8a7e52-1d0c-4f6e-9a27-000000000001:1";

/// A lease that is longer each time, so that each is a change, however fast the machine
/// is: what lasts as long as before is not written.
const LEASE: &str = "{lease}";

/// What a message tells.
const TOKEN: &str = "{token}";

/// A number that no other command has.
const NUMBER: &str = "{number}";

/// What is played again and again.
#[derive(Clone, PartialEq)]
enum Script {
    /// These commands one by one, after those that come once.
    Commands(Vec<String>, Vec<String>),
    /// Two clients, of which each in turn waits for what the other gives back: how each
    /// takes it, and how it gives it back. What comes once is for the first.
    HandOff(Vec<String>, [[String; 2]; 2]),
    /// One client's commands in every other turn, and in those between. The last one
    /// follows a message of the turn, and may name the token that it tells.
    Told(Vec<String>, [Vec<String>; 2]),
    /// This command many times in a write, after those that come once. It is counted by
    /// itself.
    Written(Vec<String>, String),
}

impl Script {
    fn turns(&self) -> usize {
        match self {
            Self::Written(..) => WRITES,
            _ if self.is_long() => TURNS / 10,
            _ => TURNS,
        }
    }

    /// On how many servers it is counted.
    fn starts(&self) -> usize {
        if self.is_long() { 1 } else { STARTS }
    }

    /// Beside so many holders what comes first and each turn take minutes.
    fn is_long(&self) -> bool {
        matches!(self, Self::Commands(once, _) if once.len() > TURNS)
    }

    fn counted(&self) -> usize {
        match self {
            Self::Written(..) => WRITES * A_WRITE,
            _ => self.turns(),
        }
    }

    /// The same for the module that decides nothing.
    fn bare(&self) -> Self {
        let bare = |line: &String| line.replace("LOCK.", "FLOOR.");
        let all = |lines: &Vec<String>| lines.iter().map(bare).collect();
        match self {
            Self::Commands(once, lines) => Self::Commands(all(once), all(lines)),
            Self::HandOff(once, lines) => {
                let lines = lines.each_ref().map(|lines| lines.each_ref().map(bare));
                Self::HandOff(all(once), lines)
            }
            Self::Told(once, lines) => Self::Told(all(once), lines.each_ref().map(all)),
            Self::Written(once, line) => Self::Written(all(once), bare(line)),
        }
    }
}

/// Which module a server has.
#[derive(Clone, Copy, PartialEq)]
enum Loaded {
    None,
    Ours,
    /// The one that decides nothing.
    Bare,
}

struct Row {
    name: &'static str,
    /// The module is ours, or the one that decides nothing.
    loaded: Loaded,
    ours: Script,
    floor_name: &'static str,
    floor: Script,
    /// With an append-only file and a replica.
    durable: bool,
    /// The ratio that is to be reached, if one is.
    target: Option<f64>,
}

impl Row {
    /// What is counted: a script, with an append-only file and a replica or not, and with
    /// which module.
    fn what(&self, is_ours: bool) -> (Script, bool, Loaded) {
        match is_ours {
            true => (self.ours.clone(), self.durable, self.loaded),
            false => (self.floor.clone(), self.durable, Loaded::None),
        }
    }
}

impl Options {
    fn floor(&self) -> Result<PathBuf> {
        let floor = self.floor.display();
        let how = "`cargo build --release --package redis-lock-floor` makes it";
        let why = || format!("there is no {floor}: {how}");
        self.floor.canonicalize().with_context(why)
    }
}

fn rows() -> Vec<Row> {
    let commands = |once: &[String], turn: &[String]| Script::Commands(once.into(), turn.into());
    let acquire = |owner: &str, mode: &str| format!("LOCK.ACQUIRE k {owner} LEASE {LEASE}{mode}");
    let release = |owner: &str| format!("LOCK.RELEASE k {owner}");
    let pair = |mode: &str| [acquire(OWNER, mode), release(OWNER)];
    let shared = |holders: usize| {
        let others = (0..holders).map(|n| acquire(&format!("{OTHER}{n:03}"), " SHARED"));
        commands(&others.collect::<Vec<_>>(), &pair(" SHARED"))
    };
    let set_del = [format!("SET k {OWNER} NX PX {LEASE}"), "DEL k".into()];
    let redisson = redisson_pair("k", OWNER, LEASE);
    let redisson_lock = redisson[0].clone();
    let redisson_renew = format!("EVALSHA {} 1 k {LEASE} {OWNER}", sha(RENEW));
    let row = |name, ours, floor_name, floor, target| Row {
        name,
        loaded: Loaded::Ours,
        ours,
        floor_name,
        floor,
        durable: false,
        target,
    };
    let bare = |name, row: Row| Row {
        name,
        loaded: Loaded::Bare,
        ours: row.ours.bare(),
        target: None,
        ..row
    };
    let uncontended = || {
        row(
            "uncontended pair",
            commands(&[], &pair("")),
            SET_DEL,
            commands(&[], &set_del),
            Some(2.2),
        )
    };
    let durable = || Row {
        name: "pair with AOF and a replica",
        durable: true,
        target: Some(1.68),
        ..uncontended()
    };
    let hand_off = || {
        row(
            "hand-off to a blocked waiter",
            Script::HandOff(
                vec![acquire(OWNER, "")],
                [OWNER, OTHER].map(|owner| [acquire(owner, " BLOCK 0"), release(owner)]),
            ),
            "`BLPOP` + `LPUSH`",
            Script::HandOff(
                vec![],
                [["BLPOP k 0", "LPUSH k 1"]; 2].map(|lines| lines.map(String::from)),
            ),
            Some(2.4),
        )
    };
    let place = || {
        let waiter = format!("{OTHER}{NUMBER}");
        row(
            "place in the queue, 500 a write",
            Script::Written(
                vec![acquire(OWNER, "")],
                acquire(&waiter, " QUEUE 600000 channel"),
            ),
            "`SET`, 500 a write",
            Script::Written(vec![], format!("SET value:{NUMBER} {waiter}")),
            Some(2.3),
        )
    };
    const SET_DEL: &str = "`SET NX PX` + `DEL`";
    const REDISSON: &str = "Redisson's scripts";
    vec![
        uncontended(),
        bare("floor of the module API: pair", uncontended()),
        row(
            "the same pair",
            commands(&[], &pair("")),
            REDISSON,
            commands(&[], &redisson),
            Some(0.38),
        ),
        durable(),
        bare(
            "floor of the module API: pair with AOF and a replica",
            durable(),
        ),
        row(
            "re-entry and its release",
            commands(&[acquire(OWNER, "")], &pair("")),
            REDISSON,
            commands(std::slice::from_ref(&redisson_lock), &redisson),
            None,
        ),
        row(
            "renewal",
            commands(
                &[acquire(OWNER, "")],
                &[format!("LOCK.RENEW k {OWNER} LEASE {LEASE}")],
            ),
            REDISSON,
            commands(&[redisson_lock], &[redisson_renew]),
            None,
        ),
        hand_off(),
        bare(
            "floor of the module API: hand-off to a blocked waiter",
            hand_off(),
        ),
        place(),
        bare("floor of the module API: place in the queue", place()),
        row(
            "hand-off to a place in the queue",
            Script::Told(
                vec![acquire(OWNER, "")],
                [(OTHER, OWNER), (OWNER, OTHER)].map(|(waiter, holder)| {
                    vec![
                        acquire(waiter, " QUEUE 600000 channel"),
                        release(holder),
                        format!("LOCK.RENEW k {waiter} LEASE {LEASE} FENCE {TOKEN}"),
                    ]
                }),
            ),
            "`RPUSH`, `LPOP` + `PUBLISH`, `PEXPIRE`",
            Script::Told(
                vec![format!("SET k {OWNER}")],
                [OTHER, OWNER].map(|waiter| {
                    vec![
                        format!("RPUSH queue {waiter}"),
                        "LPOP queue".into(),
                        format!("PUBLISH channel {waiter}"),
                        format!("PEXPIRE k {LEASE}"),
                    ]
                }),
            ),
            None,
        ),
        row(
            "`SET NX PX` + `DEL` of others, beside the loaded module",
            commands(&[], &set_del),
            SET_DEL,
            commands(&[], &set_del),
            None,
        ),
        row(
            "shared pair beside 1 holder",
            shared(1),
            SET_DEL,
            commands(&[], &set_del),
            None,
        ),
        row(
            "shared pair beside 1,000 holders",
            shared(1_000),
            SET_DEL,
            commands(&[], &set_del),
            None,
        ),
    ]
}

/// What Redisson 4 sends: two scripts, and the removal of the latch in which an unlock leaves
/// its answer for a while.
pub const LOCK: &str = include_str!("redisson/lock.lua");
pub const UNLOCK: &str = include_str!("redisson/unlock.lua");
const RENEW: &str = "if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then \
    redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;";

/// How it takes a lock, and gives it back.
pub fn redisson_pair(lock: &str, owner: &str, lease: &str) -> [String; 3] {
    let latch = format!("redisson_unlock_latch:{{{lock}}}:1d0c4f6e9a2700000000000000000000");
    let (take, give) = (sha(LOCK), sha(UNLOCK));
    let channel = format!("redisson_lock__channel:{{{lock}}}");
    [
        format!("EVALSHA {take} 1 {lock} {lease} {owner}"),
        format!("EVALSHA {give} 3 {lock} {channel} {latch} 0 {lease} {owner} PUBLISH 20000"),
        format!("DEL {latch}"),
    ]
}

fn sha(script: &str) -> String {
    redis::Script::new(script).get_hash().into()
}

/// A server under callgrind, which writes a profile of what came since the last one
/// whenever it is sent `ECHO`.
struct Counted {
    server: Server,
    _replica: Option<Server>,
    folder: tempfile::TempDir,
    profiles: usize,
}

impl Counted {
    fn start(options: &Options, loaded: Loaded, durable: bool) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let under_callgrind = folder.path().join("server");
        let line = format!(
            "#!/bin/sh\nexec valgrind --quiet --tool=callgrind --callgrind-out-file='{}' \
             --dump-before=echoCommand --toggle-collect=serverCron --collect-atstart=yes \
             '{}' \"$@\"\n",
            folder.path().join("profile").display(),
            options.subject.server().display()
        );
        fs::write(&under_callgrind, line)?;
        fs::set_permissions(&under_callgrind, fs::Permissions::from_mode(0o700))?;
        // A slow machine's clockwork wakes the server more often in as many turns, which
        // costs it more than the clockwork itself.
        let mut setup = Setup::of(under_callgrind).options(&["--hz", "1", "--dynamic-hz", "no"]);
        setup = match loaded {
            Loaded::None => setup,
            Loaded::Ours => setup.module(options.subject.module()?, &[]),
            Loaded::Bare => setup.module(options.floor()?, &[]),
        };
        if durable {
            setup = setup.options(&["--appendonly", "yes", "--appendfsync", "everysec"]);
        }
        let server = setup.start()?;
        let mut replica = None;
        if durable {
            let fed = server.replica_with(Setup::of(options.subject.server()))?;
            server.connect()?.call_ok(&["SET", "fed", "1"])?;
            let mut observer = fed.connect()?;
            replica = Some(fed);
            // It is connected some time before the stream begins.
            let is_fed = || matches!(observer.call(&["EXISTS", "fed"]), Ok(Value::Int(1)));
            if !comes_true(SOON, is_fed) {
                bail!("the replica is not fed");
            }
        }
        Ok(Self {
            _replica: replica,
            server,
            folder,
            profiles: 0,
        })
    }

    /// The instructions since the last time, and the profile.
    fn mark(&mut self, connection: &mut Connection) -> Result<(u64, PathBuf)> {
        connection.call_ok(&["ECHO", ""])?;
        self.profiles += 1;
        let name = format!("profile.{}", self.profiles);
        let profile = self.folder.path().join(name);
        let text = fs::read_to_string(&profile)?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total.and_then(|total| total.parse().ok());
        Ok((total.context("the profile has no total")?, profile))
    }

    /// The instructions of one turn of the script, and the profile of all.
    fn count(&mut self, script: &Script) -> Result<(u64, PathBuf)> {
        let mut clients = [self.server.connect()?, self.server.connect()?];
        for script in [LOCK, UNLOCK, RENEW] {
            clients[0].call_ok(&["SCRIPT", "LOAD", script])?;
        }
        let (Script::Commands(once, _)
        | Script::HandOff(once, _)
        | Script::Told(once, _)
        | Script::Written(once, _)) = script;
        for line in once {
            clients[0].call_ok(&words(line, 0))?;
        }
        if let Script::Told(..) | Script::Written(..) = script {
            clients[1].call_ok(&["SUBSCRIBE", "channel"])?;
        }
        let warm_up = WARM_UP.min(script.turns());
        for n in 1..=warm_up {
            self.play(script, n, &mut clients)?;
        }
        self.mark(&mut clients[0])?;
        for n in 1..=script.turns() {
            self.play(script, warm_up + n, &mut clients)?;
        }
        let (total, profile) = self.mark(&mut clients[0])?;
        Ok((total / script.counted() as u64, profile))
    }

    /// How often the server has gone to sleep, because nothing was left to do.
    fn sleeps(&self) -> Result<u64> {
        let pid = self.server.pid().unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let sleeps = info_field(&status, "voluntary_ctxt_switches")?;
        Ok(sleeps.trim().parse()?)
    }

    /// The `n`-th turn.
    fn play(&self, script: &Script, n: usize, clients: &mut [Connection; 2]) -> Result<()> {
        match script {
            Script::Commands(_, lines) => {
                for line in lines {
                    clients[0].call_ok(&words(line, n))?;
                }
            }
            Script::Written(_, line) => {
                let numbers = n * A_WRITE..(n + 1) * A_WRITE;
                let commands = numbers.flat_map(|number| {
                    let line = line.replace(NUMBER, &number.to_string());
                    pack(&words(&line, n))
                });
                clients[0].send_bytes(&commands.collect::<Vec<_>>())?;
                for _ in 0..A_WRITE {
                    clients[0].reply()?.extract_error()?;
                }
            }
            Script::HandOff(_, lines) => {
                let (holder, waiter) = (1 - n % 2, n % 2);
                // A server that goes to sleep has done all that it was sent. To ask it
                // whether somebody waits would cost it instructions.
                let sleeps = self.sleeps()?;
                clients[waiter].send(&words(&lines[waiter][0], n))?;
                if !comes_true(SOON, || self.sleeps().is_ok_and(|now| now > sleeps)) {
                    bail!("the server never rests");
                }
                clients[holder].call_ok(&words(&lines[holder][1], n))?;
                clients[waiter].reply()?.extract_error()?;
            }
            Script::Told(_, lines) => {
                let [commands, messages] = clients;
                if let Some((last, lines)) = lines[1 - n % 2].split_last() {
                    for line in lines {
                        commands.call_ok(&words(line, n))?;
                    }
                    // The floor's tells no token, and needs none.
                    let told = Told::of(&messages.reply()?);
                    let token = told.map(|told| told.result).unwrap_or_default();
                    commands.call_ok(&words(&last.replace(TOKEN, &token), n))?;
                }
            }
        }
        Ok(())
    }
}

/// The words of a line in the `n`-th turn.
fn words(line: &str, n: usize) -> Vec<String> {
    let lease_ms = 600_000 + 1_000 * n;
    let words = line.split(' ');
    words
        .map(|word| word.replace(LEASE, &lease_ms.to_string()))
        .collect()
}

/// A count of instructions, with a comma before each three digits.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// The ratios of a table by the names of its rows.
fn ratios(table: &str) -> BTreeMap<&str, f64> {
    let rows = table.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let ratio = columns.get(5)?.parse().ok()?;
        Some((*columns.get(1)?, ratio))
    });
    rows.collect()
}

/// What has been counted: the least of several servers, as each seeds its hash tables
/// anew, and names that collide there cost it more.
struct Counts<'o> {
    options: &'o Options,
    /// Of which script, with an append-only file and a replica or not, with which module.
    least: Vec<((Script, bool, Loaded), u64)>,
}

impl Counts<'_> {
    /// The instructions of one turn. What several rows have in common is counted once.
    fn of(&mut self, row: &Row, is_ours: bool) -> Result<u64> {
        let what = row.what(is_ours);
        match self.least.iter().find(|(known, _)| *known == what) {
            Some((_, least)) => Ok(*least),
            None => self.count(row, is_ours),
        }
    }

    /// Counts, also where that has been done.
    fn count(&mut self, row: &Row, is_ours: bool) -> Result<u64> {
        let what = row.what(is_ours);
        let mut least = u64::MAX;
        if let Some(known) = self.least.iter().position(|(known, _)| *known == what) {
            least = self.least.swap_remove(known).1;
        }
        let (script, durable, loaded) = &what;
        for _ in 0..script.starts() {
            let mut server = Counted::start(self.options, *loaded, *durable)?;
            let (instructions, profile) = server.count(script)?;
            if instructions < least
                && let Some(keep) = &self.options.keep
            {
                fs::create_dir_all(keep)?;
                let whose = if is_ours { "ours" } else { "floor" };
                fs::copy(profile, keep.join(format!("{}, {whose}", row.name)))?;
            }
            least = least.min(instructions);
        }
        self.least.push((what, least));
        Ok(least)
    }
}

/// Measures all rows. Where a ratio is worse than it may be by the `known` ones, that row
/// is counted once more, so that no hash table's seed fails a check.
fn measure(options: &Options, conditions: &str, known: &BTreeMap<&str, f64>) -> Result<String> {
    let mut table = format!(
        "# Instructions\n\n\
         `make bench-instructions` writes this table: instructions of the server for one turn, counted by \
         callgrind, without\nthe server's clockwork. Compilers and libraries differ from machine to machine; \
         the ratio counts.\n\n\
         {conditions}\n\n\
         | | instructions | in its place | instructions | ratio | target |\n|---|---|---|---|---|---|\n"
    );
    print!("{table}");
    let mut counts = Counts {
        options,
        least: Vec::new(),
    };
    for row in rows() {
        let only = options.only.as_ref();
        // What decides nothing gets no worse by what is checked.
        let is_floor = row.loaded == Loaded::Bare;
        if only.is_some_and(|only| !row.name.contains(only)) || options.check && is_floor {
            continue;
        }
        let ratio = |ours: u64, floor: u64| ours as f64 / floor as f64;
        let (mut ours, mut floor) = (counts.of(&row, true)?, counts.of(&row, false)?);
        if known
            .get(row.name)
            .is_some_and(|known| ratio(ours, floor) > known * SLACK)
        {
            (ours, floor) = (counts.count(&row, true)?, counts.count(&row, false)?);
        }
        let ratio = ratio(ours, floor);
        let target = row.target.map_or(String::new(), |most| {
            let verdict = if ratio <= most { "met" } else { "**missed**" };
            format!("≤ {most}, {verdict}")
        });
        let line = format!(
            "| {} | {} | {} | {} | {ratio:.3} | {target} |",
            row.name,
            grouped(ours),
            row.floor_name,
            grouped(floor)
        );
        println!("{line}");
        writeln!(table, "{line}")?;
    }
    Ok(table)
}

/// What the figures depend on besides this project: other programs count otherwise.
fn conditions(options: &Options, valgrind: &str) -> Result<String> {
    let info = options.subject.info()?;
    let server = options.subject.version()?;
    let build = info_field(&info, "redis_build_id")?;
    let rustc = said_by("rustc").context("there is no rustc")?;
    let architecture = std::env::consts::ARCH;
    Ok(format!(
        "Counted on {server} (build {build}), {valgrind}, {rustc}, {architecture}."
    ))
}

/// The version that a program tells, if there is such a program.
fn said_by(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().into())
}

/// Fails where a ratio is worse than in the table.
fn check(known: &BTreeMap<&str, f64>, measured: &str) -> Result<()> {
    let worse: Vec<String> = ratios(measured)
        .into_iter()
        .filter_map(|(name, ratio)| match known.get(name) {
            Some(known) if ratio <= known * SLACK => None,
            Some(known) => Some(format!(
                "{name}: {ratio:.3}, where the table has {known:.3}"
            )),
            None => Some(format!("{name} is not in the table")),
        })
        .collect();
    ensure!(worse.is_empty(), worse.join("\n"));
    Ok(())
}

pub fn run(options: &Options) -> Result<()> {
    let Some(valgrind) = said_by("valgrind") else {
        eprintln!("SKIPPED: no instructions were counted, because there is no valgrind");
        return Ok(());
    };
    let conditions = conditions(options, &valgrind)?;
    if !options.check {
        let measured = measure(options, &conditions, &BTreeMap::new())?;
        if options.only.is_none() {
            fs::write(&options.table, measured)?;
        }
        return Ok(());
    }
    let table = fs::read_to_string(&options.table)?;
    if !table.contains(&conditions) {
        eprintln!(
            "SKIPPED: no instructions were compared, because the table is of other programs. \
             Here: {conditions}"
        );
        return Ok(());
    }
    let known = ratios(&table);
    check(&known, &measure(options, &conditions, &known)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_may_be_three_percent_worse_than_in_the_table() {
        let row = |ratio: f64| {
            format!("| pair | 2,000 | floor | 1,000 | {ratio:.3} | ≤ 1.9, **missed** |\n")
        };
        let table = format!(
            "| | a | b | c | ratio | |\n|---|---|---|---|---|---|\n{}",
            row(2.0)
        );
        let known = ratios(&table);
        for (measured, passes) in [(1.0, true), (2.0, true), (2.059, true), (2.061, false)] {
            let result = check(&known, &row(measured));
            assert_eq!(result.is_ok(), passes, "{measured}: {result:?}");
        }
        let other = check(&known, &row(2.0).replace("pair", "other"));
        assert!(other.unwrap_err().to_string().contains("not in the table"));
    }

    #[test]
    fn large_counts_are_grouped() {
        for (count, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(grouped(count), text);
        }
    }
}
