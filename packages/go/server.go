package redisnativelock

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	replyWithin = 5 * time.Second
	// After so long the server is asked whether a subscription still stands.
	silence = 10 * time.Second
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

// do carries out a command of the module. Its null is a 0.
func do(ctx context.Context, client redis.UniversalClient, args []any) (int64, error) {
	number, err := client.Do(ctx, args...).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return number, err
}

// insist sends what gives a lock back until it is answered, or until then.
func (l *Locks) insist(args func() []any, until time.Duration) (int64, error) {
	for tries := 0; ; tries++ {
		reply, err := ask(context.Background(), replyWithin, func(ctx context.Context) (int64, error) {
			return do(ctx, l.client, args())
		})
		if err == nil {
			return reply, nil
		} else if !mayPass(err) || l.now() >= until {
			slog.Warn("redisnativelock: it is left to its lease, not given back", "key", args()[1], "error", err)
			return 0, err
		}
		time.Sleep(pauseAfter(tries))
	}
}

// pauseAfter is how long to wait before what failed is tried again: ever longer, never in step.
func pauseAfter(tries int) time.Duration {
	return time.Millisecond + rand.N(min(20*time.Millisecond<<min(tries, 10), time.Second))
}

// An ear is the subscription to one server, which all waits there share. It ends with its connection; whoever waits then
// asks for it anew.
type ear struct {
	locks  *Locks
	node   *redis.Client
	pubsub *redis.PubSub
	// Whether the server is known to publish there to us, by channel. Guarded by the mutex of locks.
	channels map[string]bool
}

func (l *Locks) hears(channel string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.ears {
		if e.channels[channel] {
			return true
		}
	}
	return false
}

// listen has the attempt hear what is published at that server. It tells whether that is known to be so already.
func (l *Locks) listen(a *attempt, node *redis.Client) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.ears[node]
	if e == nil {
		e = &ear{locks: l, node: node, pubsub: node.Subscribe(context.Background()), channels: map[string]bool{}}
		l.ears[node] = e
	}
	isHeard, isSent := e.channels[a.channel]
	if !isSent {
		e.channels[a.channel] = false
		go e.subscribe(a.channel, len(e.channels) == 1)
	}
	l.waits[a.owner] = a
	a.ear, a.told = e, make(chan message, 1)
	return isHeard
}

func (e *ear) subscribe(channel string, isFirst bool) {
	subscribe := e.pubsub.Subscribe
	if e.locks.isCluster {
		subscribe = e.pubsub.SSubscribe
	}
	err := subscribe(context.Background(), channel)
	if err == nil && isFirst {
		err = e.receive()
	}
	if err != nil {
		e.end(err)
	}
}

func (e *ear) receive() error {
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
		switch received := received.(type) {
		case *redis.Message:
			if m, ok := parsed(received.Payload); ok {
				e.locks.hear(m)
			}
		case *redis.Subscription:
			if received.Kind != "subscribe" && received.Kind != "ssubscribe" {
				return errors.New("redisnativelock: the server has ended the subscription")
			}
			e.locks.mu.Lock()
			e.channels[received.Channel] = true
			e.tell(received.Channel, message{})
			e.locks.mu.Unlock()
		}
	}
}

// tell is for all who wait there, on this channel, or on any.
func (e *ear) tell(channel string, m message) {
	for _, a := range e.locks.waits {
		if a.ear == e && (channel == "" || channel == a.channel) {
			a.tell(m)
		}
	}
}

func (e *ear) end(err error) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	if e.locks.ears[e.node] == e {
		delete(e.locks.ears, e.node)
		e.tell("", message{err: err})
		// It may be about to connect, which takes its time.
		go e.pubsub.Close()
	}
}

// hear takes what a message brings to whom it is for.
func (l *Locks) hear(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.waits[m.owner]; a != nil {
		a.tell(m)
	} else if m.token != 0 {
		// Nobody waits for it any more.
		r := request{key: m.key, owner: m.owner}
		go l.insist(func() []any { return r.release(m.token) }, l.now()+m.lease)
	}
}

func (l *Locks) forget(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits[a.owner] == a {
		delete(l.waits, a.owner)
	}
}
