//! Keys and owners, which are any bytes, as text.

/// For eyes: text as it is, other bytes as `\xff`.
pub fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// As redis-cli takes it: quoted where it has to be.
pub fn word(bytes: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut quoted = String::from("\"");
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', byte.into()]),
            b' '..=b'~' => quoted.push(byte.into()),
            _ => quoted.push_str(&format!("\\x{byte:02x}")),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_redis_cli_reads_them() {
        assert_eq!(word(b"orders:42"), "orders:42");
        assert_eq!(word(b""), r#""""#);
        assert_eq!(word(b"two words"), r#""two words""#);
        assert_eq!(word(b"it's"), r#""it's""#);
        assert_eq!(word(b"a\"b\\c\n\xff"), r#""a\"b\\c\x0a\xff""#);
    }

    #[test]
    fn text_is_shown_as_it_is_and_other_bytes_are_escaped() {
        assert_eq!(shown("größe".as_bytes()), "größe");
        assert_eq!(shown(b"\xff\x1b"), r"\xff\x1b");
    }
}
