//! Commands: how the server learns of them and calls them.

use std::ffi::c_int;

use redis_module::{Context, raw};

use crate::server::acl::User;
use crate::server::api::api;
use crate::server::registration::{self, CommandDoc};
use crate::server::reply::{Reply, refusal};
use crate::server::server_str::ServerStr;
use crate::server::{blocked, panics};
use redis_lock_core::error::LockError;
use redis_lock_core::usage::Usage;

/// A command of the module.
pub(crate) trait Command {
    /// The name, flags and documentation of the command.
    const DOC: CommandDoc;

    /// Runs the command. `args` are those after its name; with the name, they are
    /// at least [`CommandDoc::min_args`].
    fn run(ctx: &Context, args: &[ServerStr<'_>]) -> Result<Reply, LockError>;
}

/// Adds the command to the server. Fails, with the reason, if the server refuses.
pub(crate) fn register<C: Command>(ctx: &Context) -> Result<(), String> {
    let (name, flags) = (C::DOC.name.as_ptr(), C::DOC.flags.as_ptr());
    let key = c_int::from(C::DOC.key_change.is_some());
    // SAFETY: the context is that of the load, and both strings last.
    let status =
        unsafe { api!(create_command)(ctx.ctx, name, Some(invoke::<C>), flags, key, key, key) };
    if status != 0 {
        return Err(format!("the server refuses the command {:?}", C::DOC.name));
    }
    registration::describe(ctx, &C::DOC)
}

/// Runs the command. One that panics answers with an error.
unsafe extern "C" fn invoke<C: Command>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let context = Context::new(ctx);
    if argc < C::DOC.min_args {
        // SAFETY: the context is that of the running command.
        return unsafe { api!(wrong_arity)(ctx) };
    }
    // SAFETY: the server passes this many arguments, the command's name first, which live
    // as long as the call. A `ServerStr` is a pointer to one.
    let args = unsafe {
        let count = usize::try_from(argc - 1).unwrap_or(0);
        std::slice::from_raw_parts(argv.add(1).cast::<ServerStr<'_>>(), count)
    };
    let result = panics::catch(C::DOC.name, || C::run(&context, args))
        .unwrap_or_else(|| Err(Usage::Internal.into()));
    match result {
        Ok(reply) => reply.send(&context),
        Err(error) => {
            context.reply(Err(refusal(&context, &error, || User::running(&context))));
        }
    }
    blocked::wake_answered();
    0
}
