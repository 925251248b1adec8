// Takes locks of etcd or PostgreSQL as the lines of standard input say:
// what kind port clients locks sectionMicros warmUpMillis measureMillis leaseMillis settleMillis
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

var forever = context.Background()

// A client takes a lock, and returns what gives it back.
type client func(lock int) (func() error, error)

func etcd(port, leaseMillis int) (client, error) {
	connection, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{fmt.Sprintf("127.0.0.1:%d", port)},
		DialTimeout: 10 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(connection, concurrency.WithTTL(leaseMillis/1000))
	if err != nil {
		return nil, err
	}
	return func(lock int) (func() error, error) {
		mutex := concurrency.NewMutex(session, fmt.Sprintf("/lock/%d", lock))
		err := mutex.Lock(forever)
		return func() error { return mutex.Unlock(forever) }, err
	}, nil
}

func postgresql(port int) (client, error) {
	url := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	connection, err := pgx.Connect(forever, url)
	if err != nil {
		return nil, err
	}
	return func(lock int) (func() error, error) {
		_, err := connection.Exec(forever, "SELECT pg_advisory_lock($1)", lock)
		return func() error {
			_, err := connection.Exec(forever, "SELECT pg_advisory_unlock($1)", lock)
			return err
		}, err
	}, nil
}

type question struct {
	what, kind                                               string
	port, clients, locks, warmUp, measure, lease, settleTime int
}

func read(line string) question {
	words := strings.Fields(line)
	number := func(at int) int {
		n, err := strconv.Atoi(words[at])
		check(err)
		return n
	}
	return question{
		what: words[0], kind: words[1], port: number(2), clients: number(3), locks: number(4),
		warmUp: number(6), measure: number(7), lease: number(8), settleTime: number(9),
	}
}

func check(err error) {
	if err != nil {
		say(map[string]any{"failed": err.Error()})
		os.Exit(1)
	}
}

var output sync.Mutex

func say(what any) {
	output.Lock()
	defer output.Unlock()
	check(json.NewEncoder(os.Stdout).Encode(what))
}

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// Connections are made once, and stay for all questions about a server.
var known = map[string][]client{}

func (q question) connect() []client {
	name := fmt.Sprintf("%s %d", q.kind, q.port)
	for len(known[name]) < q.clients {
		var one client
		var err error
		if q.kind == "etcd" {
			one, err = etcd(q.port, q.lease)
		} else {
			one, err = postgresql(q.port)
		}
		check(err)
		known[name] = append(known[name], one)
	}
	return known[name][:q.clients]
}

func (q question) loop(clients []client) {
	var over atomic.Bool
	var all sync.WaitGroup
	begin := time.Now().Add(millis(q.warmUp))
	end := begin.Add(millis(q.measure))
	shares, latencies := make([]int, len(clients)), []int64{}
	for n, take := range clients {
		n, take := n, take
		all.Add(1)
		go func() {
			defer all.Done()
			for !over.Load() {
				lock := n % q.locks
				if q.what == "sections" {
					lock = rand.Intn(q.locks)
				}
				wanted := time.Now()
				release, err := take(lock)
				check(err)
				held := time.Now()
				check(release())
				if held.After(begin) && !held.After(end) {
					shares[n]++
					if q.what == "uncontended" && len(clients) == 1 {
						latencies = append(latencies, time.Since(wanted).Nanoseconds())
					}
				}
			}
		}()
	}
	time.Sleep(time.Until(begin))
	say("begin")
	time.Sleep(time.Until(end))
	say("end")
	over.Store(true)
	all.Wait()
	q.done(shares, latencies)
}

func (q question) done(shares []int, latencies []int64) {
	say(map[string]any{"done": map[string]any{
		"seconds": float64(q.measure) / 1000, "latenciesNs": latencies, "shares": shares,
	}})
}

// Two clients pass one lock to each other.
func (q question) handOff(clients []client) {
	comeBack := [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}
	begin := time.Now().Add(millis(q.warmUp))
	end := begin.Add(millis(q.measure))
	var releasedAt time.Time
	latencies, over := []int64{}, false
	var all sync.WaitGroup
	for n, take := range clients[:2] {
		n, take := n, take
		all.Add(1)
		go func() {
			defer all.Done()
			for {
				<-comeBack[n]
				release, err := take(0)
				check(err)
				held := time.Now()
				if releasedAt.After(begin) {
					latencies = append(latencies, held.Sub(releasedAt).Nanoseconds())
				}
				if over {
					check(release())
					return
				}
				over = held.After(end) && len(latencies) > 0
				// The other one waits by the time when this one gives it back.
				comeBack[1-n] <- struct{}{}
				settle := millis(q.settleTime)
				time.Sleep(settle + time.Duration(rand.Int63n(int64(settle))))
				last := over
				releasedAt = time.Now()
				check(release())
				if last {
					return
				}
			}
		}()
	}
	say("begin")
	comeBack[0] <- struct{}{}
	all.Wait()
	say("end")
	q.done([]int{len(latencies)}, latencies)
}

// Clients that want one lock and keep it.
func hold(clients []client) {
	say("begin")
	for _, take := range clients {
		take := take
		go func() {
			_, err := take(0)
			check(err)
			say("held")
		}()
	}
}

func main() {
	say(map[string]string{"ready": "Go"})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		q := read(lines.Text())
		clients := q.connect()
		switch q.what {
		case "hand-off":
			q.handOff(clients)
		case "hold":
			hold(clients)
		default:
			q.loop(clients)
		}
	}
}
