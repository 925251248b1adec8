//! Keys and owners, which are any bytes, as text: for eyes, for programs and for
//! a shell.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serializer;
use serde::ser::SerializeMap;

/// A key or an owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Name {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// For eyes: text as it is, other bytes as `\xff`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok(text) if text.chars().all(shows_itself) => f.write_str(text),
            _ => write!(f, "{}", self.0.escape_ascii()),
        }
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

impl Name {
    /// For a program: the text, or where the bytes are none, as for eyes.
    fn text(&self) -> String {
        match std::str::from_utf8(&self.0) {
            Ok(text) => text.into(),
            Err(_) => self.to_string(),
        }
    }

    fn is_text(&self) -> bool {
        std::str::from_utf8(&self.0).is_ok()
    }

    fn base64(&self) -> String {
        STANDARD.encode(&self.0)
    }

    /// The field `key`, and `key_base64` where the bytes are no text.
    pub fn as_key<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_fields(["key", "key_base64"], to)
    }

    /// The field `owner`, and `owner_base64` where the bytes are no text.
    pub fn as_owner<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.as_fields(["owner", "owner_base64"], to)
    }

    fn as_fields<S: Serializer>(&self, fields: [&str; 2], to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry(fields[0], &self.text())?;
        if !self.is_text() {
            map.serialize_entry(fields[1], &self.base64())?;
        }
        map.end()
    }

    /// As a POSIX shell takes it: quoted where it has to be. Control characters
    /// and bytes that are no text need `$'...'`, which all but the plainest
    /// shells know.
    pub fn shell_word(&self) -> String {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(byte);
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.is_empty() && self.0.iter().all(is_plain) => text.into(),
            Ok(text) if text.chars().all(shows_itself) => {
                format!("'{}'", text.replace('\'', r"'\''"))
            }
            _ => {
                let mut quoted = String::from("$'");
                for &byte in &self.0 {
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
    pub fn break_command(&self, token: u64) -> Option<String> {
        if self.0.contains(&0) {
            return None;
        }
        let word = self.shell_word();
        Some(match word.starts_with('-') {
            true => format!("lockctl break --fence {token} -- {word}"),
            false => format!("lockctl break {word} --fence {token}"),
        })
    }
}

/// The field `blocked_by`, and `blocked_by_base64` with all of them again where
/// one is no text.
pub fn as_blocked_by<S: Serializer>(names: &[Name], to: S) -> Result<S::Ok, S::Error> {
    as_lists(["blocked_by", "blocked_by_base64"], names, to)
}

/// The field `waits_for`, and `waits_for_base64` in the same way.
pub fn as_waits_for<S: Serializer>(names: &[Name], to: S) -> Result<S::Ok, S::Error> {
    as_lists(["waits_for", "waits_for_base64"], names, to)
}

fn as_lists<S: Serializer>(fields: [&str; 2], names: &[Name], to: S) -> Result<S::Ok, S::Error> {
    let all = |shown: fn(&Name) -> String| names.iter().map(shown).collect::<Vec<_>>();
    let mut map = to.serialize_map(None)?;
    map.serialize_entry(fields[0], &all(Name::text))?;
    if !names.iter().all(Name::is_text) {
        map.serialize_entry(fields[1], &all(Name::base64))?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Name {
        bytes.into()
    }

    #[test]
    fn words_are_quoted_as_a_shell_reads_them() {
        assert_eq!(name(b"orders:42").shell_word(), "orders:42");
        assert_eq!(name(b"").shell_word(), "''");
        assert_eq!(name(b"two words").shell_word(), "'two words'");
        assert_eq!(name(b"it's").shell_word(), r"'it'\''s'");
        assert_eq!(name(b"a'\\\n\xff1").shell_word(), r"$'a\'\\\012\3771'");
    }

    #[test]
    fn nothing_invisible_is_shown_as_it_is() {
        let turned = "\u{202e}rtl";
        assert_eq!(name(turned.as_bytes()).to_string(), r"\xe2\x80\xaertl");
        assert!(name(turned.as_bytes()).shell_word().starts_with("$'"));
        assert_eq!(name("größe".as_bytes()).to_string(), "größe");
    }

    #[test]
    fn a_key_that_looks_like_an_option_is_none() {
        assert_eq!(
            name(b"-f").break_command(7).unwrap(),
            "lockctl break --fence 7 -- -f"
        );
        assert_eq!(name(b"a\0b").break_command(7), None);
        assert_eq!(
            name(b"f").break_command(7).unwrap(),
            "lockctl break f --fence 7"
        );
    }

    #[test]
    fn text_is_shown_as_it_is_and_other_bytes_are_escaped() {
        assert_eq!(name("größe".as_bytes()).to_string(), "größe");
        assert_eq!(name(b"\xff\x1b").to_string(), r"\xff\x1b");
    }
}
