package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestOneAtATimeInManyProcesses(t *testing.T) {
	s := newServer(t)
	var inside, count int
	var work sync.WaitGroup
	one, two := s.locks(), s.locks()
	for range 8 {
		for _, locks := range []*Locks{one, two} {
			work.Add(1)
			go func() {
				defer work.Done()
				for range 25 {
					// What the race detector would find, too.
					err := locks.Mutex("counter").Do(ctx, func(h *Hold) error {
						if inside++; inside != 1 || h.ValidFor() <= 0 {
							t.Errorf("%d are inside, for %v", inside, h.ValidFor())
						}
						count++
						inside--
						return nil
					})
					if err != nil {
						t.Error(err)
					}
				}
			}()
		}
	}
	work.Wait()
	if count != 400 {
		t.Fatalf("%d", count)
	}
	s.nothingIsLeft(one, "counter")
	s.nothingIsLeft(two, "counter")
	if channels := s.PubSubChannels(ctx, "redislock:*").Val(); len(channels) != 2 {
		t.Fatalf("not one subscription each: %v", channels)
	}
	one.client.Close()
	until(t, "no subscription outlives its client", func() bool { return len(s.PubSubChannels(ctx, "*").Val()) == 1 })
}

func TestHowLongItWaits(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	h := must[*Hold](t)(locks.Mutex("l").TryLock(ctx))
	for _, wait := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond} {
		begun := time.Now()
		_, err := locks.Mutex("l", Wait(wait)).Lock(ctx)
		mustBe(t, err, ErrBusy)
		if took := time.Since(begun) - wait; took < 0 || took > 2*time.Second || errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(took, err)
		}
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err := locks.Mutex("l").Lock(short)
	mustBe(t, err, ErrBusy)
	mustBe(t, err, context.DeadlineExceeded)
	_, err = locks.Mutex("l").Lock(short) // which is over already
	mustBe(t, err, ErrBusy)
	until(t, "their places are given up", func() bool { return s.places() == 0 })
	mustBe(t, h.Release(), nil)
	h = must[*Hold](t)(locks.Mutex("l", Wait(time.Millisecond)).Lock(ctx))
	mustBe(t, h.Release(), nil)
	s.nothingIsLeft(locks, "l")
}

func TestOptions(t *testing.T) {
	s := newServer(t)
	locks := s.locks(Prefix("app:"), Lease(20*time.Second))
	h := must[*Hold](t)(locks.Mutex("\xff\r\n").TryLock(ctx))
	if ttl := s.PTTL(ctx, "app:\xff\r\n").Val(); h.Key() != "app:\xff\r\n" || ttl > 20*time.Second || ttl < 15*time.Second {
		t.Fatal(ttl)
	}
	mustBe(t, h.Release(), nil)
	mustBe(t, h.Release(), nil) // once is enough
	if err := h.Renew(ctx, 0); err == nil || h.ValidFor() != 0 || h.Context().Err() == nil {
		t.Fatal("it was released")
	}
	if _, err := locks.Mutex("l", Lease(0)).TryLock(ctx); code(err) != "ERR" {
		t.Fatal(err)
	}
	s.HSet(ctx, "app:data", "field", "value")
	if _, err := locks.Mutex("data").Lock(ctx); code(err) != "NOTALOCK" {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := locks.Mutex("free").Lock(over)
	mustBe(t, err, context.Canceled)
	s.nothingIsLeft(locks, "app:l", "app:free")
}

func TestMessagesForNobody(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	h := must[*Hold](t)(locks.Mutex("l").Lock(ctx))
	_, err := locks.Mutex("l", Wait(50*time.Millisecond)).Lock(ctx) // so that it has subscribed
	mustBe(t, err, ErrBusy)
	// What comes doubled or late, or is no message, changes nothing.
	again, gone := netstrings("0", "l", h.Owner(), "42", "2000"), netstrings("0", "l", h.Owner(), "0", "0")
	for _, message := range []string{again, gone, "what?"} {
		s.Publish(ctx, locks.channel, message)
	}
	mustBe(t, h.Renew(ctx, 0), nil)
	mustBe(t, h.Release(), nil)
	// A grant that nobody waits for is given back.
	token := must[int64](t)(s.Do(ctx, "LOCK.ACQUIRE", "l", "x", "LEASE", 60000).Int64())
	s.Publish(ctx, locks.channel, netstrings("0", "l", "x", fmt.Sprint(token), "2000"))
	s.nothingIsLeft(locks, "l")
}

func TestALocker(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	locker := locks.Mutex("l").Locker()
	condition, ready := sync.NewCond(locker), false
	go func() {
		locker.Lock()
		defer locker.Unlock()
		ready = true
		condition.Broadcast()
	}()
	locker.Lock()
	for !ready {
		condition.Wait()
	}
	locker.Unlock()
	s.nothingIsLeft(locks, "l")
	defer func() {
		if recover() == nil {
			t.Fatal("unlocked once too often")
		}
	}()
	locker.Unlock()
}

func TestALockerThatWasLostEndsNobodyElsesHold(t *testing.T) {
	s := newServer(t)
	locker := s.locks().Mutex("l").Locker()
	locker.Lock()
	s.Do(ctx, "LOCK.BREAK", "l")
	locker.Lock() // by another goroutine
	for range 2 {
		if s.isFree("l") {
			t.Fatal("who lost it has unlocked it under who holds it")
		}
		locker.Unlock()
	}
	until(t, "free", func() bool { return s.isFree("l") })
}

func netstrings(parts ...string) (message string) {
	for _, part := range parts {
		message += fmt.Sprintf("%d:%s,", len(part), part)
	}
	return message
}

func TestAServerWithoutTheModule(t *testing.T) {
	s := newServerWithout(t)
	_, err := s.locks().Mutex("l").Lock(ctx)
	mustBe(t, err, ErrNoModule)
	defer func() {
		if recover() == nil {
			t.Fatal("locks on a Ring exclude nobody")
		}
	}()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": s.addr()}})
	defer ring.Close()
	New(ring)
}

func TestWordsOfTheWire(t *testing.T) {
	if m, want := parsed(netstrings("0", "k:,", "o", "42", "2000")), (message{"k:,", "o", 42, 2 * time.Second, nil}); m != want {
		t.Fatal(m)
	}
	if m := parsed(netstrings("0", "k", "o", "-DEADLOCK no", "0")); code(m.err) != "DEADLOCK" {
		t.Fatal(m)
	}
	for _, wrong := range []string{"", "nonsense", "1:0,1:k,1:o,1:0,", "9:0,", "-1:0,"} {
		if m := parsed(wrong); m.owner != "" {
			t.Fatal(wrong)
		}
	}
	if slotOf("123456789") != 12739 || slotOf("{user}x") != slotOf("user") || slotOf("{}user") == slotOf("user") {
		t.Fatal("slots")
	}
	for slot, tag := range tags() {
		if slotOf("redislock:{"+tag+"}") != slot {
			t.Fatal(slot)
		}
	}
	if validUntil(5*time.Second, 30*time.Second) != 34690*time.Millisecond || validUntil(0, 20) != 10 {
		t.Fatal("leases")
	}
	if tries := []int{0, 5, 1000}; slices.ContainsFunc(tries, func(n int) bool { return pauseAfter(n) > 2*time.Second }) {
		t.Fatal("pauses")
	}
}
