//! The search: breadth first, so that the first trace that is found is a shortest one.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::cast::{Cast, Order};
use super::form::Form;

pub(super) type Checked<T = ()> = Result<T, Broken>;

/// An invariant that does not hold, and what shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Broken {
    pub(super) invariant: &'static str,
    pub(super) shown_by: String,
}

pub(super) fn broken<T>(invariant: &'static str, shown_by: String) -> Checked<T> {
    Err(Broken {
        invariant,
        shown_by,
    })
}

/// What is searched.
pub(super) trait World: Clone {
    /// Who is there, and what can happen to them.
    type Scope: Copy + Send + Sync;
    /// Something that happens.
    type Action: Copy + Send + Sync;

    /// The world as it begins.
    fn new(scope: Self::Scope) -> Self;

    /// All that can happen now.
    fn actions(&self, actions: &mut Vec<Self::Action>);

    /// Does it, and checks the invariants.
    fn act(&mut self, action: Self::Action) -> Checked;

    fn cast(&self) -> &Cast<Self::Scope>;

    /// The time in milliseconds, and how often each connection was made anew.
    fn moment(&self) -> (i64, Vec<u64>);

    /// The form of a state: all that can influence a later step, by this order of names.
    fn take_down(&self, order: &Order, form: &mut Form<'_>);

    /// What was said, where somebody listens.
    fn said(&mut self) -> &mut Option<String>;

    /// Two states that differ in names alone have the same one: the smallest over all orders
    /// of names.
    fn fingerprint(&self) -> u64 {
        let (orders, (now_ms, generations)) = (&self.cast().orders, self.moment());
        let mut form = Form::collecting(&orders[0].names, &generations, now_ms);
        self.take_down(&orders[0], &mut form);
        let mut smallest = u64::MAX;
        for order in orders {
            form = form.hashing(&order.names);
            self.take_down(order, &mut form);
            smallest = smallest.min(form.fingerprint());
        }
        smallest
    }

    fn say(&mut self, what: impl FnOnce(&Self) -> String) {
        if self.said().is_some() {
            let what = what(self);
            let said = self.said().get_or_insert_default();
            let before = if said.is_empty() { "" } else { "; " };
            said.extend([before, &what]);
        }
    }
}

/// What a search came to.
#[derive(Debug)]
pub(super) struct Found {
    /// How many states there are that differ in more than names.
    pub(super) states: usize,
    /// How many steps were taken.
    pub(super) steps: usize,
    /// How far it went.
    pub(super) depth: usize,
    /// Whether there was nothing left to follow.
    pub(super) is_all: bool,
    pub(super) seconds: f64,
    /// A shortest way to a state in which an invariant does not hold.
    pub(super) trace: Option<Trace>,
}

/// A way to a state in which an invariant does not hold.
#[derive(Debug)]
pub(super) struct Trace {
    /// Each step in words.
    pub(super) lines: Vec<String>,
    pub(super) broken: Broken,
}

impl Trace {
    /// For a person to read.
    pub(super) fn print(&self) -> String {
        let lines = self.lines.iter().enumerate();
        let lines = lines.map(|(at, line)| format!("  {}. {line}\n", at + 1));
        let broken = &self.broken;
        format!(
            "{}  => {}: {}",
            lines.collect::<String>(),
            broken.invariant,
            broken.shown_by
        )
    }
}

/// A state, by the step that led to it first.
#[derive(Clone, Copy)]
struct Node<A> {
    from: u32,
    /// The first state has none.
    action: Option<A>,
}

/// A way to where an invariant does not hold.
type Counterexample<A> = (Vec<A>, Broken);

/// What a thread found in a level: new states, and where an invariant does not hold.
type Level<A> = (Vec<Node<A>>, Vec<Counterexample<A>>);

/// Fingerprints are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints are numbers")
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Fingerprints = HashSet<u64, BuildHasherDefault<IdentityHasher>>;

const SHARDS: usize = 64;

/// How many states are taken at once.
const CHUNK: usize = 64;

/// Searches a scope to this depth, on `threads` threads, each of which has to be
/// prepared. A search of more than `at_most` states ends with a level.
pub(super) fn search<W: World>(
    scope: W::Scope,
    depth: usize,
    at_most: Option<usize>,
    threads: usize,
    prepare: &(dyn Fn() + Sync),
) -> Found {
    let began = Instant::now();
    let visited: Vec<Mutex<Fingerprints>> = (0..SHARDS).map(|_| Mutex::default()).collect();
    let is_new = |fingerprint: u64| {
        let shard = (fingerprint >> 32) as usize % SHARDS;
        visited[shard].lock().unwrap().insert(fingerprint)
    };
    let root = Node {
        from: 0,
        action: None,
    };
    let mut nodes = vec![root];
    prepare();
    is_new(W::new(scope).fingerprint());
    let steps = AtomicUsize::new(0);
    let mut level = 0..1;
    let mut reached = 0;
    let mut broken: Vec<Counterexample<W::Action>> = Vec::new();
    let is_enough = |states| at_most.is_some_and(|at_most| states > at_most);
    while reached < depth && !level.is_empty() && broken.is_empty() && !is_enough(nodes.len()) {
        let next = AtomicUsize::new(level.start);
        let is_broken = AtomicBool::new(false);
        let end = level.end;
        let known = &nodes;
        let results: Vec<Level<W::Action>> = std::thread::scope(|all| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    all.spawn(|| {
                        prepare();
                        let mut worker = Worker::<W>::new(scope);
                        let mut found = Vec::new();
                        let mut broken = Vec::new();
                        let mut taken = 0;
                        loop {
                            let from = next.fetch_add(CHUNK, Ordering::Relaxed);
                            if from >= end || is_broken.load(Ordering::Relaxed) {
                                break;
                            }
                            for at in from..(from + CHUNK).min(end) {
                                worker.go_to(known, at);
                                let mut actions = std::mem::take(&mut worker.actions);
                                worker.here().actions(&mut actions);
                                for &action in &actions {
                                    taken += 1;
                                    let mut world = worker.here().clone();
                                    match act(&mut world, action) {
                                        Ok(()) => {
                                            if is_new(world.fingerprint()) {
                                                let from = u32::try_from(at).unwrap();
                                                let action = Some(action);
                                                found.push(Node { from, action });
                                            }
                                        }
                                        Err(why) => {
                                            let mut path = worker.path(known, at);
                                            path.push(action);
                                            broken.push((path, why));
                                            is_broken.store(true, Ordering::Relaxed);
                                        }
                                    }
                                }
                                worker.actions = actions;
                            }
                        }
                        steps.fetch_add(taken, Ordering::Relaxed);
                        (found, broken)
                    })
                })
                .collect();
            workers.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let start = nodes.len();
        for (found, why) in results {
            nodes.extend(found);
            broken.extend(why);
        }
        level = start..nodes.len();
        reached += 1;
    }
    broken.sort_by(|one, other| one.1.cmp(&other.1));
    let first = broken.into_iter().next();
    Found {
        states: nodes.len(),
        steps: steps.into_inner(),
        depth: reached,
        is_all: level.is_empty(),
        seconds: began.elapsed().as_secs_f64(),
        trace: first.map(|(actions, _)| replay::<W>(scope, &actions, prepare)),
    }
}

/// A panic of the core is as bad as any broken invariant.
fn act<W: World>(world: &mut W, action: W::Action) -> Checked {
    let done = catch_unwind(AssertUnwindSafe(|| world.act(action)));
    done.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        broken("nothing_panics", text.unwrap_or_default())
    })
}

/// Tells a trace in words.
pub(super) fn replay<W: World>(
    scope: W::Scope,
    actions: &[W::Action],
    prepare: &(dyn Fn() + Sync),
) -> Trace {
    prepare();
    let mut world = W::new(scope);
    *world.said() = Some(String::new());
    let mut lines = Vec::new();
    for &action in actions {
        let done = act(&mut world, action);
        lines.extend(world.said().replace(String::new()));
        if let Err(broken) = done {
            return Trace { lines, broken };
        }
    }
    Trace {
        lines,
        broken: Broken::default(),
    }
}

/// Goes from state to state by the steps that led there. States that are neighbours
/// in the list have most of their way in common.
struct Worker<W: World> {
    way: Vec<(usize, W)>,
    actions: Vec<W::Action>,
}

impl<W: World> Worker<W> {
    fn new(scope: W::Scope) -> Self {
        Self {
            way: vec![(0, W::new(scope))],
            actions: Vec::new(),
        }
    }

    fn here(&self) -> &W {
        match self.way.last() {
            Some((_, world)) => world,
            None => unreachable!("the way begins at the first state"),
        }
    }

    fn go_to(&mut self, nodes: &[Node<W::Action>], node: usize) {
        let mut ahead = Vec::new();
        let mut at = node;
        while !self.way.iter().any(|&(one, _)| one == at) {
            ahead.push(at);
            at = nodes[at].from as usize;
        }
        while self.way.last().is_some_and(|&(one, _)| one != at) {
            self.way.pop();
        }
        for at in ahead.into_iter().rev() {
            let mut world = self.here().clone();
            if let Some(action) = nodes[at].action {
                act(&mut world, action).expect("a step that was taken before");
            }
            self.way.push((at, world));
        }
    }

    fn path(&self, nodes: &[Node<W::Action>], node: usize) -> Vec<W::Action> {
        let mut path = Vec::new();
        let mut at = node;
        while let Some(action) = nodes[at].action {
            path.push(action);
            at = nodes[at].from as usize;
        }
        path.reverse();
        path
    }
}
