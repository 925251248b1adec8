//! Completions and man pages, made of the command line's own description.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::exit::Exit;
use crate::failure::Failure;

/// Writes a shell's completions to stdout.
pub fn completions(shell: Shell) -> Result<Exit, Failure> {
    let mut command = Arguments::command();
    // It panics where it can't write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "lockctl", &mut script);
    io::stdout().write_all(&script)?;
    Ok(Exit::SUCCESS)
}

/// Writes a page for lockctl and one for each subcommand.
pub fn man_pages(directory: &Path) -> Result<Exit, Failure> {
    clap_mangen::generate_to(Arguments::command(), directory)?;
    Ok(Exit::SUCCESS)
}
