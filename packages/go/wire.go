package redisnativelock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// What can go wrong, for [errors.Is]. What else the server refuses is go-redis' own error.
var (
	// ErrBusy: the lock did not come free in time.
	ErrBusy = errors.New("redisnativelock: the lock is busy")
	// ErrLost: the hold is over before its work: not renewed in time, broken, or deleted.
	ErrLost = errors.New("redisnativelock: the lock is lost")
	// ErrDeadlock: waiting would close a cycle of owners that wait for each other.
	ErrDeadlock = errors.New("redisnativelock: deadlock")
	// ErrNotSafe: too few replicas have acknowledged it (NOREPLICAS): not known to be safe.
	ErrNotSafe = errors.New("redisnativelock: not known to be safe")
	// ErrSuperseded: two waited for one lock under one owner's name: a mistake, never to be sent again.
	ErrSuperseded = errors.New("redisnativelock: superseded")
	// ErrNoModule: the server has no lock module, or one that is too old.
	ErrNoModule = errors.New("redisnativelock: the server lacks the lock module: load it there " +
		"(a line `loadmodule /path/to/libredislock.so` in redis.conf, then a restart)")

	errReleased   = errors.New("redisnativelock: the lock is released")
	errUnanswered = errors.New("redisnativelock: no answer in time")
)

// code is the first word of what the server answered, and none if it is no answer.
func code(err error) string {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return ""
	}
	word, _, _ := strings.Cut(answer.Error(), " ")
	return word
}

// isRefusal tells whether the server answered so: then the command has changed nothing.
func isRefusal(err error) bool {
	return code(err) != "" && code(err) != "NOREPLICAS"
}

// mayPass tells whether the same request may succeed later.
func mayPass(err error) bool {
	switch code(err) {
	case "":
		return !errors.Is(err, redis.ErrClosed)
	case "ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN",
		"UNBLOCKED":
		return true
	}
	return redis.HasErrorPrefix(err, "max number of clients")
}

// translated wraps an error of go-redis in this package's, if it has one.
func translated(err error) error {
	ours := map[string]error{"DEADLOCK": ErrDeadlock, "NOREPLICAS": ErrNotSafe, "SUPERSEDED": ErrSuperseded}[code(err)]
	if code(err) == "ERR" && strings.Contains(err.Error(), "unknown command") {
		ours = ErrNoModule
	}
	if ours == nil {
		return err
	}
	return fmt.Errorf("%w: %w", ours, err)
}

var started = time.Now()

func newOwner() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// validUntil is until when a lease is relied upon whose command was sent then: one percent less for clocks that run
// apart, and ten milliseconds for the time it takes to notice.
func validUntil(since, lease time.Duration) time.Duration {
	return since + lease - min(lease/100+10*time.Millisecond, lease/2)
}

// A message is the end of a place. A token of 0 without an error: it is gone without a grant.
type message struct {
	key, owner string
	token      int64
	lease      time.Duration
	err        error
}

type toldError string

func (e toldError) Error() string { return string(e) }
func (toldError) RedisError()     {}

// parsed reads five netstrings: database, key, owner, result, first lease in ms. What is no such message has no owner.
func parsed(payload string) (m message) {
	var parts [5]string
	for i := range parts {
		digits, rest, _ := strings.Cut(payload, ":")
		length, err := strconv.Atoi(digits)
		if err != nil || length < 0 || length >= len(rest) {
			return m
		}
		parts[i], payload = rest[:length], rest[length+1:]
	}
	m.key, m.owner = parts[1], parts[2]
	if text, isError := strings.CutPrefix(parts[3], "-"); isError {
		m.err = toldError(text)
	} else {
		m.token, _ = strconv.ParseInt(parts[3], 10, 64)
	}
	lease, _ := strconv.Atoi(parts[4])
	m.lease = time.Duration(lease) * time.Millisecond
	return m
}

// slotOf is the slot of a cluster in which a key is.
func slotOf(key string) int {
	if _, after, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(after, "}"); found && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			crc = crc<<1 ^ crc>>15*0x1021
		}
	}
	return int(crc) % 16384
}

// tags has a number for each slot, which hashes to it.
var tags = sync.OnceValue(func() *[16384]string {
	var words [16384]string
	for number := range 110_000 {
		word := strconv.Itoa(number)
		words[slotOf(word)] = word
	}
	return &words
})
