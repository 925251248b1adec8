//go:build !linux

package redisnativelock

import "time"

var started = time.Now()

func now() time.Duration { return time.Since(started) }
