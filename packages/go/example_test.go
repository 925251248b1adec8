package redisnativelock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"example.com/redisnativelock"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func connect() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDRESS")})
}

func Example() {
	locks := redisnativelock.New(connect())
	h, err := locks.Mutex("orders:42").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Release()
	fmt.Println("held:", h.Token() > 0, h.Context().Err())
	// Output: held: true <nil>
}

func TestWhatTheFrontPageShows(t *testing.T) {
	client := connect()
	locks := redisnativelock.New(client)
	err := locks.Mutex("orders:42").Do(ctx, func(h *redisnativelock.Hold) error {
		fmt.Println("I hold orders:42 with token", h.Token())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func ExampleMutex_Do_webHandler() {
	client := connect()
	locks := redisnativelock.New(client)
	pay := func(w http.ResponseWriter, r *http.Request) {
		customer := locks.Mutex("customer:"+r.URL.Path, redisnativelock.Wait(5*time.Second))
		err := customer.Do(r.Context(), func(h *redisnativelock.Hold) error {
			_, err := fmt.Fprintf(w, "paid under token %d", h.Token())
			return err
		})
		if errors.Is(err, redisnativelock.ErrBusy) {
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		}
	}
	w := httptest.NewRecorder()
	pay(w, httptest.NewRequest("GET", "/42", nil))
	fmt.Println(w.Body.String()[:17])
	// Output: paid under token
}

func ExampleAtLeast() {
	locks := redisnativelock.New(connect())
	report := func(*redisnativelock.Hold) error { fmt.Println("the report"); return nil }
	for range 2 {
		nightly := locks.Mutex("nightly", redisnativelock.Wait(0), redisnativelock.AtLeast(50*time.Second))
		err := nightly.Do(ctx, report) // ErrBusy: another machine has it
		fmt.Println(errors.Is(err, redisnativelock.ErrBusy))
	}
	// Output:
	// the report
	// false
	// true
}

func ExampleHold_Context() {
	client := connect()
	locks := redisnativelock.New(client)
	lead := func(ctx context.Context, token int64) {
		client.Do(ctx, "LOCK.BREAK", "leader")
		<-ctx.Done()
	}
	leader := locks.Mutex("leader", redisnativelock.Lease(time.Second))
	err := leader.Do(ctx, func(h *redisnativelock.Hold) error {
		for h.Context().Err() == nil {
			lead(h.Context(), h.Token())
		}
		return context.Cause(h.Context())
	})
	fmt.Println(errors.Is(err, redisnativelock.ErrLost))
	// Output: true
}

func TestWhatTheReadmeShowsIsInTheseExamples(t *testing.T) {
	flat := func(text []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
	// That of the package, and that of the whole project.
	blocks := strings.Split(flat(os.ReadFile("README.md"))+flat(os.ReadFile("../../README.md")), "```")
	examples := flat(os.ReadFile("example_test.go"))
	shown := 0
	for _, block := range blocks {
		if code, isGo := strings.CutPrefix(block, "go "); isGo && strings.Contains(examples, code) {
			shown++
		} else if isGo {
			t.Error(code)
		}
	}
	if shown < 4 {
		t.Fatal("it shows less than the tasks")
	}
}
