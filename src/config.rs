//! The module's settings: `CONFIG SET lock.default-lease 60000`, the same line
//! in `redis.conf`, or `loadmodule libredislock.so default-lease 60000`.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use redis_module::configuration::{
    ConfigurationContext, ConfigurationFlags, ConfigurationValue, EnumConfigurationValue,
    register_bool_configuration, register_enum_configuration, register_i64_configuration,
};
use redis_module::{Context, RedisError, RedisString, RedisValue};

use redis_lock_core::request::{LEASE_MS_MAX, Lease};
use redis_lock_core::stored::parse_integer;
use redis_lock_core::table;

/// The name of the module, which is the prefix of its settings.
pub(crate) const MODULE_NAME: &str = "lock";

/// A setting that can be changed while the server runs.
#[derive(Clone, Copy)]
enum Setting {
    /// A whole number.
    Number(&'static Number),
    /// `lock.deadlock-detection`
    DeadlockDetection,
    /// `lock.redisson-notify`
    RedissonNotify,
}

/// A whole number that can be set.
struct Number {
    name: &'static str,
    value: AtomicI64,
    /// The value may outlive the module when it is unloaded, so the default of the next
    /// load can't be taken from it.
    default: i64,
    range: RangeInclusive<i64>,
    /// Whether `CONFIG GET lock.*` leaves it out.
    is_hidden: bool,
}

impl Number {
    const fn new(name: &'static str, default: i64, range: RangeInclusive<i64>) -> Self {
        Self {
            name,
            value: AtomicI64::new(default),
            default,
            range,
            is_hidden: false,
        }
    }

    fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// A switch in the form that the server's settings take.
struct Switch(AtomicBool);

impl ConfigurationValue<bool> for Switch {
    fn get(&self, _ctx: &ConfigurationContext) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, _ctx: &ConfigurationContext, on: bool) -> Result<(), RedisError> {
        self.0.store(on, Ordering::Relaxed);
        Ok(())
    }
}

/// How Redisson's waiters hear of a lock that came free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedissonNotify {
    /// Where a client of this node listens.
    Auto,
    /// Not at all.
    No,
    /// With `PUBLISH`.
    Publish,
    /// With `SPUBLISH`, for Redisson's own sharded subscriptions.
    Spublish,
}

impl RedissonNotify {
    const ALL: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("no", Self::No),
        ("publish", Self::Publish),
        ("spublish", Self::Spublish),
    ];

    fn named(name: &[u8]) -> Option<Self> {
        let named = |(known, _): &&(&str, Self)| name.eq_ignore_ascii_case(known.as_bytes());
        Self::ALL.iter().find(named).map(|&(_, choice)| choice)
    }
}

impl From<RedissonNotify> for i32 {
    fn from(choice: RedissonNotify) -> Self {
        choice as Self
    }
}

impl TryFrom<i32> for RedissonNotify {
    type Error = RedisError;

    fn try_from(number: i32) -> Result<Self, RedisError> {
        Self::ALL
            .iter()
            .map(|&(_, choice)| choice)
            .find(|&choice| i32::from(choice) == number)
            .ok_or(RedisError::Str("no such choice"))
    }
}

impl EnumConfigurationValue for RedissonNotify {
    fn get_options(&self) -> (Vec<String>, Vec<i32>) {
        Self::ALL
            .iter()
            .map(|&(name, choice)| (name.to_string(), i32::from(choice)))
            .unzip()
    }
}

const MS: RangeInclusive<i64> = 1..=LEASE_MS_MAX;
const MS_OR_OFF: RangeInclusive<i64> = 0..=LEASE_MS_MAX;
const COUNT: RangeInclusive<i64> = 1..=1_000_000_000;

static DEFAULT_LEASE_MS: Number = Number::new("default-lease", 30_000, MS);
static MAX_WAITERS: Number = Number::new("max-waiters", 65_536, COUNT);
static MAX_HOLDERS: Number = Number::new("max-holders", 1024, 1..=65_536);
static MAX_PLACES: Number = Number::new("max-places", 1_000_000, COUNT);
static CLAIM_TIMEOUT_MS: Number = Number::new("claim-timeout", 2000, MS);
static LOG_SLOW_WAIT_MS: Number = Number::new("log-slow-wait", 0, MS_OR_OFF);
static GRACE_PERIOD_MS: Number = Number::new("grace-period", 0, MS_OR_OFF);
static MAX_LEASE_MS: Number = Number::new("max-lease", LEASE_MS_MAX, MS);
static MIN_REPLICAS: Number = Number::new("min-replicas", 0, 0..=1_000_000);
static REPLICAS_TIMEOUT_MS: Number = Number::new("replicas-timeout", 1000, MS);
/// For tests alone.
static RECHECK_INTERVAL_MS: Number = Number {
    is_hidden: true,
    ..Number::new("recheck-interval", table::RECHECK_INTERVAL_MS, MS)
};
static DEADLOCK_DETECTION: Switch = Switch(AtomicBool::new(true));
static REDISSON_NOTIFY: Mutex<RedissonNotify> = Mutex::new(RedissonNotify::Auto);

const SETTINGS: [Setting; 13] = [
    Setting::Number(&DEFAULT_LEASE_MS),
    Setting::Number(&MAX_WAITERS),
    Setting::Number(&MAX_HOLDERS),
    Setting::Number(&MAX_PLACES),
    Setting::Number(&CLAIM_TIMEOUT_MS),
    Setting::Number(&LOG_SLOW_WAIT_MS),
    Setting::Number(&GRACE_PERIOD_MS),
    Setting::Number(&MAX_LEASE_MS),
    Setting::Number(&MIN_REPLICAS),
    Setting::Number(&REPLICAS_TIMEOUT_MS),
    Setting::Number(&RECHECK_INTERVAL_MS),
    Setting::DeadlockDetection,
    Setting::RedissonNotify,
];

/// The lease of a command that names none.
pub(crate) fn default_lease() -> Lease {
    let default = lease(&DEFAULT_LEASE_MS);
    default.min(max_lease())
}

/// The longest lease that a command may name.
pub(crate) fn max_lease() -> Lease {
    lease(&MAX_LEASE_MS)
}

fn lease(setting: &Number) -> Lease {
    Lease::from_ms(setting.get()).unwrap_or(Lease::LONGEST)
}

/// How many milliseconds after a start or a promotion nothing is granted.
pub(crate) fn grace_period_ms() -> i64 {
    GRACE_PERIOD_MS.get()
}

/// How many replicas have to acknowledge a grant or a renewal before it is told.
#[inline]
pub(crate) fn min_replicas() -> usize {
    usize::try_from(MIN_REPLICAS.get()).unwrap_or(0)
}

/// How many milliseconds they have for that.
pub(crate) fn replicas_timeout_ms() -> i64 {
    REPLICAS_TIMEOUT_MS.get()
}

/// How many clients may wait for one lock.
pub(crate) fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.get()).unwrap_or(usize::MAX)
}

/// How many may hold one lock together.
pub(crate) fn max_holders() -> usize {
    usize::try_from(MAX_HOLDERS.get()).unwrap_or(usize::MAX)
}

/// How many places there may be in all queues.
pub(crate) fn max_places() -> usize {
    usize::try_from(MAX_PLACES.get()).unwrap_or(usize::MAX)
}

/// How many milliseconds a grant to a place lasts at most if nobody claims it.
pub(crate) fn claim_timeout_ms() -> i64 {
    CLAIM_TIMEOUT_MS.get()
}

/// After how many milliseconds a wait is logged. None if no wait is.
pub(crate) fn log_slow_wait_ms() -> Option<i64> {
    Some(LOG_SLOW_WAIT_MS.get()).filter(|&ms| ms > 0)
}

/// The time in milliseconds after which a contended key is rechecked at the latest.
/// It is the net under every change of which the server sends no event.
pub(crate) fn recheck_interval_ms() -> i64 {
    RECHECK_INTERVAL_MS.get()
}

/// Returns whether a wait that closes a cycle of owners is refused.
pub(crate) fn deadlock_detection() -> bool {
    DEADLOCK_DETECTION.0.load(Ordering::Relaxed)
}

/// How Redisson's waiters hear of a lock that came free.
pub(crate) fn redisson_notify() -> RedissonNotify {
    *REDISSON_NOTIFY
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A setting of the server's own.
pub(crate) fn of_server(ctx: &Context, name: &str) -> Option<String> {
    let RedisValue::Array(reply) = ctx.call("CONFIG", &["GET", name]).ok()? else {
        return None;
    };
    match reply.into_iter().nth(1)? {
        RedisValue::SimpleString(value) => Some(value),
        _ => None,
    }
}

/// Registers the settings. The arguments of `loadmodule`, pairs of a name and
/// a value, become their defaults; a line in `redis.conf` overrides them. Fails if
/// an argument is unknown, or its value is not valid.
pub(crate) fn register(ctx: &Context, args: &[RedisString]) -> Result<(), String> {
    let mut given = SETTINGS.map(|setting| (setting, None));
    let mut unread = args.iter();
    while let Some(name) = unread.next() {
        let name = name.to_string_lossy();
        let short_name = name.strip_prefix("lock.").unwrap_or(&name);
        let (_, value) = given
            .iter_mut()
            .find(|(setting, _)| setting.name().eq_ignore_ascii_case(short_name))
            .ok_or_else(|| format!("unknown module argument '{name}'"))?;
        *value = Some(unread.next().map_or(&[][..], RedisString::as_slice));
    }
    for (setting, value) in given {
        setting.register(ctx, value).map_err(|needs| {
            let name = setting.name();
            format!("module argument '{name}' needs {needs}")
        })?;
    }
    Ok(())
}

impl Setting {
    const fn name(&self) -> &'static str {
        match self {
            Self::Number(number) => number.name,
            Self::DeadlockDetection => "deadlock-detection",
            Self::RedissonNotify => "redisson-notify",
        }
    }

    /// Registers the setting with the given default, or its own. The error says
    /// what the default must be.
    fn register(&self, ctx: &Context, given: Option<&[u8]>) -> Result<(), String> {
        let (name, flags) = (self.name(), ConfigurationFlags::DEFAULT);
        match self {
            Self::Number(number) => {
                let (min, max) = (*number.range.start(), *number.range.end());
                let default = match given {
                    None => number.default,
                    Some(text) => parse_integer(text)
                        .filter(|given| number.range.contains(given))
                        .ok_or_else(|| format!("a number from {min} to {max}"))?,
                };
                let flags = match number.is_hidden {
                    true => ConfigurationFlags::HIDDEN,
                    false => flags,
                };
                let value = &number.value;
                register_i64_configuration(ctx, name, value, default, min, max, flags, None);
            }
            Self::DeadlockDetection => {
                let default = match given.map(<[u8]>::to_ascii_lowercase).as_deref() {
                    None | Some(b"yes") => true,
                    Some(b"no") => false,
                    Some(_) => return Err("'yes' or 'no'".into()),
                };
                register_bool_configuration(ctx, name, &DEADLOCK_DETECTION, default, flags, None);
            }
            Self::RedissonNotify => {
                let default = match given {
                    None => RedissonNotify::Auto,
                    Some(text) => RedissonNotify::named(text)
                        .ok_or("'auto', 'no', 'publish' or 'spublish'")?,
                };
                register_enum_configuration(ctx, name, &REDISSON_NOTIFY, default, flags, None);
            }
        }
        Ok(())
    }
}
