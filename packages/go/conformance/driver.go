// The driver of the conformance suite: conformance/README.md of the project says what it is told, and what it answers.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"example.com/redisnativelock"
	"github.com/redis/go-redis/v9"
)

type call struct {
	ID     int
	Of     int
	Call   string
	Client string

	Kind     string
	URLs     []string
	Service  string
	User     string
	Password string
	CAFile   string `json:"ca_file"`
	Prefix   string

	Key       string
	KeyHex    string `json:"key_hex"`
	WaitMS    *int64 `json:"wait_ms"`
	LeaseMS   int64  `json:"lease_ms"`
	AtLeastMS int64  `json:"at_least_ms"`
	Shared    bool
	Limit     int
	Renew     *bool
	With      string
	File      string
	Tasks     int
	Times     int
}

// A wait is an acquire or a run, and its hold.
type wait struct {
	ctx    context.Context
	cancel context.CancelFunc
	finish chan string
	hold   atomic.Pointer[redisnativelock.Hold]
}

type client struct {
	redis redis.UniversalClient
	locks *redisnativelock.Locks
}

var (
	clients, waits sync.Map
	writing        sync.Mutex

	errWork        = errors.New("as it was told to")
	errUnsupported = errors.New("the package does not offer this")
	names          = []struct {
		err  error
		name string
	}{
		{errWork, "WorkFailed"},
		{errUnsupported, "Unsupported"},
		{redisnativelock.ErrBusy, "LockBusy"},
		{redisnativelock.ErrLost, "LockLost"},
		{redisnativelock.ErrDeadlock, "Deadlock"},
		{redisnativelock.ErrNotSafe, "NotSafe"},
		{redisnativelock.ErrSuperseded, "Superseded"},
		{redisnativelock.ErrNoModule, "NoModule"},
		{context.Canceled, "Cancelled"},
	}
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		if c.Call == "acquire" || c.Call == "run" {
			w := &wait{finish: make(chan string, 1)}
			w.ctx, w.cancel = context.WithCancel(context.Background())
			waits.Store(c.ID, w)
		}
		go answer(c)
	}
}

func monotonicMS() float64 {
	const monotonic = 1
	var at syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&at)), 0)
	return float64(at.Nano()) / 1e6
}

func write(line map[string]any) {
	line["at"] = monotonicMS()
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	writing.Lock()
	defer writing.Unlock()
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func answer(c call) {
	result, err := c.do()
	if err == nil {
		write(map[string]any{"id": c.ID, "ok": result})
		return
	}
	write(map[string]any{"id": c.ID, "error": nameOf(err), "text": err.Error()})
}

func nameOf(err error) string {
	for _, known := range names {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	var answer redis.Error
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"):
		return "NoPermission"
	case errors.As(err, &answer):
		return "Other"
	}
	return "Unavailable"
}

func (c call) do() (map[string]any, error) {
	nothing := map[string]any{}
	switch c.Call {
	case "connect":
		return nothing, c.connect()
	case "close":
		named, _ := clients.LoadAndDelete(c.Client)
		return nothing, named.(client).redis.Close()
	case "clock":
		return map[string]any{"wall_ms": time.Now().UnixMilli()}, nil
	case "count":
		return c.count()
	case "acquire", "run":
		found, _ := waits.Load(c.ID)
		if c.Renew != nil && !*c.Renew {
			return nil, errUnsupported
		}
		if c.Call == "run" {
			return c.run(found.(*wait))
		}
		return c.acquire(found.(*wait))
	}
	found, _ := waits.Load(c.Of)
	w := found.(*wait)
	switch c.Call {
	case "cancel":
		w.cancel()
		return nothing, nil
	case "finish":
		w.finish <- c.With
		return nothing, nil
	case "release":
		return map[string]any{"released": w.hold.Load().Release() == nil}, nil
	case "renew":
		return nothing, w.hold.Load().Renew(context.Background(), milliseconds(c.LeaseMS))
	case "valid_for":
		return map[string]any{"ms": float64(w.hold.Load().ValidFor()) / 1e6}, nil
	case "lost":
		ctx := w.hold.Load().Context()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), redisnativelock.ErrLost) {
			// It was released or cancelled: it is never lost.
			select {}
		}
		return nothing, nil
	}
	return nil, errUnsupported
}

func milliseconds(number int64) time.Duration { return time.Duration(number) * time.Millisecond }

func (c call) connect() error {
	var addresses []string
	var trusted *tls.Config
	for _, url := range c.URLs {
		scheme, address, _ := strings.Cut(url, "://")
		addresses = append(addresses, address)
		if scheme == "rediss" {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return err
			}
			trusted = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: host}
			pem, err := os.ReadFile(c.CAFile)
			if err != nil {
				return err
			}
			trusted.RootCAs.AppendCertsFromPEM(pem)
		}
	}
	var made redis.UniversalClient
	switch c.Kind {
	case "one":
		made = redis.NewClient(&redis.Options{Addr: addresses[0], Username: c.User, Password: c.Password, TLSConfig: trusted})
	case "sentinel":
		made = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: c.Service, SentinelAddrs: addresses, Username: c.User, Password: c.Password, TLSConfig: trusted,
		})
	case "cluster":
		made = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: addresses, Username: c.User, Password: c.Password, TLSConfig: trusted,
		})
	default:
		return errUnsupported
	}
	options := []redisnativelock.Option{redisnativelock.Prefix(c.Prefix)}
	if c.LeaseMS != 0 {
		options = append(options, redisnativelock.Lease(milliseconds(c.LeaseMS)))
	}
	clients.Store(c.Client, client{made, redisnativelock.New(made, options...)})
	return nil
}

func (c call) mutex() *redisnativelock.Mutex {
	key := c.Key
	if c.KeyHex != "" {
		bytes, err := hex.DecodeString(c.KeyHex)
		if err != nil {
			panic(err)
		}
		key = string(bytes)
	}
	options := []redisnativelock.Option{redisnativelock.AtLeast(milliseconds(c.AtLeastMS))}
	if c.WaitMS != nil {
		options = append(options, redisnativelock.Wait(milliseconds(*c.WaitMS)))
	}
	if c.LeaseMS != 0 {
		options = append(options, redisnativelock.Lease(milliseconds(c.LeaseMS)))
	}
	if c.Shared {
		options = append(options, redisnativelock.Shared())
	}
	if c.Limit != 0 {
		options = append(options, redisnativelock.Limit(c.Limit))
	}
	named, _ := clients.Load(c.Client)
	return named.(client).locks.Mutex(key, options...)
}

func (c call) acquire(w *wait) (map[string]any, error) {
	h, err := c.mutex().Lock(w.ctx)
	if err != nil {
		return nil, err
	}
	w.hold.Store(h)
	return map[string]any{"token": h.Token()}, nil
}

func (c call) run(w *wait) (map[string]any, error) {
	err := c.mutex().Do(w.ctx, func(h *redisnativelock.Hold) error {
		w.hold.Store(h)
		write(map[string]any{"id": c.ID, "event": "began", "token": h.Token()})
		select {
		case with := <-w.finish:
			if with == "error" {
				return errWork
			}
			return nil
		case <-h.Context().Done():
			return context.Cause(h.Context())
		}
	})
	return map[string]any{"value": 42}, err
}

func (c call) count() (map[string]any, error) {
	var done, backwards atomic.Int64
	var all sync.WaitGroup
	errs := make(chan error, c.Tasks*c.Times)
	for range c.Tasks {
		all.Add(1)
		go func() {
			defer all.Done()
			for range c.Times {
				errs <- c.mutex().Do(context.Background(), func(h *redisnativelock.Hold) error {
					text, err := os.ReadFile(c.File)
					if err != nil {
						return err
					}
					var count, token int64
					if _, err = fmt.Sscan(string(text), &count, &token); err != nil {
						return err
					}
					runtime.Gosched()
					if done.Add(1); token >= h.Token() {
						backwards.Add(1)
					}
					return os.WriteFile(c.File, fmt.Appendf(nil, "%d %d", count+1, h.Token()), 0o600)
				})
			}
		}()
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return map[string]any{"done": done.Load(), "backwards": backwards.Load()}, nil
}
