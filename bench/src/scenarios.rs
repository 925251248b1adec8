//! Everything that is measured, under the names used on the command line.

use std::time::Duration;

use crate::placement::Placement;
use crate::server::Duty;
use crate::workloads::Workload;

/// One table of the report.
pub struct Scenario {
    pub name: String,
    pub title: String,
    pub work: Workload,
    pub duty: Duty,
    pub placement: Placement,
    /// Whether only a full run measures it.
    pub full_only: bool,
}

/// What the name of a scenario with an append-only file and a replica ends in.
pub const DURABLE: &str = "-durable";

/// All scenarios, in the order of the report.
pub fn all() -> Vec<Scenario> {
    let mut all = vec![
        scenario(
            "uncontended-1",
            "Uncontended acquire and release, one connection",
            Workload::Uncontended { clients: 1 },
        ),
        scenario(
            "uncontended-50",
            "Uncontended acquire and release, 50 connections",
            Workload::Uncontended { clients: 50 },
        ),
        Scenario {
            duty: Duty::Replicated,
            ..scenario(
                "acknowledged",
                "Uncontended acquire, acknowledged by a replica, and release, one connection",
                Workload::Acknowledged,
            )
        },
        scenario(
            "pipelined-cpu",
            "Uncontended acquire and release, 100 pairs a write",
            Workload::Pipelined,
        ),
    ];
    for waiters in [1, 10, 100, 1000, 5000] {
        all.push(Scenario {
            full_only: matches!(waiters, 10 | 5000),
            ..scenario(
                &format!("hand-off-{waiters}"),
                &format!("Hand-off, {} waiting", count(waiters)),
                Workload::HandOff { waiters },
            )
        });
    }
    all.push(Scenario {
        placement: Placement::Together,
        ..scenario(
            "hand-off-1-together",
            "Hand-off, 1 waiting, server and clients on one processor",
            Workload::HandOff { waiters: 1 },
        )
    });
    for clients in [2, 4, 8, 16, 32, 64, 128, 256] {
        all.push(Scenario {
            full_only: !matches!(clients, 2 | 8 | 64 | 256),
            ..contended(clients, Duration::ZERO)
        });
    }
    for clients in [2, 16, 64, 256] {
        all.push(Scenario {
            full_only: clients != 64,
            ..contended(clients, Duration::from_millis(1))
        });
    }
    for (tasks, locks) in [(64, 1), (64, 16), (1000, 1), (1000, 16)] {
        let on = if locks == 1 {
            "one lock".into()
        } else {
            format!("{locks} locks")
        };
        all.push(scenario(
            &format!("one-process-{tasks}-{locks}"),
            &format!("{} tasks or threads of one process, {on}", count(tasks)),
            Workload::OneProcess { tasks, locks },
        ));
    }
    all.extend([
        scenario(
            "zipf",
            "10,000 locks, 64 clients, few locks wanted often (Zipf)",
            Workload::Zipf {
                clients: 64,
                locks: 10_000,
            },
        ),
        scenario(
            "expiry",
            "From the end of a lease to the next holder (lease 1 s)",
            Workload::Expiry,
        ),
        scenario(
            "holder-killed",
            "From the death of a holder to the next (0.6 s before its lease ends)",
            Workload::HolderKilled,
        ),
        scenario(
            "memory-lock",
            "Memory of a held lock",
            Workload::MemoryOfLocks,
        ),
        scenario(
            "memory-waiter",
            "Memory of a waiter",
            Workload::MemoryOfWaiters,
        ),
        scenario("places", "100,000 places in queues", Workload::Places),
        durable(scenario(
            "pipelined-cpu",
            "100 pairs a write",
            Workload::Pipelined,
        )),
        durable(scenario(
            "hand-off-1",
            "Hand-off, 1 waiting",
            Workload::HandOff { waiters: 1 },
        )),
        durable(scenario(
            "hand-off-1000",
            "Hand-off, 1,000 waiting",
            Workload::HandOff { waiters: 1000 },
        )),
        durable(contended(64, Duration::ZERO)),
        durable(scenario("expiry", "After a lease's end", Workload::Expiry)),
        durable(scenario(
            "memory-lock",
            "Memory of a held lock",
            Workload::MemoryOfLocks,
        )),
    ]);
    all
}

fn scenario(name: &str, title: &str, work: Workload) -> Scenario {
    Scenario {
        name: name.into(),
        title: title.into(),
        work,
        duty: Duty::MemoryOnly,
        placement: Placement::Apart,
        full_only: false,
    }
}

fn contended(clients: usize, section: Duration) -> Scenario {
    let (suffix, what) = if section.is_zero() {
        ("", "nothing to do inside")
    } else {
        ("-1ms", "1 ms inside")
    };
    scenario(
        &format!("contended-{clients}{suffix}"),
        &format!("One lock, {clients} clients, {what}"),
        Workload::Contended { clients, section },
    )
}

fn durable(scenario: Scenario) -> Scenario {
    Scenario {
        name: scenario.name + DURABLE,
        title: scenario.title + ", with AOF and a replica",
        duty: Duty::Durable,
        ..scenario
    }
}

fn count(n: usize) -> String {
    if n < 1000 {
        n.to_string()
    } else {
        format!("{},{:03}", n / 1000, n % 1000)
    }
}
