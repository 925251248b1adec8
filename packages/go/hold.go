package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// How long the end of a section waits for its release, which then goes on in the background.
	releaseWithin = 500 * time.Millisecond
	// When a short first lease is claimed. Work that is done sooner spares that.
	claimAfter = 20 * time.Millisecond
	// Timers stand still while a machine is suspended, leases do not.
	sleepMax = time.Second
)

// A Hold is a lock that is held. It may be used by many goroutines.
type Hold struct {
	*attempt
	token     int64
	grantedAt time.Duration
	ctx       context.Context
	cancel    context.CancelCauseFunc
	// Is locked while a renewal is under way.
	renewing sync.Mutex

	mu                         sync.Mutex
	lease, validUntil, renewAt time.Duration
	unanswered                 time.Duration
	timer                      *time.Timer
	// Why it is over, if it is.
	over error
}

func newHold(ctx context.Context, a *attempt, g grant) *Hold {
	h := &Hold{attempt: a, token: g.token, grantedAt: a.locks.now(), lease: a.lease, unanswered: forever}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.validUntil, h.renewAt = validUntil(g.since, g.lease), g.since+a.lease/3
	if g.lease < a.lease {
		h.renewAt = h.grantedAt + min(claimAfter, (h.validUntil-h.grantedAt)/4)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(h.nextTick(), h.tick)
	return h
}

// Key is that of the lock, with its prefix.
func (h *Hold) Key() string { return h.key }

// Owner is the name of this hold at the server.
func (h *Hold) Owner() string { return h.owner }

// Token is the fencing token: greater than that of every earlier hold. Hand it to what you write to, and let that refuse a
// smaller one than it has seen.
func (h *Hold) Token() int64 { return h.token }

// Context is over when the lock is lost, before its lease is; its cause is then [ErrLost]. It comes from the context of the
// acquire, and is over after the release, too.
func (h *Hold) Context() context.Context { return h.ctx }

// ValidFor is how long the hold can be relied upon if no renewal succeeds.
func (h *Hold) ValidFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.look() != nil {
		return 0
	}
	return h.validUntil - h.locks.now()
}

// Renew renews it now. A lease greater than 0 is kept up from now on. The error is [ErrLost] if the lock is lost.
func (h *Hold) Renew(ctx context.Context, lease time.Duration) error {
	h.renewing.Lock()
	defer h.renewing.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if over := h.look(); over != nil {
		return over
	}
	sent := h.locks.now()
	if lease <= 0 {
		lease = h.lease
	}
	// Until it is answered the shorter of the two leases is relied upon.
	h.validUntil = min(h.validUntil, validUntil(sent, lease))
	args, within := h.renewal(h.token, lease), (h.validUntil-sent)/3
	h.mu.Unlock()
	reply, err := ask(ctx, within, func(ctx context.Context) (int64, error) { return do(ctx, h.locks.client, args) })
	h.mu.Lock()
	if h.over == nil && err == nil && reply != 1 {
		h.lose("the server does not know this hold any more")
	}
	if over := h.look(); over != nil {
		return over
	}
	if !isRefusal(err) {
		h.lease = lease
	}
	// One that is not answered may come yet, and leave its lease.
	lease = min(lease, h.unanswered)
	if err == nil {
		h.validUntil, h.renewAt = validUntil(sent, lease), sent+lease/3
	} else {
		slog.Warn("redisnativelock: it is not renewed", "key", h.key, "error", err)
		h.renewAt = h.locks.now() + h.lease/30
		if !isRefusal(err) {
			h.unanswered = lease
		}
	}
	h.timer.Reset(h.nextTick())
	return translated(err)
}

// Release ends it. The error is [ErrLost] if it was over before (or seems so, where a reply was lost and it was sent again),
// and there is no other: what is not answered within half a second, or can't be sent, goes on in the background, and is
// logged and left to the lease if it fails.
func (h *Hold) Release() error {
	h.mu.Lock()
	over := h.look()
	if over == nil {
		h.stop(errReleased)
	}
	h.mu.Unlock()
	if errors.Is(over, errReleased) {
		return nil
	} else if over != nil {
		return over
	}
	reply, err := ask(context.Background(), releaseWithin, func(context.Context) (int64, error) {
		if h.atLeast > 0 {
			// A renewal that is under way would make it longer.
			h.renewing.Lock()
			defer h.renewing.Unlock()
		}
		return h.locks.insist(h.ending, h.locks.now()+h.lease)
	})
	switch {
	case err == nil && reply != 1, code(err) == "WRONGTYPE", code(err) == "NOTALOCK":
		return h.lost("it was over before its release")
	case err != nil:
		slog.Warn("redisnativelock: it is not given back yet", "key", h.key, "error", err)
	}
	return nil
}

// ending is what ends it, now or when it has been held for long enough.
func (h *Hold) ending() []any {
	if rest := h.atLeast - (h.locks.now() - h.grantedAt); rest >= time.Millisecond {
		return h.renewal(h.token, rest)
	}
	return h.release(h.token)
}

func (h *Hold) nextTick() time.Duration {
	return min(max(min(h.validUntil, h.renewAt)-h.locks.now(), 0), sleepMax)
}

func (h *Hold) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.look() != nil {
		return
	}
	if h.locks.now() >= h.renewAt {
		// Until that is over.
		h.renewAt = forever
		go h.Renew(context.Background(), 0)
	}
	h.timer.Reset(h.nextTick())
}

// look tells why it is over, and notices if that is new.
func (h *Hold) look() error {
	if h.over == nil && h.locks.now() >= h.validUntil {
		h.lose("its lease was not renewed in time")
	}
	return h.over
}

func (h *Hold) whyOver() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.look()
}

func (h *Hold) stop(why error) {
	h.over = why
	h.timer.Stop()
	h.cancel(why)
	h.locks.forget(h.attempt)
}

func (h *Hold) lose(why string) {
	h.stop(h.lost(why))
	slog.Warn(h.over.Error())
	// A renewal that got no answer may come late.
	go h.locks.insist(h.ending, h.locks.now()+h.lease)
}

func (h *Hold) lost(why string) error {
	return fmt.Errorf("%w: %q: %s", ErrLost, h.key, why)
}
