//! The commands. Each is whole in a file of its own: its grammar, its
//! documentation, how its arguments are read, how it runs and what it replies.

mod acquire;
mod args;
mod break_lock;
mod guard;
mod info;
mod list;
mod release;
mod renew;

use redis_module::Context;

use crate::server::command;
use crate::server::registration::add_acl_category;

/// What adds a command to the server, or says why the server refuses it.
type Register = fn(&Context) -> Result<(), String>;

/// Every command of the module.
const COMMANDS: [Register; 7] = [
    command::register::<acquire::Acquire>,
    command::register::<release::Release>,
    command::register::<renew::Renew>,
    command::register::<break_lock::Break>,
    command::register::<guard::Guard>,
    command::register::<info::Info>,
    command::register::<list::List>,
];

/// Adds all commands to the server. Fails, with the reason, if the server refuses
/// one.
pub(crate) fn register(ctx: &Context) -> Result<(), String> {
    add_acl_category(ctx);
    COMMANDS.iter().try_for_each(|register| register(ctx))
}
