/* A library for LD_PRELOAD that shifts the clock: it replaces the C library's time functions.
 *
 * The library is linked without a C library, so the programs of any image can load it. The clock
 * stays unshifted for statically linked programs and for programs that call the kernel directly. */
#include <asm/unistd.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

/* The shift in seconds. clock_checks.py replaces these eight bytes in the compiled library. */
static const volatile long move = 0x6d6f766564627920;

static long call(long number, long a, long b) {
    long result;
#ifdef __x86_64__
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b)
                     : "rcx", "r11", "memory");
#else
    register long x0 __asm__("x0") = a, x1 __asm__("x1") = b, x8 __asm__("x8") = number;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x8) : "memory");
    result = x0;
#endif
    return result;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (call(__NR_clock_gettime, id, (long)at) < 0) return -1;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE || id == CLOCK_TAI) at->tv_sec += move;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) *at = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone; /* The parameter is obsolete; the time is always UTC. */
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

int timespec_get(struct timespec *at, int base) {
    return clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}
