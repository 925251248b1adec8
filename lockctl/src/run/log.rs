//! What the client says while it waits and renews, told as lockctl tells things.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use super::stderr::Stderr;
use crate::name::Name;

/// Tells the client's warnings, and what puts an end to them.
pub struct Log {
    level: Level,
    json: bool,
    key: Name,
    stderr: Stderr,
}

impl Log {
    /// Listens from now on. With `verbose`, all that the client does is told.
    pub fn listen(json: bool, verbose: bool, key: Name, stderr: Stderr) {
        let level = if verbose { Level::DEBUG } else { Level::INFO };
        let log = Self {
            level,
            json,
            key,
            stderr,
        };
        // It is set once, so this can't fail.
        let _ = tracing::subscriber::set_global_default(log);
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.enabled(metadata) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_clients = metadata.target().starts_with("redis_lock_client");
        is_clients && metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut told = Told::default();
        event.record(&mut told);
        if told.message == "a hold was lost" && self.level < Level::DEBUG {
            // lockctl tells it itself.
            return;
        }
        let line = match self.json {
            true => told.as_json(&self.key),
            false => told.as_text(&self.key),
        };
        self.stderr.tell(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// One event of the client.
#[derive(Default)]
struct Told {
    message: String,
    error: Option<String>,
    /// What else it says; the key is lockctl's own.
    rest: Vec<(&'static str, Value)>,
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        match field.name() {
            "message" => self.message = value,
            "error" => self.error = Some(value),
            "key" => {}
            _ if value == "None" => {}
            name => {
                let inner = value
                    .strip_prefix("Some(")
                    .and_then(|it| it.strip_suffix(')'));
                self.rest.push((name, inner.unwrap_or(&value).into()));
            }
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.rest.push((field.name(), value.into()));
    }
}

impl Told {
    fn as_text(&self, key: &Name) -> String {
        let mut line = format!("lockctl: {key}: {}", self.message);
        if let Some(error) = &self.error {
            let _ = write!(line, ": {error}");
        }
        for (name, value) in &self.rest {
            let _ = match value {
                Value::String(text) => write!(line, ", {name} {text}"),
                value => write!(line, ", {name} {value}"),
            };
        }
        line
    }

    fn as_json(&self, key: &Name) -> String {
        let event = match self.message.as_str() {
            "waiting on without the server" => "server_gone",
            "the server is back" => "server_back",
            "waiting on while the server refuses" => "server_refuses",
            "the server refuses no more" => "server_accepts",
            _ => "client",
        };
        let mut fields = Map::new();
        fields.insert("event".into(), event.into());
        if let Ok(Value::Object(key)) = key.as_key(serde_json::value::Serializer) {
            fields.extend(key);
        }
        fields.insert("message".into(), json!(self.message));
        if let Some(error) = &self.error {
            fields.insert("why".into(), json!(error));
        }
        for (name, value) in &self.rest {
            fields.insert((*name).into(), value.clone());
        }
        Value::Object(fields).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_says_is_told_in_lockctls_way() {
        let key = Name::from(&b"\xff"[..]);
        let told = Told {
            message: "the server is back".into(),
            error: None,
            rest: vec![("left", "2s".into())],
        };
        assert_eq!(
            told.as_text(&key),
            r"lockctl: \xff: the server is back, left 2s"
        );
        let json: Value = serde_json::from_str(&told.as_json(&key)).unwrap();
        let expected = json!({
            "event": "server_back", "key": r"\xff", "key_base64": "/w==",
            "message": "the server is back", "left": "2s",
        });
        assert_eq!(json, expected);
    }
}
