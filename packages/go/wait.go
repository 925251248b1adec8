package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	forever    = 100 * 365 * 24 * time.Hour
	placeMax   = 5 * time.Minute  // A place is asked for so long, again and again.
	askAgain   = 10 * time.Second // How often a place is asked for again while nothing is heard: a message may be lost.
	blockMax   = 24 * time.Hour
	tryAtLeast = 50 * time.Millisecond // However short the wait is, a free lock is taken.
)

// An attempt is one to take a lock, under a name that never asked before.
type attempt struct {
	lock
	owner, channel string
	began          time.Duration
	told           chan message  // What it hears.
	inDoubt        bool          // Whether the server may have a place or a hold for it.
	isCutOff       bool          // Whether a request of it was not waited for to the end: it may come yet.
	renewing       sync.Mutex    // Is locked while a renewal is under way.
	sending        sync.RWMutex  // Is locked for reading by each command that is under way.
	lasts          time.Duration // How long the server may keep its place.
	sends          sends
	unanswered     time.Duration // The shortest lease of a renewal that may come yet.
	// The grant: its token, which is 0 before, and until when it is relied upon.
	token      int64
	validUntil time.Duration
}

func (a *attempt) command(name string, options ...any) []any {
	return append([]any{"LOCK." + name, a.key, a.owner}, options...)
}

func (a *attempt) acquire(how ...any) []any {
	// With HOLD 1 it does no harm to send it again.
	return append(append(a.command("ACQUIRE", "LEASE", a.lease.Milliseconds(), "HOLD", 1), a.mode...), how...)
}

func (a *attempt) renew(lease time.Duration) []any {
	return a.command("RENEW", "LEASE", lease.Milliseconds(), &a.sends, a.token)
}

func (a *attempt) release() []any { return a.command("RELEASE", "FENCE", a.token) }

// take waits for so long. If that is nothing it asks once.
func (a *attempt) take(ctx context.Context, wait time.Duration) error {
	isPatient := wait > 0
	if !isPatient {
		wait = replyWithin
	}
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for tries := 0; ; tries++ {
		// Who listens already asks for a place at once. By this go-redis learns where the key is now.
		var err error
		if !isPatient || !a.locks.hears(a.channel) {
			a.token, err = a.send(ctx, a.locks.client, within(waiting), a.acquire())
		}
		if err == nil && a.token == 0 && isPatient {
			err = a.wait(ctx, waiting)
		}
		switch over := ended(ctx, a.key); {
		case err == nil && a.token != 0:
			return nil
		case over != nil:
			return over
		case err != nil && (!isPatient || !mayPass(err)):
			return translated(err)
		case !isPatient, left(waiting) <= 0:
			return fmt.Errorf("%w: %q", ErrBusy, a.key)
		case err != nil:
			slog.Warn("redisnativelock: it is asked for again", "key", a.key, "error", err)
			a.hear(waiting, waiting, pauseAfter(tries))
		}
	}
}

// ended is the error of a context that is over.
func ended(ctx context.Context, key string) error {
	if deadline, isBounded := ctx.Deadline(); isBounded && time.Until(deadline) <= 0 {
		select {
		case <-ctx.Done(): // Its timer may be late.
		case <-time.After(time.Second):
		}
	}
	switch why := context.Cause(ctx); {
	case why == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %q: %w", ErrBusy, key, why)
	default:
		return fmt.Errorf("redisnativelock: %q: %w", key, why)
	}
}

func left(waiting context.Context) time.Duration {
	end, _ := waiting.Deadline()
	return time.Until(end)
}

// within is how long an answer is waited for.
func within(waiting context.Context) time.Duration {
	return min(replyWithin, max(left(waiting), tryAtLeast))
}

// leave makes sure that nothing is left of what was not had.
func (a *attempt) leave(err error) {
	a.locks.forget(a.owner)
	// What there is after SUPERSEDED is another's of this name.
	if a.inDoubt && !errors.Is(err, ErrSuperseded) {
		go func() {
			release := func() []any { return a.command("RELEASE") }
			if _, err := a.insist(release); err == nil && a.isCutOff {
				// What was sent over a connection that is closed may come after what is sent over another.
				time.Sleep(time.Second)
				_, _ = a.insist(release)
			}
		}()
	}
}

// send sends what may make a hold.
func (a *attempt) send(ctx context.Context, client redis.UniversalClient, within time.Duration, args []any) (int64, error) {
	a.validUntil = validUntil(a.locks.now(), a.lease)
	reply, err := a.do(ctx, client, within, args)
	a.isCutOff = a.isCutOff || err != nil && !isRefusal(err)
	a.inDoubt = a.inDoubt || a.isCutOff || reply != 0
	return reply, err
}

// wait returns without a token and without an error if the lock is to be asked for again.
func (a *attempt) wait(ctx, waiting context.Context) error {
	node, err := a.locks.node(ctx, a.key)
	if err != nil {
		return err
	}
	s := a.locks.listen(a, node)
	err = a.queue(ctx, waiting, s)
	if code(err) == "NOPERM" {
		// It may not subscribe, or not publish to itself.
		return a.block(ctx, waiting, node)
	} else if err != nil && mayPass(err) && ctx.Err() == nil && left(waiting) > 0 {
		// It may be at a server that is no primary any more.
		s.listener.end(err)
	}
	return err
}

// queue waits by a place in the queue, once the server is known to publish to us.
func (a *attempt) queue(ctx, waiting context.Context, s *subscription) (err error) {
	if a.hear(waiting, s.heard, replyWithin); s.heard.Err() == nil || s.listener.ctx.Err() != nil {
		return context.Cause(s.listener.ctx)
	}
	place := a.acquire("QUEUE", max(1, min(placeMax, left(waiting)).Milliseconds()), a.channel)
	a.inDoubt, a.lasts = true, placeMax
	if a.token, err = a.send(ctx, a.locks.client, within(waiting), place); err != nil || a.token != 0 {
		return err
	}
	told := a.hear(waiting, s.listener.ctx, askAgain)
	if told.token == 0 {
		return told.err
	}
	// The lease is counted from the first request.
	a.token, a.validUntil = told.token, validUntil(a.began, min(told.lease, a.lease))
	return a.claim(ctx, waiting, told.lease)
}

// hear waits until it is told something, that context is over, or so much time.
func (a *attempt) hear(waiting, over context.Context, within time.Duration) (m message) {
	select {
	case m = <-a.told:
	case <-over.Done():
		m.err = context.Cause(over)
	case <-waiting.Done():
	case <-time.After(within):
	}
	return m
}

// block waits by blocking a connection of its own, for users who may not subscribe.
func (a *attempt) block(ctx, waiting context.Context, node *redis.Client) (err error) {
	options := *node.Options()
	options.ReadTimeout, options.MaxRetries, options.PoolSize, options.MinIdleConns = -1, -1, 1, 0
	own := redis.NewClient(&options)
	defer own.Close()
	command := a.acquire("BLOCK", max(1, min(blockMax, left(waiting)).Milliseconds()))
	if a.token, err = a.send(waiting, own, blockMax+replyWithin, command); err != nil || a.token == 0 {
		return err
	}
	return a.claim(ctx, waiting, a.lease)
}

// claim makes sure of a grant after a wait. Work that has enough of its first lease left begins at once.
func (a *attempt) claim(ctx, waiting context.Context, lease time.Duration) error {
	// In a cluster other nodes of a shard pass on what their primary may have taken back: there it claims first.
	if !a.locks.isCluster && a.validUntil-a.locks.now() >= lease/4 {
		return nil
	}
	reply, err := a.send(ctx, a.locks.client, within(waiting), a.renew(a.lease))
	if a.noteRenewal(a.validUntil, a.lease, err); reply != 1 {
		a.token = 0
	}
	return err
}

// sends is the word FENCE of a renewal, and counts how often go-redis has sent it, which tries again by itself.
type sends struct{ atomic.Int32 }

func (s *sends) MarshalBinary() ([]byte, error) { s.Add(1); return []byte("FENCE"), nil }

// noteRenewal notes one that may come yet: it got no answer, or was sent twice. What else is refused has changed nothing.
func (a *attempt) noteRenewal(before, lease time.Duration, err error) {
	switch {
	case a.sends.Swap(0) > 1, err != nil && !isRefusal(err):
		a.unanswered = min(lease, a.unanswered)
	case err != nil:
		a.validUntil = before
	}
}
