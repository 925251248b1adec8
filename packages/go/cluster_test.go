package redisnativelock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// newCluster has three primaries, which know all slots.
func newCluster(t *testing.T) (nodes []*server, client *redis.ClusterClient) {
	t.Helper()
	var addresses []string
	for i := range 3 {
		s := newServer(t, "--cluster-enabled", "yes")
		s.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", i*5462, min(i*5462+5461, 16383))
		nodes, addresses = append(nodes, s), append(addresses, s.addr())
	}
	for i, s := range nodes {
		s.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		s.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
	}
	client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, PoolSize: 30})
	t.Cleanup(func() { client.Close() })
	until(t, "each node serves its slots, and knows the others'", func() bool {
		for _, s := range nodes {
			if info := s.ClusterInfo(ctx).Val(); !strings.Contains(info, "state:ok") || !strings.Contains(info, "size:3") {
				return false
			}
		}
		return true
	})
	return nodes, client
}

func TestWaitsInACluster(t *testing.T) {
	nodes, client := newCluster(t)
	locks := New(client)
	places := func(number int) func() bool {
		return func() bool { return nodes[0].places()+nodes[1].places()+nodes[2].places() == number }
	}
	var held []*Hold
	var waits []*waiting
	for number := range 12 {
		m := locks.Mutex(fmt.Sprint("key:", number))
		held = append(held, must[*Hold](t)(m.Lock(ctx)))
		_, err := locks.Mutex(m.key, Wait(50*time.Millisecond)).Lock(ctx)
		mustBe(t, err, ErrBusy)
		waits = append(waits, wait(m, ctx))
	}
	until(t, "all wait", places(12))
	locks.mu.Lock()
	if len(locks.ears) != 3 {
		t.Errorf("%d subscriptions for 3 nodes", len(locks.ears))
	}
	locks.mu.Unlock()
	// The subscriptions are cut at one node, and connections at another.
	nodes[0].Do(ctx, "CLIENT", "KILL", "TYPE", "pubsub")
	nodes[1].Do(ctx, "CLIENT", "KILL", "TYPE", "normal")
	for i, h := range held {
		mustBe(t, h.Release(), nil)
		mustBe(t, waits[i].get(t).Renew(ctx, 0), nil)
		mustBe(t, waits[i].hold.Release(), nil)
	}
	cancelled, cancel := context.WithCancel(ctx)
	must[*Hold](t)(locks.Mutex("l").Lock(ctx))
	w := wait(locks.Mutex("l"), cancelled)
	until(t, "it waits", places(1))
	cancel()
	<-w.done
	mustBe(t, w.err, context.Canceled)
	until(t, "nothing is left", places(0))
}

func TestOneAtATimeInAClusterWhileConnectionsAreKilled(t *testing.T) {
	nodes, client := newCluster(t)
	locks := New(client)
	var inside [6]int
	var all sync.WaitGroup
	for number := range 300 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 5 {
				key := number % len(inside)
				err := locks.Mutex(fmt.Sprint("key:", key)).Do(ctx, func(*Hold) error {
					if inside[key]++; inside[key] != 1 {
						t.Errorf("%d are inside", inside[key])
					}
					inside[key]--
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for i := range 6 {
		time.Sleep(20 * time.Millisecond)
		nodes[i%3].Do(ctx, "CLIENT", "KILL", "TYPE", []string{"normal", "pubsub"}[i%2])
	}
	all.Wait()
	for _, s := range nodes {
		until(t, "no place", func() bool { return s.places() == 0 })
	}
}

func TestASlotThatMovesWhileItIsWaitedFor(t *testing.T) {
	nodes, client := newCluster(t)
	locks := New(client)
	slot := slotOf("moving")
	from, to := nodes[slot/5462], nodes[(slot/5462+1)%3]
	h := must[*Hold](t)(locks.Mutex("moving").Lock(ctx))
	w := wait(locks.Mutex("moving"), ctx)
	until(t, "it waits", func() bool { return from.places() == 1 })
	source := must[string](t)(from.Do(ctx, "CLUSTER", "MYID").Text())
	target := must[string](t)(to.Do(ctx, "CLUSTER", "MYID").Text())
	mustBe(t, to.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", source).Err(), nil)
	mustBe(t, from.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", target).Err(), nil)
	mustBe(t, from.Do(ctx, "MIGRATE", "127.0.0.1", to.port, "moving", 0, 5000).Err(), nil)
	for _, s := range append([]*server{to, from}, nodes...) {
		mustBe(t, s.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", target).Err(), nil)
	}
	until(t, "it waits there", func() bool { return to.places() == 1 })
	mustBe(t, h.Release(), nil)
	mustBe(t, w.get(t).Release(), nil)
}

func TestAFailOverBySentinel(t *testing.T) {
	primary := newServer(t)
	replica := newServer(t, "--replicaof", "127.0.0.1", fmt.Sprint(primary.port))
	until(t, "the replica follows", func() bool {
		return strings.Contains(replica.Info(ctx, "replication").Val(), "master_link_status:up")
	})
	path := filepath.Join(t.TempDir(), "sentinel.conf")
	config := fmt.Sprintf("sentinel monitor main 127.0.0.1 %d 1\nsentinel down-after-milliseconds main 500\n"+
		"sentinel failover-timeout main 3000\n", primary.port)
	mustBe(t, os.WriteFile(path, []byte(config), 0o600), nil)
	sentinel := &server{t: t, port: 20000 + rand.IntN(12000)}
	sentinel.command = []string{path, "--sentinel", "--port", fmt.Sprint(sentinel.port)}
	if !sentinel.start() {
		t.Fatal("no sentinel")
	}
	t.Cleanup(sentinel.kill)
	until(t, "it knows the replica", func() bool {
		found := sentinel.Do(ctx, "SENTINEL", "REPLICAS", "main").Val()
		return strings.Contains(fmt.Sprint(found), "master-link-status:ok")
	})
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.addr()}})
	defer client.Close()
	locks := New(client, Lease(60*time.Second))
	h := must[*Hold](t)(locks.Mutex("l").Lock(ctx))
	w := wait(locks.Mutex("l"), ctx)
	until(t, "it waits", func() bool { return primary.places() == 1 })
	until(t, "the hold is replicated", func() bool { return replica.Exists(ctx, "l").Val() == 1 })
	primary.kill()
	until(t, "it waits at the new primary", func() bool { return replica.places() == 1 })
	mustBe(t, h.Release(), nil)
	mustBe(t, w.get(t).Release(), nil)
}
