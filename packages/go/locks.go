// Package redisnativelock takes locks on Redis and Valkey servers that have the lock module, libredislock.so, over the
// connections of a go-redis client: to one server, by Sentinel, or to a cluster.
//
// The server queues those who wait, first come, first served, and hands the lock on. This package renews a lock while it
// is held, tells in time when it is lost, and leaves nothing behind when a wait or the work is cancelled. What fails in the
// background it tells to [log/slog].
//
// Every acquire is an owner of its own: who holds a lock and acquires it again waits for himself.
package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Locks are those on the server, or the cluster, of one client.
type Locks struct {
	client    redis.UniversalClient
	isCluster bool
	node      func(context.Context, string) (*redis.Client, error) // The one that serves a key.
	settings  settings
	channel   string
	now       func() time.Duration
	isChecked atomic.Bool

	mu            sync.Mutex
	waits         map[string]chan message // To whom messages are for, by owner: who waits, and who waited and holds.
	listeners     map[*redis.Client]*listener
	subscriptions map[string]*subscription // By channel.
}

// An Option is for all locks, as [New] takes it, or for one, as [Locks.Mutex] takes it.
type Option func(*settings)

type settings struct {
	prefix               string
	lease, wait, atLeast time.Duration
	mode                 []any
}

// Prefix is put before each key.
func Prefix(prefix string) Option { return func(s *settings) { s.prefix = prefix } }

// Lease is how long a lock stays taken if its process dies: 30 seconds unless told otherwise. It is renewed every third
// of that.
func Lease(lease time.Duration) Option { return func(s *settings) { s.lease = lease } }

// Wait bounds how long [Mutex.Lock] and [Mutex.Do] wait for the lock. The deadline of their context bounds the work, too.
func Wait(wait time.Duration) Option { return func(s *settings) { s.wait = wait } }

// AtLeast keeps the lock taken for so long after its grant, even if it is released sooner.
func AtLeast(least time.Duration) Option { return func(s *settings) { s.atLeast = least } }

// Shared lets all who ask for it so hold the lock together.
func Shared() Option { return func(s *settings) { s.mode = []any{"SHARED"} } }

// Limit lets so many hold the lock at once.
func Limit(holders int) Option { return func(s *settings) { s.mode = []any{"LIMIT", holders} } }

// New makes locks on the server, or the cluster, of this client, which stays the caller's. There is one subscription to
// each server, which ends when the client is closed. New panics if it is no [redis.Client] and no [redis.ClusterClient]:
// a [redis.Ring] moves keys when a server is down.
func New(client redis.UniversalClient, options ...Option) *Locks {
	defaults := settings{lease: 30 * time.Second, wait: forever}.with(options)
	l := &Locks{client: client, settings: defaults, channel: "redislock:" + newOwner(), now: now}
	l.waits, l.listeners, l.subscriptions = map[string]chan message{}, map[*redis.Client]*listener{}, map[string]*subscription{}
	switch client := client.(type) {
	case *redis.Client:
		l.node = func(context.Context, string) (*redis.Client, error) { return client, nil }
	case *redis.ClusterClient:
		l.isCluster, l.node = true, client.MasterForKey
	default:
		panic("redisnativelock: locks need a *redis.Client or a *redis.ClusterClient")
	}
	return l
}

func (s settings) with(options []Option) settings {
	for _, option := range options {
		option(&s)
	}
	return s
}

// A Mutex is a lock that can be acquired, again and again, by many goroutines.
type Mutex struct{ lock }

type lock struct {
	settings
	locks *Locks
	key   string
}

// Mutex names a lock. It sends nothing.
func (l *Locks) Mutex(key string, options ...Option) *Mutex {
	s := l.settings.with(options)
	return &Mutex{lock{s, l, s.prefix + key}}
}

// Lock waits for the lock, in the order of requests. The context bounds the wait, and the work: that of the hold comes
// from it. If it is cancelled the wait ends at once and leaves nothing.
//
// The error is [ErrBusy] where the lock did not come free in time: before the context's deadline, or within [Wait]; and
// [ErrLost] where its lease was so short that it was over when the answer came.
func (m *Mutex) Lock(ctx context.Context) (*Hold, error) { return m.acquire(ctx, m.wait) }

// TryLock does not wait: the error is [ErrBusy] where others hold the lock or wait for it.
func (m *Mutex) TryLock(ctx context.Context) (*Hold, error) { return m.acquire(ctx, 0) }

func (m *Mutex) acquire(ctx context.Context, wait time.Duration) (*Hold, error) {
	if err := m.locks.check(ctx, m.key); err != nil {
		return nil, err
	}
	a := &attempt{lock: m.lock, owner: newOwner(), channel: m.locks.channelOf(m.key), told: make(chan message, 1)}
	a.began, a.unanswered = m.locks.now(), forever
	if err := a.take(ctx, wait); err != nil {
		a.leave(err)
		return nil, err
	}
	return newHold(ctx, a)
}

// Do waits for the lock as [Mutex.Lock] does, works, and releases. It returns the work's error; and [ErrLost] where the
// lock was lost and the work returned none, or that of its cancelled context. A loss that only the release finds is not
// told, as go-redis may have sent that twice: [Hold.Release] tells it.
func (m *Mutex) Do(ctx context.Context, work func(*Hold) error) error {
	h, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer h.Release()
	err = work(h)
	if over := h.whyOver(); errors.Is(over, ErrLost) && (err == nil || errors.Is(err, context.Canceled)) {
		return over
	}
	return err
}

var version = regexp.MustCompile(`lock_version:0\.[01]\.\S*`)

// check asks once for the module's version, where that is allowed and it has one: 0.2 is the least.
func (l *Locks) check(ctx context.Context, key string) error {
	if ctx.Err() != nil || l.isChecked.Swap(true) {
		return ended(ctx, key)
	}
	// If there is an error, the acquire will say.
	info, _ := ask(ctx, releaseWithin, func(ctx context.Context) (string, error) { return l.client.Info(ctx, "lock").Result() })
	if old := version.FindString(info); old != "" {
		l.isChecked.Store(false)
		return fmt.Errorf("%w: it has %s, load 0.2.0 or later", ErrNoModule, old)
	}
	return nil
}

type locker struct {
	mutex *Mutex
	mu    sync.Mutex
	holds []*Hold
}

// Locker returns the lock for what wants a [sync.Locker]. Its Lock waits as long as it takes, and panics on an error that
// would not pass. Nobody is told of a loss.
func (m *Mutex) Locker() sync.Locker { return &locker{mutex: m} }

func (l *locker) Lock() {
	h, err := l.mutex.acquire(context.Background(), forever)
	for errors.Is(err, ErrLost) { // It was answered when its lease was over.
		h, err = l.mutex.acquire(context.Background(), forever)
	}
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = append(l.holds, h)
}

// Unlock ends one that is over, if any is: who has lost the lock, and unlocks it, ends nobody else's. Else it is the oldest.
func (l *locker) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.holds) == 0 {
		panic("redisnativelock: unlock of unlocked lock")
	}
	at := max(0, slices.IndexFunc(l.holds, func(h *Hold) bool { return h.whyOver() != nil }))
	_ = l.holds[at].Release()
	l.holds = slices.Delete(l.holds, at, at+1)
}
