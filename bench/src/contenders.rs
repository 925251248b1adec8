//! Who takes part: protocols spoken by this program, and real libraries, which
//! bring their own threads or processes. A library is one file here and one
//! line in [`all`].

mod client;
mod redisson;
mod rslock;
mod tasks;

use anyhow::Result;

use crate::measurement::Measurement;
use crate::protocols::{PROTOCOLS, Protocol};
use crate::server::Server;
use crate::workloads::{self, Pace, Workload};

/// A way to lock.
pub trait Contender {
    /// Its name in files and on the command line.
    fn name(&self) -> &'static str;
    /// Its name in tables.
    fn title(&self) -> &'static str;
    /// Version and settings, where there are any to tell.
    fn settings(&self) -> Option<String> {
        None
    }
    /// Whether it is a real library, with threads of its own that stay on no one
    /// processor.
    fn is_library(&self) -> bool {
        true
    }
    /// Whether it needs a server with the module.
    fn needs_module(&self) -> bool {
        false
    }
    /// Whether the work is for this contender.
    fn fits(&self, work: Workload) -> bool;
    /// Does the work once, on a fresh server.
    fn run(&mut self, work: Workload, pace: Pace, server: &Server) -> Result<Measurement>;
}

/// All contenders, ours first, and why others are missing. The JVM is started
/// only if it is wanted and can do some of the work.
pub fn all(
    is_wanted: &dyn Fn(&str) -> bool,
    work: &[Workload],
) -> (Vec<Box<dyn Contender>>, Vec<String>) {
    let mut contenders: Vec<Box<dyn Contender>> = PROTOCOLS
        .iter()
        .map(|protocol| Box::new(protocol) as Box<dyn Contender>)
        .collect();
    contenders.push(Box::new(client::RustClient));
    contenders.push(Box::new(rslock::Rslock));
    let mut missing = Vec::new();
    if redisson::NAMES.into_iter().any(is_wanted) && work.iter().copied().any(redisson::fits) {
        match redisson::all() {
            Ok(all) => contenders.extend(all.map(|redisson| Box::new(redisson) as _)),
            Err(error) => missing.push(format!("real Redisson: {error:#}")),
        }
    }
    (contenders, missing)
}

impl Contender for &'static Protocol {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn needs_module(&self) -> bool {
        self.needs_module
    }

    fn is_library(&self) -> bool {
        false
    }

    fn fits(&self, work: Workload) -> bool {
        workloads::fits(work, self.kind)
    }

    fn run(&mut self, work: Workload, pace: Pace, server: &Server) -> Result<Measurement> {
        workloads::run(work, pace, self, server)
    }
}
