package redisnativelock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestASubscriberThatIsKilledKeepsItsPlace(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	h := must[*Hold](t)(s.locks().Mutex("l").Lock(ctx))
	w := wait(locks.Mutex("l"), ctx)
	until(t, "it waits", func() bool { return s.places() == 1 })
	behind := wait(s.locks().Mutex("l"), ctx)
	until(t, "another waits behind it", func() bool { return s.places() == 2 })
	owner := s.first("l")
	for range 3 {
		s.Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
		until(t, "both listen again", func() bool { return len(s.PubSubChannels(ctx, "redislock:*").Val()) == 2 })
	}
	if s.first("l") != owner {
		t.Fatal("it has lost its place")
	}
	mustBe(t, h.Release(), nil)
	mustBe(t, w.get(t).Release(), nil)
	mustBe(t, behind.get(t).Release(), nil)
	s.nothingIsLeft(locks, "l")
}

// first is the owner who waits first.
func (s *server) first(key string) string {
	return s.lock(key)["waiters"].([]any)[0].(map[any]any)["owner"].(string)
}

func TestAMessageThatIsLostOrForNobody(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	p := newProxy(s)
	locks := p.locks(t)
	h := must[*Hold](t)(s.locks().Mutex("l").Lock(ctx))
	w := wait(locks.Mutex("l"), ctx)
	until(t, "it waits", func() bool { return s.places() == 1 })
	p.swallows.Store("message\r\n")
	mustBe(t, h.Release(), nil)
	until(t, "the message is lost", func() bool { return p.swallowed.Load() > 0 })
	p.swallows.Store("")
	h = w.get(t) // it asks again
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

func TestWhoMayNotSubscribe(t *testing.T) {
	s := newServer(t)
	for _, rights := range []string{"resetchannels", "-subscribe"} {
		s.Do(ctx, "ACL", "SETUSER", "deaf", "reset", "on", ">pw", "~*", "+@all", "&*", rights)
		client := redis.NewClient(&redis.Options{Addr: s.addr(), Username: "deaf", Password: "pw", ClientName: "deaf"})
		defer client.Close()
		locks := New(client)
		h := must[*Hold](t)(locks.Mutex("l").Lock(ctx))
		_, err := locks.Mutex("l", Wait(100*time.Millisecond)).Lock(ctx)
		mustBe(t, err, ErrBusy)
		blocked := func() bool { return s.count("clients", "blocked_clients") == 1 }
		cancelled, cancel := context.WithCancel(ctx)
		w := wait(locks.Mutex("l"), cancelled)
		until(t, "it blocks", blocked)
		cancel()
		<-w.done
		mustBe(t, w.err, context.Canceled)
		until(t, "no longer", func() bool { return s.count("clients", "blocked_clients") == 0 })
		w = wait(locks.Mutex("l"), ctx)
		until(t, "it blocks", blocked)
		mustBe(t, h.Release(), nil)
		mustBe(t, w.get(t).Release(), nil)
		s.nothingIsLeft(locks, "l")
	}
}
