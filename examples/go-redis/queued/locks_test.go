// Tests of locks.go, against the server that REDIS_URL names.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const key = "a:b,ü" // a message says how many bytes it has

var ctx = context.Background()

// setUp has somebody else hold the lock.
func setUp(t *testing.T) (*redis.Client, *queuedLocks) {
	// Whoever is not told that the connections broke waits in vain.
	askAgain = time.Hour
	options, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	client.FlushAll(ctx)
	if err := client.Do(ctx, "LOCK.ACQUIRE", key, "other").Err(); err != nil {
		t.Fatal(err)
	}
	locks, err := open(ctx, os.Getenv("REDIS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(locks.close)
	return client, locks
}

func releaseTheLock(client *redis.Client) {
	client.Do(ctx, "LOCK.RELEASE", key, "other")
}

// takeTurns starts tasks, which return their tokens, once all of them wait.
func takeTurns(t *testing.T, client *redis.Client, locks *queuedLocks, count int) chan int64 {
	tokens := make(chan int64, count)
	for n := 0; n < count; n++ {
		go func() {
			err := locks.withLock(ctx, key, wait, func(token int64) error {
				tokens <- token
				return nil
			})
			if err != nil {
				t.Error(err)
				tokens <- 0
			}
		}()
	}
	awaitPlaces(client, count)
	return tokens
}

func awaitPlaces(client *redis.Client, count int) {
	for {
		info, _ := client.Do(ctx, "LOCK.INFO", key).Result()
		if fields, ok := info.(map[interface{}]interface{}); ok && fields["waiting"] == int64(count) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestBrokenConnections(t *testing.T) {
	client, locks := setUp(t)
	tokens := takeTurns(t, client, locks, 20)
	for _, line := range strings.Split(client.ClientList(ctx).Val(), "\n") {
		if strings.Contains(line, "name="+locks.channel) {
			client.ClientKillByFilter(ctx, "ID", strings.TrimPrefix(strings.Fields(line)[0], "id="))
		}
	}
	releaseTheLock(client)
	last := int64(0)
	for n := 0; n < 20; n++ {
		token := <-tokens
		if token <= last {
			t.Error("the token", token, "is not greater than", last)
		}
		last = token
	}
}

func TestATokenThatIsNotItsOwn(t *testing.T) {
	client, locks := setUp(t)
	tokens := takeTurns(t, client, locks, 1)
	owner, told := waiter(locks)
	client.Publish(ctx, locks.channel,
		fmt.Sprintf("1:0,%d:%s,%d:%s,1:1,4:2000,", len(key), key, len(owner), owner))
	for _, now := waiter(locks); now == told; _, now = waiter(locks) {
		time.Sleep(time.Millisecond)
	}
	if len(tokens) > 0 {
		t.Error("two hold the lock")
	}
	releaseTheLock(client)
	<-tokens
}

func waiter(locks *queuedLocks) (string, chan string) {
	locks.mutex.Lock()
	defer locks.mutex.Unlock()
	for owner, told := range locks.waiting {
		return owner, told
	}
	return "", nil
}

func TestAWaitThatIsOver(t *testing.T) {
	client, locks := setUp(t)
	err := locks.withLock(ctx, key, 50*time.Millisecond, func(int64) error {
		t.Error("two hold the lock")
		return nil
	})
	if !errors.Is(err, errBusy) {
		t.Error("expected errBusy, not", err)
	}
	awaitPlaces(client, 0)
	if owner, _ := waiter(locks); owner != "" {
		t.Error("a wait is left")
	}
}

func TestALeaseThatIsOverBeforeTheWork(t *testing.T) {
	client, locks := setUp(t)
	releaseTheLock(client)
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	for _, deleted := range []string{key, "another"} {
		err := locks.withLock(ctx, key, wait, func(int64) error {
			return client.Del(ctx, deleted).Err()
		})
		if err != nil {
			t.Error(err)
		}
	}
	if count := strings.Count(said.String(), key+": the lease ended before the work did\n"); count != 1 {
		t.Error("it said", said.String())
	}
}

func TestTheExampleRuns(t *testing.T) {
	output, err := exec.Command("go", "run", ".").CombinedOutput()
	if err != nil || string(output) != "100 tasks in 3 sections, never two in one, over 2 connections\n" {
		t.Error(err, string(output))
	}
}
