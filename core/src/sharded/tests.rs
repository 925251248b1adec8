use std::collections::BTreeMap;

use super::*;

type Table = Sharded<u32, u32>;

fn filled(numbers: impl Iterator<Item = u32>) -> Table {
    let mut table = Table::default();
    for n in numbers {
        table.insert_new(n, 2 * n);
    }
    table
}

fn largest_room(table: &Table) -> usize {
    let shards = [&table.entries.few].into_iter();
    let shards = shards.chain(&table.entries.many);
    shards.map(room_in).max().unwrap_or(0)
}

#[test]
fn all_that_was_put_in_is_found_however_much_it_is() {
    let most = 4 * SPREAD_FROM as u32;
    let mut table = Table::default();
    let mut model = BTreeMap::new();
    for n in 0..most {
        assert_eq!(*table.insert_new(n, n ^ 1), n ^ 1);
        model.insert(n, n ^ 1);
        assert_eq!(table.len(), model.len());
    }
    for n in 0..2 * most {
        assert_eq!(table.get(&n), model.get(&n));
        assert_eq!(table.contains_key(&n), model.contains_key(&n));
        assert_eq!(table.get_key_value(&n), model.get_key_value(&n));
    }
    for (_, value) in table.iter_mut() {
        *value += 1;
    }
    *table.get_mut(&7).unwrap() += 1;
    model.insert(7, (7 ^ 1) + 1);
    for n in (0..2 * most).rev() {
        let expected = model.remove(&n).map(|value| (n, value + 1));
        assert_eq!(table.remove_entry(&n), expected);
        assert_eq!(table.len(), model.len());
        if n % 512 == 0 {
            assert!(table.keys().all(|key| model.contains_key(key)));
            assert_eq!(table.iter().count(), model.len());
        }
    }
    assert!(table.is_empty());
}

#[test]
fn no_step_moves_more_than_some_thousand_entries() {
    for most in [10_000, 100_000, 1_000_000] {
        let table = filled(0..most);
        // A table that is full is made anew with twice the room.
        let bound = 2 * SPREAD_FROM.max(4 * most as usize / SHARDS);
        assert!(largest_room(&table) <= bound, "of {most}");
    }
}

#[test]
fn the_memory_of_a_crowd_goes_with_the_crowd() {
    let mut table = filled(0..100_000);
    for n in 10..100_000 {
        table.remove(&n);
    }
    assert_eq!(table.len(), 10);
    assert!(table.entries.many.is_empty());
    assert!(largest_room(&table) <= 512);
    assert_eq!(table.iter().map(|(_, value)| value).sum::<u32>(), 90);
}

#[test]
fn memory_is_not_given_back_too_soon() {
    // A table for 57 entries has 128 places, of which it fills 112.
    let mut table = filled(0..57);
    let mut rooms = vec![largest_room(&table)];
    for n in (0..57).rev() {
        table.remove(&n);
        rooms.push(largest_room(&table));
    }
    // By the number of entries that are left.
    rooms.reverse();
    let (few, many) = rooms.split_at(14);
    assert!(many.iter().all(|&room| room == 112), "{rooms:?}");
    assert!(few.iter().all(|&room| room == 28), "{rooms:?}");
}

#[test]
fn a_table_that_shrank_has_room_for_twice_its_entries() {
    // These fill a table to the last place that may be used.
    let mut table = filled(0..1792);
    let mut shrunk = 0;
    for n in 0..1792 {
        let before = largest_room(&table);
        table.remove(&n);
        let (entries, room) = (table.len(), largest_room(&table));
        if room < before {
            shrunk += 1;
            assert!(room >= 2 * entries, "{entries} entries, room for {room}");
        }
    }
    assert!(shrunk > 1);
}
