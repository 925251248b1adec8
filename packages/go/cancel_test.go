package redisnativelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestCancelledInEachPhaseNothingIsLeft(t *testing.T) {
	s := newServer(t)
	p := newProxy(s)
	locks := p.locks(t)
	h := must[*Hold](t)(s.locks().Mutex("l").Lock(ctx))
	stalled := func(word string, when func() bool) {
		t.Helper()
		p.swallowed.Store(0)
		p.swallows.Store(word)
		cancelled, cancel := context.WithCancelCause(ctx)
		w := wait(locks.Mutex("l"), cancelled)
		until(t, "it has come so far", when)
		begun, why := time.Now(), errors.New("the customer is gone")
		cancel(why)
		<-w.done
		if took := time.Since(begun); took > time.Second {
			t.Fatalf("it takes %v", took)
		}
		mustBe(t, w.err, why)
		p.swallows.Store("")
		p.cut()
		until(t, "no place", func() bool { return s.places() == 0 })
	}
	swallowed := func() bool { return p.swallowed.Load() > 0 }
	stalled("server", swallowed)        // while it connects
	stalled("_\r\n", swallowed)         // the first reply: null
	stalled("subscribe\r\n", swallowed) // while it subscribes
	stalled(":0\r\n", swallowed)        // while it asks for a place
	stalled("", func() bool { return s.places() == 1 })
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := locks.Mutex("free").Lock(over)
	mustBe(t, err, context.Canceled)
	// While it is handed on.
	cancelled, cancel := context.WithCancel(ctx)
	w := wait(locks.Mutex("l"), cancelled)
	until(t, "it waits", func() bool { return s.places() == 1 })
	p.swallowed.Store(0)
	p.swallows.Store("message\r\n")
	mustBe(t, h.Release(), nil)
	until(t, "the message is lost", swallowed)
	cancel()
	<-w.done
	mustBe(t, w.err, context.Canceled)
	p.swallows.Store("")
	s.nothingIsLeft(locks, "l", "free")
	must[*Hold](t)(locks.Mutex("l").Lock(ctx))
}

func TestCancelledAtAnyTimeOnASlowNetwork(t *testing.T) {
	s := newServer(t)
	p := newProxy(s)
	p.delay.Store(int64(5 * time.Millisecond))
	locks := p.locks(t)
	var all sync.WaitGroup
	for range 200 {
		all.Add(1)
		go func() {
			defer all.Done()
			limited, cancel := context.WithTimeout(ctx, rand.N(200*time.Millisecond))
			defer cancel()
			_ = locks.Mutex("l").Do(limited, func(h *Hold) error {
				<-time.After(time.Millisecond)
				return nil
			})
		}()
		time.Sleep(time.Millisecond)
	}
	all.Wait()
	s.nothingIsLeft(locks, "l")
	must[*Hold](t)(locks.Mutex("l").Lock(ctx))
}

func TestHungUpRequestsLeaveNothing(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	var served atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := locks.Mutex("customer:"+r.URL.Path[1:], Wait(20*time.Second)).Do(r.Context(), func(h *Hold) error {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-h.Context().Done():
				return context.Cause(h.Context())
			}
			served.Add(1)
			_, err := io.WriteString(w, "done")
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}))
	defer web.Close()
	ask := func(customer int, patience time.Duration) error {
		limited, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		request := must[*http.Request](t)(http.NewRequestWithContext(limited, "GET", fmt.Sprintf("%s/%d", web.URL, customer), nil))
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			defer response.Body.Close()
			if body, _ := io.ReadAll(response.Body); string(body) != "done" {
				err = errors.New(string(body))
			}
		}
		return err
	}
	var all sync.WaitGroup
	for range 500 {
		all.Add(1)
		go func() {
			defer all.Done()
			_ = ask(rand.IntN(5), rand.N(400*time.Millisecond))
		}()
		time.Sleep(time.Millisecond)
	}
	all.Wait()
	if n := served.Load(); n == 0 || n == 500 {
		t.Fatalf("%d were served", n)
	}
	for customer := range 5 {
		mustBe(t, ask(customer, 20*time.Second), nil)
		s.nothingIsLeft(locks, fmt.Sprint("customer:", customer))
	}
	client := locks.client.(*redis.Client)
	until(t, "all connections are free", func() bool {
		stats := client.PoolStats()
		return stats.IdleConns == stats.TotalConns
	})
	named := strings.Count(s.ClientList(ctx).Val(), "name=app ")
	if total := int(client.PoolStats().TotalConns); named > total+1 {
		t.Fatalf("%d connections, %d of the pool", named, total)
	}
}
