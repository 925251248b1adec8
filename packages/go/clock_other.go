//go:build !linux

package redisnativelock

import "time"

func now() time.Duration { return time.Since(started) }
