package redisnativelock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	logging.Disable()
	// The one of the examples.
	s := launch(withModule())
	os.Setenv("REDIS_ADDRESS", s.addr())
	m.Run()
	s.kill()
}

// A server with the lock module, started here.
type server struct {
	*redis.Client
	t       testing.TB
	port    int
	command []string
	process *exec.Cmd
	ended   chan struct{}
}

func withModule(options ...string) []string {
	module, _ := filepath.Abs(cmp.Or(os.Getenv("REDISLOCK_MODULE"), "../../target/release/libredislock.so"))
	return append(options, "--loadmodule", module)
}

func newServer(t testing.TB, options ...string) *server {
	return newServerWithout(t, withModule(options...)...)
}

func newServerWithout(t testing.TB, options ...string) *server {
	s := launch(append(options, "--dir", t.TempDir()))
	s.t = t
	t.Cleanup(s.kill)
	return s
}

func launch(options []string) *server {
	for range 10 {
		s := &server{port: 20000 + rand.IntN(12000)}
		s.command = append([]string{"--port", fmt.Sprint(s.port), "--bind", "127.0.0.1", "--save", ""}, options...)
		if s.start() {
			return s
		}
		s.kill()
	}
	panic("no server starts")
}

// start returns false if it ends at once, or there is another at its port.
func (s *server) start() bool {
	s.process = exec.Command(cmp.Or(os.Getenv("REDISLOCK_SERVER"), "redis-server"), s.command...)
	if err := s.process.Start(); err != nil {
		panic(err)
	}
	s.ended, s.Client = make(chan struct{}), redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1})
	go func() {
		_ = s.process.Wait()
		close(s.ended)
	}()
	for {
		conn, err := net.Dial("tcp", s.addr())
		if err == nil {
			conn.Close()
			return strings.Contains(s.Info(ctx, "server").Val(), fmt.Sprintf("process_id:%d\r", s.process.Process.Pid))
		}
		select {
		case <-s.ended:
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *server) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

func (s *server) signal(signal syscall.Signal) { _ = s.process.Process.Signal(signal) }

func (s *server) kill() {
	s.signal(syscall.SIGKILL)
	<-s.ended
	_ = s.Close()
}

// locks are those of a client of its own.
func (s *server) locks(options ...Option) *Locks { return New(s.newClient("app"), options...) }

func (s *server) newClient(name string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.addr(), ClientName: name, PoolSize: 30})
	s.t.Cleanup(func() { client.Close() })
	return client
}

// A sender is a client that does something before it sends a command of this package.
type sender struct {
	*redis.Client
	before func(args []any)
}

func (s sender) Do(ctx context.Context, args ...any) *redis.Cmd {
	s.before(args)
	return s.Client.Do(ctx, args...)
}

func (s *server) count(section, field string) (number int) {
	_, rest, _ := strings.Cut(s.Info(ctx, section).Val(), field+":")
	_, _ = fmt.Sscan(rest, &number)
	return number
}

func (s *server) places() int { return s.count("lock", "lock_places") }

func (s *server) lock(key string) map[any]any {
	return must[any](s.t)(s.Do(ctx, "LOCK.INFO", key).Result()).(map[any]any)
}

func (s *server) isFree(key string) bool {
	info := s.lock(key)
	return info["holding"] == int64(0) && info["waiting"] == int64(0)
}

// nothingIsLeft waits until there is no hold, no place, no blocked client, and nobody to whom messages are for.
func (s *server) nothingIsLeft(locks *Locks, keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		until(s.t, "free", func() bool { return s.isFree(key) })
	}
	until(s.t, "none waits", func() bool { return s.places()+s.count("clients", "blocked_clients") == 0 })
	locks.mu.Lock()
	defer locks.mu.Unlock()
	if len(locks.waits) != 0 {
		s.t.Fatalf("%d are left", len(locks.waits))
	}
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to this: %s", what)
		}
	}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func mustBe(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%v is not %v", err, want)
	}
}
