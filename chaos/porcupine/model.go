package main

import (
	"maps"
	"math"

	"github.com/anishathalye/porcupine"
)

// What an answer says.
const (
	granted = iota
	renewed
	released
	stillHeld
	notHeld
)

type input struct {
	says        int
	owner       string
	call, end   int64
	lease       int64
	token       int64 // 0 if it was not told.
	fence       int64 // 0 if none was named.
	hold, limit int
	// Whether the owner may have got, or got back, a hold of which nobody was told.
	vague bool
	// From this time on its hold may be over, whatever its lease.
	cap int64
}

// The hold of one owner. Its lease may be over from `safe` on: whatever happens later can
// find it there or not. So the end of a lease is no operation of its own.
type hold struct {
	token int64
	limit int
	most  int // No more holds than this.
	safe  int64
}

type state struct {
	holds   map[string]hold
	highest int64 // The greatest token so far.
	now     int64 // It is not earlier than this.
}

func equal(a, b any) bool {
	x, y := a.(state), b.(state)
	return x.highest == y.highest && x.now == y.now && maps.Equal(x.holds, y.holds)
}

// Whether the owner may have the lock beside those that hold it for certain. Those that
// can't hold it any more then are gone.
func (s state) admits(in input, limit int) bool {
	certain := 1
	for owner, other := range s.holds {
		if owner == in.owner {
			continue
		}
		if other.safe > in.end {
			certain, limit = certain+1, min(limit, other.limit)
		} else if limit == 1 || other.limit == 1 {
			delete(s.holds, owner)
		}
	}
	return certain <= limit
}

func (s state) step(in input) (bool, state) {
	s.holds, s.now = maps.Clone(s.holds), max(s.now, in.call)
	from := s.now
	if in.vague { // The grant may be older than the request that tells of it.
		from = in.call
	}
	safe := min(from+in.lease-tolerance, in.cap)
	own, holds := s.holds[in.owner]
	mayLack := !holds || in.vague || own.safe <= in.end
	names := in.fence == 0 || own.token == 0 || in.fence == own.token
	switch in.says {
	case granted:
		if holds && own.token == in.token && in.token != 0 {
			own.most++
			own.safe = min(max(own.safe, safe), in.cap)
			s.holds[in.owner] = own
			return true, s
		}
		isNew := in.token == 0 || in.token > s.highest || in.vague
		isReentry := holds && (in.token == 0 || own.token == 0)
		if !isNew || !mayLack && !isReentry || !s.admits(in, in.limit) {
			return false, s
		}
		if !isReentry {
			own.most = 0
		}
		s.highest = max(s.highest, in.token)
		s.holds[in.owner] = hold{in.token, in.limit, own.most + 1, safe}
	case renewed, stillHeld:
		if !in.vague && !(holds && names) {
			return false, s
		}
		if !holds {
			own = hold{limit: in.limit}
			if !s.admits(in, own.limit) {
				return false, s
			}
		}
		if in.vague {
			own.most = math.MaxInt32
		}
		if in.says == renewed {
			own.safe = safe
		} else if left := max(in.hold-1, 1); in.hold > 0 {
			if own.most < left {
				return false, s
			}
			own.most = left
		} else {
			own.most--
			if own.most < 1 {
				return false, s
			}
		}
		s.holds[in.owner] = own
	case released: // The end of a first hold is also told to who has none.
		delete(s.holds, in.owner)
		return in.hold == 1 || in.vague || holds && names, s
	case notHeld:
		if names || !holds {
			delete(s.holds, in.owner)
			return mayLack, s
		}
	}
	return true, s
}

func modelFrom(highest int64) porcupine.Model {
	return porcupine.Model{
		Init:  func() any { return state{map[string]hold{}, highest, 0} },
		Equal: equal,
		Step: func(before, asked, _ any) (bool, any) {
			return before.(state).step(asked.(input))
		},
	}
}
