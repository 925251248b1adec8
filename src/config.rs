//! The module's settings: `CONFIG SET lock.default-lease 60000`, the same line
//! in `redis.conf`, or `loadmodule libredislock.so default-lease 60000`.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use redis_module::configuration::{
    ConfigurationContext, ConfigurationFlags, ConfigurationValue, EnumConfigurationValue,
    register_bool_configuration, register_enum_configuration, register_i64_configuration,
};
use redis_module::{Context, RedisError, RedisString};

use redis_lock_core::request::{LEASE_MS_MAX, Lease};
use redis_lock_core::stored::parse_integer;
use redis_lock_core::table;

/// The name of the module, which is the prefix of its settings.
pub(crate) const MODULE_NAME: &str = "lock";

/// A setting that can be changed while the server runs.
enum Setting {
    /// A whole number.
    Number {
        name: &'static str,
        value: &'static AtomicI64,
        default: i64,
        min: i64,
        max: i64,
        /// Whether `CONFIG GET lock.*` leaves it out.
        hidden: bool,
    },
    /// `yes` or `no`.
    Switch {
        name: &'static str,
        value: &'static Switch,
        default: bool,
    },
    /// `lock.redisson-notify`
    RedissonNotify(&'static Mutex<RedissonNotify>),
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
    /// Not at all.
    No,
    /// With `PUBLISH`.
    Publish,
    /// With `SPUBLISH`, for Redisson's own sharded subscriptions.
    Spublish,
}

impl RedissonNotify {
    const ALL: [(&'static str, Self); 3] = [
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

// The variables may outlive the module when it is unloaded, so the defaults of the
// next load can't be taken from them.
const DEFAULT_LEASE_MS_DEFAULT: i64 = 30_000;
const MAX_WAITERS_DEFAULT: i64 = 65_536;
const LOG_SLOW_WAIT_MS_DEFAULT: i64 = 0;
const DEADLOCK_DETECTION_DEFAULT: bool = true;
const MIN_REPLICAS_DEFAULT: i64 = 0;
const CLAIM_TIMEOUT_MS_DEFAULT: i64 = 2000;
const MAX_PLACES_DEFAULT: i64 = 1_000_000;
const REPLICAS_TIMEOUT_MS_DEFAULT: i64 = 1000;
const GRACE_PERIOD_MS_DEFAULT: i64 = 0;
static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(DEFAULT_LEASE_MS_DEFAULT);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(MAX_WAITERS_DEFAULT);
static LOG_SLOW_WAIT_MS: AtomicI64 = AtomicI64::new(LOG_SLOW_WAIT_MS_DEFAULT);
static RECHECK_INTERVAL_MS: AtomicI64 = AtomicI64::new(table::RECHECK_INTERVAL_MS);
static GRACE_PERIOD_MS: AtomicI64 = AtomicI64::new(GRACE_PERIOD_MS_DEFAULT);
static MAX_LEASE_MS: AtomicI64 = AtomicI64::new(LEASE_MS_MAX);
static CLAIM_TIMEOUT_MS: AtomicI64 = AtomicI64::new(CLAIM_TIMEOUT_MS_DEFAULT);
static MAX_PLACES: AtomicI64 = AtomicI64::new(MAX_PLACES_DEFAULT);
static MIN_REPLICAS: AtomicI64 = AtomicI64::new(MIN_REPLICAS_DEFAULT);
static REPLICAS_TIMEOUT_MS: AtomicI64 = AtomicI64::new(REPLICAS_TIMEOUT_MS_DEFAULT);
static DEADLOCK_DETECTION: Switch = Switch(AtomicBool::new(DEADLOCK_DETECTION_DEFAULT));
static REDISSON_NOTIFY: Mutex<RedissonNotify> = Mutex::new(RedissonNotify::No);

const SETTINGS: [Setting; 12] = [
    Setting::Number {
        name: "default-lease",
        value: &DEFAULT_LEASE_MS,
        default: DEFAULT_LEASE_MS_DEFAULT,
        min: 1,
        max: LEASE_MS_MAX,
        hidden: false,
    },
    Setting::Number {
        name: "max-waiters",
        value: &MAX_WAITERS,
        default: MAX_WAITERS_DEFAULT,
        min: 1,
        max: 1_000_000_000,
        hidden: false,
    },
    Setting::Number {
        name: "max-places",
        value: &MAX_PLACES,
        default: MAX_PLACES_DEFAULT,
        min: 1,
        max: 1_000_000_000,
        hidden: false,
    },
    Setting::Number {
        name: "claim-timeout",
        value: &CLAIM_TIMEOUT_MS,
        default: CLAIM_TIMEOUT_MS_DEFAULT,
        min: 1,
        max: LEASE_MS_MAX,
        hidden: false,
    },
    Setting::Number {
        name: "log-slow-wait",
        value: &LOG_SLOW_WAIT_MS,
        default: LOG_SLOW_WAIT_MS_DEFAULT,
        min: 0,
        max: LEASE_MS_MAX,
        hidden: false,
    },
    Setting::Number {
        name: "grace-period",
        value: &GRACE_PERIOD_MS,
        default: GRACE_PERIOD_MS_DEFAULT,
        min: 0,
        max: LEASE_MS_MAX,
        hidden: false,
    },
    Setting::Number {
        name: "max-lease",
        value: &MAX_LEASE_MS,
        default: LEASE_MS_MAX,
        min: 1,
        max: LEASE_MS_MAX,
        hidden: false,
    },
    Setting::Number {
        name: "min-replicas",
        value: &MIN_REPLICAS,
        default: MIN_REPLICAS_DEFAULT,
        min: 0,
        max: 1_000_000,
        hidden: false,
    },
    Setting::Number {
        name: "replicas-timeout",
        value: &REPLICAS_TIMEOUT_MS,
        default: REPLICAS_TIMEOUT_MS_DEFAULT,
        min: 1,
        max: LEASE_MS_MAX,
        hidden: false,
    },
    // For tests alone.
    Setting::Number {
        name: "recheck-interval",
        value: &RECHECK_INTERVAL_MS,
        default: table::RECHECK_INTERVAL_MS,
        min: 1,
        max: LEASE_MS_MAX,
        hidden: true,
    },
    Setting::Switch {
        name: "deadlock-detection",
        value: &DEADLOCK_DETECTION,
        default: DEADLOCK_DETECTION_DEFAULT,
    },
    Setting::RedissonNotify(&REDISSON_NOTIFY),
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

fn lease(setting: &AtomicI64) -> Lease {
    Lease::from_ms(setting.load(Ordering::Relaxed)).unwrap_or(Lease::LONGEST)
}

/// How many milliseconds after a start or a promotion nothing is granted.
pub(crate) fn grace_period_ms() -> i64 {
    GRACE_PERIOD_MS.load(Ordering::Relaxed)
}

/// How many replicas have to acknowledge a grant or a renewal before it is told.
#[inline]
pub(crate) fn min_replicas() -> usize {
    usize::try_from(MIN_REPLICAS.load(Ordering::Relaxed)).unwrap_or(0)
}

/// How many milliseconds they have for that.
pub(crate) fn replicas_timeout_ms() -> i64 {
    REPLICAS_TIMEOUT_MS.load(Ordering::Relaxed)
}

/// How many clients may wait for one lock.
pub(crate) fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

/// How many places there may be in all queues.
pub(crate) fn max_places() -> usize {
    usize::try_from(MAX_PLACES.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

/// How many milliseconds a grant to a place lasts at most if nobody claims it.
pub(crate) fn claim_timeout_ms() -> i64 {
    CLAIM_TIMEOUT_MS.load(Ordering::Relaxed)
}

/// After how many milliseconds a wait is logged. None if no wait is.
pub(crate) fn log_slow_wait_ms() -> Option<i64> {
    Some(LOG_SLOW_WAIT_MS.load(Ordering::Relaxed)).filter(|&ms| ms > 0)
}

/// The time in milliseconds after which a contended key is rechecked at the latest.
/// It is the net under every change of which the server sends no event.
pub(crate) fn recheck_interval_ms() -> i64 {
    RECHECK_INTERVAL_MS.load(Ordering::Relaxed)
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
            Self::Number { name, .. } | Self::Switch { name, .. } => name,
            Self::RedissonNotify(_) => "redisson-notify",
        }
    }

    /// Registers the setting with the given default, or its own. The error says
    /// what the default must be.
    fn register(&self, ctx: &Context, given: Option<&[u8]>) -> Result<(), String> {
        match *self {
            Self::Number {
                name,
                value,
                default,
                min,
                max,
                hidden,
            } => {
                let default = match given {
                    None => default,
                    Some(text) => parse_integer(text)
                        .filter(|number| (min..=max).contains(number))
                        .ok_or_else(|| format!("a number from {min} to {max}"))?,
                };
                let flags = if hidden {
                    ConfigurationFlags::HIDDEN
                } else {
                    ConfigurationFlags::DEFAULT
                };
                register_i64_configuration(ctx, name, value, default, min, max, flags, None);
            }
            Self::Switch {
                name,
                value,
                default,
            } => {
                let default = match given.map(<[u8]>::to_ascii_lowercase).as_deref() {
                    None => default,
                    Some(b"yes") => true,
                    Some(b"no") => false,
                    Some(_) => return Err("'yes' or 'no'".into()),
                };
                let flags = ConfigurationFlags::DEFAULT;
                register_bool_configuration(ctx, name, value, default, flags, None);
            }
            Self::RedissonNotify(value) => {
                let default = match given {
                    None => RedissonNotify::No,
                    Some(text) => {
                        RedissonNotify::named(text).ok_or("'no', 'publish' or 'spublish'")?
                    }
                };
                let flags = ConfigurationFlags::DEFAULT;
                register_enum_configuration(ctx, self.name(), value, default, flags, None);
            }
        }
        Ok(())
    }
}
