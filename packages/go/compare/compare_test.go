// Compares the package with redsync on one server. In this folder: ../../../examples/with-server go test -v
package compare

import (
	"context"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/redisnativelock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// A lock takes a lock, and returns what gives it back.
type lock func(key string) (func(), error)

func locks(t *testing.T) map[string]lock {
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		t.Skip("REDIS_URL names no server")
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	ours, theirs := redisnativelock.New(client), redsync.New(goredis.NewPool(client))
	return map[string]lock{
		"redisnativelock": func(key string) (func(), error) {
			h, err := ours.Mutex(key).Lock(ctx)
			return func() { _ = h.Release() }, err
		},
		"redsync": func(key string) (func(), error) {
			m := theirs.NewMutex(key, redsync.WithTries(1_000_000))
			return func() { _, _ = m.UnlockContext(ctx) }, m.LockContext(ctx)
		},
	}
}

func median(durations []time.Duration) time.Duration {
	slices.Sort(durations)
	return durations[len(durations)/2].Round(100 * time.Nanosecond)
}

func TestFigures(t *testing.T) {
	for name, take := range locks(t) {
		must := func(key string) func() {
			release, err := take(key)
			if err != nil {
				t.Fatal(err)
			}
			return release
		}
		var pairs []time.Duration
		for range 20000 {
			begun := time.Now()
			must(name + ":pair")()
			pairs = append(pairs, time.Since(begun))
		}
		// From the release to the next holder, which waits already.
		var handOffs []time.Duration
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && len(handOffs) < 2000; {
			release, had := must(name+":hand-off"), make(chan time.Time)
			go func() {
				release := must(name + ":hand-off")
				had <- time.Now()
				release()
				had <- time.Time{}
			}()
			time.Sleep(2 * time.Millisecond)
			begun := time.Now()
			release()
			handOffs = append(handOffs, (<-had).Sub(begun))
			<-had
		}
		var sections atomic.Int64
		var all sync.WaitGroup
		stop := time.Now().Add(5 * time.Second)
		for range 64 {
			all.Add(1)
			go func() {
				defer all.Done()
				for time.Now().Before(stop) {
					must(name + ":sections")()
					sections.Add(1)
				}
			}()
		}
		all.Wait()
		t.Logf("%-16s pair p50 %v, hand-off p50 %v, %d sections/s with 64 waiters",
			name, median(pairs), median(handOffs), sections.Load()/5)
	}
}
