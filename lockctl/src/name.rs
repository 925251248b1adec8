//! Keys and owners, which are any bytes, as text: for eyes, for programs and for
//! a shell.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// For eyes: text as it is, other bytes as `\xff`.
pub fn shown(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if text.chars().all(shows_itself) => text.into(),
        _ => name.escape_ascii().to_string(),
    }
}

/// Whether a character is seen as what it is: it neither controls the terminal,
/// nor is it invisible or turns the direction of what follows.
fn shows_itself(c: char) -> bool {
    let is_invisible = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !is_invisible
}

/// As a POSIX shell takes it: quoted where it has to be. Control characters
/// and bytes that are no text need `$'...'`, which all but the plainest
/// shells know.
fn shell_word(name: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(byte);
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() && name.iter().all(is_plain) => text.into(),
        Ok(text) if text.chars().all(shows_itself) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let mut quoted = String::from("$'");
            for &byte in name {
                match byte {
                    b'\'' | b'\\' => quoted.extend(['\\', byte.into()]),
                    b' '..=b'~' => quoted.push(byte.into()),
                    _ => quoted.push_str(&format!("\\{byte:03o}")),
                }
            }
            quoted + "'"
        }
    }
}

/// The command that breaks this lock if its newest token is this one. There is
/// none for a key with a zero byte, which no command line can hold.
pub fn break_command(key: &[u8], token: u64) -> Option<String> {
    if key.contains(&0) {
        return None;
    }
    let word = shell_word(key);
    Some(match key.starts_with(b"-") {
        true => format!("lockctl break --fence {token} -- {word}"),
        false => format!("lockctl break {word} --fence {token}"),
    })
}

/// An object of JSON, field by field.
#[derive(Default)]
pub struct Object(Map<String, Value>);

impl Object {
    /// Adds a field.
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0.insert(field.into(), value.into());
        self
    }

    /// Adds the fields of another.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Adds a name, and `.._base64` where its bytes are no text.
    pub fn name(self, field: &str, name: &[u8]) -> Self {
        let this = self.set(field, text(name));
        match std::str::from_utf8(name) {
            Ok(_) => this,
            Err(_) => this.set(&format!("{field}_base64"), STANDARD.encode(name)),
        }
    }

    /// Adds a list of names, and `.._base64` with all of them again where one is no text.
    pub fn names(self, field: &str, names: &[&[u8]]) -> Self {
        let all = |shown: fn(&&[u8]) -> String| names.iter().map(shown).collect::<Vec<_>>();
        let this = self.set(field, all(|name| text(name)));
        match names.iter().all(|name| std::str::from_utf8(name).is_ok()) {
            true => this,
            false => this.set(
                &format!("{field}_base64"),
                all(|name| STANDARD.encode(name)),
            ),
        }
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object.0)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0).map_err(|_| fmt::Error)?)
    }
}

/// For a program: the text, or where the bytes are none, as for eyes.
fn text(name: &[u8]) -> String {
    std::str::from_utf8(name).map_or_else(|_| shown(name), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_a_shell_reads_them() {
        assert_eq!(shell_word(b"orders:42"), "orders:42");
        assert_eq!(shell_word(b""), "''");
        assert_eq!(shell_word(b"two words"), "'two words'");
        assert_eq!(shell_word(b"it's"), r"'it'\''s'");
        assert_eq!(shell_word(b"a'\\\n\xff1"), r"$'a\'\\\012\3771'");
    }

    #[test]
    fn nothing_invisible_is_shown_as_it_is() {
        let turned = "\u{202e}rtl".as_bytes();
        assert_eq!(shown(turned), r"\xe2\x80\xaertl");
        assert!(shell_word(turned).starts_with("$'"));
        assert_eq!(shown("größe".as_bytes()), "größe");
        assert_eq!(shown(b"\xff\x1b"), r"\xff\x1b");
    }

    #[test]
    fn a_key_that_looks_like_an_option_is_none() {
        let command = |key, token| break_command(key, token).unwrap();
        assert_eq!(command(b"-f", 7), "lockctl break --fence 7 -- -f");
        assert_eq!(command(b"f", 7), "lockctl break f --fence 7");
        assert_eq!(break_command(b"a\0b", 7), None);
    }

    #[test]
    fn names_that_are_no_text_have_a_field_more() {
        let object = Object::default().name("key", b"\xff").name("owner", b"a");
        let object = object.names("both", &[b"a", b"\xff"]);
        assert_eq!(
            object.to_string(),
            r#"{"key":"\\xff","key_base64":"/w==","owner":"a","both":["a","\\xff"],"both_base64":["YQ==","/w=="]}"#
        );
    }
}
