// A lock around a piece of work, with go-redis.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	lease = 60 * time.Second // longer than the work takes
	block = 30 * time.Second // how long to wait for the lock
)

var errBusy = errors.New("the lock is busy")

func connect(url string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	// The read time-out must exceed BLOCK. The default is 3 s.
	options.ReadTimeout = block + 10*time.Second
	options.ContextTimeoutEnabled = true // a deadline of ctx ends the wait
	return redis.NewClient(options), nil
}

// withLock holds the lock while work, which is given the fencing token, runs.
func withLock(ctx context.Context, client *redis.Client, key string, block time.Duration, work func(token int64) error) error {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	owner := hex.EncodeToString(id)
	// With HOLD 1 it does no harm that go-redis sends a command again when its
	// connection breaks.
	token, err := client.Do(ctx, "LOCK.ACQUIRE", key, owner,
		"LEASE", lease.Milliseconds(), "BLOCK", block.Milliseconds(), "HOLD", 1).Int64()
	if errors.Is(err, redis.Nil) {
		return errBusy
	}
	defer func() {
		err := release(client, key, owner)
		if errors.Is(err, redis.Nil) {
			if token > 0 {
				log.Printf("%s: the lease ended before the work did", key)
			}
		} else if err != nil {
			log.Printf("%s stays locked until the lease ends: %v", key, err)
		}
	}()
	if err != nil {
		return err
	} else if ctx.Err() != nil {
		return ctx.Err()
	}
	return work(token)
}

// release gives the lock back, even if the caller's context has been cancelled. Without FENCE
// it gives back a hold whose token did not arrive, too.
func release(client *redis.Client, key, owner string) (err error) {
	for try := 0; try < 5; try++ {
		time.Sleep(time.Duration(try) * time.Second)
		err = client.Do(context.Background(), "LOCK.RELEASE", key, owner).Err()
		if err == nil || errors.Is(err, redis.Nil) {
			break
		}
	}
	return err
}

func main() {
	url := os.Getenv("REDIS_URL")
	if url == "" {
		url = "redis://localhost:6379"
	}
	client, err := connect(url)
	if err != nil {
		log.Fatal(err)
	}
	err = withLock(context.Background(), client, "orders:42", block, func(token int64) error {
		// Whatever is written under the lock carries the token, and late writes fail:
		// UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
		fmt.Println("orders:42 is mine, with token", token)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
