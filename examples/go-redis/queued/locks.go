// Many waits for locks over two connections, with go-redis.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	lease = 60 * time.Second // longer than the work takes
	wait  = 30 * time.Second // how long to wait for the lock
)

var askAgain = 10 * time.Second // a message may be lost

var errBusy = errors.New("the lock is busy")

// queuedLocks has a few connections for the commands, none of which waits, and one for the messages.
type queuedLocks struct {
	client   *redis.Client
	messages *redis.PubSub
	channel  string

	mutex   sync.Mutex
	waiting map[string]chan string // by owner: the result of its place
}

func open(ctx context.Context, url string) (*queuedLocks, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	channel := "locks:" + randomName()
	options.ClientName = channel
	options.PoolSize = 1 // enough, because no command waits at the server
	options.PoolTimeout = wait
	client := redis.NewClient(options)
	l := &queuedLocks{client: client, messages: client.Subscribe(ctx, channel), channel: channel,
		waiting: make(map[string]chan string)}
	// First of all, because nothing is granted to a place that nobody listens for.
	if _, err := l.messages.Receive(ctx); err != nil {
		l.close()
		return nil, err
	}
	go l.listen()
	return l, nil
}

func (l *queuedLocks) close() {
	l.messages.Close()
	l.client.Close()
}

func (l *queuedLocks) listen() {
	for message := range l.messages.ChannelWithSubscriptions() {
		l.mutex.Lock()
		switch message := message.(type) {
		case *redis.Message:
			if parts := netstrings(message.Payload); len(parts) == 5 {
				tell(l.waiting[parts[2]], parts[3])
			}
		case *redis.Subscription: // Subscribed anew: what was told meanwhile is lost.
			for _, told := range l.waiting {
				tell(told, "0")
			}
		}
		l.mutex.Unlock()
	}
}

func tell(told chan string, result string) {
	select {
	case told <- result:
	default: // Nobody waits, or it has been told already.
	}
}

// netstrings returns the parts of a message: database, key, owner, result, first lease in ms.
func netstrings(message string) (parts []string) {
	for {
		length, rest, _ := strings.Cut(message, ":")
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n >= len(rest) {
			return parts
		}
		parts, message = append(parts, rest[:n]), rest[n+1:]
	}
}

// withLock holds the lock while work, which is given the fencing token, runs.
func (l *queuedLocks) withLock(ctx context.Context, key string, wait time.Duration, work func(token int64) error) error {
	owner := randomName()
	token, err := l.acquire(ctx, key, owner, wait)
	defer func() {
		err := l.release(key, owner)
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
// it gives the place up, and a hold as well.
func (l *queuedLocks) release(key, owner string) (err error) {
	for try := 0; try < 5; try++ {
		time.Sleep(time.Duration(try) * time.Second)
		err = l.client.Do(context.Background(), "LOCK.RELEASE", key, owner).Err()
		if err == nil || errors.Is(err, redis.Nil) {
			break
		}
	}
	return err
}

func (l *queuedLocks) acquire(ctx context.Context, key, owner string, wait time.Duration) (int64, error) {
	defer l.setWaiting(owner, nil)
	end := time.Now().Add(wait)
	for left := wait; left >= time.Millisecond; left = time.Until(end) {
		// Before the request, because the message may come before its reply.
		told := make(chan string, 1)
		l.setWaiting(owner, told)
		// The same request again keeps the place.
		token, err := l.client.Do(ctx, "LOCK.ACQUIRE", key, owner, "LEASE", lease.Milliseconds(),
			"QUEUE", left.Milliseconds(), l.channel).Int64()
		if err != nil || token > 0 {
			return token, err
		}
		if left > askAgain {
			left = askAgain
		}
		result := "0"
		timer := time.NewTimer(left)
		select {
		case result = <-told:
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil {
			return 0, err
		} else if strings.HasPrefix(result, "-") {
			return 0, errors.New(result[1:])
		} else if result == "0" {
			continue
		}
		// A token that is told has a short lease until it is claimed.
		claimed, err := l.client.Do(ctx, "LOCK.RENEW", key, owner, "LEASE", lease.Milliseconds(),
			"FENCE", result).Bool()
		if err != nil {
			return 0, err
		} else if claimed {
			return strconv.ParseInt(result, 10, 64)
		}
	}
	return 0, errBusy
}

func (l *queuedLocks) setWaiting(owner string, told chan string) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if told == nil {
		delete(l.waiting, owner)
	} else {
		l.waiting[owner] = told
	}
}

func randomName() string {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		panic(err)
	}
	return hex.EncodeToString(id)
}

func main() {
	url := os.Getenv("REDIS_URL")
	if url == "" {
		url = "redis://localhost:6379"
	}
	ctx := context.Background()
	locks, err := open(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.close()
	var inside [3]int32
	errs := make(chan error)
	for task := 0; task < 100; task++ {
		section := task % 3
		go func() {
			errs <- locks.withLock(ctx, fmt.Sprint("orders:", section), wait, func(token int64) error {
				// Whatever is written under the lock carries the token, and late writes fail:
				// UPDATE orders SET state = 'paid', fence = :token WHERE id = 42 AND fence <= :token
				if atomic.AddInt32(&inside[section], 1) > 1 {
					return errors.New("two are in a section")
				}
				time.Sleep(time.Millisecond)
				atomic.AddInt32(&inside[section], -1)
				return nil
			})
		}()
	}
	for task := 0; task < 100; task++ {
		if err := <-errs; err != nil {
			log.Fatal(err)
		}
	}
	connections := strings.Count(locks.client.ClientList(ctx).Val(), "name="+locks.channel)
	fmt.Printf("100 tasks in 3 sections, never two in one, over %d connections\n", connections)
}
