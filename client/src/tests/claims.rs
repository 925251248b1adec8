//! Everything that can happen to a client that begins to work before its claim, tried in
//! every order: messages that come late, twice or never, a process that stands still,
//! claims and answers that are late or lost. At no moment may it believe in a hold that
//! the server has ended.
//!
//! One lock. Another owner takes it whenever it is free. Time goes in ticks of a tenth of
//! a second; what is not a tick takes no time.

use std::collections::HashSet;
use std::time::Duration;

use super::may_begin;
use crate::clock::{Moment, valid_until};

/// How long a search goes.
const END: u8 = 7;

/// What is tried: the times in ticks, and faults planted in the rule.
#[derive(Clone, Copy, Debug)]
struct Scene {
    first_lease: u16,
    lease: u16,
    /// Whether all waits are of one name, as those of a job.
    is_job: bool,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The lease counts from when the message came.
    CountsFromMessage,
    /// A name that asked before begins at once as well.
    ForgetsThatItAsked,
    /// A claim counts from its answer.
    CountsFromAnswer,
    /// It is the full lease that counts before the claim.
    TrustsFullLease,
}

/// What the server has: whose turn it is and until when.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    next_token: u8,
    /// Our hold; none while the other owner has the lock.
    ours: Option<Hold>,
    /// The name of our place in the queue.
    place: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Hold {
    name: u8,
    token: u8,
    end: u16,
}

/// What is on the way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Packet {
    /// The message of a place.
    Granted {
        name: u8,
        token: u8,
    },
    /// The same acquire, sent again.
    Again {
        name: u8,
        wait: u8,
        sent_at: u8,
    },
    /// Its answer, which only the wait hears that asked.
    Token {
        wait: u8,
        token: u8,
        sent_at: u8,
    },
    Claim {
        token: u8,
        sent_at: u8,
    },
    Claimed {
        token: u8,
        sent_at: u8,
    },
    Refused {
        token: u8,
    },
    Release {
        token: u8,
    },
}

/// What the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle,
    Waiting {
        sent_at: u8,
    },
    Claiming {
        sent_at: u8,
        token: u8,
    },
    /// It believes in the hold until then, in microseconds.
    Working {
        token: u8,
        until_us: u64,
    },
    /// A job's release is on its way.
    Releasing {
        token: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u8,
    server: Server,
    client: Client,
    /// How many waits there were.
    waits: u8,
    packets: Vec<Packet>,
    resends: u8,
}

fn ticks(ticks: u16) -> Duration {
    Duration::from_millis(u64::from(ticks) * 100)
}

fn moment(tick: u8) -> Moment {
    Moment::at(ticks(u16::from(tick)))
}

fn until_us(since: u8, lease: u16) -> u64 {
    let until = valid_until(moment(since), ticks(lease));
    u64::try_from(moment(0).until(until).as_micros()).unwrap()
}

impl State {
    fn new() -> Self {
        Self {
            now: 0,
            server: Server {
                next_token: 1,
                ours: None,
                place: None,
            },
            client: Client::Idle,
            waits: 0,
            packets: Vec::new(),
            resends: 0,
        }
    }

    fn name(&self, scene: Scene) -> u8 {
        if scene.is_job { 0 } else { self.waits }
    }

    /// What the rule is about.
    fn check(&self) -> Result<(), String> {
        let now_us = u64::from(self.now) * 100_000;
        match self.client {
            Client::Working { token, until_us } if now_us < until_us => {
                let stands = self.server.ours.is_some_and(|ours| ours.token == token);
                stands
                    .then_some(())
                    .ok_or_else(|| format!("believes in {token}: {self:?}"))
            }
            _ => Ok(()),
        }
    }

    fn send(&mut self, packet: Packet) {
        self.packets.push(packet);
        self.packets.sort();
        self.packets.dedup();
    }

    /// All that can happen next.
    fn next(&self, scene: Scene) -> Vec<Self> {
        let mut all = Vec::new();
        let mut push = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            all.push(next);
        };
        if self.now < END {
            push(&|next| {
                next.now += 1;
                let now = u16::from(next.now);
                if next.server.ours.is_some_and(|ours| ours.end <= now) {
                    next.server.ours = None;
                }
            });
        }
        if let Some(name) = self.server.place
            && self.server.ours.is_none()
        {
            // The other owner releases.
            push(&|next| {
                let token = next.server.next_token;
                next.server.next_token += 1;
                next.server.place = None;
                let end = u16::from(next.now) + scene.first_lease;
                next.server.ours = Some(Hold { name, token, end });
                next.send(Packet::Granted { name, token });
            });
        }
        match self.client {
            Client::Idle if self.waits < 2 => push(&|next| {
                next.waits += 1;
                next.client = Client::Waiting { sent_at: next.now };
                next.server.place = Some(next.name(scene));
            }),
            Client::Waiting { .. } if self.resends < 1 => push(&|next| {
                next.resends += 1;
                let (name, wait, sent_at) = (next.name(scene), next.waits, next.now);
                next.send(Packet::Again {
                    name,
                    wait,
                    sent_at,
                });
            }),
            Client::Working { token, .. } => {
                push(&|next| {
                    next.client = match scene.is_job {
                        true => Client::Releasing { token },
                        false => Client::Idle,
                    };
                    next.send(Packet::Release { token });
                });
                push(&|next| {
                    let sent_at = next.now;
                    next.send(Packet::Claim { token, sent_at });
                });
            }
            _ => {}
        }
        for (nth, packet) in self.packets.iter().enumerate() {
            let arrive = |next: &mut Self| next.arrive(packet.clone(), scene);
            push(&|next| {
                next.packets.remove(nth);
                arrive(next);
            });
            // It is lost.
            push(&|next| {
                next.packets.remove(nth);
            });
            if matches!(packet, Packet::Granted { .. }) {
                // It comes again later.
                push(&|next| arrive(next));
            }
        }
        all
    }

    fn arrive(&mut self, packet: Packet, scene: Scene) {
        let now = self.now;
        let ours = self.server.ours;
        match packet {
            Packet::Again {
                name,
                wait,
                sent_at,
            } => match ours {
                Some(hold) if hold.name == name => {
                    let end = hold.end.max(u16::from(now) + scene.lease);
                    let token = hold.token;
                    self.server.ours = Some(Hold { end, ..hold });
                    self.send(Packet::Token {
                        wait,
                        token,
                        sent_at,
                    });
                }
                _ => self.server.place = Some(name),
            },
            Packet::Claim { token, sent_at } => match ours {
                Some(hold) if hold.token == token => {
                    let end = u16::from(now) + scene.lease;
                    self.server.ours = Some(Hold { end, ..hold });
                    self.send(Packet::Claimed { token, sent_at });
                }
                _ => self.send(Packet::Refused { token }),
            },
            Packet::Release { token } => {
                if ours.is_some_and(|hold| hold.token == token) {
                    self.server.ours = None;
                }
                // A job asks for nothing else before.
                if self.client == (Client::Releasing { token }) {
                    self.client = Client::Idle;
                }
            }
            told => self.hear(told, scene),
        }
    }

    fn hear(&mut self, told: Packet, scene: Scene) {
        let now = self.now;
        let own = self.name(scene);
        self.client = match (self.client.clone(), told) {
            (Client::Waiting { sent_at }, Packet::Granted { name, token }) if name == own => {
                let lease = match scene.fault {
                    Fault::TrustsFullLease => scene.lease,
                    _ => scene.first_lease.min(scene.lease),
                };
                let since = match scene.fault {
                    Fault::CountsFromMessage => now,
                    _ => sent_at,
                };
                let is_first =
                    !scene.is_job || self.waits == 1 || scene.fault == Fault::ForgetsThatItAsked;
                if may_begin(is_first, moment(since), ticks(lease), moment(now)) {
                    Client::Working {
                        token,
                        until_us: until_us(since, lease),
                    }
                } else {
                    self.send(Packet::Claim {
                        token,
                        sent_at: now,
                    });
                    Client::Claiming { sent_at, token }
                }
            }
            (
                Client::Waiting { .. },
                Packet::Token {
                    wait,
                    token,
                    sent_at,
                },
            ) if wait == self.waits => Client::Working {
                token,
                until_us: until_us(sent_at, scene.lease),
            },
            (Client::Claiming { token: claimed, .. }, Packet::Claimed { token, sent_at })
                if token == claimed =>
            {
                let since = match scene.fault {
                    Fault::CountsFromAnswer => now,
                    _ => sent_at,
                };
                Client::Working {
                    token,
                    until_us: until_us(since, scene.lease),
                }
            }
            (
                Client::Claiming {
                    sent_at,
                    token: claimed,
                },
                Packet::Refused { token },
            ) if token == claimed => Client::Waiting { sent_at },
            (
                Client::Working {
                    token: held,
                    until_us: until,
                },
                Packet::Claimed { token, sent_at },
            ) if token == held && u64::from(now) * 100_000 < until => {
                let since = match scene.fault {
                    Fault::CountsFromAnswer => now,
                    _ => sent_at,
                };
                let until_us = until.max(until_us(since, scene.lease));
                Client::Working { token, until_us }
            }
            (Client::Working { token: held, .. }, Packet::Refused { token }) if token == held => {
                Client::Idle
            }
            (client, _) => client,
        };
    }
}

/// Tries everything. Returns how many states there were, or the first breach.
fn search(scene: Scene) -> Result<usize, String> {
    let (mut seen, mut open) = (HashSet::new(), vec![State::new()]);
    while let Some(state) = open.pop() {
        state.check()?;
        let next = state.next(scene).into_iter();
        open.extend(next.filter(|next| next.packets.len() <= 2 && seen.insert(next.clone())));
    }
    Ok(seen.len())
}

fn scenes(fault: Fault) -> impl Iterator<Item = Scene> {
    // A first lease of less than the lease, of all of it, and one that never ends.
    let leases = [(1, 1), (2, 4), (3, 3), (4, 8), (8, 8), (1000, 1000)];
    leases.into_iter().flat_map(move |(first_lease, lease)| {
        [false, true].map(|is_job| Scene {
            first_lease,
            lease,
            is_job,
            fault,
        })
    })
}

#[test]
fn work_before_the_claim_never_believes_in_a_hold_that_is_over() {
    for scene in scenes(Fault::None) {
        let searched = search(scene);
        assert!(
            searched.as_ref().is_ok_and(|states| *states > 1000),
            "{scene:?}: {searched:?}"
        );
    }
}

#[test]
fn each_fault_that_is_planted_in_the_rule_is_found() {
    for fault in [
        Fault::CountsFromMessage,
        Fault::ForgetsThatItAsked,
        Fault::CountsFromAnswer,
        Fault::TrustsFullLease,
    ] {
        assert!(
            scenes(fault).any(|scene| search(scene).is_err()),
            "{fault:?} is not found"
        );
    }
}
