/* The schedule in a world of its own: time is a number, the GPU divides itself among those that have work (slices of 2 ms),
 * containers behave as configured, and wake up late. For tests: whole minutes take milliseconds.
 *
 * Lines on stdin; an answer of one line to each:
 *
 *     run SECONDS STEP_NS SEED ARBITER_LATE_NS      then as many lines as there are containers, then `go`
 *     tenant PERCENT BORROWS KERNEL_NS GAP_NS LATE_NS FROM_NS TO_NS STOP_NS LIES CLASS
 *         kernels of KERNEL_NS: GAP_NS 0: put into the queue as fast as allowed; else one at a time with that pause;
 *         works from FROM_NS to TO_NS; from STOP_NS on stopped in whatever it does (0: never); LIES: 1 says it uses nothing,
 *         2 says it is always busy, 3 writes noise; CLASS: as enum core_class
 *
 * The answer, of each: what it had of the GPU in the last second and in all after the first second of its work (parts per 10000 of that
 * time), and the median and the 99th percentile of how long its kernels took from when they were to be put, where it pauses (microseconds). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arbiter/schedule.h"

enum { MOST = 16 };
#define SLICE_NS 2000000
#define DEPTH_NS 25000000
#define POLL_NS 1000000
enum { TIMES_MOST = 100000 };

struct container {
    unsigned percent, borrows, lies, class;
    int64_t kernel_ns, gap_ns, late_ns;
    uint64_t from_ns, to_ns, stop_ns;
    /* Its page, its work. */
    struct asked says;
    struct granted grant, seen;
    uint64_t seen_at_ns;     /* when a blocked one notices its current grant */
    int64_t queued_ns;       /* on the GPU */
    uint64_t next_ns;        /* of the next kernel, where it pauses */
    uint64_t polled_ns;
    uint64_t ran_ns, counted_ns, last_second_ns;
    uint64_t asked_ns;       /* since when its kernel waits or runs, where it pauses */
    unsigned times;
    uint32_t took_us[TIMES_MOST];
};

static struct container containers[MOST];
static unsigned count;
static uint64_t random_state;

static uint64_t chance(uint64_t below)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return below ? random_state % below : 0;
}

static bool stopped(const struct container *it, uint64_t now)
{
    return it->stop_ns && now >= it->stop_ns;
}

static void note_busy(struct container *it, uint64_t now, int64_t more)
{
    uint64_t from = it->says.busy_until_ns > now ? it->says.busy_until_ns : now;
    it->says.busy_until_ns = from + (uint64_t)more;
}

/* What the library in a container does at a moment; true: it has rung. */
static bool act(struct container *it, uint64_t now)
{
    if (stopped(it, now))
        return false;
    if (it->queued_ns <= 0 && it->says.busy_until_ns > now && now >= it->polled_ns + POLL_NS) {
        it->says.busy_until_ns = now;
        it->polled_ns = now;
        if (it->grant.until_ns <= now)
            return true;
    }
    if (it->queued_ns > 0 && it->says.busy_until_ns <= now)
        it->says.busy_until_ns = now + 2 * POLL_NS;
    if (it->lies == 2)
        it->says.busy_until_ns = now + 1000000000;
    if (it->lies == 3)
        it->says = (struct asked){chance(UINT64_MAX), chance(UINT64_MAX), (uint32_t)chance(1000), chance(2)};
    bool works = now >= it->from_ns && now < it->to_ns;
    while (works && now >= it->next_ns) {
        bool room = it->queued_ns <= 0 || (!it->gap_ns && it->queued_ns < (int64_t)(it->grant.ahead_ns ? it->grant.ahead_ns : DEPTH_NS));
        if (it->gap_ns && it->queued_ns > 0)
            room = false;
        if (!room)
            break;
        if (!it->asked_ns)
            it->asked_ns = now;
        const struct granted *grant = it->says.wants && now < it->seen_at_ns ? &it->seen : &it->grant;
        bool may = grant->until_ns > now && (int64_t)(grant->allowed_ns - it->says.used_ns) > 0 &&
                   (it->queued_ns <= 0 || now + (uint64_t)it->queued_ns < grant->until_ns);
        if (!may) {
            bool rings = !it->says.wants;
            it->says.requests += rings;
            it->says.wants = true;
            return rings;
        }
        it->says.wants = false;
        it->queued_ns += it->kernel_ns;
        if (it->lies != 1)
            it->says.used_ns += (uint64_t)it->kernel_ns;
        note_busy(it, now, it->kernel_ns);
        if (it->gap_ns)
            it->next_ns = UINT64_MAX;
    }
    if (!works)
        it->says.wants = false;
    return false;
}

static int by_time(const void *a, const void *b)
{
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    return (first > second) - (first < second);
}

/* Microseconds below which the share of a container's kernels were through, from when they were to be put. */
static uint32_t percentile(struct container *it, unsigned percent)
{
    qsort(it->took_us, it->times, sizeof it->took_us[0], by_time);
    return it->times ? it->took_us[(uint64_t)it->times * percent / 100] : 0;
}

static void gpu(uint64_t now, uint64_t step)
{
    static unsigned turn;
    static uint64_t until;
    if (now >= until || containers[turn % count].queued_ns <= 0) {
        for (unsigned i = 0; i < count && (i == 0 || containers[turn % count].queued_ns <= 0); i++)
            turn++;
        until = now + SLICE_NS;
    }
    struct container *it = &containers[turn % count];
    if (it->queued_ns <= 0)
        return;
    it->queued_ns -= (int64_t)step;
    it->ran_ns += step;
    if (it->queued_ns <= 0 && it->gap_ns) {
        if (it->times < TIMES_MOST)
            it->took_us[it->times++] = (uint32_t)((now + step - it->asked_ns) / 1000);
        it->asked_ns = 0;
        it->next_ns = now + step + (uint64_t)it->gap_ns;
    }
}

static void simulate(uint64_t seconds, uint64_t step, uint64_t arbiter_late)
{
    static struct schedule schedule;
    static struct asked asked[SCHEDULE_TENANTS_MAX];
    static struct granted granted[SCHEDULE_TENANTS_MAX];
    uint64_t begin = 1000000000, end = begin + seconds * 1000000000, look = begin;
    schedule_begin(&schedule, begin);
    memset(asked, 0, sizeof asked);
    for (unsigned i = 0; i < count; i++) {
        containers[i].from_ns += begin, containers[i].to_ns += begin;
        containers[i].stop_ns += containers[i].stop_ns ? begin : 0;
        struct share share = {containers[i].percent, containers[i].borrows, containers[i].class};
        schedule_admit(&schedule, i, share, 0);
    }
    for (uint64_t now = begin; now < end; now += step) {
        for (unsigned i = 0; i < count; i++) {
            struct container *it = &containers[i];
            if (act(it, now) && look > now + arbiter_late)
                look = now + chance(arbiter_late);
            if (now >= it->from_ns + 1000000000 && !it->counted_ns)
                it->counted_ns = it->ran_ns + 1;
            if (now + 1000000000 >= end && !it->last_second_ns)
                it->last_second_ns = it->ran_ns + 1;
        }
        if (now >= look) {
            for (unsigned i = 0; i < count; i++)
                asked[i] = containers[i].says;
            look = schedule_step(&schedule, now, asked, granted);
            if (look != SCHEDULE_NEVER)
                look += chance(arbiter_late);
            for (unsigned i = 0; i < count; i++) {
                struct container *it = &containers[i];
                if (it->grant.until_ns == granted[i].until_ns && it->grant.allowed_ns == granted[i].allowed_ns)
                    continue;
                if (now >= it->seen_at_ns)
                    it->seen = it->grant, it->seen_at_ns = now + chance((uint64_t)it->late_ns);
                it->grant = granted[i];
            }
        }
        gpu(now, step);
    }
    for (unsigned i = 0; i < count; i++) {
        struct container *it = &containers[i];
        uint64_t to = it->to_ns < end ? it->to_ns : end, from = it->from_ns + 1000000000;
        uint64_t window = to > from ? to - from : 1;
        printf("%s%" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRIu32, i ? " " : "", (it->ran_ns - it->last_second_ns + 1) / 100000,
               it->counted_ns ? (it->ran_ns - it->counted_ns + 1) * 10000 / window : 0, percentile(it, 50), percentile(it, 99));
    }
    printf("\n");
    fflush(stdout);
}

int main(void)
{
    char line[256];
    uint64_t seconds = 1, step = 10000, seed = 1, late = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &seconds, &step, &seed, &late) == 4) {
            memset(containers, 0, sizeof containers);
            count = 0;
            random_state = seed * 2654435761u + 88172645463325252u;
        } else if (!strncmp(line, "go", 2)) {
            simulate(seconds, step, late);
        } else if (count < MOST) {
            struct container *it = &containers[count++];
            if (sscanf(line, "tenant %u %u %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %u %u",
                       &it->percent, &it->borrows, &it->kernel_ns, &it->gap_ns, &it->late_ns, &it->from_ns, &it->to_ns,
                       &it->stop_ns, &it->lies, &it->class) != 10)
                return 2;
        }
    }
    return 0;
}
