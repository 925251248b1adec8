//! What the module tells the server about itself while it loads, beyond what
//! the `redis_module!` macro does.

use std::ffi::{CStr, c_int};
use std::mem::{size_of, zeroed};
use std::ptr;

use redis_module::raw::{
    REDISMODULE_CMD_ARG_MULTIPLE as MULTIPLE, REDISMODULE_CMD_ARG_OPTIONAL as OPTIONAL,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK as BLOCK,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER as INTEGER,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY as KEY,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF as ONEOF,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN as PURE_TOKEN,
    RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING as STRING,
};
use redis_module::{CallOptionsBuilder, CallResult, Context, raw};

use crate::server::api::{api, functions};

/// The first two numbers of the server's version. Valkey returns its own, 7.2 or later.
pub(super) fn server_version() -> (u8, u8) {
    // SAFETY: the function takes no arguments.
    let [_, major, minor, _] = unsafe { api!(get_server_version)() }.to_be_bytes();
    (major, minor)
}

/// Refuses a server that lacks what the module needs.
pub(crate) fn check_server() -> Result<(), String> {
    match server_version() {
        (7.., _) => Ok(()),
        (major, minor) => Err(format!(
            "it needs Redis 7.0 or later, or Valkey, and this is {major}.{minor}"
        )),
    }
}

/// `VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION`, which the header of Redis lacks.
const HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Tells the server what the module copes with: a replica that loads a data set while it
/// serves another; and keys that arrive before their slot does, which it serves no more
/// than those of any other node. And `server::open_lock` signals the keys that it
/// modified, so the server need not.
pub(crate) fn set_options(ctx: &Context) {
    let mut options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD as c_int;
    // `CLUSTER MIGRATESLOTS`.
    if valkey_version(ctx) >= Some((9, 0)) {
        options |= HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the context is that of the load.
    unsafe { api!(set_module_options)(ctx.ctx, options) };
}

/// The first two numbers of the version of Valkey, if the server is that.
pub(super) fn valkey_version(ctx: &Context) -> Option<(u32, u32)> {
    let version = ctx.server_info("server").field("valkey_version")?;
    let version = version.to_string_lossy();
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// The server's own commands that the module needs: those that replicas and the AOF get,
/// of which `PING` changes nothing, `CONFIG`, which shows what the server demands of its
/// replicas, `INFO`, which shows them, `REPLCONF`, which asks them, and `PUBSUB`, which
/// shows who listens.
const COMMANDS: &str = "RESTORE HSET HDEL PEXPIREAT DEL CONFIG INFO PING PUBSUB REPLCONF";

/// Refuses a server that has one of them under another name: what the module
/// writes would not reach the replicas, for example.
pub(crate) fn check_commands(ctx: &Context) -> Result<(), String> {
    let options = CallOptionsBuilder::new().errors_as_replies().build();
    for command in COMMANDS.split(' ') {
        // Without arguments none of them changes anything.
        let reply: CallResult<'_> = ctx.call_ext::<&[&[u8]; 0], _>(command, &options, &[]);
        if let Err(error) = reply
            && String::from_utf8_lossy(error.as_bytes()).contains("unknown command")
        {
            return Err(format!(
                "the server does not know the command {command}, which the module needs; \
                 remove it from rename-command"
            ));
        }
    }
    Ok(())
}

/// Lets the server read `redis.conf` into the settings, which are registered by then.
pub(crate) fn load_settings(ctx: &Context) -> Result<(), String> {
    // SAFETY: the context is that of the load.
    match unsafe { api!(load_configs)(ctx.ctx) } {
        0 => Ok(()),
        _ => Err("a lock.* setting in the configuration is not valid".into()),
    }
}

/// The documentation of a command of the form `NAME key ...`, or `NAME ...`.
pub(crate) struct CommandDoc {
    /// The name of the command.
    pub(crate) name: &'static CStr,
    /// The flags that say how the server may run the command.
    pub(crate) flags: &'static CStr,
    /// What the command does, in one sentence.
    pub(crate) summary: &'static CStr,
    /// Its running time, as Redis's own documentation writes it.
    pub(crate) complexity: &'static CStr,
    /// The version of the module that had the command first.
    pub(crate) since: &'static CStr,
    /// The least number of arguments, the name included.
    pub(crate) min_args: c_int,
    /// What the command may do to its key. None if it has no key.
    pub(crate) key_change: Option<KeyChange>,
    /// The arguments, in order.
    pub(crate) args: &'static [ArgDoc],
}

/// What a command may do to its key.
pub(crate) enum KeyChange {
    /// It only reads the key.
    None,
    /// It creates or changes the key.
    Update,
    /// It changes or deletes the key.
    Delete,
}

/// An argument, as it is documented.
pub(crate) enum ArgDoc {
    /// The key, which comes first.
    Key,
    /// A string that the client chooses.
    String(&'static CStr),
    /// A number.
    Number(&'static CStr),
    /// `[string ...]`
    OptionalStrings(&'static CStr),
    /// `[TOKEN number]`
    OptionalNumber(&'static CStr, &'static CStr),
    /// `TOKEN these`, as one of several.
    Several(&'static CStr, &'static CStr, &'static [ArgDoc]),
    /// `TOKEN`, as one of several.
    Flag(&'static CStr, &'static CStr),
    /// `[TOKEN]`
    OptionalFlag(&'static CStr, &'static CStr),
    /// `[one | of | these]`
    OptionalOneOf(&'static CStr, &'static [ArgDoc]),
}

/// The category of the commands, where the server lets modules add their own
/// (Redis 7.4 and later): a user may be allowed `+@lock`.
const ACL_CATEGORY: &CStr = c"lock";

/// Adds the category of all the module's commands, where that is possible. It
/// comes before the commands.
pub(crate) fn add_acl_category(ctx: &Context) {
    // SAFETY: the context is that of the load, as the server demands.
    unsafe {
        if let Some(add) = functions::add_acl_category {
            add(ctx.ctx, ACL_CATEGORY.as_ptr());
        }
    }
}

/// The first and only layout of these structs. The header makes this a private
/// constant of C, which Rust can't see.
static INFO_VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

/// Gives the server the command's documentation. Fails if the server refuses it.
pub(crate) fn describe(ctx: &Context, doc: &CommandDoc) -> Result<(), String> {
    let mut keep_alive = Vec::new();
    let args = arg_list(doc.args, true, &mut keep_alive);
    let (access, change) = match doc.key_change {
        None | Some(KeyChange::None) => (raw::REDISMODULE_CMD_KEY_RO, 0),
        Some(KeyChange::Update) => (raw::REDISMODULE_CMD_KEY_RW, raw::REDISMODULE_CMD_KEY_UPDATE),
        Some(KeyChange::Delete) => (raw::REDISMODULE_CMD_KEY_RW, raw::REDISMODULE_CMD_KEY_DELETE),
    };
    // SAFETY: all are plain C structs, for which all zeros mean "not given",
    // and end the list of key specifications.
    let mut key_specs: [raw::RedisModuleCommandKeySpec; 2] = unsafe { zeroed() };
    key_specs[0].flags = u64::from(access | raw::REDISMODULE_CMD_KEY_ACCESS | change);
    key_specs[0].begin_search_type =
        raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    key_specs[0].bs.index.pos = 1;
    key_specs[0].find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    key_specs[0].fk.range.keystep = 1;
    let info = raw::RedisModuleCommandInfo {
        version: &raw const INFO_VERSION,
        summary: doc.summary.as_ptr(),
        complexity: doc.complexity.as_ptr(),
        since: doc.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: -doc.min_args,
        key_specs: match doc.key_change {
            Some(_) => key_specs.as_mut_ptr(),
            None => ptr::null_mut(),
        },
        args,
    };
    // SAFETY: the context is that of the load, and `command` is checked for null.
    // The server copies what `info` points to; all of it lives until the end of
    // this function.
    let described = unsafe {
        let command = api!(get_command)(ctx.ctx, doc.name.as_ptr());
        if let Some(set_categories) = functions::set_command_acl_categories
            && !command.is_null()
        {
            set_categories(command, ACL_CATEGORY.as_ptr());
        }
        !command.is_null() && api!(set_command_info)(command, &raw const info) == 0
    };
    match described {
        true => Ok(()),
        false => Err(format!("the server refuses to describe {:?}", doc.name)),
    }
}

/// The arguments as the server takes them: a list that ends with zeros. It
/// lives as long as `keep_alive`.
fn arg_list(
    docs: &[ArgDoc],
    top_level: bool,
    keep_alive: &mut Vec<Box<[raw::RedisModuleCommandArg]>>,
) -> *mut raw::RedisModuleCommandArg {
    let optional = if top_level { OPTIONAL } else { 0 };
    let mut list = Vec::with_capacity(docs.len() + 1);
    for doc in docs {
        let none: &[ArgDoc] = &[];
        let (kind, name, token, flags, parts) = match doc {
            ArgDoc::Key => (KEY, &c"key", None, 0, none),
            ArgDoc::String(name) => (STRING, name, None, 0, none),
            ArgDoc::Number(name) => (INTEGER, name, None, 0, none),
            ArgDoc::OptionalStrings(name) => (STRING, name, None, optional | MULTIPLE, none),
            ArgDoc::OptionalNumber(name, token) => (INTEGER, name, Some(token), optional, none),
            ArgDoc::Several(name, token, parts) => (BLOCK, name, Some(token), 0, *parts),
            ArgDoc::Flag(name, token) => (PURE_TOKEN, name, Some(token), 0, none),
            ArgDoc::OptionalFlag(name, token) => (PURE_TOKEN, name, Some(token), optional, none),
            ArgDoc::OptionalOneOf(name, choices) => (ONEOF, name, None, optional, *choices),
        };
        // SAFETY: as in `describe`.
        let mut arg: raw::RedisModuleCommandArg = unsafe { zeroed() };
        arg.key_spec_index = if kind == KEY { 0 } else { -1 };
        arg.name = name.as_ptr();
        arg.type_ = kind;
        arg.token = token.map_or(ptr::null(), |token| token.as_ptr());
        arg.flags = flags as c_int;
        if !parts.is_empty() {
            arg.subargs = arg_list(parts, false, keep_alive);
        }
        list.push(arg);
    }
    // SAFETY: as in `describe`.
    list.push(unsafe { zeroed() });
    let mut list = list.into_boxed_slice();
    let first = list.as_mut_ptr();
    keep_alive.push(list);
    first
}
