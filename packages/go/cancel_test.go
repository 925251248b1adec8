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
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

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

func TestWhoGivesUpLeavesTheOthersTheirSubscription(t *testing.T) {
	s := newServer(t)
	locks := s.locks()
	s.Do(ctx, "LOCK.ACQUIRE", "l", "somebody")
	_, _ = locks.Mutex("l", Wait(50*time.Millisecond)).Lock(ctx) // so that it has subscribed
	// Given up while its place is asked for.
	s.signal(syscall.SIGSTOP)
	_, err := locks.Mutex("l", Wait(100*time.Millisecond)).Lock(ctx)
	s.signal(syscall.SIGCONT)
	if mustBe(t, err, ErrBusy); !locks.hears(locks.channel) {
		t.Fatal("the subscription has ended")
	}
	until(t, "no place", func() bool { return s.places() == 0 })
}

func TestARequestThatComesAfterItsReleaseLeavesNothing(t *testing.T) {
	s := newServer(t)
	locks := s.locks(Lease(time.Hour))
	given, cancel := context.WithCancel(ctx)
	var releases atomic.Int64
	locks.client = sender{locks.client.(*redis.Client), func(args []any) {
		if args[0] == "LOCK.ACQUIRE" {
			cancel() // and it is sent all the same, over a connection that is closed
		} else if releases.Add(1) == 2 {
			s.Do(ctx, "LOCK.ACQUIRE", "l", args[2])
			releases.Add(1)
		}
	}}
	_, err := locks.Mutex("l").Lock(given)
	mustBe(t, err, context.Canceled)
	until(t, "it is given back once more", func() bool { return releases.Load() == 3 && s.isFree("l") })
}
