// Judges histories of the fault campaigns with Porcupine, which knows nothing of our checker.
package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A piece of one lock's history, and the greatest token before it.
type piece struct {
	operations []porcupine.Operation
	highest    int64
}

// Cuts where nothing is under way, nobody holds for certain, and no owner goes on.
func cut(operations []porcupine.Operation) (pieces []piece) {
	slices.SortFunc(operations, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	last := map[string]int64{}
	for _, one := range operations {
		last[one.Input.(input).owner] = one.Call
	}
	var until, highest int64
	for index, one := range operations {
		in := one.Input.(input)
		if index == 0 || one.Call > until {
			pieces = append(pieces, piece{highest: highest})
		}
		here := &pieces[len(pieces)-1]
		here.operations = append(here.operations, one)
		until, highest = max(until, last[in.owner], one.Return), max(highest, in.token)
		if in.says == granted || in.says == renewed {
			until = max(until, min(one.Return+in.lease, in.cap))
		}
	}
	return pieces
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	locks, err := read(file)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	results, operations := map[porcupine.CheckResult]int{}, 0
	for lock, its := range locks {
		operations += len(its)
		for _, one := range cut(its) {
			model := modelFrom(one.highest)
			result := porcupine.CheckOperationsTimeout(model, one.operations, 10*time.Second)
			results[result]++
			if result == porcupine.Illegal {
				first := one.operations[0].Call / ms
				fmt.Printf("refused: %d operations on %s from %d ms on\n", len(one.operations), lock, first)
			}
		}
	}
	fmt.Printf("porcupine: %d operations on %d locks; pieces: %d passed, %d refused, %d unknown\n",
		operations, len(locks),
		results[porcupine.Ok], results[porcupine.Illegal], results[porcupine.Unknown])
	if results[porcupine.Illegal] > 0 || operations == 0 {
		os.Exit(1)
	}
}
