/* Whose turn on one GPU it is: a pure function of the state before, the moment, and what the containers' pages say.
 *
 * Two accounts a container. Its *balance* is GPU time that it may use: it grows by its percentage of real time and
 * shrinks by the GPU time that the container says it used, and one without credit waits (or borrows what no other wants, under
 * the policy `idle`). Its *run* is the real time for which it had the GPU, weighted by its percentage: among those
 * who may, the least run goes first. The balance rests on the container's own word, the run on the arbiter's clock
 * alone: so one that lies about what it used gets turns that others leave unused, never theirs.
 *
 * A turn is exclusive; it is extended in place while no other container may have it. A turn ends
 * when its time is over, or it lies idle, or someone entitled waits and the holder only borrowed; the next one begins
 * once the work of the former is nearly through. Work that is not through SCHEDULE_HOLD_NS after its turn has the GPU to
 * share: both are then counted half.
 *
 * A container that comes back from a pause with credit does not wait for a turn. It *visits*: it has the GPU at once, next to others who
 * do, for a turn's length at most. Turns rest meanwhile (their holder puts nothing more on the GPU) unless the one whose turn it is has been kept from
 * too much by that; and holders keep little ahead while others visit now and then, so that a visitor finds little before it. The real time of
 * a visit counts for all who have work on the GPU, in equal parts.
 *
 * A container's class may say more than its pauses. One of CORE_LATENCY visits without a pause, too, whenever it has what SCHEDULE_PERIOD_NS
 * bring, and its turns do not rest for visits. One of CORE_BATCH never visits. Neither changes what a container's balance allows it.
 *
 * Times are CLOCK_MONOTONIC in nanoseconds, but nothing here looks at a clock. */
#ifndef ISOLATION_ARBITER_SCHEDULE_H
#define ISOLATION_ARBITER_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "files/limits.h"

/* Twice as many as the chart lets share a GPU: containers that end may be there yet when others come. */
#define SCHEDULE_TENANTS_MAX 256
/* A turn while others wait; and while none does. */
#define SCHEDULE_QUANTUM_NS INT64_C(50000000)
#define SCHEDULE_ALONE_NS INT64_C(100000000)
/* Who has used up its balance goes on once it has again what this span of real time brings. */
#define SCHEDULE_PERIOD_NS INT64_C(50000000)
/* The most GPU time that an idle container saves up; and one that was kept waiting by others. */
#define SCHEDULE_BURST_NS INT64_C(100000000)
#define SCHEDULE_OWED_NS INT64_C(5000000000)
/* A turn without work for so long goes to the next that waits. */
#define SCHEDULE_LINGER_NS INT64_C(500000)
/* The next turn begins when so much work of the last one is left. */
#define SCHEDULE_HANDOVER_NS INT64_C(5000000)
/* Work that is there for longer than this after its turn counts as sharing the GPU. */
#define SCHEDULE_OVERLAP_NS INT64_C(10000000)
/* An unused turn is taken back; its container is passed over for so long at first, twice as long each time. */
#define SCHEDULE_ANSWER_NS INT64_C(25000000)
#define SCHEDULE_ASLEEP_MIN_NS INT64_C(20000000)
#define SCHEDULE_ASLEEP_MAX_NS INT64_C(1000000000)
/* Work that runs on after the turn has the GPU for itself for so long. */
#define SCHEDULE_HOLD_NS INT64_C(500000000)
/* By how much run one container can be ahead of another. */
#define SCHEDULE_LEAD_NS INT64_C(10000000000)
/* A visit's length at most; what a container must have saved up for one. */
#define SCHEDULE_VISIT_NS INT64_C(50000000)
#define SCHEDULE_CREDIT_NS INT64_C(1000000)
/* Whether a visit was taken up, and for how much work, is looked after so long. */
#define SCHEDULE_TAKEN_UP_NS INT64_C(500000)
/* Turns of a container that has saved up so much do not rest for visits. */
#define SCHEDULE_PATIENCE_NS INT64_C(50000000)
/* For so long after another's visit a container keeps no more than this ahead on the GPU. */
#define SCHEDULE_SHALLOW_FOR_NS INT64_C(2000000000)
#define SCHEDULE_SHALLOW_NS INT64_C(2000000)
#define SCHEDULE_NEVER UINT64_MAX

/* A container's share of the GPU's time. */
struct share {
    uint32_t percent; /* 1 to 100 */
    bool borrows;     /* policy `idle`: may use what no other container wants */
    enum core_class class;
};

/* What its page says; may be anything. */
struct asked {
    uint64_t used_ns;       /* GPU time of all that it put on the GPU so far */
    uint64_t busy_until_ns; /* when that will be through */
    uint32_t requests;      /* rises when it has something to say */
    bool wants;             /* waits for a turn, or for more GPU time in this one */
};

/* Its input. */
struct granted {
    uint64_t until_ns;   /* may put work on the GPU before that moment; 0: not now */
    uint64_t allowed_ns; /* and as long as its used_ns is below this */
    uint64_t began_ns;   /* when that turn or visit began or went on, or its last one */
    uint64_t ahead_ns;   /* how much work it may keep ahead on the GPU; 0: as it likes */
    uint64_t beside_ns;  /* GPU time that others had so far, with what they have there now; 0: a visit after a pause */
};

struct tenant {
    bool present, active, busy;
    bool wants, comes_back; /* as of this step; the wish is the first after a pause */
    bool visits, paused;   /* it visits, and came back from a pause for that */
    bool disturbed;        /* others had the GPU beside it */
    struct share share;
    int64_t balance;       /* nanoseconds times 100 */
    int64_t run_ns;        /* weighted: real time * 100 / percent */
    int64_t room_ns;       /* real time that it had and has not been charged for */
    int64_t unpaid_ns;     /* said to be used, not charged yet */
    uint64_t used_ns, allowed_ns;
    uint64_t busy_until_ns, beside_ns; /* as its page said last; GPU time that others had beside its work */
    uint64_t began_ns, left_ns; /* its last turn or visit */
    uint64_t visit_since_ns, idle_from_ns;
    uint64_t visit_used_ns; /* its used_ns when its last visit began */
    uint64_t asleep_until_ns;
    int64_t asleep_ns;     /* how long it was passed over last time; 0: it answers */
    uint32_t asleep_requests;
};

struct schedule {
    uint64_t now_ns;
    struct tenant tenants[SCHEDULE_TENANTS_MAX];
    unsigned places;       /* those from here on were never taken */
    /* The turn. */
    int holder;            /* -1: none */
    bool over, answered, rests;
    uint64_t since_ns, until_ns, over_ns;
    uint64_t begin_used_ns;
    uint32_t begin_requests;
    int64_t spare_ns;      /* real time that several had, and only some say that they used */
    /* Visits. */
    int visitors;
    int last_visitor;      /* -1: none yet */
    uint64_t last_visit_ns, other_visit_ns; /* when it was last on the GPU, and when another one last was */
};

void schedule_begin(struct schedule *schedule, uint64_t now_ns);

/* A container comes (its page says used_ns now), changes its share, or goes. `tenant` is its place, chosen by the caller. */
void schedule_admit(struct schedule *schedule, unsigned tenant, struct share share, uint64_t used_ns);
void schedule_change(struct schedule *schedule, unsigned tenant, struct share share);
void schedule_dismiss(struct schedule *schedule, unsigned tenant);

/* Brings the schedule to `now_ns` (never earlier than before). `asked` and `granted` have an element for each place, those of absent
 * tenants are not read or are zero. Returns when to ask again at the latest, or SCHEDULE_NEVER: when a page changes. */
uint64_t schedule_step(struct schedule *schedule, uint64_t now_ns, const struct asked *asked, struct granted *granted);

#endif
