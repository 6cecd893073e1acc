#define _GNU_SOURCE
#include "arbiter/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "arbiter/page.h"

enum { GPUS_MAX = 256, STACK_BYTES = 256 << 10 };
/* A container that rings without end is answered at this pace. */
#define RING_PACE_NS UINT64_C(100000)

struct gpu {
    char uuid[64];
    pthread_mutex_t mutex;
    struct schedule schedule;
    struct guest *guests[SCHEDULE_TENANTS_MAX];
    struct granted granted[SCHEDULE_TENANTS_MAX];
    uint64_t sleeps_until_ns;  /* the thread of this GPU */
    _Atomic uint32_t poke;     /* futex word: it shall look again */
};

struct guest {
    struct gpu *gpu;
    struct turn_page *page;
    unsigned place;
    char name[256];
    _Atomic bool lives;        /* its page can be read */
    _Atomic int holders;       /* the admitting thread, the schedule, the listener: the last one frees it */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct gpu *gpus[GPUS_MAX];
static unsigned gpu_count;

static void drop(struct guest *guest)
{
    if (atomic_fetch_sub(&guest->holders, 1) != 1)
        return;
    page_unmap(guest->page);
    free(guest);
}

static void remove_guest(struct gpu *gpu, unsigned place)
{
    struct guest *guest = gpu->guests[place];
    schedule_dismiss(&gpu->schedule, place);
    gpu->guests[place] = NULL;
    atomic_store(&guest->lives, false);
    page_disturb(guest->page);
    drop(guest);
}

/* Reads the pages, decides, writes them. The GPU's mutex is held. */
static void look(struct gpu *gpu)
{
    static _Thread_local struct asked asked[SCHEDULE_TENANTS_MAX];
    struct granted granted[SCHEDULE_TENANTS_MAX];
    uint64_t now_ns = turn_now_ns();
    for (unsigned i = 0; i < gpu->schedule.places; i++) {
        if (gpu->guests[i] && !page_read(gpu->guests[i]->page, now_ns, &asked[i])) {
            fprintf(stderr, "arbiter: %s: its usage file was cut off or is of another version; it gets no turn on %s\n",
                    gpu->guests[i]->name, gpu->uuid);
            remove_guest(gpu, i);
        }
        if (!gpu->guests[i])
            memset(&asked[i], 0, sizeof asked[i]);
    }
    uint64_t next_ns = schedule_step(&gpu->schedule, now_ns, asked, granted);
    for (unsigned i = 0; i < gpu->schedule.places; i++) {
        struct guest *guest = gpu->guests[i];
        if (!guest)
            continue;
        bool may = granted[i].until_ns > now_ns && (int64_t)(granted[i].allowed_ns - asked[i].used_ns) > 0;
        bool changed = granted[i].until_ns != gpu->granted[i].until_ns || granted[i].allowed_ns != gpu->granted[i].allowed_ns;
        /* If the page is gone, the next reading finds out. */
        page_write(guest->page, now_ns, granted[i], may && changed && asked[i].wants);
    }
    memcpy(gpu->granted, granted, sizeof granted);
    /* Never in the past, so that nothing that a page says makes this thread spin. */
    if (next_ns < now_ns + RING_PACE_NS)
        next_ns = now_ns + RING_PACE_NS;
    if (next_ns > now_ns + TURN_HEARTBEAT_NS)
        next_ns = now_ns + TURN_HEARTBEAT_NS;
    uint64_t before_ns = gpu->sleeps_until_ns;
    gpu->sleeps_until_ns = next_ns;
    if (next_ns < before_ns)
        turn_wake(&gpu->poke);
}

/* The thread of a GPU: looks when it is time. */
static void *keep_time(void *argument)
{
    struct gpu *gpu = argument;
    prctl(PR_SET_TIMERSLACK, 1UL);
    for (;;) {
        pthread_mutex_lock(&gpu->mutex);
        uint32_t poke = atomic_load(&gpu->poke);
        uint64_t until_ns = gpu->sleeps_until_ns;
        pthread_mutex_unlock(&gpu->mutex);
        turn_sleep(&gpu->poke, poke, until_ns);
        pthread_mutex_lock(&gpu->mutex);
        if (turn_now_ns() >= gpu->sleeps_until_ns) {
            gpu->sleeps_until_ns = 0; /* no need to poke ourselves */
            look(gpu);
        }
        pthread_mutex_unlock(&gpu->mutex);
    }
    return NULL;
}

/* The thread of a guest: looks when it says something. */
static void *listen_to(void *argument)
{
    struct guest *guest = argument;
    struct gpu *gpu = guest->gpu;
    uint32_t seen = 0;
    uint64_t last_ns = 0;
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (atomic_load(&guest->lives)) {
        uint64_t began_ns = turn_now_ns();
        bool said = page_listen(guest->page, &seen);
        uint64_t now_ns = turn_now_ns();
        if (!said && now_ns < began_ns + RING_PACE_NS)
            nanosleep(&(struct timespec){0, 50000000}, NULL); /* gone: the next look finds out */
        if (!said)
            continue;
        if (now_ns < last_ns + RING_PACE_NS)
            nanosleep(&(struct timespec){0, RING_PACE_NS}, NULL);
        last_ns = now_ns;
        pthread_mutex_lock(&gpu->mutex);
        if (atomic_load(&guest->lives))
            look(gpu);
        pthread_mutex_unlock(&gpu->mutex);
    }
    drop(guest);
    return NULL;
}

static bool start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = !pthread_create(&thread, &attributes, body, argument);
    pthread_attr_destroy(&attributes);
    return started;
}

static struct gpu *find_gpu(const char *uuid)
{
    for (unsigned i = 0; i < gpu_count; i++) {
        if (!strcmp(gpus[i]->uuid, uuid))
            return gpus[i];
    }
    struct gpu *gpu = gpu_count < GPUS_MAX ? calloc(1, sizeof *gpu) : NULL;
    if (!gpu)
        return NULL;
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    pthread_mutex_init(&gpu->mutex, NULL);
    schedule_begin(&gpu->schedule, turn_now_ns());
    if (!start(keep_time, gpu)) {
        free(gpu);
        return NULL;
    }
    return gpus[gpu_count++] = gpu;
}

static bool sit_down(struct gpu *gpu, struct guest *guest, struct share share)
{
    struct asked asked;
    unsigned place = 0;
    while (place < SCHEDULE_TENANTS_MAX && gpu->guests[place])
        place++;
    if (place == SCHEDULE_TENANTS_MAX || !page_read(guest->page, turn_now_ns(), &asked))
        return false;
    guest->place = place;
    atomic_store(&guest->lives, true);
    atomic_store(&guest->holders, 3);
    if (!start(listen_to, guest))
        return false;
    schedule_admit(&gpu->schedule, place, share, asked.used_ns);
    gpu->guests[place] = guest;
    look(gpu);
    return true;
}

struct guest *gpu_admit(const char *uuid, const char *name, struct turn_page *page, struct share share)
{
    pthread_mutex_lock(&mutex);
    struct gpu *gpu = find_gpu(uuid);
    struct guest *guest = gpu ? calloc(1, sizeof *guest) : NULL;
    if (guest) {
        guest->gpu = gpu;
        guest->page = page;
        snprintf(guest->name, sizeof guest->name, "%s", name);
        pthread_mutex_lock(&gpu->mutex);
        bool sits = sit_down(gpu, guest, share);
        pthread_mutex_unlock(&gpu->mutex);
        if (!sits) {
            free(guest);
            guest = NULL;
        }
    }
    pthread_mutex_unlock(&mutex);
    return guest;
}

void gpu_dismiss(struct guest *guest)
{
    struct gpu *gpu = guest->gpu;
    pthread_mutex_lock(&gpu->mutex);
    if (atomic_load(&guest->lives)) {
        remove_guest(gpu, guest->place);
        look(gpu);
    }
    pthread_mutex_unlock(&gpu->mutex);
    drop(guest);
}

bool gpu_guest_lives(const struct guest *guest)
{
    return atomic_load(&guest->lives);
}

void gpus_leave(void)
{
    for (unsigned i = 0; i < gpu_count; i++) {
        pthread_mutex_lock(&gpus[i]->mutex); /* and never unlocked: nothing may be granted any more */
        for (unsigned place = 0; place < SCHEDULE_TENANTS_MAX; place++) {
            if (gpus[i]->guests[place])
                page_leave(gpus[i]->guests[place]->page);
        }
    }
}
