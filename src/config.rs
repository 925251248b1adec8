//! The module's settings: `CONFIG SET lock.default-lease 60000`, the same line
//! in `redis.conf`, or `loadmodule libredislock.so default-lease 60000`.

use std::sync::atomic::{AtomicI64, Ordering};

use redis_module::configuration::{ConfigurationFlags, register_i64_configuration};
use redis_module::{Context, RedisString};

use crate::lock::record::parse_integer;
use crate::lock::request::{LEASE_MS_MAX, Lease};

/// The name of the module, which is the prefix of its settings.
pub(crate) const MODULE_NAME: &str = "lock";

/// A whole number that can be changed while the server runs.
struct NumberSetting {
    name: &'static str,
    default: i64,
    min: i64,
    max: i64,
    value: &'static AtomicI64,
}

static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(30_000);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(65_536);

const SETTINGS: [NumberSetting; 2] = [
    NumberSetting {
        name: "default-lease",
        default: 30_000,
        min: 1,
        max: LEASE_MS_MAX,
        value: &DEFAULT_LEASE_MS,
    },
    NumberSetting {
        name: "max-waiters",
        default: 65_536,
        min: 1,
        max: 1_000_000_000,
        value: &MAX_WAITERS,
    },
];

/// The lease of a command that names none.
pub(crate) fn default_lease() -> Lease {
    Lease::from_ms(DEFAULT_LEASE_MS.load(Ordering::Relaxed)).unwrap_or(Lease::LONGEST)
}

/// How many clients may wait for one lock.
pub(crate) fn max_waiters() -> usize {
    usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

/// Registers the settings. The arguments of `loadmodule`, pairs of a name and
/// a value, become their defaults; a line in `redis.conf` overrides them.
pub(crate) fn register(ctx: &Context, args: &[RedisString]) -> Result<(), String> {
    let mut defaults = SETTINGS.map(|setting| setting.default);
    let mut words = args.iter();
    while let Some(name) = words.next() {
        let name = name.to_string_lossy();
        let short_name = name.strip_prefix("lock.").unwrap_or(&name);
        let (setting, default) = SETTINGS
            .iter()
            .zip(&mut defaults)
            .find(|(setting, _)| setting.name.eq_ignore_ascii_case(short_name))
            .ok_or_else(|| format!("unknown module argument '{name}'"))?;
        *default = words
            .next()
            .and_then(|value| parse_integer(value.as_slice()))
            .filter(|value| (setting.min..=setting.max).contains(value))
            .ok_or_else(|| {
                format!(
                    "module argument '{name}' needs a number from {} to {}",
                    setting.min, setting.max
                )
            })?;
    }
    for (setting, default) in SETTINGS.iter().zip(defaults) {
        register_i64_configuration(
            ctx,
            setting.name,
            setting.value,
            default,
            setting.min,
            setting.max,
            ConfigurationFlags::DEFAULT,
            None,
        );
    }
    Ok(())
}
