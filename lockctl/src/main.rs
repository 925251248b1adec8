//! Runs commands under a lock, and shows and breaks locks.
//!
//! ```text
//! arguments.rs    the command line
//! run.rs, run/    lockctl run: the command, its signals, the terminal
//! ls.rs, top.rs, tail.rs, break_lock.rs, doctor.rs    the other subcommands
//! view.rs         what follows from the state of locks
//! name.rs         keys and owners as text
//! server.rs       the URL, where it comes from, and what all primaries are asked
//! signals.rs      what somebody sends to lockctl
//! manual.rs       completions and man pages
//! exit.rs         exit codes              failure.rs   what can go wrong
//! ```

mod arguments;
mod break_lock;
mod doctor;
mod exit;
mod failure;
mod ls;
mod manual;
mod name;
mod run;
mod server;
mod signals;
mod tail;
mod top;
mod view;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::server::Server;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version go to stdout and are no failures.
        Err(error) if !error.use_stderr() => {
            let printed = error.print().map(|()| Exit::SUCCESS);
            return end(printed.map_err(Failure::from), false);
        }
        Err(error) => {
            if std::env::args_os().any(|word| word == "--json") {
                let told = error.to_string();
                let why = told.strip_prefix("error: ").unwrap_or(&told);
                Failure::CommandLine(why.trim().into()).print(true);
            } else {
                let _ = error.print();
            }
            return Exit::FAILED.leave();
        }
    };
    let json = arguments.json;
    end(execute(arguments), json)
}

fn end(ended: Result<Exit, Failure>, json: bool) -> ExitCode {
    let exit = ended.unwrap_or_else(|failure| {
        let exit = failure.exit();
        if exit != Exit::SUCCESS {
            failure.print(json);
        }
        exit
    });
    exit.leave()
}

fn execute(arguments: Arguments) -> Result<Exit, Failure> {
    let json = arguments.json;
    // One thread, so that what is bound to the main thread stays there.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let server = || Server::read(&arguments.server);
        match arguments.command {
            Command::Run(options) => run::run(&server()?, json, options).await,
            Command::Ls(options) => ls::ls(&server()?, json, &options).await,
            Command::Top(options) => top::top(&server()?, json, &options).await,
            Command::Tail(options) => tail::tail(&server()?, json, &options).await,
            Command::Break(options) => break_lock::break_lock(&server()?, json, &options).await,
            Command::Doctor(options) => doctor::doctor(&server()?, json, &options).await,
            Command::Completions { shell } => manual::completions(shell),
            Command::Man { directory } => manual::man_pages(&directory),
        }
    })
}
