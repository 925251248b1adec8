package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// A Hold is a lock that is held. It may be used by many goroutines.
type Hold struct {
	*attempt
	grantedAt       time.Duration
	ctx             context.Context
	cancel          context.CancelCauseFunc
	mu              sync.Mutex
	renewal, expiry *time.Timer
	over            error // Why it is over, if it is.
}

func newHold(ctx context.Context, a *attempt) (*Hold, error) {
	h := &Hold{attempt: a, grantedAt: a.locks.now()}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewal = time.AfterFunc(forever, func() { _ = h.Renew(context.Background(), 0) })
	h.expiry = time.AfterFunc(forever, func() { _ = h.whyOver() })
	if h.schedule(); h.over != nil {
		// The answer came when its lease was over.
		return nil, h.over
	}
	return h, nil
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
	if lease <= 0 {
		lease = h.lease
	}
	sent, before := h.locks.now(), h.validUntil
	// Until it is answered the shorter of the two leases is relied upon.
	h.validUntil = min(h.validUntil, validUntil(sent, lease))
	within := (h.validUntil - sent) / 3
	h.mu.Unlock()
	reply, err := h.do(ctx, h.locks.client, within, h.renew(lease))
	h.mu.Lock()
	h.noteRenewal(before, lease, err)
	if err == nil && reply != 1 && h.over == nil {
		h.lose("the server does not know this hold any more")
	}
	if over := h.look(); over != nil {
		return over
	}
	if err == nil {
		h.lease, h.validUntil = lease, validUntil(sent, min(lease, h.unanswered))
	} else {
		slog.Warn("redisnativelock: it is not renewed", "key", h.key, "error", err)
	}
	h.schedule()
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
	reply, err := ask(context.Background(), releaseWithin, func(context.Context) (int64, error) { return h.insist(h.ending) })
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
		return h.renew(rest)
	}
	return h.release()
}

// schedule sets the next renewal: when a third of the lease is over, and soon where less than that leaves is left.
func (h *Hold) schedule() {
	left := h.validUntil - h.locks.now()
	h.renewal.Reset(max(left-h.lease*2/3, min(h.lease/30, left/4)))
	_ = h.look()
}

// look tells why it is over, and notices if that is new. Else it looks again in time: timers stand still while a machine is
// suspended, leases do not.
func (h *Hold) look() error {
	left := h.validUntil - h.locks.now()
	switch {
	case h.over != nil:
	case left <= 0:
		h.lose("its lease was not renewed in time")
	default:
		h.expiry.Reset(min(left, time.Second))
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
	h.renewal.Stop()
	h.expiry.Stop()
	h.cancel(why)
	h.locks.forget(h.owner)
}

func (h *Hold) lose(why string) {
	h.stop(h.lost(why))
	slog.Warn(h.over.Error())
	// A renewal that got no answer may come late.
	go h.insist(h.ending)
}

func (h *Hold) lost(why string) error {
	return fmt.Errorf("%w: %q: %s", ErrLost, h.key, why)
}
