package redisnativelock

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	replyWithin   = 5 * time.Second
	releaseWithin = 500 * time.Millisecond // How long a section waits for its release, which then goes on in the background.
	silence       = 10 * time.Second       // After so long the server is asked whether a subscription still stands.
)

// ask returns in time, and when the context is over, as go-redis does not. That then goes on in a goroutine, without
// trying again.
func ask[T any](ctx context.Context, within time.Duration, send func(context.Context) (T, error)) (reply T, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, within, errUnanswered)
	defer stop()
	answers := make(chan func() (T, error), 1)
	go func() {
		reply, err := send(ctx)
		answers <- func() (T, error) { return reply, err }
	}()
	select {
	case answer := <-answers:
		return answer()
	case <-ctx.Done():
		return reply, context.Cause(ctx)
	}
}

// do carries out a command, and returns in time.
func (a *attempt) do(ctx context.Context, client redis.UniversalClient, within time.Duration, args []any) (int64, error) {
	a.sending.RLock()
	return ask(ctx, within, func(ctx context.Context) (int64, error) {
		defer a.sending.RUnlock()
		return carryOut(ctx, client, args)
	})
}

// carryOut does so as go-redis does. A null of the module is a 0.
func carryOut(ctx context.Context, client redis.UniversalClient, args []any) (int64, error) {
	number, err := client.Do(ctx, args...).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return number, err
}

// insist sends what gives a lock back until it is answered, after what is under way: neither a request nor a renewal may
// come later.
func (a *attempt) insist(args func() []any) (int64, error) {
	a.renewing.Lock()
	until := max(a.lease, a.lasts)
	a.renewing.Unlock()
	a.sending.Lock()
	until += a.locks.now()
	a.sending.Unlock()
	for tries, inDoubt := 0, false; ; tries++ {
		ctx, stop := context.WithTimeout(context.Background(), replyWithin)
		reply, err := carryOut(ctx, a.locks.client, args())
		if stop(); err == nil && inDoubt {
			// An earlier try may have ended it.
			return 1, nil
		} else if err == nil {
			return reply, nil
		} else if !mayPass(err) || a.locks.now() >= until {
			slog.Warn("redisnativelock: it is left to its lease, not given back", "key", a.key, "error", err)
			return 0, err
		}
		inDoubt = inDoubt || !isRefusal(err)
		time.Sleep(pauseAfter(tries))
	}
}

// pauseAfter is how long to wait before what failed is tried again: ever longer, never in step.
func pauseAfter(tries int) time.Duration {
	return time.Millisecond + rand.N(min(20*time.Millisecond<<min(tries, 10), time.Second))
}

// A listener is the connection to one server over which all waits there are told. Whoever waits when it ends asks anew.
type listener struct {
	locks  *Locks
	pubsub *redis.PubSub
	// Is over when it has ended, with why.
	ctx    context.Context
	end    context.CancelCauseFunc
	isRead atomic.Bool // Whether somebody reads from it.
}

// A subscription is to one channel. What is heard is over when the server has confirmed it, or the listener has ended.
type subscription struct {
	listener *listener
	heard    context.Context
	confirm  context.CancelFunc
}

// channelOf is where this process is told of that key: in a cluster there is a channel for each slot.
func (l *Locks) channelOf(key string) string {
	if l.isCluster {
		return l.channel + "{" + tags()[slotOf(key)] + "}"
	}
	return l.channel
}

func (l *Locks) hears(channel string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.subscriptions[channel]
	return s != nil && s.heard.Err() != nil && s.listener.ctx.Err() == nil
}

// listen has the attempt hear what is published at that server.
func (l *Locks) listen(a *attempt, node *redis.Client) *subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits[a.owner] = a.told
	e := l.listeners[node]
	if e == nil || e.ctx.Err() != nil {
		e = &listener{locks: l, pubsub: node.Subscribe(context.Background())}
		e.ctx, e.end = context.WithCancelCause(context.Background())
		context.AfterFunc(e.ctx, func() { e.pubsub.Close() })
		l.listeners[node] = e
	}
	s := l.subscriptions[a.channel]
	if s == nil || s.listener != e {
		s = &subscription{listener: e}
		s.heard, s.confirm = context.WithCancel(e.ctx)
		l.subscriptions[a.channel] = s
		go e.subscribe(a.channel)
	}
	return s
}

func (l *Locks) forget(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waits, owner)
}

func (e *listener) subscribe(channel string) {
	subscribe := e.pubsub.Subscribe
	if e.locks.isCluster {
		subscribe = e.pubsub.SSubscribe
	}
	err := subscribe(e.ctx, channel)
	if err == nil && e.isRead.CompareAndSwap(false, true) {
		err = e.receive()
	}
	if err != nil {
		e.end(err)
	}
}

func (e *listener) receive() error {
	// With a context that is over go-redis does not connect again by itself, unseen.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for isAsked := false; ; {
		received, err := e.pubsub.ReceiveTimeout(ctx, silence)
		var timeout net.Error
		isSilent := errors.As(err, &timeout) && timeout.Timeout()
		if isSilent && !isAsked {
			err = e.pubsub.Ping(ctx)
		}
		if err != nil {
			return err
		}
		isAsked = isSilent
		e.hear(received)
	}
}

func (e *listener) hear(received any) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	switch received := received.(type) {
	case *redis.Message:
		m := parsed(received.Payload)
		told, isKnown := e.locks.waits[m.owner]
		select {
		case told <- m:
		default:
			// Who has been told something already asks again, or holds it.
		}
		if !isKnown && m.token != 0 {
			// Nobody waits for it any more.
			late := &attempt{lock: lock{locks: e.locks, key: m.key}, owner: m.owner, token: m.token, lasts: m.lease}
			go late.insist(late.release)
		}
	case *redis.Subscription:
		s := e.locks.subscriptions[received.Channel]
		if received.Kind != "subscribe" && received.Kind != "ssubscribe" {
			e.end(errors.New("redisnativelock: the server has ended the subscription"))
		} else if s.listener == e {
			s.confirm()
		}
	}
}
