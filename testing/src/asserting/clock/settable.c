/* A wall clock that a test can set, for a process that loads this library with
 * LD_PRELOAD. The file that SETTABLE_CLOCK names holds three numbers of eight bytes: by how
 * many microseconds the clock is ahead; where it stands still, in microseconds since 1970,
 * or 0 if it runs; and how many microseconds it and the clocks that nobody sets gain in a
 * second, from the start of the process on.
 *
 * Where it stands still, clock_gettime shows that very moment, also of CLOCK_BOOTTIME, so
 * that the two go together. gettimeofday shows one microsecond more each time it is asked,
 * within that millisecond, because a timer of the server whose moment is that of the one
 * that runs would never come. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static struct setting {
    _Atomic int64_t ahead_us, stands_at_us, gains_ppm;
} running, *setting = &running;

static int64_t in_us(struct timespec t) { return t.tv_sec * 1000000LL + t.tv_nsec / 1000; }

static struct timespec shifted(struct timespec t, int64_t by_us) {
    int64_t us = in_us(t) + by_us;
    struct timespec result = {us / 1000000, us % 1000000 * 1000 + t.tv_nsec % 1000};
    return result;
}

static int64_t started_us;

static int64_t since_boot_us(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &now);
    return in_us(now);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int stands_too = is_wall || clock == CLOCK_BOOTTIME;
    int64_t stands_at_us = stands_too ? setting->stands_at_us : 0;
    if (stands_at_us != 0) {
        t->tv_sec = stands_at_us / 1000000;
        t->tv_nsec = stands_at_us % 1000000 * 1000;
        return 0;
    }
    if (syscall(SYS_clock_gettime, clock, t) != 0) return -1;
    int64_t gains_ppm = stands_too || clock == CLOCK_MONOTONIC ? setting->gains_ppm : 0;
    int64_t gained_us = gains_ppm == 0 ? 0 : (since_boot_us() - started_us) * gains_ppm / 1000000;
    *t = shifted(*t, gained_us + (is_wall ? setting->ahead_us : 0));
    return 0;
}

/* How often gettimeofday was asked since the clock stands where it does. */
static int64_t times_asked(int64_t stands_at_us) {
    static _Atomic int64_t stood_at_us, asked;
    if (atomic_exchange(&stood_at_us, stands_at_us) != stands_at_us) asked = 0;
    return ++asked;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    int64_t stands_at_us = setting->stands_at_us;
    if (stands_at_us != 0) {
        int64_t more = times_asked(stands_at_us), most = 999 - stands_at_us % 1000;
        tv->tv_usec += more < most ? more : most;
    }
    return 0;
}

time_t time(time_t *result) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (result) *result = t.tv_sec;
    return t.tv_sec;
}

/* Valkey 8.1 and later have a module look into its own libraries first, where it would
 * find the clock of the C library. */
void *dlopen(const char *path, int mode) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(path, mode & ~RTLD_DEEPBIND);
}

/* Valkey 9.1 and later ask for the time once a millisecond, and count the ticks of the
 * processor in between, if it is one whose ticks they can trust. Of x86 they look here
 * whether it is; of ARM they take it for granted. */
static FILE *open_unless_cpuinfo(const char *path, const char *mode, const char *function) {
    FILE *(*next)(const char *, const char *) =
        (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, function);
    return next(strcmp(path, "/proc/cpuinfo") == 0 ? "/dev/null" : path, mode);
}

FILE *fopen(const char *path, const char *mode) { return open_unless_cpuinfo(path, mode, "fopen"); }

FILE *fopen64(const char *path, const char *mode) { return open_unless_cpuinfo(path, mode, "fopen64"); }

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SETTABLE_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) abort();
    void *page = mmap(NULL, sizeof *setting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) abort();
    started_us = since_boot_us();
    setting = page;
}
