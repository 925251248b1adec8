//! Commands, as the server calls them.

use std::ffi::c_int;

use redis_module::{Context, RedisError, raw};
use smallvec::SmallVec;

use crate::error::{LockError, Usage};
use crate::server::registration::{self, CommandDoc};
use crate::server::reply::Reply;
use crate::server::word::Word;
use crate::server::{blocked, guard};

/// A command without its name, at most so many words long, is read without
/// asking for memory.
pub(crate) const WORDS_INLINE: usize = 16;

/// A command of the module.
pub(crate) trait Command {
    /// Its name, flags and documentation.
    const DOC: CommandDoc;

    /// Runs it. `words` are those after the name, and at least as many as the
    /// documentation says.
    fn run(ctx: &Context, words: &[Word<'_>]) -> Result<Reply, LockError>;
}

/// Adds the command to the server.
pub(crate) fn register<C: Command>(ctx: &Context) -> Result<(), String> {
    // SAFETY: called while the module loads; the strings last, and `invoke` has
    // the right type.
    let created = unsafe {
        raw::RedisModule_CreateCommand.is_some_and(|create| {
            let (name, flags) = (C::DOC.name.as_ptr(), C::DOC.flags.as_ptr());
            let key = c_int::from(C::DOC.key_change.is_some());
            create(ctx.ctx, name, Some(invoke::<C>), flags, key, key, key) == 0
        })
    };
    if !created {
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
    if argc < C::DOC.min_words {
        // SAFETY: the context is that of the running command.
        return unsafe { raw::RedisModule_WrongArity.map_or(0, |reply| reply(ctx)) };
    }
    // SAFETY: the server passes so many words, which live as long as the call.
    let words: SmallVec<[Word<'_>; WORDS_INLINE]> = unsafe {
        let count = usize::try_from(argc).unwrap_or(0);
        let all = std::slice::from_raw_parts(argv, count);
        all.iter().skip(1).map(|&word| Word::new(word)).collect()
    };
    let name = const {
        match C::DOC.name.to_str() {
            Ok(name) => name,
            Err(_) => "a command",
        }
    };
    let result = guard::catch(name, || C::run(&context, &words))
        .unwrap_or_else(|| Err(Usage::Internal.into()));
    match result {
        Ok(reply) => reply.send(&context),
        Err(error) => {
            context.reply(Err(RedisError::from(&error)));
        }
    }
    blocked::wake_answered();
    0
}
