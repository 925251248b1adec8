//! Scenes as text, which read as a session does: who sends what, and what is replied.
//!
//! ```text
//! a > LOCK.ACQUIRE k a LONG -> T        T is this token from here on
//! b > LOCK.ACQUIRE k b BLOCKED -> ..    it waits for its reply
//! ears hears ch                         by RESP3; or `ears hears sharded ch`
//! ears > LOCK.ACQUIRE k c PLACED -> 0
//! a > DEL k | LOCK.BREAK k -> 1 | 0     both in one write
//! a >> DEL k | GET x -> 1 | 'text'      both in one transaction
//! b < U                                 the reply that it waited for
//! ears heard b !SUPERSEDED              whose place ended, and how; `b U 2000` with a lease
//! ears heard nothing
//! b closes                              the server knows, too; or just `b drops`
//! a sends DEL k | PING                  and reads no reply yet
//! queue k = b c                         who waits, in order, or `nobody`
//! lock_waiters = 2                      a number of `INFO`
//! until lock_sessions = 0               what the server does later
//! settled                               it has done what it does by itself
//! r stops                               another server, which `r goes on` ends
//! r.lock_places = 0                     a number of its `INFO`
//! x at r                                who connects there, as `x@r` does from the beginning
//! primary starts                        another server, that has to do with none
//! sound                                 no server has crashed
//! in step with r                        none has, and `r` has the same data; `r` may be left out
//! 9 ms pass                             where it is the passing of time that is tested
//! crash for 9                           the server starts again on its data after so many ms
//! logged text                           the server has logged this, or does so later
//! each 0..9: w# < T# ; w# closes        lines for each number, or each word
//! ```
//!
//! Whoever is named connects when it is named first. In a command `$T` is a token, `$b` the id
//! of a connection, `$r` the port of a server, and `LONG`, `BLOCKED` and `PLACED` are options
//! that last. A new token has to be greater than all that were named before. A reply is shown
//! as redis-cli does, but for `!CODE`, which begins an error, `~text`, which is somewhere in it,
//! `1..9`, `..9` and `1..` for numbers, `token`, `closed`, and `_` for any. Each of these may be
//! in a list, which a map is shown as. `{state 'held' holders.0.holds 2}` tells some fields of
//! it, of which one may be `nothing`. `:name` is this very reply from here on, `$name`, or
//! `$name+9` if it is a number. Where none is given, any will do that is no error.

use std::collections::BTreeMap;
use std::iter::repeat;
use std::ops::Deref;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, anyhow};
use redis::Value;
use regex::{Captures, Regex};

use super::{Client, Cluster, eventually, scene, slot, tag};
use crate::{Error, Result, SOON, Server, Told, comes_true, reply_text};

/// A scene on a server.
pub struct Play {
    /// The server.
    pub server: Server,
    /// Others, by their names.
    pub others: BTreeMap<String, Server>,
    actors: BTreeMap<String, Client>,
    /// What tokens and texts are called. Who is called as an actor is the id of its connection.
    names: BTreeMap<String, String>,
    /// The last lines, which a line that does not come true is shown with.
    played: Vec<String>,
}

/// A name, and what is to be added to it.
static NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\$(\w+)(?:\+(\d+))?").unwrap());

/// How many lines are shown of a scene that fails.
const SHOWN: usize = 40;

impl Deref for Play {
    type Target = Server;
    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Play {
    /// On a new server.
    #[track_caller]
    pub fn start() -> Self {
        Self::on(Server::start())
    }

    /// On this server.
    #[track_caller]
    pub fn on(server: Server) -> Self {
        Self {
            server,
            others: BTreeMap::new(),
            actors: BTreeMap::new(),
            names: BTreeMap::new(),
            played: Vec::new(),
        }
    }

    /// On a new server where `h` holds the lock `k` with the token `H`, and `ears` hear
    /// the channel `ch`.
    #[track_caller]
    pub fn held() -> Self {
        Self::start().and_held()
    }

    /// The same on this server.
    #[track_caller]
    pub fn and_held(mut self) -> Self {
        self.run("h > LOCK.ACQUIRE k h LONG -> H\n ears hears ch");
        self
    }

    /// With a replica `r`, which has to acknowledge what is told, for as long as it takes.
    #[track_caller]
    pub fn acknowledged() -> Self {
        let mut play = Self::start().with_replica();
        play.run(
            "o > CONFIG SET lock.min-replicas 1
            o > CONFIG SET lock.replicas-timeout 600000",
        );
        play
    }

    /// With a replica `r` that is in step.
    #[track_caller]
    pub fn with_replica(mut self) -> Self {
        self.others.insert("r".into(), self.server.replica(true));
        scene::await_replicas(&mut self.server.client(), 1);
        self
    }

    /// The connection of this name.
    #[track_caller]
    pub fn client(&mut self, name: &str) -> &mut Client {
        if !self.actors.contains_key(name) {
            let (_, server) = name.split_once('@').unwrap_or_default();
            self.connect_to(server, name);
        }
        self.actors.get_mut(name).unwrap()
    }

    #[track_caller]
    fn connect_to(&mut self, server: &str, name: &str) {
        let mut client = self.others.get(server).unwrap_or(&self.server).client();
        self.name(name, client.int("CLIENT ID").to_string());
        self.actors.insert(name.into(), client);
    }

    /// On node 0 of a cluster with the nodes `n1` and `n2`, whose names are `$id0` to `$id2`.
    /// The slot `$slot` of `$key` is to move from node 0 to node 1.
    #[track_caller]
    pub fn moving() -> Self {
        let cluster = Cluster::start();
        let tag = tag(|slot| slot < 5000, 0);
        let mut nodes = cluster.nodes.into_iter();
        let mut play = Self::on(nodes.next().unwrap());
        play.others
            .extend(["n1", "n2"].map(String::from).into_iter().zip(nodes));
        for (nth, id) in cluster.ids.into_iter().enumerate() {
            play.name(&format!("id{nth}"), id);
        }
        play.name("slot", slot(&tag).to_string());
        play.name("key", format!("lock:{{{tag}}}"));
        play
    }

    /// Each of these commands ends in this error, and leaves all keys as they were.
    #[track_caller]
    pub fn refuses(&mut self, error: &str, commands: &[impl AsRef<str>]) -> &mut Self {
        for command in commands {
            self.run(&format!(
                "o > DEBUG DIGEST -> :digest
                o > {} -> !{error}
                o > DEBUG DIGEST -> $digest",
                command.as_ref()
            ));
        }
        self
    }

    fn newest_token(&self) -> i64 {
        let tokens = self.names.keys().filter(|name| is_name(name));
        tokens.map(|name| self.token(name)).max().unwrap_or(0)
    }

    /// Gives a text a name.
    pub fn name(&mut self, name: &str, text: impl Into<String>) -> &mut Self {
        self.names.insert(name.into(), text.into());
        self
    }

    /// A token that was named.
    pub fn token(&self, name: &str) -> i64 {
        self.names[name].parse().unwrap()
    }

    /// Plays these lines.
    #[track_caller]
    pub fn run(&mut self, lines: &str) -> &mut Self {
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(each) = line.strip_prefix("each ") {
                let (whom, lines) = each.split_once(": ").unwrap();
                let lines = lines.replace(" ; ", "\n");
                for one in each_of(whom) {
                    self.run(&lines.replace('#', &one));
                }
                continue;
            }
            let mut seen = Ok(());
            let mut see = |line: &str| {
                seen = self.line(line);
                seen.is_ok()
            };
            match line.strip_prefix("until ") {
                Some(line) => comes_true(SOON, || see(line)),
                None => see(line),
            };
            self.played.push(line.into());
            if let Err(why) = seen {
                let last = self.played.len().saturating_sub(SHOWN);
                panic!("{}\nbut: {why:#}", self.played[last..].join("\n"));
            }
        }
        self
    }

    #[track_caller]
    fn line(&mut self, line: &str) -> Result<()> {
        let line = self.with_names(line);
        let words: Vec<&str> = line.split(' ').collect();
        let rest = line.splitn(3, ' ').nth(2).unwrap_or_default();
        let server = |name: &str| self.others.get(name).unwrap_or(&self.server);
        match words[..] {
            // The last that a server does by itself is to take back a grant that nobody heard of.
            ["settled"] => {
                self.run(
                    "gone > LOCK.ACQUIRE settled gone LONG SESSION -> token
                    gone drops
                    until settler > EXISTS settled -> 0",
                );
            }
            ["sound"] => {
                self.server.assert_sound();
                self.others.values().for_each(Server::assert_sound);
            }
            ["in", "step", ..] => {
                self.line("sound")?;
                let replica = words.get(3).unwrap_or(&"r");
                self.server.assert_same_data(&self.others[*replica]);
            }
            ["crash", ..] => {
                self.actors.clear();
                self.server.crash();
                // It is the passing of time that is meant.
                let ms = words.get(2).map_or(0, |ms| ms.parse().unwrap());
                std::thread::sleep(Duration::from_millis(ms));
                self.server.restart().unwrap();
            }
            ["logged", ..] => {
                let logged = line.strip_prefix("logged ").unwrap();
                let is_logged = comes_true(SOON, || self.server.log().contains(logged));
                return is_logged.then_some(()).with_context(|| self.server.log());
            }
            ["queue", key, "=", ref owners @ ..] => {
                let info = self.server.client().call(&format!("LOCK.INFO {key}"));
                let owner = |nth| scene::at(&info, &format!("waiters.{nth}.owner")).cloned();
                let waiting = (0..).map_while(owner).map(reply_text);
                let queue = waiting.collect::<Option<Vec<_>>>().unwrap().join(" ");
                let queue = if queue.is_empty() { "nobody" } else { &queue };
                return self.agrees(queue, &owners.join(" "));
            }
            [field, "=", expected] => {
                let (name, field) = field.split_once('.').unwrap_or(("", field));
                let number = server(name).info(field);
                return self.agrees(&number.to_string(), expected);
            }
            [who, way @ (">" | ">>"), ..] => {
                let (commands, replies) = rest.split_once(" -> ").unwrap_or((rest, ""));
                let commands: Vec<&str> = commands.split(" | ").collect();
                let replies: Vec<&str> = replies.split(" | ").collect();
                assert!(replies == [""] || replies.len() == commands.len(), "{line}");
                return self.call(who, way == ">>", &commands, &replies);
            }
            [who, "sends", ..] => self.send(who, &rest.split(" | ").collect::<Vec<_>>()),
            [who, "<", ..] => return self.reply(who, rest),
            [who, "heard", ..] => return self.heard(who, rest),
            [who, "hears", ref how @ .., channel] => {
                let sharded = if how.is_empty() { "" } else { "S" };
                self.client(who)
                    .subscribe(&format!("{sharded}SUBSCRIBE {channel}"));
            }
            [who, "at", server] => self.connect_to(server, who),
            [name, "starts"] => _ = self.others.insert(name.into(), Server::start()),
            [name, "stops"] => server(name).stop().unwrap(),
            [name, "goes", "on"] => server(name).go_on().unwrap(),
            [ms, "ms", "pass"] => std::thread::sleep(Duration::from_millis(ms.parse().unwrap())),
            [who, "drops"] => drop(self.actors.remove(who).context("nobody")?),
            [who, "closes"] => {
                let client = self.actors.remove(who).context("nobody")?;
                let mut observer = Client::open(client.connection.addr()?)?;
                drop(client);
                let itself = format!("CLIENT LIST ID {}", self.names[who]);
                eventually("the connection is gone", || {
                    observer.bulk(&itself).is_empty()
                });
            }
            _ => panic!("what is this? {line}"),
        }
        Ok(())
    }

    /// The line with what its names stand for.
    pub fn with_names(&self, line: &str) -> String {
        let meant = |found: &Captures<'_>| {
            let name = &found[1];
            let port = || Some(self.others.get(name)?.port.to_string());
            let known = self.names.get(name).cloned().or_else(port);
            let known = known.unwrap_or_else(|| panic!("{line}: what is {name}?"));
            let Some(more) = found.get(2) else {
                return known;
            };
            let [known, more]: [i64; 2] = [&known, more.as_str()].map(|it| it.parse().unwrap());
            (known + more).to_string()
        };
        let all = NAME.replace_all(line, meant);
        all.replace(" PLACED", " LONG QUEUE 600000 ch")
            .replace(" BLOCKED", " LONG BLOCK 0")
            .replace(" LONG", " LEASE 600000")
    }

    fn call(
        &mut self,
        who: &str,
        at_once: bool,
        commands: &[&str],
        replies: &[&str],
    ) -> Result<()> {
        if at_once {
            self.call(who, false, &["MULTI"], &["OK"])?;
            for command in commands {
                self.call(who, false, &[command], &["QUEUED"])?;
            }
            self.send(who, &["EXEC"]);
            let reply = self.client(who).try_reply();
            let Some(Value::Array(parts)) = reply else {
                return self.answers(reply, replies[0]);
            };
            let mut each = parts.into_iter().zip(replies.iter().chain(repeat(&"")));
            return each.try_for_each(|(part, reply)| self.answers(Some(part), reply));
        }
        self.send(who, commands);
        let mut replies = replies.iter().chain(repeat(&"")).take(commands.len());
        replies.try_for_each(|reply| match *reply {
            ".." => self.await_blocked(who),
            reply => self.reply(who, reply),
        })
    }

    /// Several commands in one write.
    fn send(&mut self, who: &str, commands: &[&str]) {
        let lines: Vec<_> = commands.iter().map(|line| words(line)).collect();
        // That the server has gone shows when the reply is read.
        let _ = self.client(who).connection.send_all(&lines);
    }

    fn await_blocked(&mut self, who: &str) -> Result<()> {
        let mut observer = Client::open(self.client(who).connection.addr()?)?;
        let itself = format!("CLIENT LIST ID {}", self.names[who]);
        let mut told = String::new();
        let is_blocked = comes_true(SOON, || {
            told = observer.bulk(&itself);
            let mut words = told.split(' ');
            words.any(|word| word.starts_with("flags=") && word.contains('b'))
        });
        is_blocked
            .then_some(())
            .with_context(|| format!("does not wait: {told}"))
    }

    fn reply(&mut self, who: &str, expected: &str) -> Result<()> {
        let reply = self.client(who).try_reply();
        self.answers(reply, expected)
    }

    /// Whether a reply is what is expected, which may be fields of it.
    fn answers(&mut self, reply: Option<Value>, expected: &str) -> Result<()> {
        let fields = expected
            .strip_prefix('{')
            .and_then(|it| it.strip_suffix('}'));
        let Some(fields) = fields else {
            let shown = reply.as_ref().map_or("closed".into(), scene::shown);
            return self.agrees(&shown, expected);
        };
        let is_open = |list: &str| list.matches('[').count() > list.matches(']').count();
        let mut words: Vec<String> = Vec::new();
        for word in fields.split(' ') {
            match words.last_mut().filter(|list| is_open(list)) {
                Some(list) => *list += &format!(" {word}"),
                None => words.push(word.into()),
            }
        }
        words.chunks(2).try_for_each(|pair| {
            let found = reply.as_ref().and_then(|reply| scene::at(reply, &pair[0]));
            let found = found.map_or("nothing".into(), scene::shown);
            let is_so = self.agrees(&found, &pair[1]);
            is_so.map_err(|is| anyhow!("{} is {is}: {reply:?}", pair[0]))
        })
    }

    fn heard(&mut self, who: &str, expected: &str) -> Result<()> {
        let ears = self.client(who);
        if expected == "nothing" {
            let told = ears.told_so_far();
            return told
                .is_empty()
                .then_some(())
                .with_context(|| format!("{told:?}"));
        }
        let heard = ears.heard()?;
        let told = Told::of(&heard).with_context(|| format!("{heard:?}"))?;
        let (owner, result) = expected.split_once(' ').unwrap_or((expected, ""));
        let (result, lease_ms) = match result.split_once(' ') {
            Some((result, lease_ms)) if !result.starts_with('!') => (result, lease_ms),
            _ => (result, "_"),
        };
        self.agrees(&told.owner, owner)?;
        let is_so = self.agrees(&told.result.replacen('-', "!", 1), result);
        let is_so = is_so.and_then(|()| self.agrees(&told.lease_ms.to_string(), lease_ms));
        is_so.map_err(|_| anyhow!("{told:?}"))
    }

    /// The same of a reply as it is shown.
    #[expect(clippy::missing_errors_doc, reason = "what is there instead")]
    pub fn agrees<'l>(&mut self, shown: &'l str, expected: &'l str) -> Result<()> {
        let shape = |list: &str| list.replace(|c| !"[],".contains(c), "");
        if expected.starts_with('[') && expected.len() > 2 && shape(shown) == shape(expected) {
            let parts = |list: &'l str| list.split(", ").map(|part| part.trim_matches(['[', ']']));
            let mut pairs = parts(shown).zip(parts(expected));
            let all = pairs.try_for_each(|(part, expected)| self.agrees(part, expected));
            return all.map_err(|_| Error::msg(shown.to_owned()));
        }
        let number: Option<i64> = shown.parse().ok();
        let is_so = match expected {
            "" => !shown.starts_with('!') && shown != "closed",
            "_" => true,
            "token" => number.is_some_and(|number| number > 0),
            code if code.starts_with('!') => shown.starts_with(code),
            part if part.starts_with('~') => shown.contains(&part[1..]),
            name if name.starts_with(':') => {
                self.names.insert(name[1..].into(), shown.into());
                true
            }
            name if is_name(name) => match (self.names.get(name), number) {
                (Some(token), _) => shown == token,
                (None, Some(number)) if number > self.newest_token() => {
                    self.names.insert(name.into(), shown.into());
                    true
                }
                _ => false,
            },
            range if range.contains("..") && !range.contains(' ') => {
                let (least, most) = range.split_once("..").unwrap();
                let bound = |text: &str, none| text.parse().unwrap_or(none);
                let range = bound(least, i64::MIN)..=bound(most, i64::MAX);
                number.is_some_and(|number| range.contains(&number))
            }
            text => shown == text,
        };
        is_so.then_some(()).with_context(|| shown.to_owned())
    }
}

/// The numbers of `0..9` or of `9..0`, or the words.
fn each_of(whom: &str) -> Vec<String> {
    let Some((first, last)) = whom.split_once("..") else {
        return whom.split(' ').map(String::from).collect();
    };
    let [first, last]: [usize; 2] = [first, last].map(|number| number.parse().unwrap());
    let mut numbers: Vec<_> = (first.min(last)..=first.max(last)).collect();
    numbers.sort_by_key(|number| number.abs_diff(first));
    numbers.iter().map(usize::to_string).collect()
}

fn is_name(word: &str) -> bool {
    let rest = word.strip_prefix(|c: char| c.is_ascii_uppercase());
    rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
}

/// The words of a command. One in double quotes may have spaces.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (nth, part) in command.split('"').enumerate() {
        match nth % 2 {
            0 => words.extend(part.split_whitespace().map(String::from)),
            _ => words.push(part.into()),
        }
    }
    words
}
