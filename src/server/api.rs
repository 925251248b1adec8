//! The functions of the module API that the module calls, found once while it loads.
//!
//! Architecture invariant: nothing outside this file names a function of the
//! module API, and none of them is looked for after the load. A server that
//! lacks one refuses the module with that function's name. The exceptions are
//! the functions of ACL categories, which Redis has only since 7.4: without
//! them the commands have no category of their own.

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_ulonglong, c_void};
use std::mem::transmute;
use std::process::abort;
use std::ptr;
use std::sync::OnceLock;

use redis_module::raw::{
    RedisModuleBlockedClient, RedisModuleCallReply, RedisModuleCmdFunc, RedisModuleCommand,
    RedisModuleCommandInfo, RedisModuleCtx, RedisModuleDisconnectFunc, RedisModuleEvent,
    RedisModuleEventCallback, RedisModuleEventLoopOneShotFunc,
    RedisModuleKey, RedisModuleNotificationFunc, RedisModuleScanCursor, RedisModuleScanKeyCB,
    RedisModuleString, RedisModuleTimerID, RedisModuleTimerProc, RedisModuleUser, mstime_t,
};
use redis_module::{Context, raw};

/// Declares the table, and how it is filled.
macro_rules! api {
    (
        required {
            $($name:ident = $raw:ident: fn($($args:tt)*) $(-> $result:ty)?;)*
        }
        optional {
            $($optional:ident = $optional_raw:ident: fn($($optional_args:tt)*) -> $optional_result:ty;)*
        }
    ) => {
        /// The table of functions. What each does and demands of its caller
        /// stands in the server's `module.c`.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($args)*) $(-> $result)?,)*
            $(pub(super) $optional:
                Option<unsafe extern "C" fn($($optional_args)*) -> $optional_result>,)*
        }

        impl Api {
            /// Fills the table. Fails with the name of the first required
            /// function that `find` returns a null for.
            ///
            /// # Safety
            /// Whatever `find` returns for a name must be null or the server's
            /// function of that name.
            unsafe fn resolve(
                find: impl Fn(&'static CStr) -> *mut c_void,
            ) -> Result<Self, &'static CStr> {
                let required = |name| ptr::NonNull::new(find(name)).ok_or(name);
                // SAFETY: the pointer is the function of this name, see above,
                // and `check_types` holds that the header gives it this type.
                // A null pointer is the `None` of an optional function.
                unsafe {
                    Ok(Self {
                        $($name: transmute::<
                            ptr::NonNull<c_void>,
                            unsafe extern "C" fn($($args)*) $(-> $result)?,
                        >(required(c_name(concat!(stringify!($raw), "\0")))?),)*
                        $($optional: transmute::<
                            *mut c_void,
                            Option<unsafe extern "C" fn($($optional_args)*) -> $optional_result>,
                        >(find(c_name(concat!(stringify!($optional_raw), "\0")))),)*
                    })
                }
            }
        }

        /// Compares the types above with those of the header. It need never
        /// run, because the compiler does it.
        const _: fn() = || {
            // SAFETY: the variables are written only while the module loads.
            unsafe {
                $(let _: Option<unsafe extern "C" fn($($args)*) $(-> $result)?> = raw::$raw;)*
                $(let _: Option<unsafe extern "C" fn($($optional_args)*) -> $optional_result> =
                    raw::$optional_raw;)*
            }
        };

        #[cfg(test)]
        const REQUIRED: &[&str] = &[$(stringify!($raw)),*];

        #[cfg(test)]
        const OPTIONAL: &[&str] = &[$(stringify!($optional_raw)),*];
    };
}

api! {
    required {
        acl_check_channel_permissions = RedisModule_ACLCheckChannelPermissions:
            fn(*mut RedisModuleUser, *mut RedisModuleString, c_int) -> c_int;
        acl_check_key_permissions = RedisModule_ACLCheckKeyPermissions:
            fn(*mut RedisModuleUser, *mut RedisModuleString, c_int) -> c_int;
        avoid_replica_traffic = RedisModule_AvoidReplicaTraffic: fn() -> c_int;
        block_client_on_keys = RedisModule_BlockClientOnKeys: fn(
            *mut RedisModuleCtx,
            RedisModuleCmdFunc,
            RedisModuleCmdFunc,
            Option<unsafe extern "C" fn(*mut RedisModuleCtx, *mut c_void)>,
            c_longlong,
            *mut *mut RedisModuleString,
            c_int,
            *mut c_void,
        ) -> *mut RedisModuleBlockedClient;
        blocked_client_disconnected = RedisModule_BlockedClientDisconnected:
            fn(*mut RedisModuleCtx) -> c_int;
        call = RedisModule_Call:
            fn(*mut RedisModuleCtx, *const c_char, *const c_char, ...) -> *mut RedisModuleCallReply;
        call_reply_proto = RedisModule_CallReplyProto:
            fn(*mut RedisModuleCallReply, *mut usize) -> *const c_char;
        call_reply_string_ptr = RedisModule_CallReplyStringPtr:
            fn(*mut RedisModuleCallReply, *mut usize) -> *const c_char;
        call_reply_type = RedisModule_CallReplyType: fn(*mut RedisModuleCallReply) -> c_int;
        close_key = RedisModule_CloseKey: fn(*mut RedisModuleKey);
        create_command = RedisModule_CreateCommand: fn(
            *mut RedisModuleCtx,
            *const c_char,
            RedisModuleCmdFunc,
            *const c_char,
            c_int,
            c_int,
            c_int,
        ) -> c_int;
        create_timer = RedisModule_CreateTimer:
            fn(*mut RedisModuleCtx, mstime_t, RedisModuleTimerProc, *mut c_void) -> RedisModuleTimerID;
        deauthenticate_and_close_client = RedisModule_DeauthenticateAndCloseClient:
            fn(*mut RedisModuleCtx, u64) -> c_int;
        event_loop_add_one_shot = RedisModule_EventLoopAddOneShot:
            fn(RedisModuleEventLoopOneShotFunc, *mut c_void) -> c_int;
        free = RedisModule_Free: fn(*mut c_void);
        free_call_reply = RedisModule_FreeCallReply: fn(*mut RedisModuleCallReply);
        free_module_user = RedisModule_FreeModuleUser: fn(*mut RedisModuleUser);
        get_abs_expire = RedisModule_GetAbsExpire: fn(*mut RedisModuleKey) -> mstime_t;
        get_blocked_client_private_data = RedisModule_GetBlockedClientPrivateData:
            fn(*mut RedisModuleCtx) -> *mut c_void;
        get_client_id = RedisModule_GetClientId: fn(*mut RedisModuleCtx) -> c_ulonglong;
        get_client_info_by_id = RedisModule_GetClientInfoById: fn(*mut c_void, u64) -> c_int;
        get_client_user_name_by_id = RedisModule_GetClientUserNameById:
            fn(*mut RedisModuleCtx, u64) -> *mut RedisModuleString;
        get_command = RedisModule_GetCommand:
            fn(*mut RedisModuleCtx, *const c_char) -> *mut RedisModuleCommand;
        get_command_keys_with_flags = RedisModule_GetCommandKeysWithFlags: fn(
            *mut RedisModuleCtx,
            *mut *mut RedisModuleString,
            c_int,
            *mut c_int,
            *mut *mut c_int,
        ) -> *mut c_int;
        get_context_flags = RedisModule_GetContextFlags: fn(*mut RedisModuleCtx) -> c_int;
        get_current_user_name = RedisModule_GetCurrentUserName:
            fn(*mut RedisModuleCtx) -> *mut RedisModuleString;
        get_module_user_from_user_name = RedisModule_GetModuleUserFromUserName:
            fn(*mut RedisModuleString) -> *mut RedisModuleUser;
        get_db_id_from_module_key = RedisModule_GetDbIdFromModuleKey:
            fn(*mut RedisModuleKey) -> c_int;
        get_selected_db = RedisModule_GetSelectedDb: fn(*mut RedisModuleCtx) -> c_int;
        get_server_version = RedisModule_GetServerVersion: fn() -> c_int;
        hash_get = RedisModule_HashGet: fn(*mut RedisModuleKey, c_int, ...) -> c_int;
        hash_set = RedisModule_HashSet: fn(*mut RedisModuleKey, c_int, ...) -> c_int;
        key_type = RedisModule_KeyType: fn(*mut RedisModuleKey) -> c_int;
        load_configs = RedisModule_LoadConfigs: fn(*mut RedisModuleCtx) -> c_int;
        notify_keyspace_event = RedisModule_NotifyKeyspaceEvent:
            fn(*mut RedisModuleCtx, c_int, *const c_char, *mut RedisModuleString) -> c_int;
        open_key = RedisModule_OpenKey:
            fn(*mut RedisModuleCtx, *mut RedisModuleString, c_int) -> *mut RedisModuleKey;
        replicate = RedisModule_Replicate:
            fn(*mut RedisModuleCtx, *const c_char, *const c_char, ...) -> c_int;
        publish_message = RedisModule_PublishMessage:
            fn(*mut RedisModuleCtx, *mut RedisModuleString, *mut RedisModuleString) -> c_int;
        publish_message_shard = RedisModule_PublishMessageShard:
            fn(*mut RedisModuleCtx, *mut RedisModuleString, *mut RedisModuleString) -> c_int;
        reply_with_array = RedisModule_ReplyWithArray: fn(*mut RedisModuleCtx, c_long) -> c_int;
        reply_with_call_reply = RedisModule_ReplyWithCallReply:
            fn(*mut RedisModuleCtx, *mut RedisModuleCallReply) -> c_int;
        reply_with_long_long = RedisModule_ReplyWithLongLong:
            fn(*mut RedisModuleCtx, c_longlong) -> c_int;
        reply_with_map = RedisModule_ReplyWithMap: fn(*mut RedisModuleCtx, c_long) -> c_int;
        reply_with_null = RedisModule_ReplyWithNull: fn(*mut RedisModuleCtx) -> c_int;
        reply_with_string_buffer = RedisModule_ReplyWithStringBuffer:
            fn(*mut RedisModuleCtx, *const c_char, usize) -> c_int;
        scan_cursor_create = RedisModule_ScanCursorCreate: fn() -> *mut RedisModuleScanCursor;
        scan_cursor_restart = RedisModule_ScanCursorRestart: fn(*mut RedisModuleScanCursor);
        scan_key = RedisModule_ScanKey: fn(
            *mut RedisModuleKey,
            *mut RedisModuleScanCursor,
            RedisModuleScanKeyCB,
            *mut c_void,
        ) -> c_int;
        select_db = RedisModule_SelectDb: fn(*mut RedisModuleCtx, c_int) -> c_int;
        set_abs_expire = RedisModule_SetAbsExpire: fn(*mut RedisModuleKey, mstime_t) -> c_int;
        set_command_info = RedisModule_SetCommandInfo:
            fn(*mut RedisModuleCommand, *const RedisModuleCommandInfo) -> c_int;
        set_disconnect_callback = RedisModule_SetDisconnectCallback:
            fn(*mut RedisModuleBlockedClient, RedisModuleDisconnectFunc);
        set_module_options = RedisModule_SetModuleOptions: fn(*mut RedisModuleCtx, c_int);
        signal_modified_key = RedisModule_SignalModifiedKey:
            fn(*mut RedisModuleCtx, *mut RedisModuleString) -> c_int;
        stop_timer = RedisModule_StopTimer:
            fn(*mut RedisModuleCtx, RedisModuleTimerID, *mut *mut c_void) -> c_int;
        string_ptr_len = RedisModule_StringPtrLen:
            fn(*const RedisModuleString, *mut usize) -> *const c_char;
        subscribe_to_keyspace_events = RedisModule_SubscribeToKeyspaceEvents:
            fn(*mut RedisModuleCtx, c_int, RedisModuleNotificationFunc) -> c_int;
        subscribe_to_server_event = RedisModule_SubscribeToServerEvent:
            fn(*mut RedisModuleCtx, RedisModuleEvent, RedisModuleEventCallback) -> c_int;
        unblock_client = RedisModule_UnblockClient:
            fn(*mut RedisModuleBlockedClient, *mut c_void) -> c_int;
        unlink_key = RedisModule_UnlinkKey: fn(*mut RedisModuleKey) -> c_int;
        value_length = RedisModule_ValueLength: fn(*mut RedisModuleKey) -> usize;
        wrong_arity = RedisModule_WrongArity: fn(*mut RedisModuleCtx) -> c_int;
    }
    optional {
        add_acl_category = RedisModule_AddACLCategory:
            fn(*mut RedisModuleCtx, *const c_char) -> c_int;
        set_command_acl_categories = RedisModule_SetCommandACLCategories:
            fn(*mut RedisModuleCommand, *const c_char) -> c_int;
    }
}

/// The table of this process. A module that is unloaded and loaded again finds
/// either an empty one, or one that is still right: the server, and so its
/// functions, are the same.
static API: OnceLock<Api> = OnceLock::new();

/// The functions of the server that has loaded the module.
///
/// [`load`] comes before everything else that the module does, so whoever has a
/// [`Context`] of the server may ask for them.
#[inline]
pub(super) fn api() -> &'static Api {
    match API.get() {
        Some(api) => api,
        None => not_loaded(),
    }
}

/// The module can't go on without a server.
#[cold]
fn not_loaded() -> ! {
    abort()
}

/// Finds all functions. Fails, with the name, where the server lacks one.
pub(crate) fn load(_ctx: &Context) -> Result<(), String> {
    // SAFETY: the server wrote this variable before it gave us the context.
    let Some(get_api) = (unsafe { raw::RedisModule_GetApi }) else {
        return Err(lacks(c"RedisModule_GetApi"));
    };
    let find = |name: &CStr| {
        let mut function: *mut c_void = ptr::null_mut();
        // SAFETY: the server reads the name and writes a pointer to the
        // function, or nothing.
        unsafe { get_api(name.as_ptr(), (&raw mut function).cast()) };
        function
    };
    // SAFETY: `find` asks the server for the function of the name.
    let found = unsafe { Api::resolve(find) }.map_err(lacks)?;
    // It may be there from an earlier load, and then is the same.
    API.get_or_init(|| found);
    Ok(())
}

fn lacks(name: &CStr) -> String {
    format!(
        "the server lacks the function {} of the module API; \
         the module needs Redis 7.0 or later, or Valkey",
        name.to_string_lossy()
    )
}

/// A name that ends with a zero.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn a_function() {}

    /// Resolves with a server that has all functions but these.
    fn resolve_without(missing: &[&str]) -> Result<Api, &'static CStr> {
        let find = |name: &'static CStr| {
            if missing.contains(&name.to_str().unwrap()) {
                ptr::null_mut()
            } else {
                a_function as *mut c_void
            }
        };
        // SAFETY: these tests call none of the functions.
        unsafe { Api::resolve(find) }
    }

    #[test]
    fn a_server_with_all_functions_is_enough() {
        let api = resolve_without(&[]).ok().unwrap();
        assert!(api.add_acl_category.is_some());
        assert!(api.set_command_acl_categories.is_some());
    }

    #[test]
    fn each_missing_function_is_named() {
        for name in REQUIRED {
            let refused = resolve_without(&[name]).err().unwrap();
            assert_eq!(refused.to_str(), Ok(*name));
            assert!(lacks(refused).contains(name));
        }
    }

    #[test]
    fn a_server_without_acl_categories_is_enough() {
        let api = resolve_without(OPTIONAL).ok().unwrap();
        assert!(api.add_acl_category.is_none());
        assert!(api.set_command_acl_categories.is_none());
    }

    #[test]
    fn no_name_is_empty_or_there_twice() {
        let mut names = [REQUIRED, OPTIONAL].concat();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(names.iter().all(|name| name.starts_with("RedisModule_")));
    }
}
