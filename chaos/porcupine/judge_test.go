package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

const (
	take    = `{"Acquire":{"lease_ms":100,"mode":"Exclusive","session":false}}`
	share   = `{"Acquire":{"lease_ms":100,"mode":"Shared","session":false}}`
	two     = `{"Acquire":{"lease_ms":100,"mode":{"Limited":2},"session":false}}`
	bind    = `{"Acquire":{"lease_ms":100,"mode":"Exclusive","session":true}}`
	renew   = `{"Renew":{"lease_ms":100,"fence":null}}`
	renew7  = `{"Renew":{"lease_ms":100,"fence":7}}`
	release = `{"Release":{"hold":null,"fence":null}}`
)

// One operation of owner o, from when to when in milliseconds, and its answer.
func op(o, request string, sent, answered int, outcome string) string {
	return fmt.Sprintf(`{"client":0,"connection":1,"lock":"l","owner":%q,"request":%s,`+
		`"sent":%d000000,"answered":%d000000,"queued":null,"outcome":%s}`,
		o, request, sent, answered, outcome)
}

func grant(o, request string, sent, answered, token int) string {
	return op(o, request, sent, answered, fmt.Sprintf(`{"Granted":%d}`, token))
}

func effect(what string, from, until int) string {
	return fmt.Sprintf(`{"what":"a fault","effect":%q,"lock":null,"from":%d000000,"until":%d000000}`,
		what, from, until)
}

func passes(t *testing.T, history string) bool {
	locks, err := read(strings.NewReader(history))
	if err != nil {
		t.Fatal(err)
	}
	kept := true
	for _, its := range locks {
		for _, one := range cut(its) {
			kept = kept && porcupine.CheckOperations(modelFrom(one.highest), one.operations)
		}
	}
	return kept
}

// What this model is for. It knows neither order nor liveness.
var harm = regexp.MustCompile(`exclusion|possession|tokens`)

// The scenes of chaos/tests/scenes.rs, each with its fault and without.
func TestScenesWithAPlantedFaultAreRefused(t *testing.T) {
	folder := os.Getenv("REDISLOCK_HISTORIES")
	if folder == "" {
		t.Skip("`make check-foreign` writes the histories")
	}
	files, _ := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	refused := 0
	for _, file := range files {
		history, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		scene, fault, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".jsonl"), ".")
		// Only the token of another lock shows that this grant came too late.
		isHarm := harm.MatchString(scene) && fault != "none" && fault != "place-outlived"
		if passes(t, string(history)) == isHarm {
			t.Errorf("with %s, refused %v: %s", fault, !isHarm, scene)
		}
		if isHarm {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no history was to be refused")
	}
	t.Logf("%d of %d histories refused", refused, len(files))
}

func TestImpossibleHistoriesAreRefused(t *testing.T) {
	a := grant("a", take, 10, 11, 5)
	for name, history := range map[string][]string{
		"two hold it":                    {a, grant("b", take, 20, 21, 6)},
		"the second is renewed too":      {a, op("b", renew, 20, 21, `"Renewed"`)},
		"held by a renewed lease":        {a, op("a", renew, 50, 51, `"Renewed"`), grant("b", take, 120, 121, 6)},
		"held for a re-entry":            {a, grant("a", take, 50, 51, 5), grant("b", take, 120, 121, 6)},
		"held again after the first end": {a, grant("a", take, 12, 13, 5), op("a", release, 14, 15, `"StillHeld"`), grant("b", take, 20, 21, 6)},
		"more ends than holds":           {a, op("a", release, 14, 15, `"StillHeld"`)},
		"a smaller token":                {a, op("a", release, 12, 13, `"Released"`), grant("b", take, 20, 21, 4)},
		"a token used again":             {a, op("a", release, 12, 13, `"Released"`), grant("b", take, 20, 21, 5)},
		"a re-entry with another token":  {a, grant("a", take, 12, 13, 6)},
		"a hold that is lost":            {a, op("a", renew, 20, 21, `"NotHeld"`)},
		"a renewal by another's token":   {a, op("a", renew7, 20, 21, `"Renewed"`)},
		"three of two permits":           {grant("a", two, 10, 11, 5), grant("b", two, 12, 13, 6), grant("c", two, 14, 15, 7)},
		"a reader beside a writer":       {a, grant("b", share, 20, 21, 6)},
		"a renewal after the release":    {a, op("a", release, 12, 13, `"Released"`), op("a", renew, 14, 15, `"Renewed"`)},
	} {
		if passes(t, strings.Join(history, "\n")) {
			t.Errorf("passed: %s", name)
		}
	}
}

func TestRightHistoriesPass(t *testing.T) {
	a := grant("a", take, 10, 11, 5)
	for name, history := range map[string][]string{
		"one after the other":          {a, op("a", release, 12, 13, `"Released"`), grant("b", take, 20, 21, 6)},
		"a wait":                       {a, grant("b", take, 11, 21, 6), op("a", release, 12, 20, `"Released"`)},
		"the lease was over":           {a, grant("b", take, 120, 121, 6), op("a", renew, 130, 131, `"NotHeld"`)},
		"it was over and stood":        {a, op("a", renew, 130, 131, `"Renewed"`)},
		"a lost release":               {a, op("a", release, 12, 13, `"Lost"`), grant("b", take, 20, 21, 6)},
		"a lost release that is late":  {a, op("a", release, 12, 13, `"Lost"`), op("a", renew, 14, 15, `"Renewed"`), grant("b", take, 20, 21, 6)},
		"a lost shorter renewal":       {grant("a", strings.Replace(take, "100", "900", 1), 10, 11, 5), op("a", renew, 12, 13, `"Lost"`), grant("b", take, 112, 113, 6)},
		"a lost acquire":               {op("a", take, 10, 11, `"Lost"`), op("a", renew, 12, 13, `"Renewed"`)},
		"its token is told later":      {op("a", share, 10, 11, `"Lost"`), grant("b", share, 12, 13, 6), grant("a", share, 14, 15, 5)},
		"two of two permits":           {grant("a", two, 10, 11, 5), grant("b", two, 12, 13, 6), op("a", release, 14, 15, `"Released"`), grant("c", two, 16, 17, 7)},
		"many readers":                 {grant("a", share, 10, 11, 5), grant("b", share, 12, 13, 6), grant("c", share, 14, 15, 7)},
		"re-entry":                     {a, grant("a", take, 12, 13, 5), op("a", release, 14, 15, `"StillHeld"`), op("a", release, 16, 17, `"Released"`)},
		"a session whose end was late": {grant("a", bind, 10, 11, 5), grant("b", take, 20, 21, 6)},
		"somebody deleted it":          {a, effect("EndsHolds", 15, 16), grant("b", take, 20, 21, 6)},
		"somebody brought it back":     {a, op("a", release, 12, 13, `"Released"`), effect("BringsBack", 15, 16), op("a", renew, 20, 21, `"Renewed"`)},
	} {
		if !passes(t, strings.Join(history, "\n")) {
			t.Errorf("refused: %s", name)
		}
	}
}
