/* The clocks of a host whose clocks differ, for the programs into which this is preloaded.

   SKEW="AHEAD DRIFT BEGIN": at BEGIN, in seconds of the true clock, CLOCK_MONOTONIC is AHEAD seconds ahead. From
   then on CLOCK_MONOTONIC and CLOCK_REALTIME gain DRIFT seconds a second, and the kernel's stamps of packets too,
   as clocks that are slewed together. A wait until a moment of such a clock ends then. Only programs whose command
   line has a word of ONLY are changed. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static double ahead, drift, begin;
static double apart; /* CLOCK_REALTIME - CLOCK_MONOTONIC, of the true clocks */
static int on;

static int (*real_gettime)(clockid_t, struct timespec *);

static double seconds(const struct timespec *t) { return t->tv_sec + 1e-9 * t->tv_nsec; }

static void add(struct timespec *t, double s) {
    long long ns = t->tv_nsec + (long long)(1e9 * s);
    long long carry = ns / 1000000000 - (ns % 1000000000 < 0);
    t->tv_sec += carry;
    t->tv_nsec = ns - carry * 1000000000;
}

static int is_monotonic(clockid_t id) { return id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE; }
static int is_realtime(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

static double gained(int monotonic, double now) {
    return (monotonic ? ahead : 0) + drift * (now - begin - (monotonic ? 0 : apart));
}

/* The true moment of a shown one. A moment of the time of day is far beyond what machines are up. */
static struct timespec truly(const struct timespec *shown) {
    struct timespec t = *shown;
    int monotonic = t.tv_sec < 1000000000;
    double lead = (monotonic ? ahead : 0) - drift * (begin + (monotonic ? 0 : apart));
    add(&t, -(lead + drift * seconds(shown)) / (1 + drift));
    return t;
}

__attribute__((constructor)) static void start(void) {
    char line[4096] = "", only[512] = "";
    const char *skew = getenv("SKEW"), *words = getenv("ONLY");
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int file = open("/proc/self/cmdline", O_RDONLY);
    long size = file < 0 ? 0 : read(file, line, sizeof line - 1);
    if (file >= 0) close(file);
    for (long i = 0; i < size; i++) if (!line[i]) line[i] = ' ';
    if (!skew || !words || sscanf(skew, "%lf %lf %lf", &ahead, &drift, &begin) != 3) return;
    strncpy(only, words, sizeof only - 1);
    for (char *word = strtok(only, " "); word; word = strtok(NULL, " ")) on |= strstr(line, word) != NULL;
    struct timespec a, b;
    real_gettime(CLOCK_MONOTONIC, &a);
    real_gettime(CLOCK_REALTIME, &b);
    apart = seconds(&b) - seconds(&a);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    if (!real_gettime) real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real_gettime(id, t);
    if (on && !rc && (is_monotonic(id) || is_realtime(id))) add(t, gained(is_monotonic(id), seconds(t)));
    return rc;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    static ssize_t (*real)(int, struct msghdr *, int);
    if (!real) real = dlsym(RTLD_NEXT, "recvmsg");
    ssize_t size = real(fd, message, flags);
    if (!on || size < 0 || !message->msg_control) return size;
    for (struct cmsghdr *note = CMSG_FIRSTHDR(message); note; note = CMSG_NXTHDR(message, note))
        if (note->cmsg_level == SOL_SOCKET && note->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(note), sizeof t);
            add(&t, gained(0, seconds(&t)));
            memcpy(CMSG_DATA(note), &t, sizeof t);
        }
    return size;
}

#define UNTIL(name, types, until, arguments)                                          \
    int name types {                                                                  \
        static int(*real) types;                                                      \
        if (!real) real = dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2"); /* has an older one too */ \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                    \
        if (!on) return real arguments;                                               \
        struct timespec true_end = truly(until);                                      \
        until = &true_end;                                                            \
        return real arguments;                                                        \
    }

UNTIL(pthread_cond_timedwait, (pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *end), end, (c, m, end))
UNTIL(pthread_cond_clockwait,
      (pthread_cond_t *c, pthread_mutex_t *m, clockid_t id, const struct timespec *end), end, (c, m, id, end))
UNTIL(sem_timedwait, (sem_t *s, const struct timespec *end), end, (s, end))
UNTIL(sem_clockwait, (sem_t *s, clockid_t id, const struct timespec *end), end, (s, id, end))

int clock_nanosleep(clockid_t id, int flags, const struct timespec *end, struct timespec *left) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_nanosleep");
    struct timespec until = on && flags & TIMER_ABSTIME ? truly(end) : *end;
    return real(id, flags, &until, left);
}

int timerfd_settime(int fd, int flags, const struct itimerspec *end, struct itimerspec *before) {
    static int (*real)(int, int, const struct itimerspec *, struct itimerspec *);
    if (!real) real = dlsym(RTLD_NEXT, "timerfd_settime");
    struct itimerspec until = *end;
    int now_or_never = !end->it_value.tv_sec && end->it_value.tv_nsec <= 1;
    if (on && flags & TFD_TIMER_ABSTIME && !now_or_never) until.it_value = truly(&end->it_value);
    return real(fd, flags, &until, before);
}
