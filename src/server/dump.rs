//! A hash in the form that `DUMP` gives and `RESTORE` takes.

use std::cell::Cell;

use crc::{CRC_64_REDIS, Crc, Table};

/// The type of a hash whose fields and values are listed as strings, in turn.
const HASH: u8 = 4;

/// The version of the format: that of Redis 5, which every later server reads.
const VERSION: u16 = 9;

/// With tables for 16 bytes at a time, which is twice as fast here.
static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

thread_local! {
    /// Serves each dump in turn.
    static MEMORY: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lets `body` use the hash of these fields and values. There are fewer than 2^14 of them, and
/// each is shorter than that.
pub(super) fn with_hash<R>(fields: &[[&[u8]; 2]], body: impl FnOnce(&[u8]) -> R) -> R {
    let mut dump = MEMORY.take();
    dump.clear();
    dump.push(HASH);
    push_length(&mut dump, fields.len());
    for string in fields.as_flattened() {
        push_length(&mut dump, string.len());
        dump.extend_from_slice(string);
    }
    dump.extend_from_slice(&VERSION.to_le_bytes());
    let checksum = CHECKSUM.checksum(&dump);
    dump.extend_from_slice(&checksum.to_le_bytes());
    let result = body(&dump);
    MEMORY.set(dump);
    result
}

fn push_length(dump: &mut Vec<u8>, length: usize) {
    let [.., high, low] = length.to_be_bytes();
    if length < 1 << 6 {
        dump.push(low);
    } else {
        dump.extend_from_slice(&[1 << 6 | high, low]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_its_fields_a_version_and_a_checksum() {
        let dump = with_hash(&[[b"a", b"1"], [b"@fence", b"7"]], <[u8]>::to_vec);
        let (body, checksum) = dump.split_at(dump.len() - 8);
        assert_eq!(body, b"\x04\x02\x01a\x011\x06@fence\x017\x09\x00");
        assert_eq!(checksum, CHECKSUM.checksum(body).to_le_bytes());
    }

    #[test]
    fn lengths_from_64_on_take_two_bytes() {
        for (length, expected) in [
            (0, &b"\x00"[..]),
            (63, b"\x3f"),
            (64, b"\x40\x40"),
            (1024, b"\x44\x00"),
            ((1 << 14) - 1, b"\x7f\xff"),
        ] {
            let mut dump = Vec::new();
            push_length(&mut dump, length);
            assert_eq!(&dump[..], expected, "{length}");
        }
    }
}
