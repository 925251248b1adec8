#!/usr/bin/env bash
# Makes a jam of 3 locks with 2 readers and 20 waiters, has a deadlock refused,
# says so, and keeps the jam until it is interrupted. Arguments go to redis-cli:
#
#   lockctl/examples/jam.sh -p 6379
set -euo pipefail

cli=(redis-cli "$@")
long=600000
trap 'kill $(jobs -p) 2>/dev/null' EXIT

hold() { # key owner [mode]
    "${cli[@]}" LOCK.ACQUIRE "$1" "$2" LEASE $long ${3:-} >/dev/null
}

waiting() { # key
    "${cli[@]}" LOCK.INFO "$1" | grep -A1 '^waiting$' | tail -1
}

queue() { # key owner [mode]
    local before
    before=$(waiting "$1")
    "${cli[@]}" LOCK.ACQUIRE "$1" "$2" LEASE $long BLOCK 0 ${3:-} >/dev/null &
    until (($(waiting "$1") == before + 1)); do sleep 0.005; done
}

hold orders:42 web-1
hold reports reader-1 SHARED
hold reports reader-2 SHARED
hold 'nightly jobs' batch-1

queue orders:42 batch-1
for n in {1..9}; do queue orders:42 "worker-$n"; done
queue reports writer-1
queue reports reader-3 SHARED
for n in {2..5}; do queue reports "writer-$n"; done
for n in {2..5}; do queue 'nightly jobs' "batch-$n"; done

# web-1 has what batch-1 waits for, so it must not wait for batch-1.
echo "refused: $("${cli[@]}" LOCK.ACQUIRE 'nightly jobs' web-1 BLOCK 0 2>&1)"
echo "the jam stands"
wait
