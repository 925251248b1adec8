//! The module's settings: `CONFIG SET lock.default-lease 60000`, the same line
//! in `redis.conf`, or `loadmodule libredislock.so default-lease 60000`.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::configuration::{
    ConfigurationContext, ConfigurationFlags, ConfigurationValue, EnumConfigurationValue,
    register_enum_configuration, register_i64_configuration,
};
use redis_module::{Context, RedisError, RedisString, RedisValue};

use redis_lock_core::request::{LEASE_MS_MAX, Lease};
use redis_lock_core::stored::parse_integer;
use redis_lock_core::table;

/// The name of the module, which is the prefix of its settings.
pub(crate) const MODULE_NAME: &str = "lock";

/// A setting that can be changed while the server runs.
pub(crate) struct Setting {
    name: &'static str,
    value: AtomicI64,
    /// The value may outlive the module when it is unloaded, so the default of the next
    /// load can't be taken from it.
    default: i64,
    values: Values,
}

/// What a setting can be.
enum Values {
    /// A whole number.
    Number(RangeInclusive<i64>),
    /// A whole number that `CONFIG GET lock.*` leaves out.
    Hidden(RangeInclusive<i64>),
    /// One of these words. It counts as its position.
    Words(&'static [&'static str]),
}

impl Setting {
    const fn number(name: &'static str, default: i64, range: RangeInclusive<i64>) -> Self {
        Self::new(name, default, Values::Number(range))
    }

    const fn new(name: &'static str, default: i64, values: Values) -> Self {
        let value = AtomicI64::new(default);
        Self {
            name,
            value,
            default,
            values,
        }
    }

    /// The value as it is now.
    pub(crate) fn get(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }

    /// The value as a number of something.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(0)
    }

    fn lease(&self) -> Lease {
        Lease::from_ms(self.get()).unwrap_or(Lease::LONGEST)
    }
}

const MS: RangeInclusive<i64> = 1..=LEASE_MS_MAX;
const MS_OR_OFF: RangeInclusive<i64> = 0..=LEASE_MS_MAX;
const COUNT: RangeInclusive<i64> = 1..=1_000_000_000;

static DEFAULT_LEASE_MS: Setting = Setting::number("default-lease", 30_000, MS);
static MAX_LEASE_MS: Setting = Setting::number("max-lease", LEASE_MS_MAX, MS);
/// After how many milliseconds a wait is logged. 0 if no wait is.
pub(crate) static LOG_SLOW_WAIT_MS: Setting = Setting::number("log-slow-wait", 0, MS_OR_OFF);
/// Whether a wait that closes a cycle of owners is refused: 1, or 0.
pub(crate) static DEADLOCK_DETECTION: Setting =
    Setting::new("deadlock-detection", 1, Values::Words(&["no", "yes"]));
static REDISSON_NOTIFY: Setting = Setting::new(
    "redisson-notify",
    0,
    Values::Words(&["auto", "no", "publish", "spublish"]),
);
/// How many clients may wait for one lock.
pub(crate) static MAX_WAITERS: Setting = Setting::number("max-waiters", 65_536, COUNT);
/// How many may hold one lock together.
pub(crate) static MAX_HOLDERS: Setting = Setting::number("max-holders", 1024, 1..=65_536);
/// How many places there may be in all queues.
pub(crate) static MAX_PLACES: Setting = Setting::number("max-places", 1_000_000, COUNT);
/// How many milliseconds a grant to a place lasts at most if nobody claims it.
pub(crate) static CLAIM_TIMEOUT_MS: Setting = Setting::number("claim-timeout", 2000, MS);
/// How many milliseconds after a start or a promotion nothing is granted.
pub(crate) static GRACE_PERIOD_MS: Setting = Setting::number("grace-period", 0, MS_OR_OFF);
/// How many replicas have to acknowledge a grant or a renewal before it is told.
pub(crate) static MIN_REPLICAS: Setting = Setting::number("min-replicas", 0, 0..=1_000_000);
/// How many milliseconds they have for that.
pub(crate) static REPLICAS_TIMEOUT_MS: Setting = Setting::number("replicas-timeout", 1000, MS);
/// After how many milliseconds a contended key is rechecked at the latest. This catches
/// every change that the server sends no event of. Set by tests alone.
pub(crate) static RECHECK_INTERVAL_MS: Setting = Setting::new(
    "recheck-interval",
    table::RECHECK_INTERVAL_MS,
    Values::Hidden(MS),
);

const SETTINGS: [&Setting; 13] = [
    &DEFAULT_LEASE_MS,
    &MAX_LEASE_MS,
    &LOG_SLOW_WAIT_MS,
    &DEADLOCK_DETECTION,
    &REDISSON_NOTIFY,
    &MAX_WAITERS,
    &MAX_HOLDERS,
    &MAX_PLACES,
    &CLAIM_TIMEOUT_MS,
    &GRACE_PERIOD_MS,
    &MIN_REPLICAS,
    &REPLICAS_TIMEOUT_MS,
    &RECHECK_INTERVAL_MS,
];

/// The lease of a command that names none.
pub(crate) fn default_lease() -> Lease {
    DEFAULT_LEASE_MS.lease().min(max_lease())
}

/// The longest lease that a command may name.
pub(crate) fn max_lease() -> Lease {
    MAX_LEASE_MS.lease()
}

/// How Redisson's waiters hear of a lock that came free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedissonNotify {
    /// Where a client of this node listens.
    Auto,
    /// Not at all.
    No,
    /// With this command: `PUBLISH`, or `SPUBLISH` for Redisson's own sharded subscriptions.
    By(&'static str),
}

/// How Redisson's waiters hear of a lock that came free.
pub(crate) fn redisson_notify() -> RedissonNotify {
    match REDISSON_NOTIFY.get() {
        0 => RedissonNotify::Auto,
        1 => RedissonNotify::No,
        2 => RedissonNotify::By("PUBLISH"),
        _ => RedissonNotify::By("SPUBLISH"),
    }
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
    let mut defaults = SETTINGS.map(|setting| (setting, setting.default));
    for pair in args.chunks(2) {
        let [name, value @ ..] = pair else { break };
        let name = name.to_string_lossy();
        let short_name = name.strip_prefix("lock.").unwrap_or(&name);
        let (setting, default) = defaults
            .iter_mut()
            .find(|(setting, _)| setting.name.eq_ignore_ascii_case(short_name))
            .ok_or_else(|| format!("unknown module argument '{name}'"))?;
        let value = value.first().map_or(&[][..], RedisString::as_slice);
        *default = setting.values.read(value).ok_or_else(|| {
            let (name, needs) = (setting.name, setting.values.named());
            format!("module argument '{name}' needs {needs}")
        })?;
    }
    for (setting, default) in defaults {
        setting.register(ctx, default);
    }
    Ok(())
}

impl Setting {
    fn register(&'static self, ctx: &Context, default: i64) {
        let (name, usual) = (self.name, ConfigurationFlags::DEFAULT);
        let number = |range: &RangeInclusive<i64>, flags| {
            let (min, max) = (*range.start(), *range.end());
            register_i64_configuration(ctx, name, &self.value, default, min, max, flags, None);
        };
        match &self.values {
            Values::Number(range) => number(range, usual),
            Values::Hidden(range) => number(range, ConfigurationFlags::HIDDEN),
            Values::Words(words) => {
                let at = i32::try_from(default).unwrap_or(0);
                let default = Word { words, at };
                register_enum_configuration(ctx, name, self, default, usual, None);
            }
        }
    }
}

impl Values {
    fn read(&self, text: &[u8]) -> Option<i64> {
        match self {
            Self::Number(range) | Self::Hidden(range) => {
                parse_integer(text).filter(|number| range.contains(number))
            }
            Self::Words(words) => {
                let is_it = |word: &&str| text.eq_ignore_ascii_case(word.as_bytes());
                i64::try_from(words.iter().position(is_it)?).ok()
            }
        }
    }

    fn named(&self) -> String {
        match self {
            Self::Number(range) | Self::Hidden(range) => {
                format!("a number from {} to {}", range.start(), range.end())
            }
            Self::Words(words) => format!("one of '{}'", words.join("', '")),
        }
    }
}

/// One of the words that a setting can be, in the form that the server's settings take.
#[derive(Clone)]
struct Word {
    /// All of them, in a default alone.
    words: &'static [&'static str],
    at: i32,
}

impl From<Word> for i32 {
    fn from(word: Word) -> Self {
        word.at
    }
}

impl TryFrom<i32> for Word {
    type Error = RedisError;

    fn try_from(at: i32) -> Result<Self, RedisError> {
        Ok(Self { words: &[], at })
    }
}

impl EnumConfigurationValue for Word {
    fn get_options(&self) -> (Vec<String>, Vec<i32>) {
        let words = self.words.iter().map(ToString::to_string);
        words.zip(0..).unzip()
    }
}

impl ConfigurationValue<Word> for Setting {
    fn get(&self, _ctx: &ConfigurationContext) -> Word {
        let at = i32::try_from(self.get()).unwrap_or(0);
        Word { words: &[], at }
    }

    fn set(&self, _ctx: &ConfigurationContext, word: Word) -> Result<(), RedisError> {
        self.value.store(word.at.into(), Ordering::Relaxed);
        Ok(())
    }
}
