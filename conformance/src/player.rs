//! Plays a scenario, with servers of its own and the drivers of one language, or of all.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use redis_lock_testing::{Error, Result, Signal};
use serde_json::{Map, Value, json};

use crate::bed::Bed;
use crate::process::Process;
use crate::scenario::{Node, Scenario, Seen, Step};

/// How often something is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long an answer may take that waits for nobody, on a machine with little time: the
/// first one includes the start of the driver.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Why a scenario was not played to its end.
pub enum Stop {
    /// Something was not as expected.
    Failed(String),
    /// A package does not offer what it takes.
    Unsupported(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

type Played<T = ()> = std::result::Result<T, Stop>;

/// Who is asked.
#[derive(Clone, Copy)]
enum Whom<'s> {
    Server(Node),
    Actor(usize, &'s Map<String, Value>),
}

/// What happened, for whoever looks for a fault.
#[derive(Default)]
pub struct Record {
    /// A line each.
    pub text: String,
    /// When the lease ends that was asked for last, in milliseconds of `CLOCK_MONOTONIC`.
    pub lease_end_ms: Option<f64>,
}

/// A scenario that is being played.
pub struct Player<'p> {
    scenario: &'p Scenario,
    bed: Bed,
    /// In the order of the actors.
    processes: Vec<Process>,
    /// The calls of a name: by whom, and their numbers.
    calls: HashMap<String, Vec<(usize, u64)>>,
    seen: Seen,
    record: &'p mut Record,
    begun: Instant,
}

impl<'p> Player<'p> {
    /// These servers and these actors, who know nothing of each other yet.
    pub fn new(
        scenario: &'p Scenario,
        bed: Bed,
        processes: Vec<Process>,
        record: &'p mut Record,
    ) -> Self {
        let mut seen = Seen::default();
        if let Some(key) = bed.key() {
            seen.0.insert("key".into(), key.into());
        }
        Self {
            scenario,
            bed,
            processes,
            calls: HashMap::new(),
            seen,
            record,
            begun: Instant::now(),
        }
    }

    /// Plays it.
    pub fn play(&mut self, file: &str) -> Played {
        self.seen.0.insert("file".into(), file.into());
        for command in &self.scenario.before {
            self.bed.ask(command, 0)?;
        }
        for actor in 0..self.processes.len() {
            let mut args = self.bed.way();
            args.extend(self.scenario.connect.clone());
            self.call(actor, "connect", args)?;
        }
        self.steps(&self.scenario.steps)?;
        for actor in 0..self.processes.len() {
            if !self.processes[actor].is_killed {
                self.call(actor, "close", Map::new())?;
            }
        }
        Ok(self.processes.drain(..).try_for_each(Process::end)?)
    }

    fn steps(&mut self, steps: &[Step]) -> Played {
        for (number, step) in (1..).zip(steps) {
            self.note(&format!("step {number}"));
            self.step(step).map_err(|stop| match stop {
                Stop::Failed(why) => Stop::Failed(format!("step {number}: {why}")),
                stop @ Stop::Unsupported(_) => stop,
            })?;
        }
        Ok(())
    }

    fn note(&mut self, what: &str) {
        let record = &mut self.record.text;
        let _ = writeln!(
            record,
            "{:9.1} {what}",
            self.begun.elapsed().as_secs_f64() * 1e3
        );
    }

    fn step(&mut self, step: &Step) -> Played {
        match step {
            Step::Call {
                actor,
                call,
                args,
                name,
                times,
                joins,
                expect,
                else_unsupported,
            } => {
                for n in 0..*times {
                    self.seen.0.insert("n".into(), n.into());
                    let args = self.args(args)?;
                    let actor = match actor.as_str() {
                        "*" => n as usize % self.processes.len(),
                        actor => self.actor(actor)?,
                    };
                    let id = self.tell(actor, call, args)?;
                    let name = name.clone().unwrap_or_else(|| call.clone());
                    let calls = self.calls.entry(name.clone()).or_default();
                    // Those of an earlier step of this name are of no interest any more.
                    if n == 0 {
                        calls.clear();
                    }
                    calls.push((actor, id));
                    if let Some(expected) = expect {
                        let answer = self.answer(actor, id, false, ANSWER_WITHIN)?;
                        match (self.judge(&name, expected, answer), else_unsupported) {
                            (Err(_), Some(why)) => return Err(Stop::Unsupported(why.clone())),
                            (judged, _) => judged?,
                        }
                    }
                    if let Some(key) = joins {
                        let waiting = json!({ "waiting": n + 1 });
                        self.until(
                            &format!("LOCK.INFO {key}"),
                            Whom::Server(0),
                            &waiting,
                            ANSWER_WITHIN,
                        )?;
                    }
                }
            }
            Step::Answer {
                answer,
                event,
                expect,
                within_ms,
            } => {
                let deadline = Instant::now() + Duration::from_millis(*within_ms);
                for (actor, id) in self.named(answer)? {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let seen = self.answer(actor, id, *event, left)?;
                    self.judge(answer, expect, seen)?;
                }
            }
            Step::NoAnswer { no_answer } => {
                for (actor, id) in self.named(no_answer)? {
                    // Whatever the driver knew before, it has said before this.
                    self.call(actor, "clock", Map::new())?;
                    if let Some(early) = self.processes[actor].answer(id, false, Duration::ZERO) {
                        return Err(Stop::Failed(format!(
                            "{no_answer} is answered already: {early}"
                        )));
                    }
                }
            }
            Step::InTurn {
                in_turn,
                any_order,
                within_ms,
            } => {
                self.in_turn(in_turn, *any_order, Duration::from_millis(*within_ms))?;
            }
            Step::Ask {
                ask,
                at,
                on,
                name,
                expect,
            } => {
                let ask = self.seen.fill(ask)?;
                if let Some(on) = on {
                    self.note(&format!("{on}: {ask}"));
                    return Ok(self.bed.send(&ask, on)?);
                }
                let answer = self.bed.ask(&ask, *at)?;
                self.note(&format!("{ask} -> {answer}"));
                if ask.starts_with("END ") {
                    self.record.lease_end_ms = answer.as_f64();
                }
                if let Some(expected) = expect {
                    self.seen.fits(expected, &answer)?;
                }
                self.keep(name.as_ref(), answer);
            }
            Step::Await {
                r#await,
                at,
                actor,
                args,
                name,
                expect,
                within_ms,
            } => {
                let ask = self.seen.fill(r#await)?;
                let within = Duration::from_millis(*within_ms);
                let whom = match actor {
                    Some(actor) => Whom::Actor(self.actor(actor)?, args),
                    None => Whom::Server(*at),
                };
                let answer = self.until(&ask, whom, expect, within)?;
                self.keep(name.as_ref(), answer);
            }
            Step::Act {
                act,
                at,
                actor,
                ms,
                word,
                error,
            } => {
                self.note(act);
                let ms = ms.unwrap_or_default();
                if act == "pass" {
                    std::thread::sleep(Duration::from_millis(ms.unsigned_abs()));
                } else if let Some(actor) = actor {
                    let actor = self.actor(actor)?;
                    self.signal(actor, act)?;
                } else {
                    let [word, error] = [word, error].map(|it| it.as_deref().unwrap_or_default());
                    let word = self.seen.fill(word)?;
                    self.bed.act(act, *at, ms, &word, error)?;
                }
            }
            Step::Repeat { repeat, steps } => {
                for _ in 0..*repeat {
                    self.steps(steps)?;
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, name: Option<&String>, seen: Value) {
        if let Some(name) = name {
            self.seen.0.insert(name.clone(), seen);
        }
    }

    /// Does something to the process of an actor: `stop`, `go_on`, `kill`.
    fn signal(&mut self, actor: usize, act: &str) -> Result<()> {
        let process = &mut self.processes[actor];
        match act {
            "stop" => process.signal(Signal::STOP),
            "go_on" => process.signal(Signal::CONT),
            "kill" => {
                process.is_killed = true;
                process.signal(Signal::KILL)
            }
            unknown => Err(Error::msg(format!("nobody can {unknown} a process"))),
        }
    }

    fn actor(&self, name: &str) -> Result<usize> {
        let actor = self.scenario.actors.iter().position(|actor| actor == name);
        actor.ok_or_else(|| Error::msg(format!("there is no actor {name}")))
    }

    fn named(&self, name: &str) -> Result<Vec<(usize, u64)>> {
        let calls = self.calls.get(name).cloned();
        calls.ok_or_else(|| Error::msg(format!("there was no call {name}")))
    }

    /// The fields of a call: `of` is by name here, and by number there.
    fn args(&mut self, args: &Map<String, Value>) -> Result<Map<String, Value>> {
        let mut args = args.clone();
        if let Some(Value::String(of)) = args.get("of") {
            let (name, nth) = match of.strip_suffix("[n]") {
                Some(name) => (
                    name,
                    self.seen
                        .0
                        .get("n")
                        .and_then(Value::as_u64)
                        .unwrap_or_default(),
                ),
                None => (of.as_str(), 0),
            };
            let id = self.named(name)?[nth as usize].1;
            args.insert("of".into(), id.into());
        }
        let args = self.seen.fill_in(&args)?;
        if let Some(Value::String(file)) = args.get("file")
            && !std::fs::exists(file)?
        {
            std::fs::write(file, "0 0")?;
        }
        Ok(args)
    }

    fn tell(&mut self, actor: usize, call: &str, mut args: Map<String, Value>) -> Result<u64> {
        args.insert("client".into(), "locks".into());
        let told = Value::Object(args.clone()).to_string();
        let id = self.processes[actor].tell(call, args)?;
        self.note(&format!("{}: {call} {id} {told}", self.name_of(actor)));
        Ok(id)
    }

    fn name_of(&self, actor: usize) -> String {
        let name = self.scenario.actors.get(actor);
        name.cloned().unwrap_or_else(|| actor.to_string())
    }

    /// The answer to a call. A package that does not offer it is no failure.
    fn answer(&mut self, actor: usize, id: u64, is_event: bool, within: Duration) -> Played<Value> {
        let Some(answer) = self.processes[actor].answer(id, is_event, within) else {
            let name = self.name_of(actor);
            return Err(Stop::Failed(format!(
                "no answer of {name} to its call {id}"
            )));
        };
        self.note(&format!("{} -> {answer}", self.name_of(actor)));
        if answer["error"] == "Unsupported" {
            let why = answer["text"].as_str().unwrap_or_default();
            return Err(Stop::Unsupported(why.to_owned()));
        }
        Ok(answer)
    }

    fn judge(&mut self, name: &str, expected: &Value, answer: Value) -> Result<()> {
        let is_expected = expected.get("error").is_some();
        if !is_expected && let Some(error) = answer.get("error") {
            return Err(Error::msg(format!("{name}: {error}: {}", answer["text"])));
        }
        let fits = self.seen.fits(expected, &answer);
        fits.map_err(|why| Error::msg(format!("{name}: {why}")))?;
        self.seen.0.insert(name.to_owned(), answer);
        Ok(())
    }

    /// Tells an actor something that must succeed.
    fn call(&mut self, actor: usize, call: &str, args: Map<String, Value>) -> Played<Value> {
        let id = self.tell(actor, call, args)?;
        let answer = self.answer(actor, id, false, ANSWER_WITHIN)?;
        self.judge(call, &json!({}), answer.clone())?;
        Ok(answer)
    }

    /// Asks again and again, until the answer is as expected.
    fn until(
        &mut self,
        ask: &str,
        whom: Whom<'_>,
        expected: &Value,
        within: Duration,
    ) -> Played<Value> {
        let deadline = Instant::now() + within;
        loop {
            let answer = match whom {
                Whom::Server(at) => self.bed.ask(ask, at),
                Whom::Actor(actor, args) => {
                    let args = self.args(args)?;
                    let id = self.tell(actor, ask, args)?;
                    Ok(self.answer(actor, id, false, ANSWER_WITHIN)?)
                }
            };
            let fits = answer.and_then(|answer| self.seen.fits(expected, &answer).map(|()| answer));
            match fits {
                Ok(answer) => {
                    self.note(&format!("{ask} -> {answer}"));
                    return Ok(answer);
                }
                Err(why) if Instant::now() > deadline => {
                    return Err(Stop::Failed(format!("{ask}: {why}")));
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Each is answered with a token greater than that before, and then released.
    fn in_turn(&mut self, name: &str, any_order: bool, within: Duration) -> Played {
        let deadline = Instant::now() + within;
        let (mut left, mut before) = (self.named(name)?, 0.0);
        while !left.is_empty() {
            let next = loop {
                let mut answered = left.iter().enumerate().filter(|(_, (actor, id))| {
                    self.processes[*actor]
                        .answer(*id, false, Duration::ZERO)
                        .is_some()
                });
                match (answered.next(), answered.next()) {
                    (Some((next, _)), None) => break next,
                    (Some(_), Some(_)) => {
                        return Err(Stop::Failed(format!("two of {name} have the lock at once")));
                    }
                    _ if Instant::now() > deadline => {
                        let left = left.len();
                        return Err(Stop::Failed(format!("{left} of {name} still wait")));
                    }
                    _ => std::thread::sleep(LOOK_EVERY),
                }
            };
            if next != 0 && !any_order {
                return Err(Stop::Failed(format!(
                    "{name}: number {next} of those left came first"
                )));
            }
            let (actor, id) = left.remove(next);
            let answer = self.answer(actor, id, false, ANSWER_WITHIN)?;
            self.seen.0.insert("before".into(), json!(before));
            before = answer["token"].as_f64().unwrap_or_default();
            self.judge(name, &json!({ "token": { "above": "before" } }), answer)?;
            let args = json!({ "of": id }).as_object().cloned().unwrap_or_default();
            let released = self.call(actor, "release", args)?;
            if released["released"] == false {
                return Err(Stop::Failed(format!("{name}: not released: {released}")));
            }
        }
        Ok(())
    }
}
