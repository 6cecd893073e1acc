/* A wall clock that jumps: preloaded into a program, it adds the seconds written in $CLOCK_OFFSET_FILE (a number; none, or
 * no file: 0) to what the system says of the time of day, read again each time. Other clocks are unaffected, as when
 * a machine's time is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset_s(void)
{
    static const char *path;
    if (!path && !(path = getenv("CLOCK_OFFSET_FILE")))
        return 0;
    char text[32];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = '\0';
    return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    /* The system call, not what we stand before: no look-up, so it works from the first instruction on. */
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset_s();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    *now = (struct timeval){.tv_sec = exact.tv_sec, .tv_usec = exact.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *seconds)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (seconds)
        *seconds = exact.tv_sec;
    return exact.tv_sec;
}
