/* A wall clock that a test can set, for a process that loads this library with
 * LD_PRELOAD. The file that SETTABLE_CLOCK names holds four numbers of eight bytes:
 * by how many microseconds the clock is ahead; where it stands still, in microseconds
 * since 1970, or 0 if it runs; how often it was set; and, written here, how many of
 * those times the timers below go by.
 *
 * Where it stands still, clock_gettime shows that very moment, also of CLOCK_BOOTTIME, so
 * that the two go together. gettimeofday shows one
 * microsecond more each time it is asked, within that millisecond, because a timer of
 * the server whose moment is that of the one that runs would never come.
 *
 * The module has the kernel wake it at a moment of the wall clock. It asks the
 * kernel without the C library, so that call is caught on its way, and timers
 * that run are set anew when the clock is, as the kernel would do. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define OURS 0x5e77ab1e
#define TIMERS 64

static struct setting {
    _Atomic int64_t ahead_us, stands_at_us, times_set, times_followed;
} running, *setting = &running;

static int64_t us_of(const struct timespec *t) { return t->tv_sec * 1000000LL + t->tv_nsec / 1000; }

static struct timespec shifted(struct timespec t, int64_t by_us) {
    int64_t us = us_of(&t) + by_us;
    struct timespec result = {us / 1000000, us % 1000000 * 1000 + t.tv_nsec % 1000};
    return result;
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
    if (is_wall) *t = shifted(*t, setting->ahead_us);
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

static struct timer {
    int fd;
    struct itimerspec due;
    int64_t times_set; /* of the clock when the kernel was told */
} timers[TIMERS];
static int timers_known;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static long tell_kernel(struct timer *timer) {
    static const struct timespec over = {0, 1}, never = {1LL << 40, 0};
    timer->times_set = setting->times_set;
    struct itimerspec due = timer->due;
    int64_t stands_at_us = setting->stands_at_us;
    if (stands_at_us != 0)
        due.it_value = us_of(&due.it_value) <= stands_at_us ? over : never;
    else
        due.it_value = shifted(due.it_value, -setting->ahead_us);
    return syscall(SYS_timerfd_settime, timer->fd, TFD_TIMER_ABSTIME, &due, NULL, 0L, (long)OURS);
}

static long set_timer(int fd, long flags, const struct itimerspec *due, struct itimerspec *old) {
    int runs = due->it_value.tv_sec != 0 || due->it_value.tv_nsec != 0;
    if (!(flags & TFD_TIMER_ABSTIME) || !runs)
        return syscall(SYS_timerfd_settime, fd, flags, due, old, 0L, (long)OURS);
    while (atomic_flag_test_and_set(&busy)) {
    }
    int at = 0;
    while (at < timers_known && timers[at].fd != fd) at++;
    if (at == TIMERS) abort();
    if (at == timers_known) timers_known++;
    timers[at].fd = fd;
    timers[at].due = *due;
    long result = tell_kernel(&timers[at]);
    atomic_flag_clear(&busy);
    return result;
}

static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    int errno_before = errno;
#if defined(__x86_64__)
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    long result = set_timer((int)r[REG_RDI], r[REG_RSI], (void *)r[REG_RDX], (void *)r[REG_R10]);
    r[REG_RAX] = result < 0 ? -errno : result;
#elif defined(__aarch64__)
    unsigned long long *r = ((ucontext_t *)context)->uc_mcontext.regs;
    long result = set_timer((int)r[0], (long)r[1], (void *)r[2], (void *)r[3]);
    r[0] = result < 0 ? -errno : result;
#else
#error "the registers of this processor are not known here"
#endif
    errno = errno_before;
}

static void *watch_clock(void *nothing) {
    const struct timespec pause = {0, 1000000};
    for (;;) {
        nanosleep(&pause, NULL);
        while (atomic_flag_test_and_set(&busy)) {
        }
        int64_t times_set = setting->times_set;
        for (int at = 0; at < timers_known; at++) {
            struct itimerspec left;
            if (timers[at].times_set != times_set && timerfd_gettime(timers[at].fd, &left) == 0 &&
                (left.it_value.tv_sec != 0 || left.it_value.tv_nsec != 0))
                tell_kernel(&timers[at]);
        }
        setting->times_followed = times_set;
        atomic_flag_clear(&busy);
    }
    return nothing;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("SETTABLE_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) abort();
    void *page = mmap(NULL, sizeof *setting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) abort();
    setting = page;

    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_timerfd_settime, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OURS, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    pthread_t watcher;
    if (sigaction(SIGSYS, &action, NULL) != 0 || pthread_create(&watcher, NULL, watch_clock, NULL) != 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        abort();
}
