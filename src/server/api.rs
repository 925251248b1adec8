//! The functions of the module API that the module calls.
//!
//! Architecture invariant: nothing outside this file names a function of the module API.
//! The crate finds all of them while the module loads, and [`check`] refuses a server that
//! lacks one that is needed, with that function's name. The exceptions are the functions of
//! ACL categories, which Redis has only since 7.4: without them the commands have no
//! category of their own.

/// Declares the functions under names of our own. What each does and demands of its caller
/// stands in the server's `module.c`.
macro_rules! functions {
    (
        required { $($name:ident = $raw:ident,)* }
        optional { $($optional:ident = $optional_raw:ident,)* }
    ) => {
        /// Each function, if the server has it.
        pub(super) mod functions {
            pub use redis_module::raw::{
                $($raw as $name,)* $($optional_raw as $optional,)*
            };
        }

        /// The functions that are needed, and whether the server has them.
        fn required() -> impl IntoIterator<Item = (&'static str, bool)> {
            // SAFETY: the variables are written only before the module loads.
            unsafe { [$((stringify!($raw), { functions::$name }.is_some()),)*] }
        }
    };
}

/// A function of the server. It is unsafe to ask for one, as to call it, but [`check`] comes
/// before everything else that the module does.
macro_rules! api {
    ($name:ident) => {
        match $crate::server::api::functions::$name {
            Some(function) => function,
            None => std::process::abort(),
        }
    };
}
pub(super) use api;

functions! {
    required {
        acl_check_channel_permissions = RedisModule_ACLCheckChannelPermissions,
        acl_check_key_permissions = RedisModule_ACLCheckKeyPermissions,
        avoid_replica_traffic = RedisModule_AvoidReplicaTraffic,
        block_client_on_keys = RedisModule_BlockClientOnKeys,
        blocked_client_disconnected = RedisModule_BlockedClientDisconnected,
        call = RedisModule_Call,
        call_reply_string_ptr = RedisModule_CallReplyStringPtr,
        call_reply_type = RedisModule_CallReplyType,
        close_key = RedisModule_CloseKey,
        create_command = RedisModule_CreateCommand,
        create_timer = RedisModule_CreateTimer,
        deauthenticate_and_close_client = RedisModule_DeauthenticateAndCloseClient,
        event_loop_add_one_shot = RedisModule_EventLoopAddOneShot,
        free = RedisModule_Free,
        free_call_reply = RedisModule_FreeCallReply,
        free_module_user = RedisModule_FreeModuleUser,
        get_abs_expire = RedisModule_GetAbsExpire,
        get_blocked_client_private_data = RedisModule_GetBlockedClientPrivateData,
        get_client_id = RedisModule_GetClientId,
        get_client_info_by_id = RedisModule_GetClientInfoById,
        get_client_user_name_by_id = RedisModule_GetClientUserNameById,
        get_command = RedisModule_GetCommand,
        get_command_keys_with_flags = RedisModule_GetCommandKeysWithFlags,
        get_current_user_name = RedisModule_GetCurrentUserName,
        get_module_user_from_user_name = RedisModule_GetModuleUserFromUserName,
        get_db_id_from_module_key = RedisModule_GetDbIdFromModuleKey,
        get_selected_db = RedisModule_GetSelectedDb,
        get_server_version = RedisModule_GetServerVersion,
        hash_get = RedisModule_HashGet,
        hash_set = RedisModule_HashSet,
        key_type = RedisModule_KeyType,
        load_configs = RedisModule_LoadConfigs,
        notify_keyspace_event = RedisModule_NotifyKeyspaceEvent,
        open_key = RedisModule_OpenKey,
        replicate = RedisModule_Replicate,
        publish_message = RedisModule_PublishMessage,
        publish_message_shard = RedisModule_PublishMessageShard,
        reply_with_call_reply = RedisModule_ReplyWithCallReply,
        scan_cursor_create = RedisModule_ScanCursorCreate,
        scan_cursor_restart = RedisModule_ScanCursorRestart,
        scan_key = RedisModule_ScanKey,
        select_db = RedisModule_SelectDb,
        set_abs_expire = RedisModule_SetAbsExpire,
        set_command_info = RedisModule_SetCommandInfo,
        set_disconnect_callback = RedisModule_SetDisconnectCallback,
        set_module_options = RedisModule_SetModuleOptions,
        signal_modified_key = RedisModule_SignalModifiedKey,
        stop_timer = RedisModule_StopTimer,
        string_ptr_len = RedisModule_StringPtrLen,
        subscribe_to_keyspace_events = RedisModule_SubscribeToKeyspaceEvents,
        subscribe_to_server_event = RedisModule_SubscribeToServerEvent,
        unblock_client = RedisModule_UnblockClient,
        unlink_key = RedisModule_UnlinkKey,
        value_length = RedisModule_ValueLength,
        wrong_arity = RedisModule_WrongArity,
    }
    optional {
        add_acl_category = RedisModule_AddACLCategory,
        set_command_acl_categories = RedisModule_SetCommandACLCategories,
    }
}

/// Fails, with the name, where the server lacks a function that is needed.
pub(crate) fn check() -> Result<(), String> {
    first_missing(required()).map_or(Ok(()), |name| {
        Err(format!(
            "the server lacks the function {name} of the module API; \
             the module needs Redis 7.0 or later, or Valkey"
        ))
    })
}

fn first_missing(
    functions: impl IntoIterator<Item = (&'static str, bool)>,
) -> Option<&'static str> {
    let missing = functions.into_iter().find(|(_, is_there)| !is_there);
    missing.map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_is_missing_is_named() {
        let all = ["a", "b", "c"];
        assert_eq!(first_missing(all.map(|name| (name, true))), None);
        for one in all {
            assert_eq!(
                first_missing(all.map(|name| (name, name != one))),
                Some(one)
            );
        }
    }

    #[test]
    fn without_a_server_every_function_is_missing() {
        assert!(required().into_iter().all(|(_, is_there)| !is_there));
        assert!(check().unwrap_err().contains("RedisModule_ACLCheck"));
    }
}
