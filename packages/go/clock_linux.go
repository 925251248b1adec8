package redisnativelock

import (
	"syscall"
	"time"
	"unsafe"
)

// now goes on while the machine is suspended, as leases do and Go's own clock does not.
func now() time.Duration {
	const boottime = 7
	var at syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&at)), 0); err != 0 {
		return time.Since(started)
	}
	return time.Duration(at.Nano())
}
