//! Runs commands under a lock, and shows and breaks locks.
//!
//! ```text
//! arguments.rs    the command line
//! run.rs, run/    lockctl run: the command, its signals, the terminal
//! ls.rs           lockctl ls
//! top.rs, top/    lockctl top: samples, and the screen that shows them
//! break_lock.rs   lockctl break
//! view.rs         what LOCK.INFO and LOCK.LIST say, and what follows from it
//! connection.rs   the server, asked directly
//! quoting.rs      keys and owners as text
//! manual.rs       completions and man pages
//! exit.rs         exit codes              failure.rs   what can go wrong
//! ```

mod arguments;
mod break_lock;
mod connection;
mod exit;
mod failure;
mod ls;
mod manual;
mod quoting;
mod run;
mod top;
mod view;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Command};
use crate::exit::Exit;
use crate::failure::Failure;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // Help and version go to stdout and are no failures.
            let wrong_usage = error.use_stderr();
            let exit = if wrong_usage {
                Exit::FAILED
            } else {
                Exit::SUCCESS
            };
            return exit.leave();
        }
    };
    let json = arguments.json;
    let exit = execute(arguments).unwrap_or_else(|failure| {
        let exit = failure.exit();
        if exit != Exit::SUCCESS {
            failure.print(json);
        }
        exit
    });
    exit.leave()
}

fn execute(arguments: Arguments) -> Result<Exit, Failure> {
    let Arguments { url, json, command } = arguments;
    // One thread, so that what is bound to the main thread stays there.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Command::Run(options) => run::run(&url, json, options).await,
            Command::Ls(options) => ls::ls(&url, json, &options).await,
            Command::Top(options) => top::top(&url, json, &options).await,
            Command::Break(options) => break_lock::break_lock(&url, json, &options).await,
            Command::Completions { shell } => manual::completions(shell),
            Command::Man { directory } => manual::man_pages(&directory),
        }
    })
}
