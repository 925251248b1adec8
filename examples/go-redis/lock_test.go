// Tests of lock.go, against the server that REDIS_URL names.
package main

import (
	"bytes"
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func emptyServer(t *testing.T) *redis.Client {
	client, err := connect(os.Getenv("REDIS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := client.FlushAll(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	return client
}

func TestOneAtATime(t *testing.T) {
	client := emptyServer(t)
	client.Set(ctx, "counter", 0, 0)
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < 10; n++ {
				err := withLock(ctx, client, "l", block, func(int64) error {
					count, err := client.Get(ctx, "counter").Int()
					if err != nil {
						return err
					}
					return client.Set(ctx, "counter", count+1, 0).Err()
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
	if count := client.Get(ctx, "counter").Val(); count != "80" {
		t.Error("the counter is", count)
	}
}

func TestAReleaseEndsTheWait(t *testing.T) {
	client := emptyServer(t)
	tokens := make(chan int64, 1)
	var first int64
	err := withLock(ctx, client, "l", block, func(token int64) error {
		first = token
		go func() {
			err := withLock(ctx, client, "l", block, func(token int64) error {
				tokens <- token
				return nil
			})
			if err != nil {
				t.Error(err)
				close(tokens)
			}
		}()
		for !strings.Contains(client.Info(ctx, "clients").Val(), "blocked_clients:1") {
			time.Sleep(time.Millisecond)
		}
		if len(tokens) > 0 {
			t.Error("two hold the lock")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if next := <-tokens; next <= first {
		t.Error("the token", next, "is not greater than", first)
	}
}

func TestAWaitThatIsOver(t *testing.T) {
	client := emptyServer(t)
	err := withLock(ctx, client, "l", block, func(int64) error {
		return withLock(ctx, client, "l", 50*time.Millisecond, func(int64) error {
			t.Error("two hold the lock")
			return nil
		})
	})
	if !errors.Is(err, errBusy) {
		t.Error("expected errBusy, not", err)
	}
}

func TestAContextThatIsOver(t *testing.T) {
	client := emptyServer(t)
	err := withLock(ctx, client, "l", block, func(int64) error {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return withLock(ctx, client, "l", block, func(int64) error {
			t.Error("two hold the lock")
			return nil
		})
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error("expected the end of the context, not", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	err = withLock(cancelled, client, "l", block, func(int64) error {
		t.Error("it works with a dead context")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error("expected the end of the context, not", err)
	}
	if client.Exists(ctx, "l").Val() != 0 {
		t.Error("the lock is not given back")
	}
}

func TestALeaseThatIsOverBeforeTheWork(t *testing.T) {
	client := emptyServer(t)
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	for _, key := range []string{"l", "another"} {
		err := withLock(ctx, client, "l", block, func(int64) error {
			return client.Del(ctx, key).Err()
		})
		if err != nil {
			t.Error(err)
		}
	}
	if count := strings.Count(said.String(), "l: the lease ended before the work did\n"); count != 1 {
		t.Error("it said", said.String())
	}
}

func TestTheExampleRuns(t *testing.T) {
	client := emptyServer(t)
	main()
	if client.Exists(ctx, "orders:42").Val() != 0 {
		t.Error("the lock is not given back")
	}
}
