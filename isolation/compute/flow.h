/* The work of this process on one GPU: what was put there, how far the GPU is with it, and the container's turn.
 *
 * How far the GPU is is predicted from the estimates of what was put there, and put right whenever a mark is found reached (or not,
 * against the prediction). Everything here is under the flow's mutex. */
#ifndef ISOLATION_COMPUTE_FLOW_H
#define ISOLATION_COMPUTE_FLOW_H

#include <pthread.h>

#include "compute/marks.h"
#include "files/turn.h"

/* So much predicted work of a container waits on the GPU at most: enough to keep it busy while threads wake up. */
#define FLOW_DEPTH_NS UINT64_C(25000000)
/* A mark at least after so much work, or time. */
#define FLOW_MARK_NS UINT64_C(1000000)
/* What work of an unknown kind is taken for until it was measured. */
#define FLOW_UNKNOWN_NS UINT64_C(1000000)
/* Measurements so shortly after the beginning of a turn may have others' work in them. */
#define FLOW_UNSURE_NS UINT64_C(7000000)

enum {
    FLOW_MARKS = 64,
    FLOW_UNKNOWN_MOST = 2, /* pieces of unknown kinds on the GPU at a time: each might take seconds */
};

/* A piece of work with a mark behind it, or one before it as well. */
struct marked {
    struct mark before, after;
    bool measured, sure, known;
    uint64_t at_ns;      /* when it was put */
    uint64_t began_ns;   /* of the turn in which it was put */
    uint64_t between_ns; /* real time from putting the one mark to having put the piece */
    bool idle;           /* the GPU had nothing else to do then */
    bool mixed;          /* work in several streams was ahead: it may have been done in between */
    bool visit;          /* of a burst on a visit, beside another container's work */
    unsigned estimate, like;
    uint64_t amount, like_amount, charged_ns;
    uint64_t put_ns, raw_ns;     /* of all work, up to this mark: predicted, and as measured alone */
    uint64_t paid_ns, launches, uneven; /* the same: as charged beforehand, how many pieces, and how many of uneven kinds */
    uint64_t number, follows;    /* among marks; the mark that was still ahead when everything up to this one was there */
};

struct flow {
    pthread_mutex_t mutex;
    struct turn_page *page;    /* NULL: not begun */
    unsigned percent;
    uint64_t begun_ns;         /* when this process first had to do with the page */
    struct turn_slot *slot;
    uint64_t owner, slot_seen_ns;
    unsigned waiting;          /* threads */
    unsigned sharing;          /* processes of the container that have work on this GPU, at least 1 */
    uint64_t put_ns;           /* estimates of all work that was put on the GPU, added up */
    uint64_t free_ns;          /* when the GPU will be through with it */
    uint64_t marked_at_ns, marked_put_ns;
    uint64_t launches, marked_launches, reached_launches; /* all; up to the last mark; up to the last one that was reached */
    CUstream stream;           /* of the last piece */
    uint64_t changed_launches; /* the number of the first piece in that stream since one in another */
    uint64_t paid_ns, uneven;  /* what was charged beforehand; pieces of uneven kinds */
    /* Small pieces do not look at clock and page each time: what may be put without a look, what was charged for that and is not on the
     * page yet, and the moment of the last look. */
    uint64_t batch_ns, spent_ns, batch_at_ns;
    /* Estimates are of pieces by themselves; where pieces run side by side, or in each other's way, all together take less (or more)
     * time than their sum. The last mark that was reached, and what is learned from the next one. */
    struct mark anchor;
    uint64_t anchor_number, anchor_raw_ns, raw_ns, marks_put;
    uint64_t anchor_paid_ns, anchor_uneven;
    /* Between marks with uneven kinds in between, where others may have been on the GPU: how long that took, and what was charged. */
    int64_t doubtful_ns, doubtful_paid_ns, doubtful_beside_ns;
    uint64_t burst_ns;         /* since the GPU last had nothing to do of this container, up to the last mark that was reached */
    uint64_t anchor_beside_ns; /* as the page said when the last mark was reached */
    uint32_t scale;            /* 65536 is 1 */
    unsigned longer;           /* ratios in a row that others' work may have made longer */
    struct marked marks[FLOW_MARKS];
    unsigned mark_count, unknown;
    uint64_t reached_at_ns;    /* when a mark was last found reached */
    _Atomic uint64_t looked_ns; /* when flow_look was last called; 0: not begun */
    struct mark_pool pool;
};

/* Puts a piece without a look, if it is small enough for what the last look left. */
bool flow_put_batched(struct flow *flow, uint64_t charged_ns, uint64_t raw_ns, bool uneven);

/* Before a piece is put into that stream. */
void flow_note_stream(struct flow *flow, CUstream stream);

/* Writes into the page what was put in passing. */
void flow_settle_batch(struct flow *flow);

/* Flow of a GPU of the limits, locked, begun; NULL: not limited, or without a page. */
struct flow *flow_lock(int gpu);
void flow_unlock(struct flow *flow);

/* The same if it was begun and not looked at for so long, else NULL; `*recent`: because it was looked at, or another thread has it. Does not
 * disturb a program that looks itself, and never waits. */
struct flow *flow_unattended(int gpu, uint64_t now_ns, uint64_t long_ns, bool *recent);

/* Whether any GPU of this container has a compute limit. A nanosecond once known. */
bool flows_limited(void);

/* Charges work, and predicts when it is done; `raw_ns`: what it would take by itself; `uneven`: its kind is. */
void flow_put(struct flow *flow, uint64_t now_ns, uint64_t charged_ns, uint64_t raw_ns, bool uneven);

/* Puts a mark's piece into the list, where its place is `flow->marks[flow->mark_count]`, and looks. True: some are still ahead. */
bool flow_mark(struct flow *flow, uint64_t now_ns, const struct marked *piece);

/* Takes a charge back, or adds to it. */
void flow_correct(struct flow *flow, int64_t more_ns);

/* Looks how far the GPU is: learns from marks that were reached, corrects charges and predictions. True: some are still ahead. */
bool flow_look(struct flow *flow, uint64_t now_ns);

/* Predicted work that the GPU still has to do. */
uint64_t flow_ahead_ns(const struct flow *flow, uint64_t now_ns);

/* Writes into the page what the process's slot has to say. */
void flow_publish(struct flow *flow, uint64_t now_ns);

/* Whether a node's arbiter grants turns: its heartbeat is recent, and it means by the page what we do. */
bool flow_has_arbiter(const struct flow *flow, uint64_t now_ns);

/* Around a call of the driver that may end a context: meanwhile nobody touches its marks, which go with it. `held` is what flows_hold returned;
 * `ended`: the context, NULL: it goes on, and so do its measurements. Its events are the `heir`'s from then on; NULL: there are none any more. */
unsigned flows_hold(CUcontext context);
void flows_release(unsigned held, CUcontext ended, CUcontext heir);

#endif
