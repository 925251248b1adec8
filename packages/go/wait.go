package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// A place is asked for so long, again and again.
	placeMax = 5 * time.Minute
	// How often a place is asked for again while nothing is heard: a message may be lost.
	askAgain = 10 * time.Second
	blockMax = 24 * time.Hour
	// However short the wait is, a free lock is had.
	tryAtLeast = 50 * time.Millisecond
)

// A grant is a hold that the server told of: granted no earlier than since, and lease is relied upon from then on.
type grant struct {
	token        int64
	since, lease time.Duration
}

// An attempt is one to take a lock.
type attempt struct {
	request
	locks   *Locks
	channel string
	began   time.Duration
	// Whether the server may have a place or a hold for it, and what is under way that may yet make one.
	inDoubt bool
	sending sync.WaitGroup
	// Where it listens, guarded by the mutex of locks, and what it was told.
	ear  *ear
	told chan message
}

// tell is for who has locked the mutex of locks. Where it has been told something already, it asks again.
func (a *attempt) tell(m message) {
	select {
	case a.told <- m:
	default:
	}
}

// hear waits for what it is told: nothing, in that time.
func (a *attempt) hear(ctx context.Context, within time.Duration) (m message) {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	select {
	case m = <-a.told:
	case <-ctx.Done():
	}
	return m
}

// take waits until the second context is over, which is made of the first. If that is so at once it does not wait.
func (a *attempt) take(ctx, waiting context.Context) (grant, error) {
	isPatient := waiting.Err() == nil
	for tries := 0; ; tries++ {
		var g grant
		var err error
		within := replyWithin
		if isPatient {
			within = min(within, max(left(waiting), tryAtLeast))
		}
		// Who listens already asks for a place at once. By this go-redis learns where the key is now.
		if !isPatient || within == tryAtLeast || !a.locks.hears(a.channel) {
			g, err = a.send(ctx, a.locks.client, within, a.acquire())
		}
		if err == nil && g.token == 0 && isPatient {
			g, err = a.wait(waiting)
		}
		switch {
		case err == nil && g.token != 0:
			return g, nil
		case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
			return g, fmt.Errorf("%w: %q: %w", ErrBusy, a.key, context.Cause(ctx))
		case ctx.Err() != nil:
			return g, fmt.Errorf("redisnativelock: %q: %w", a.key, context.Cause(ctx))
		case err != nil && (!isPatient || !mayPass(err)):
			return g, translated(err)
		case waiting.Err() != nil:
			return g, fmt.Errorf("%w: %q", ErrBusy, a.key)
		case err != nil:
			slog.Warn("redisnativelock: it is asked for again", "key", a.key, "error", err)
			if a.ear != nil {
				// It may be at a server that is no primary any more.
				a.ear.end(err)
			}
			select {
			case <-waiting.Done():
			case <-time.After(pauseAfter(tries)):
			}
		}
	}
}

func left(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// giveUp makes sure that nothing is left of what was not had.
func (a *attempt) giveUp() {
	a.locks.forget(a)
	if a.inDoubt {
		go func() {
			// It may not come before what it gives up.
			a.sending.Wait()
			a.locks.insist(func() []any { return a.command("RELEASE") }, a.locks.now()+max(a.lease, placeMax))
		}()
	}
}

// send sends what may make a hold.
func (a *attempt) send(ctx context.Context, client redis.UniversalClient, within time.Duration, args []any) (grant, error) {
	was, sent := a.inDoubt, a.locks.now()
	a.inDoubt = true
	a.sending.Add(1)
	reply, err := ask(ctx, within, func(ctx context.Context) (int64, error) {
		defer a.sending.Done()
		return do(ctx, client, args)
	})
	// What there is after SUPERSEDED is another's of this name.
	a.inDoubt = code(err) != "SUPERSEDED" && (was || reply != 0 || err != nil && !isRefusal(err))
	return grant{reply, sent, a.lease}, err
}

// wait returns without a grant and without an error if the lock is to be asked for again.
func (a *attempt) wait(ctx context.Context) (grant, error) {
	node, err := ask(ctx, replyWithin, func(ctx context.Context) (*redis.Client, error) { return a.locks.node(ctx, a.key) })
	if err != nil {
		return grant{}, err
	}
	g, err := a.queue(ctx, node)
	if code(err) == "NOPERM" {
		// It may not subscribe, or not publish to itself.
		return a.block(ctx, node)
	}
	return g, err
}

// queue waits by a place in the queue.
func (a *attempt) queue(ctx context.Context, node *redis.Client) (grant, error) {
	within := replyWithin
	if a.locks.listen(a, node) {
		place := a.acquire("QUEUE", max(1, min(placeMax, left(ctx)).Milliseconds()), a.channel)
		if g, err := a.send(ctx, a.locks.client, replyWithin, place); err != nil || g.token != 0 {
			return g, err
		}
		a.inDoubt, within = true, askAgain
	}
	told := a.hear(ctx, within)
	if told.token != 0 {
		return a.claim(ctx, grant{told.token, a.began, min(told.lease, a.lease)})
	}
	// A refusal leaves nothing, and what there is then is another's of this name.
	a.inDoubt = a.inDoubt && !isRefusal(told.err)
	return grant{}, told.err
}

// block waits by blocking a connection of its own, for users who may not subscribe.
func (a *attempt) block(ctx context.Context, node *redis.Client) (grant, error) {
	options := *node.Options()
	options.ReadTimeout, options.MaxRetries, options.PoolSize, options.MinIdleConns = -1, -1, 1, 0
	own := redis.NewClient(&options)
	defer own.Close()
	block := max(1, min(blockMax, left(ctx)).Milliseconds())
	g, err := a.send(ctx, own, blockMax+replyWithin, a.acquire("BLOCK", block))
	if err != nil || g.token == 0 {
		return g, err
	}
	return a.claim(ctx, g)
}

// claim makes sure of a grant after a wait, whose lease is counted from the first request. Work that has enough of that
// left begins at once.
func (a *attempt) claim(ctx context.Context, g grant) (grant, error) {
	g.since = a.began
	// In a cluster other nodes of a shard pass on what their primary may have taken back: there it claims first.
	if !a.locks.isCluster && validUntil(g.since, g.lease)-a.locks.now() >= g.lease/4 {
		return g, nil
	}
	claimed, err := a.send(ctx, a.locks.client, replyWithin, a.renewal(g.token, a.lease))
	if claimed.token == 1 {
		claimed.token = g.token
	}
	return claimed, err
}
