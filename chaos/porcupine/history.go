package main

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

const (
	ms        = int64(1_000_000)
	tolerance = 2 * ms // How far server and clients may be apart within a lease.
)

// A line of a history: what a client did, or what was done to the server.
type line struct {
	Client, Connection int
	Lock               *string
	Owner              string
	Request, Outcome   tagged
	Sent               int64
	Answered           *int64
	Queued             *int64
	Effect             string
	From, Until        int64
}

// A name, and what belongs to it.
type tagged struct {
	name  string
	value json.RawMessage
}

func (t *tagged) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &t.name)
	}
	var fields map[string]json.RawMessage
	err := json.Unmarshal(text, &fields)
	for t.name, t.value = range fields {
	}
	return err
}

type details struct {
	LeaseMs int64 `json:"lease_ms"`
	ClaimMs int64 `json:"claim_ms"`
	Mode    tagged
	Session bool
	Fence   int64
	Hold    int
	Token   int64
}

func (t tagged) details() (d details) {
	if len(t.value) > 0 && t.value[0] == '{' {
		json.Unmarshal(t.value, &d)
	} else {
		json.Unmarshal(t.value, &d.Token)
	}
	return d
}

func (l line) unknown() bool {
	return slices.Contains([]string{"Pending", "Lost", "GivenUp", "Silent"}, l.Outcome.name)
}

func (d details) limit() int {
	switch d.Mode.name {
	case "Shared":
		return math.MaxInt
	case "Limited":
		return int(d.Mode.details().Token)
	}
	return 1
}

// What happened to each lock, as operations whose answers are known. What is unknown is
// in them: it makes their owner vague, and bounds what is certain of its holds.
func read(from io.Reader) (map[string][]porcupine.Operation, error) {
	type tenant struct{ lock, owner string }
	tenants, effects := map[tenant][]line{}, []line{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one line
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, err
		}
		if one.Effect != "" {
			effects = append(effects, one)
		} else {
			key := tenant{*one.Lock, one.Owner}
			tenants[key] = append(tenants[key], one)
		}
	}
	locks := map[string][]porcupine.Operation{}
	for key, its := range tenants {
		for _, one := range its {
			if input, ok := step(one, its, effects); ok {
				locks[key.lock] = append(locks[key.lock], porcupine.Operation{
					ClientId: one.Client, Input: input, Call: one.Sent, Return: *one.Answered,
				})
			}
		}
	}
	return locks, lines.Err()
}

// What one answer says, beside all that its owner did on the lock. Errors and pings say
// nothing of it.
func step(one line, its, effects []line) (input, bool) {
	asked := one.Request.details()
	in := input{
		owner: one.Owner, call: one.Sent, end: math.MaxInt64, lease: asked.LeaseMs * ms,
		limit: asked.limit(), fence: asked.Fence, hold: asked.Hold, cap: math.MaxInt64,
	}
	if one.unknown() || one.Answered == nil {
		return in, false
	}
	in.end = *one.Answered
	switch one.Outcome.name {
	case "Granted", "GrantedWithoutToken":
		in.says, in.token = granted, one.Outcome.details().Token
	case "Told":
		told := one.Outcome.details()
		in.says, in.token, in.lease = granted, told.Token, told.LeaseMs*ms
	case "Renewed":
		in.says = renewed
	case "Released":
		in.says = released
	case "StillHeld":
		in.says = stillHeld
	case "NotHeld", "NotAvailable":
		in.says = notHeld
	default:
		return in, false
	}
	first, loosest := one.Sent, in.limit
	for _, other := range its {
		first = min(first, other.Sent)
		about := other.Request.details()
		switch other.Request.name {
		case "Acquire":
			if other.unknown() && other.Sent <= in.end {
				in.vague = true
			}
			loosest = max(loosest, about.limit())
		case "Release":
			if other.unknown() {
				in.cap = min(in.cap, other.Sent)
			}
		case "Renew":
			if other.unknown() {
				in.cap = min(in.cap, other.Sent+about.LeaseMs*ms-tolerance)
			}
		}
		if about.Session {
			in.cap = min(in.cap, alive(other, its))
		}
	}
	for _, other := range effects {
		if other.Lock != nil && *other.Lock != *one.Lock {
			continue
		}
		switch other.Effect {
		case "EndsHolds", "ChangesLeases":
			if other.Until > one.Sent {
				in.cap = min(in.cap, other.From)
			}
		case "BringsBack":
			in.vague = in.vague || other.From <= in.end && first <= other.Until
		}
	}
	if in.vague {
		in.limit = loosest
		// The message may tell of a grant to an earlier request.
		if one.Outcome.name == "Told" {
			in.cap = min(in.cap, one.Sent)
		}
	}
	return in, true
}

// Until when the connection of a session certainly lived.
func alive(session line, its []line) int64 {
	at := session.Sent
	for _, one := range its {
		if one.Client == session.Client && one.Connection == session.Connection &&
			!one.unknown() && one.Request.name != "Close" {
			at = max(at, one.Sent)
		}
	}
	return at
}
