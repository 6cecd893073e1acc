#define _GNU_SOURCE
#include "compute/flow.h"

#include <string.h>
#include <unistd.h>

#include "compute/estimate.h"
#include "process/container.h"

/* What a mark that is later than predicted adds to the prediction. */
#define LATE_NS UINT64_C(500000)
/* What a piece counts for at least where pieces are put without a look. */
#define BATCH_LEAST_NS UINT64_C(500)
#define SCALE_ONE 65536u
#define SCALE_LEAST 1024u
#define SCALE_MOST 81920u
/* What is unknown and has run for so long is expected to run as long again, up to this. */
#define UNKNOWN_MOST_NS UINT64_C(100000000)
/* So many ratios in a row are taken for others' work. */
#define LONGER_DOUBTED 8u
/* Beyond this, and beyond what its pieces explain, the time between two marks is that of a stream that waited for the host. */
#define TOGETHER_MOST_NS INT64_C(500000000)
/* Over so much time others cannot have had more than half of the GPU. */
#define DOUBTFUL_NS INT64_C(50000000)
/* Work that is sliced between so many containers takes as many times longer, and this much longer for what each of them has queued. */
#define NEIGHBOURS_MOST 8
#define OUTLASTED_NS UINT64_C(10000000)
/* A service's burst of work is shorter. What keeps the GPU busy for longer is none, even if its pauses seem so: it was taken for too short. */
#define BURST_MOST_NS UINT64_C(20000000)

_Static_assert(sizeof(struct turn_page) <= REGION_PAGE_BYTES, "a page of the usage file");

/* Set at compile time: to do it at the start of every process would touch a page for each. */
static struct flow flows[LIMITED_GPUS_MAX] = {
    [0 ... LIMITED_GPUS_MAX - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER},
};
static _Atomic int limited; /* 0: not known, 1: no, 2: yes */

/* --- fork: a child has none of its parent's work ------------------------------------------------------------------ */

/* Fork does not wait for these mutexes: they are held while the driver is called, which has mutexes of its own that fork may take first. */
static void in_child(void)
{
    for (int i = 0; i < LIMITED_GPUS_MAX; i++) {
        memset(&flows[i], 0, sizeof flows[i]);
        pthread_mutex_init(&flows[i].mutex, NULL);
    }
    estimates_forget();
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* --- beginning ---------------------------------------------------------------------------------------------------- */

bool flows_limited(void)
{
    int known = atomic_load_explicit(&limited, memory_order_relaxed);
    if (known)
        return known == 2;
    const struct container *here = container_here();
    if (!here)
        return true; /* the first launch finds out and refuses */
    known = 1;
    for (unsigned i = 0; i < here->limits.gpu_count; i++) {
        if (here->limits.gpus[i].core_percent)
            known = 2;
    }
    atomic_store(&limited, known);
    return known == 2;
}

static void begin(struct flow *flow, int gpu)
{
    const struct container *here = container_here();
    uint64_t now_ns = turn_now_ns();
    if (!here || !here->limits.gpus[gpu].core_percent)
        return;
    flow->percent = here->limits.gpus[gpu].core_percent;
    flow->page = (struct turn_page *)(void *)here->region->turns[gpu];
    /* The same process may begin again in the same nanosecond of its life only as another one. */
    flow->owner = ((uint64_t)getpid() << 40) ^ now_ns;
    flow->owner += !flow->owner;
    flow->sharing = 1;
    flow->scale = SCALE_ONE;
    flow->free_ns = flow->begun_ns = now_ns;
    atomic_store(&flow->page->library_version, TURN_VERSION);
}

struct flow *flow_lock(int gpu)
{
    struct flow *flow = &flows[gpu];
    pthread_mutex_lock(&flow->mutex);
    if (!flow->page)
        begin(flow, gpu);
    if (flow->page)
        return flow;
    pthread_mutex_unlock(&flow->mutex);
    return NULL;
}

struct flow *flow_unattended(int gpu, uint64_t now_ns, uint64_t long_ns, bool *recent)
{
    struct flow *flow = &flows[gpu];
    uint64_t looked_ns = atomic_load_explicit(&flow->looked_ns, memory_order_relaxed);
    if (!looked_ns)
        return NULL;
    if (now_ns < looked_ns + long_ns) {
        *recent = true;
        return NULL;
    }
    if (pthread_mutex_trylock(&flow->mutex)) {
        *recent = true;
        return NULL;
    }
    if (flow->page)
        return flow;
    pthread_mutex_unlock(&flow->mutex);
    return NULL;
}

void flow_unlock(struct flow *flow)
{
    pthread_mutex_unlock(&flow->mutex);
}

/* --- the page ------------------------------------------------------------------------------------------------------ */

/* Takes a new slot if ours may have been cleared as abandoned; counts the processes that have work. */
static void keep_slot(struct flow *flow, uint64_t now_ns)
{
    static struct turn_slot unseen; /* where all are taken */
    unsigned sharing = 0;
    if (!flow->slot || flow->slot == &unseen || atomic_load(&flow->slot->owner) != flow->owner) {
        flow->slot = turn_take_slot(flow->page, flow->owner, now_ns);
        if (!flow->slot)
            flow->slot = &unseen;
    }
    atomic_store(&flow->slot->seen_ns, now_ns);
    for (unsigned i = 0; i < TURN_SLOTS; i++) {
        const struct turn_slot *slot = &flow->page->slots[i];
        sharing += atomic_load_explicit(&slot->owner, memory_order_relaxed) &&
                   atomic_load_explicit(&slot->busy_until_ns, memory_order_relaxed) > now_ns;
    }
    flow->sharing = sharing ? sharing : 1;
    flow->slot_seen_ns = now_ns;
}

void flow_publish(struct flow *flow, uint64_t now_ns)
{
    if (!flow->slot || now_ns > flow->slot_seen_ns + FLOW_MARK_NS)
        keep_slot(flow, now_ns);
    atomic_store_explicit(&flow->slot->busy_until_ns, flow->free_ns, memory_order_release);
}

/* --- charges and predictions --------------------------------------------------------------------------------------- */

void flow_correct(struct flow *flow, int64_t more_ns)
{
    atomic_fetch_add_explicit(&flow->page->used_ns, (uint64_t)more_ns, memory_order_relaxed);
    /* Without an arbiter: the moment of the next piece moves by what this one cost. */
    atomic_fetch_add_explicit(&flow->page->alone_ns, (uint64_t)(more_ns * 100 / (int64_t)flow->percent), memory_order_relaxed);
}

void flow_put(struct flow *flow, uint64_t now_ns, uint64_t charged_ns, uint64_t raw_ns, bool uneven)
{
    uint64_t predicted_ns = raw_ns * flow->scale / SCALE_ONE;
    flow->raw_ns += raw_ns;
    flow_correct(flow, (int64_t)charged_ns);
    flow->paid_ns += charged_ns;
    flow->uneven += uneven;
    flow->put_ns += predicted_ns;
    flow->free_ns = (flow->free_ns > now_ns ? flow->free_ns : now_ns) + predicted_ns;
    flow->launches++;
    flow_publish(flow, now_ns);
}

/* To read the clock, and to change the page with others looking on, takes longer than all the rest of a launch. It may be long since the last
 * look: then so little is on the GPU without a turn, or does not wait for one. */
bool flow_put_batched(struct flow *flow, uint64_t charged_ns, uint64_t raw_ns, bool uneven)
{
    /* Work that takes nothing must not go on without a look for ever. */
    uint64_t weight_ns = charged_ns > BATCH_LEAST_NS ? charged_ns : BATCH_LEAST_NS;
    if (weight_ns >= flow->batch_ns)
        return false;
    flow->batch_ns -= weight_ns;
    flow->spent_ns += charged_ns;
    flow->paid_ns += charged_ns;
    flow->uneven += uneven;
    flow->raw_ns += raw_ns;
    flow->put_ns += charged_ns;
    flow->free_ns = (flow->free_ns > flow->batch_at_ns ? flow->free_ns : flow->batch_at_ns) + charged_ns;
    flow->launches++;
    atomic_store_explicit(&flow->slot->busy_until_ns, flow->free_ns, memory_order_release);
    return true;
}

void flow_note_stream(struct flow *flow, CUstream stream)
{
    if (stream == flow->stream)
        return;
    flow->stream = stream;
    flow->changed_launches = flow->launches + 1;
}

void flow_settle_batch(struct flow *flow)
{
    if (flow->spent_ns)
        flow_correct(flow, (int64_t)flow->spent_ns);
    flow->spent_ns = 0;
}

uint64_t flow_ahead_ns(const struct flow *flow, uint64_t now_ns)
{
    return flow->free_ns > now_ns ? flow->free_ns - now_ns : 0;
}

/* The second mark's work was there before the first was reached: between them the GPU had no pause. */
static bool follows_anchor(const struct flow *flow, const struct marked *piece)
{
    return piece->follows && piece->follows == flow->anchor_number;
}

static uint64_t taken_for_ns(const struct flow *flow, const struct marked *piece)
{
    return piece->charged_ns * SCALE_ONE / flow->scale;
}

/* Of the time since the last mark was reached: what others had of it. All of it, where no arbiter says so, or another one than then. */
static int64_t beside_ns(const struct flow *flow, int64_t time_ns)
{
    uint64_t said_ns = atomic_load(&flow->page->beside_ns);
    return flow->anchor_beside_ns && said_ns >= flow->anchor_beside_ns ? (int64_t)(said_ns - flow->anchor_beside_ns) : time_ns;
}

/* Kinds whose pieces take very different times are charged what all of them together took; `more_ns` is what the one that was measured would
 * add to their charge. Where others may have been on the GPU as well, their time is subtracted, but at least a quarter counts as its own. */
static void charge_together(struct flow *flow, const struct marked *piece, int64_t more_ns)
{
    int64_t time_ns, paid_ns = (int64_t)(piece->paid_ns - flow->anchor_paid_ns);
    int64_t most_ns = paid_ns + more_ns > TOGETHER_MOST_NS ? paid_ns + more_ns : TOGETHER_MOST_NS;
    if (!follows_anchor(flow, piece) || flow->anchor.context != piece->after.context ||
        !mark_distance(&flow->anchor, &piece->after, &time_ns)) {
        flow_correct(flow, more_ns);
        return;
    }
    time_ns /= flow->sharing;
    time_ns = time_ns < most_ns ? time_ns : most_ns;
    if (!piece->sure) {
        more_ns = more_ns > 0 ? more_ns : 0; /* otherwise short ones would be refunded, and long ones not charged */
        flow_correct(flow, more_ns);
        flow->doubtful_ns += time_ns;
        flow->doubtful_paid_ns += paid_ns + more_ns;
        flow->doubtful_beside_ns += beside_ns(flow, time_ns);
        if (flow->doubtful_ns < DOUBTFUL_NS)
            return;
        int64_t least_ns = flow->doubtful_ns / 4;
        time_ns = flow->doubtful_ns - flow->doubtful_beside_ns;
        time_ns = time_ns > least_ns ? time_ns : least_ns;
        paid_ns = flow->doubtful_paid_ns;
        flow->doubtful_ns = flow->doubtful_paid_ns = flow->doubtful_beside_ns = 0;
        if (time_ns <= paid_ns)
            return;
    }
    flow_correct(flow, time_ns - paid_ns);
    if (estimate_uneven(piece->estimate) && time_ns >= 0 && paid_ns >= 0)
        estimate_stretch(piece->estimate, piece->amount, taken_for_ns(flow, piece), (uint64_t)time_ns, (uint64_t)paid_ns);
}

/* What a piece took by itself; how much should be added to its charge for that. */
static int64_t learn(struct flow *flow, const struct marked *piece)
{
    uint64_t time_ns, since_last_ns, least_ns;
    if (!piece->measured || !mark_between(&piece->before, &piece->after, &time_ns))
        return 0;
    /* What waits for other streams has its mark before it reached long before it begins; it cannot have begun before they
     * ended. */
    if (flow->anchor_number && flow->anchor.context == piece->after.context &&
        mark_between(&flow->anchor, &piece->after, &since_last_ns) && since_last_ns && since_last_ns < time_ns)
        time_ns = since_last_ns;
    bool sure = piece->sure && time_ns >= 8 * piece->between_ns;
    if (piece->idle)
        time_ns -= piece->between_ns < time_ns / 2 ? piece->between_ns : time_ns / 2;
    time_ns /= flow->sharing; /* the others of this container had the GPU in between */
    estimate_compare(piece->estimate, piece->amount, time_ns, sure && !piece->mixed, piece->visit);
    bool uneven = !piece->visit && estimate_uneven(piece->estimate);
    if (!uneven)
        estimate_learn(piece->estimate, piece->amount, time_ns, sure);
    else if (!follows_anchor(flow, piece) && (sure || (piece->sure && time_ns < piece->charged_ns)))
        estimate_stretch(piece->estimate, piece->amount, taken_for_ns(flow, piece), time_ns * flow->scale / SCALE_ONE,
                         piece->charged_ns);
    if (piece->like != ESTIMATE_NONE) {
        estimate_compare(piece->like, piece->like_amount, time_ns, sure && !piece->mixed, piece->visit);
        estimate_learn(piece->like, piece->like_amount, time_ns, sure);
    }
    /* Another of its kind may have had the GPU more for itself. */
    if (!sure && estimate_of(piece->estimate, piece->amount, &least_ns) && least_ns < time_ns)
        time_ns = least_ns;
    /* A long piece took no more than was measured, even next to others: the first of its kind may have run next to others, too. */
    int64_t more_ns = (int64_t)(time_ns * flow->scale / SCALE_ONE) - (int64_t)piece->charged_ns;
    bool counts = sure || !piece->charged_ns || (more_ns < 0 && ((uneven && piece->sure) || piece->charged_ns >= FLOW_MARK_NS));
    return counts ? more_ns : 0;
}

/* Whether a piece was all that there was between the last mark and its own, and began when that was reached: then its time says how long its
 * kind takes, and nothing of how pieces get along. */
static bool alone_between(const struct flow *flow, const struct marked *piece, uint64_t raw_ns, uint64_t time_ns)
{
    uint64_t own_ns;
    return piece->measured && raw_ns * flow->scale / SCALE_ONE <= piece->charged_ns + piece->charged_ns / 8 &&
           mark_between(&piece->before, &piece->after, &own_ns) && own_ns <= time_ns + time_ns / 64;
}

/* Where the GPU had no pause, so much time is what the work between two marks took together. */
static void compare(struct flow *flow, const struct marked *piece)
{
    uint64_t time_ns, raw_ns = piece->raw_ns - flow->anchor_raw_ns;
    if (!follows_anchor(flow, piece) || !raw_ns || !mark_between(&flow->anchor, &piece->after, &time_ns))
        return;
    uint64_t inertia = piece->sure ? 8 : 32;
    uint64_t ratio = time_ns / flow->sharing * SCALE_ONE / raw_ns, most = flow->scale + flow->scale / 8;
    bool alone = alone_between(flow, piece, raw_ns, time_ns);
    if (alone)
        ratio = SCALE_ONE;
    /* Others' work can only make it longer: one such ratio says little, or a few would outweigh many that are right. It counts where
     * all are longer. */
    bool doubtful = !piece->sure && !alone && ratio > flow->scale;
    flow->longer = doubtful ? flow->longer + 1 : 0;
    if (doubtful && flow->longer <= LONGER_DOUBTED)
        return;
    if (doubtful && ratio > most)
        ratio = most;
    ratio = ratio < SCALE_LEAST ? SCALE_LEAST : ratio > SCALE_MOST ? SCALE_MOST : ratio;
    flow->scale = (uint32_t)(((inertia - 1) * flow->scale + ratio) / inertia);
}

/* For how long there was no pause up to this mark. */
static void note_burst(struct flow *flow, struct marked *piece)
{
    uint64_t time_ns;
    if (follows_anchor(flow, piece) && mark_between(&flow->anchor, &piece->after, &time_ns))
        flow->burst_ns += time_ns;
    else
        flow->burst_ns = 0;
    piece->visit = piece->visit && flow->burst_ns < BURST_MOST_NS;
}

/* Whether the work since the last mark took longer than neighbours explain. Samples with neighbours in them do not say what is uneven: this does. */
static bool outlasted(const struct flow *flow, const struct marked *piece)
{
    uint64_t time_ns, paid_ns = piece->paid_ns - flow->anchor_paid_ns;
    return piece->known && !piece->visit && follows_anchor(flow, piece) && mark_between(&flow->anchor, &piece->after, &time_ns) &&
           time_ns / flow->sharing > OUTLASTED_NS + NEIGHBOURS_MOST * paid_ns;
}

/* The mark behind a piece was reached: it is the one to compare the next with. */
static void reach(struct flow *flow, struct marked *piece)
{
    note_burst(flow, piece);
    bool longer = outlasted(flow, piece);
    int64_t more_ns = learn(flow, piece);
    if (longer)
        estimate_set_uneven(piece->estimate);
    if ((longer || piece->uneven != flow->anchor_uneven) && !piece->visit) {
        charge_together(flow, piece, more_ns);
    } else {
        flow_correct(flow, more_ns);
        compare(flow, piece);
    }
    if (flow->anchor_number)
        mark_drop(&flow->pool, &flow->anchor);
    flow->anchor = piece->after;
    flow->anchor_number = piece->number;
    flow->anchor_raw_ns = piece->raw_ns;
    flow->anchor_paid_ns = piece->paid_ns;
    flow->anchor_uneven = piece->uneven;
    flow->anchor_beside_ns = atomic_load(&flow->page->beside_ns);
}

/* What is left of work whose length was unknown when it was put, the first of it at `since_ns`. Taken for short, it would have another
 * container's begin beside it, and both be measured too long. */
static uint64_t unknown_ns(const struct flow *flow, uint64_t now_ns, uint64_t since_ns)
{
    uint64_t one_ns, known_ns = 0;
    since_ns = since_ns > flow->reached_at_ns ? since_ns : flow->reached_at_ns;
    uint64_t passed_ns = now_ns > since_ns ? now_ns - since_ns : 0;
    for (unsigned i = 0; i < flow->mark_count; i++) {
        if (!flow->marks[i].known && estimate_of(flow->marks[i].estimate, flow->marks[i].amount, &one_ns))
            known_ns += one_ns;
    }
    if (known_ns)
        return known_ns > passed_ns ? known_ns - passed_ns : 0;
    return passed_ns < UNKNOWN_MOST_NS ? passed_ns : UNKNOWN_MOST_NS;
}

bool flow_has_arbiter(const struct flow *flow, uint64_t now_ns)
{
    const struct turn_page *page = flow->page;
    uint64_t heartbeat_ns = atomic_load_explicit(&page->heartbeat_ns, memory_order_relaxed);
    return heartbeat_ns + TURN_SILENCE_NS > now_ns && heartbeat_ns < now_ns + TURN_SILENCE_NS &&
           atomic_load_explicit(&page->arbiter_version, memory_order_relaxed) == TURN_VERSION;
}

bool flow_look(struct flow *flow, uint64_t now_ns)
{
    uint64_t reached_put_ns = 0, unknown_at_ns = 0;
    bool reached = false;
    unsigned kept = 0, unknown = 0;
    flow_settle_batch(flow);
    for (unsigned i = 0; i < flow->mark_count; i++) {
        struct marked *piece = &flow->marks[i];
        enum mark_state state = mark_look(&piece->after);
        if (state == MARK_AHEAD) {
            if (!piece->known && !unknown++)
                unknown_at_ns = piece->at_ns;
            flow->marks[kept++] = *piece;
            continue;
        }
        if (state == MARK_REACHED) {
            /* Where the turn has ended meanwhile, others' work may have come in between. Without an arbiter others are unknown. */
            piece->sure = piece->sure && (!flow_has_arbiter(flow, now_ns) ||
                                          (piece->began_ns == atomic_load(&flow->page->began_ns) &&
                                           atomic_load(&flow->page->until_ns) > now_ns));
            reached = true;
            reached_put_ns = piece->put_ns > reached_put_ns ? piece->put_ns : reached_put_ns;
            if (flow->reached_launches < piece->launches)
                flow->reached_launches = piece->launches;
        }
        if (state == MARK_REACHED)
            reach(flow, piece);
        else
            mark_drop(&flow->pool, &piece->after);
        if (piece->measured)
            mark_drop(&flow->pool, &piece->before);
    }
    flow->mark_count = kept;
    flow->unknown = unknown;
    atomic_store_explicit(&flow->looked_ns, now_ns, memory_order_relaxed);
    if (reached)
        flow->reached_at_ns = now_ns;
    /* At most what was put after the last mark that was reached; at least what no reached mark has behind it. */
    uint64_t most_ns = now_ns + (flow->put_ns - reached_put_ns);
    if (reached && flow->free_ns > most_ns)
        flow->free_ns = most_ns;
    if (kept) {
        uint64_t last_ns = flow->put_ns - flow->marks[kept - 1].put_ns + LATE_NS;
        if (unknown)
            last_ns += unknown_ns(flow, now_ns, unknown_at_ns);
        if (flow->free_ns < now_ns + last_ns)
            flow->free_ns = now_ns + last_ns;
    }
    flow_publish(flow, now_ns);
    return kept;
}

bool flow_mark(struct flow *flow, uint64_t now_ns, const struct marked *piece)
{
    struct marked *place = &flow->marks[flow->mark_count];
    *place = *piece;
    place->number = ++flow->marks_put;
    place->put_ns = flow->put_ns;
    place->raw_ns = flow->raw_ns;
    place->paid_ns = flow->paid_ns;
    place->uneven = flow->uneven;
    place->launches = flow->launches;
    place->mixed = flow->changed_launches > flow->reached_launches + 1;
    place->visit = flow_has_arbiter(flow, now_ns) && !atomic_load(&flow->page->beside_ns);
    flow->mark_count++;
    bool ahead = flow_look(flow, now_ns);
    /* Still queued, and one before it too: that one was ahead when all of this was submitted. */
    unsigned last = flow->mark_count - 1;
    if (flow->mark_count > 1 && flow->marks[last].number == flow->marks_put)
        flow->marks[last].follows = flow->marks[last - 1].number;
    return ahead;
}

static bool has_marks_in(const struct flow *flow, CUcontext context)
{
    bool has = flow->anchor_number && flow->anchor.context == context;
    for (unsigned i = 0; i < flow->mark_count; i++)
        has |= flow->marks[i].after.context == context;
    for (unsigned i = 0; i < flow->pool.count; i++)
        has |= flow->pool.marks[i].context == context;
    return has;
}

unsigned flows_hold(CUcontext context)
{
    unsigned held = 0;
    for (unsigned i = 0; i < LIMITED_GPUS_MAX && context && flows_limited(); i++) {
        struct flow *flow = &flows[i];
        if (!atomic_load_explicit(&flow->looked_ns, memory_order_relaxed))
            continue;
        pthread_mutex_lock(&flow->mutex);
        if (has_marks_in(flow, context)) {
            flow_look(flow, turn_now_ns());
            held |= 1u << i;
        } else {
            pthread_mutex_unlock(&flow->mutex);
        }
    }
    return held;
}

/* Nothing will say how long work of unknown length took whose marks are gone: at most as long as it was there, since the driver waits for it
 * before a context ends. */
static void end_context(struct flow *flow, CUcontext ended, CUcontext heir)
{
    uint64_t now_ns = turn_now_ns(), since_ns = now_ns;
    unsigned kept = 0;
    for (unsigned i = 0; i < flow->mark_count; i++) {
        struct marked *piece = &flow->marks[i];
        if (piece->after.context == ended)
            piece->before.context = piece->after.context = heir;
        if (piece->after.context)
            flow->marks[kept++] = *piece;
        else if (!piece->known && piece->at_ns < since_ns)
            since_ns = piece->at_ns;
    }
    flow->mark_count = kept;
    since_ns = since_ns > flow->reached_at_ns ? since_ns : flow->reached_at_ns;
    if (since_ns < now_ns)
        flow_correct(flow, (int64_t)((now_ns - since_ns) / flow->sharing));
    if (flow->anchor_number && flow->anchor.context == ended) {
        flow->anchor.context = heir;
        flow->anchor_number = heir ? flow->anchor_number : 0;
    }
    marks_end_context(&flow->pool, ended, heir);
}

void flows_release(unsigned held, CUcontext ended, CUcontext heir)
{
    for (unsigned i = 0; i < LIMITED_GPUS_MAX; i++) {
        if (!(held >> i & 1))
            continue;
        if (ended)
            end_context(&flows[i], ended, heir);
        pthread_mutex_unlock(&flows[i].mutex);
    }
}
