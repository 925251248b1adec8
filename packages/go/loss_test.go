package redisnativelock

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestALockThatSomebodyBreaks(t *testing.T) {
	s := newServer(t)
	locks := s.locks(Lease(300 * time.Millisecond))
	broken := func(h *Hold) {
		s.Do(ctx, "LOCK.BREAK", "l")
		<-h.Context().Done()
	}
	mustBe(t, locks.Mutex("l").Do(ctx, func(h *Hold) error { broken(h); return nil }), ErrLost)
	mine := errors.New("mine")
	if err := locks.Mutex("l").Do(ctx, func(h *Hold) error { broken(h); return mine }); err != mine {
		t.Fatal(err)
	}
	// Before a renewal could tell.
	h := must[*Hold](t)(locks.Mutex("l", Lease(time.Minute)).Lock(ctx))
	s.Del(ctx, "l")
	mustBe(t, h.Release(), ErrLost)
	s.nothingIsLeft(locks, "l")
}

func TestARenewalThatIsNotAnswered(t *testing.T) {
	s := newServer(t)
	h := must[*Hold](t)(s.locks(Lease(time.Hour)).Mutex("l").Lock(ctx))
	between := func(least, most time.Duration) {
		t.Helper()
		if valid := h.ValidFor(); valid < least || valid > most {
			t.Fatal(valid)
		}
	}
	// A shorter lease is relied upon from the moment that it is asked for.
	s.signal(syscall.SIGSTOP)
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	mustBe(t, h.Renew(short, time.Minute), context.DeadlineExceeded)
	between(time.Second, time.Minute)
	// And a longer one that follows, as that one may yet come. What the server refuses changes nothing.
	s.signal(syscall.SIGCONT)
	mustBe(t, h.Renew(ctx, time.Hour), nil)
	s.ConfigSet(ctx, "lock.max-lease", "7200000")
	if err := h.Renew(ctx, 3*time.Hour); code(err) != "ERR" {
		t.Fatal(err)
	}
	mustBe(t, h.Renew(ctx, 0), nil)
	between(time.Second, time.Minute)
	// One that go-redis has sent twice may come yet, too.
	h.locks.client.(*redis.Client).Options().ReadTimeout = 300 * time.Millisecond
	s.Do(ctx, "CLIENT", "PAUSE", 400)
	mustBe(t, h.Renew(ctx, 30*time.Second), nil)
	mustBe(t, h.Renew(ctx, time.Hour), nil)
	between(time.Second, 30*time.Second)
}

func TestWhatIsKeptForAWhileIsKeptSoLongAndNoLonger(t *testing.T) {
	s := newServer(t)
	h := must[*Hold](t)(s.locks(AtLeast(4 * time.Second)).Mutex("l").Lock(ctx))
	s.Do(ctx, "CONFIG", "SET", "min-replicas-to-write", "1") // and until it is set back, no command is done
	mustBe(t, h.Release(), nil)
	time.Sleep(3 * time.Second)
	s.Do(ctx, "CONFIG", "SET", "min-replicas-to-write", "0")
	until(t, "it is given back", func() bool { return s.PTTL(ctx, "l").Val() < 10*time.Second })
	if ttl := s.PTTL(ctx, "l").Val(); ttl > time.Second || h.Renew(ctx, 0) == nil {
		t.Fatal("one second was left of the four, and the hold was released", ttl)
	}
}

func TestAWaitThatWasTakenOverGivesUpNothingOfItsSuccessor(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	s.Do(ctx, "LOCK.ACQUIRE", "l", "somebody")
	a := &attempt{lock: locks.Mutex("l").lock, owner: "x"}
	go func() {
		until(t, "it waits", func() bool { return s.count("clients", "blocked_clients") == 1 })
		s.Do(ctx, "LOCK.ACQUIRE", "l", "x", "QUEUE", 60000, "another's")
	}()
	waiting, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	err := a.block(ctx, waiting, locks.client.(*redis.Client))
	mustBe(t, translated(err), ErrSuperseded)
	a.leave(translated(err))
	if time.Sleep(100 * time.Millisecond); s.places() != 1 {
		t.Fatal("it has ended what is another's")
	}
}

func TestTheMachineIsSuspended(t *testing.T) {
	locks := newServer(t).locks(Lease(time.Hour))
	var asleep atomic.Int64
	locks.now = func() time.Duration { return now() + time.Duration(asleep.Load()) }
	locks.client = sender{locks.client.(*redis.Client), func([]any) { asleep.CompareAndSwap(0, int64(time.Hour)) }}
	// While it waits for the answer: a Locker then asks again.
	locker := locks.Mutex("l").Locker()
	locker.Lock()
	defer locker.Unlock()
	// While it is held.
	h := must[*Hold](t)(locks.Mutex("held").Lock(ctx))
	asleep.Store(int64(2 * time.Hour))
	until(t, "it is told", func() bool { return h.Context().Err() != nil })
}

// What the tests of bsm/redislock and redsync check, as far as a lock that is queued for and renewed has it.
func TestTheCasesOfOthers(t *testing.T) {
	s := newServer(t)
	locks := s.locks(Lease(time.Hour))
	m := locks.Mutex("l")
	near := func(want time.Duration) {
		t.Helper()
		if ttl := s.PTTL(ctx, "l").Val(); ttl > want || ttl < want-20*time.Second {
			t.Fatal(ttl)
		}
	}
	h := must[*Hold](t)(m.TryLock(ctx))
	near(time.Hour)
	_, err := m.TryLock(ctx)
	mustBe(t, err, ErrBusy)
	mustBe(t, h.Renew(ctx, time.Minute), nil)
	near(time.Minute)
	mustBe(t, h.Release(), nil)
	// One of a hundred at once.
	results := make(chan error)
	for range 100 {
		go func() {
			_, err := m.TryLock(ctx)
			results <- err
		}()
	}
	had := 0
	for range 100 {
		if err := <-results; !errors.Is(err, ErrBusy) {
			mustBe(t, err, nil)
			had++
		}
	}
	if had != 1 {
		t.Fatalf("%d have it", had)
	}
	s.Del(ctx, "l")
	// Had as soon as the lease of another is over; not had before.
	s.Do(ctx, "LOCK.ACQUIRE", "l", "another", "LEASE", 1500)
	_, err = locks.Mutex("l", Wait(10*time.Millisecond)).Lock(ctx)
	mustBe(t, err, ErrBusy)
	h = must[*Hold](t)(locks.Mutex("l", Wait(20*time.Second)).Lock(ctx))
	// Renewed or released when it is over, or when another has the key.
	s.Del(ctx, "l")
	next := must[*Hold](t)(m.TryLock(ctx))
	mustBe(t, h.Renew(ctx, 0), ErrLost)
	mustBe(t, h.Release(), ErrLost)
	if next.ValidFor() == 0 || s.lock("l")["fence"] != next.Token() {
		t.Fatal("another's lock was touched")
	}
	s.Set(ctx, "l", "ABCD", 0)
	mustBe(t, next.Release(), ErrLost)
	if s.Get(ctx, "l").Val() != "ABCD" {
		t.Fatal("another's key was touched")
	}
	if _, err = m.TryLock(ctx); code(err) != "WRONGTYPE" || !errors.As(err, new(redis.Error)) {
		t.Fatal(err)
	}
}
