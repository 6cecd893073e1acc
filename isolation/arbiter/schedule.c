#include "arbiter/schedule.h"

#include <string.h>

/* A pause of the arbiter itself must not look like minutes of credit. */
#define STEP_MOST_NS INT64_C(250000000)
/* No word of a page moves an account by more than this at once. */
#define CLAIM_MOST_NS INT64_C(60000000000)
/* Of what a container says beyond the real time that it had so much is charged later; and of what one had beside others and says nothing of,
 * all beyond this was theirs. */
#define UNPAID_MOST_NS INT64_C(20000000)

/* Who may have the GPU, and how well. */
enum rank { NOT_NOW, BORROWER, ENTITLED };

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

void schedule_begin(struct schedule *schedule, uint64_t now_ns)
{
    memset(schedule, 0, sizeof *schedule);
    schedule->now_ns = now_ns;
    schedule->holder = schedule->last_visitor = -1;
}

void schedule_admit(struct schedule *schedule, unsigned place, struct share share, uint64_t used_ns)
{
    if (schedule->places <= place)
        schedule->places = place + 1;
    schedule->tenants[place] = (struct tenant){.present = true, .share = share, .used_ns = used_ns, .allowed_ns = used_ns};
}

void schedule_change(struct schedule *schedule, unsigned place, struct share share)
{
    schedule->tenants[place].share = share;
}

static void end_turn(struct schedule *schedule)
{
    schedule->tenants[schedule->holder].left_ns = schedule->now_ns;
    schedule->holder = -1;
    schedule->over = schedule->rests = false;
}

static void end_visit(struct schedule *schedule, struct tenant *tenant)
{
    tenant->visits = false;
    tenant->left_ns = schedule->now_ns;
    schedule->visitors--;
}

void schedule_dismiss(struct schedule *schedule, unsigned place)
{
    schedule->tenants[place].present = false;
    if (schedule->tenants[place].visits)
        end_visit(schedule, &schedule->tenants[place]);
    if (schedule->holder == (int)place)
        end_turn(schedule);
}

/* --- accounts ------------------------------------------------------------------------------------------------- */

static bool holds(const struct schedule *schedule, unsigned place)
{
    return schedule->holder == (int)place;
}

static int64_t left_ns(const struct asked *asked, uint64_t now_ns)
{
    return asked->busy_until_ns > now_ns ? (int64_t)sooner(asked->busy_until_ns - now_ns, SCHEDULE_HOLD_NS) : 0;
}

/* Whether it had the GPU, alone or with others, until the last step. The last of a turn's work, which the beginning of the next
 * one covers, is of the past turn. Beside a visitor only work counts. */
static bool had(const struct schedule *schedule, unsigned place, uint64_t until_ns)
{
    const struct tenant *tenant = &schedule->tenants[place];
    if (!tenant->present)
        return false;
    if (holds(schedule, place) || tenant->visits)
        return tenant->busy || !schedule->visitors || (tenant->visits && schedule->visitors == 1);
    return tenant->busy && until_ns >= tenant->left_ns + SCHEDULE_OVERLAP_NS;
}

/* Real time since the last step, charged to the containers that had the GPU; several at once share it, as they slowed each other down. */
static void count_run(struct schedule *schedule, int64_t passed_ns, uint64_t until_ns)
{
    unsigned together = 0;
    for (unsigned i = 0; i < schedule->places; i++)
        together += had(schedule, i, until_ns);
    for (unsigned i = 0; i < schedule->places; i++) {
        struct tenant *tenant = &schedule->tenants[i];
        bool its = had(schedule, i, until_ns);
        tenant->disturbed = its && together > 1;
        if (!its)
            continue;
        int64_t part_ns = passed_ns / together;
        tenant->run_ns += part_ns * 100 / tenant->share.percent;
        tenant->room_ns += part_ns;
    }
}

/* A container says how much GPU time it took, at the moment it gives work to the GPU and corrected later; it cannot have
 * been more than the real time that it had, with what is under way. The rest was said twice (kernels side by side,
 * processes or other containers in each other's way): little of it is kept, and none once the GPU is through with it. Of several
 * that had the GPU together one with little work leaves most of its part to the others, who say so. */
static int64_t charge(struct schedule *schedule, struct tenant *tenant, const struct asked *asked, bool holds_turn)
{
    uint64_t now_ns = schedule->now_ns;
    int64_t said_ns = (int64_t)(asked->used_ns - tenant->used_ns);
    tenant->used_ns = asked->used_ns;
    tenant->unpaid_ns += most(-CLAIM_MOST_NS, least(said_ns, CLAIM_MOST_NS));
    /* All that is left of it: what is not charged now, of a kernel of seconds, never is. */
    int64_t under_way_ns = asked->busy_until_ns > now_ns ? (int64_t)sooner(asked->busy_until_ns - now_ns, CLAIM_MOST_NS) : 0;
    int64_t own_ns = least(tenant->unpaid_ns, most(0, tenant->room_ns + under_way_ns));
    int64_t others_ns = tenant->disturbed ? most(0, least(tenant->unpaid_ns - own_ns, schedule->spare_ns)) : 0;
    tenant->unpaid_ns -= own_ns + others_ns;
    tenant->room_ns = least(tenant->room_ns - own_ns, SCHEDULE_BURST_NS);
    schedule->spare_ns -= others_ns;
    if (tenant->disturbed && tenant->room_ns > UNPAID_MOST_NS) {
        schedule->spare_ns = least(schedule->spare_ns + tenant->room_ns - UNPAID_MOST_NS, UNPAID_MOST_NS);
        tenant->room_ns = UNPAID_MOST_NS;
    }
    if (!under_way_ns && !holds_turn)
        tenant->unpaid_ns = 0;
    tenant->unpaid_ns = least(tenant->unpaid_ns, UNPAID_MOST_NS);
    return own_ns + others_ns;
}

/* A container that waits for others keeps what it earns meanwhile, and spends it later; an idle one keeps little, and one that
 * does not use all that it earns saves no more than that. */
static void balance(struct tenant *tenant, int64_t paid_ns, int64_t passed_ns, bool kept_waiting, bool idle)
{
    int64_t before = tenant->balance, cap = 100 * (kept_waiting ? SCHEDULE_OWED_NS : SCHEDULE_BURST_NS);
    int64_t after = before + passed_ns * tenant->share.percent - 100 * paid_ns;
    tenant->balance = least(after, idle ? cap : most(cap, before));
    if (tenant->share.borrows)
        tenant->balance = most(tenant->balance, 0); /* what was borrowed is not a debt */
}

/* A container that comes back starts where the others are; none gets ahead without bound. */
static void align_run(struct schedule *schedule, unsigned place, bool comes_back)
{
    int64_t floor_ns = INT64_MAX;
    for (unsigned i = 0; i < schedule->places; i++) {
        const struct tenant *other = &schedule->tenants[i];
        if (i != place && other->present && other->active)
            floor_ns = least(floor_ns, other->run_ns);
    }
    struct tenant *tenant = &schedule->tenants[place];
    if (floor_ns == INT64_MAX)
        return;
    if (comes_back)
        tenant->run_ns = most(tenant->run_ns, floor_ns);
    tenant->run_ns = least(tenant->run_ns, floor_ns + SCHEDULE_LEAD_NS);
}

/* A wish is the first after a pause where there was neither wish nor work for a while. The page knows by now when the work ended of which
 * it said before how long it would take. */
static void note_pause(struct tenant *tenant, const struct asked *asked, uint64_t now_ns, bool on_it)
{
    uint64_t idle_from_ns = sooner(tenant->idle_from_ns, asked->busy_until_ns);
    tenant->comes_back = asked->wants && !tenant->wants && !on_it && now_ns >= idle_from_ns + SCHEDULE_LINGER_NS;
    tenant->wants = asked->wants;
    if (asked->wants)
        tenant->idle_from_ns = now_ns;
    if (tenant->busy)
        tenant->idle_from_ns = now_ns + (uint64_t)left_ns(asked, now_ns);
}

/* GPU time that others than `place` have until `now_ns`, beside its own work: all that have work, as they say, have slices of the same length. */
static uint64_t others_had_ns(const struct schedule *schedule, unsigned place, uint64_t now_ns)
{
    uint64_t from_ns = schedule->now_ns, had_ns = 0;
    for (;;) {
        uint64_t until_ns = now_ns, others = 0;
        for (unsigned i = 0; i < schedule->places; i++) {
            const struct tenant *tenant = &schedule->tenants[i];
            if (i == place || !tenant->present || tenant->busy_until_ns <= from_ns)
                continue;
            others++;
            until_ns = sooner(until_ns, tenant->busy_until_ns);
        }
        if (!others || until_ns <= from_ns)
            return had_ns;
        had_ns += (until_ns - from_ns) * others / (others + 1);
        from_ns = until_ns;
    }
}

/* What others had since the last step. A container that may launch work does so between two steps, too. */
static void count_beside(struct schedule *schedule, uint64_t now_ns, const struct asked *asked)
{
    for (unsigned i = 0; i < schedule->places; i++) {
        struct tenant *tenant = &schedule->tenants[i];
        uint64_t until_ns = sooner(asked[i].busy_until_ns, now_ns);
        if (tenant->present && (holds(schedule, i) || tenant->visits) && until_ns > tenant->busy_until_ns)
            tenant->busy_until_ns = until_ns;
    }
    for (unsigned i = 0; i < schedule->places; i++) {
        if (schedule->tenants[i].present)
            schedule->tenants[i].beside_ns += others_had_ns(schedule, i, now_ns);
    }
    for (unsigned i = 0; i < schedule->places; i++)
        schedule->tenants[i].busy_until_ns = now_ns + (uint64_t)left_ns(&asked[i], now_ns);
}

static void account(struct schedule *schedule, uint64_t now_ns, const struct asked *asked)
{
    count_beside(schedule, now_ns, asked);
    int64_t passed_ns = least((int64_t)(now_ns - schedule->now_ns), STEP_MOST_NS);
    count_run(schedule, passed_ns, schedule->now_ns);
    schedule->now_ns = now_ns;
    for (unsigned i = 0; i < schedule->places; i++) {
        struct tenant *tenant = &schedule->tenants[i];
        if (!tenant->present)
            continue;
        bool turn = holds(schedule, i), busy = asked[i].busy_until_ns > now_ns;
        bool on_it = turn || tenant->visits, kept_waiting = (asked[i].wants && (!on_it || (turn && schedule->rests))) || tenant->disturbed;
        int64_t paid_ns = charge(schedule, tenant, &asked[i], on_it);
        balance(tenant, paid_ns, passed_ns, kept_waiting, !asked[i].wants && !on_it && !busy);
        tenant->busy = busy;
        bool active = on_it || asked[i].wants || busy;
        align_run(schedule, i, active && !tenant->active);
        tenant->active = active;
        note_pause(tenant, &asked[i], now_ns, on_it);
        if (tenant->asleep_ns && asked[i].requests != tenant->asleep_requests)
            tenant->asleep_until_ns = 0; /* it has said something: it is awake */
    }
}

/* --- whose turn ----------------------------------------------------------------------------------------------- */

static int64_t enough(const struct tenant *tenant)
{
    return SCHEDULE_PERIOD_NS * tenant->share.percent;
}

static enum rank rank_of(const struct tenant *tenant, int64_t needed)
{
    if (tenant->balance >= needed)
        return ENTITLED;
    return tenant->share.borrows ? BORROWER : NOT_NOW;
}

/* The best of the waiting containers, but for `except`; -1: none. */
static int choose(const struct schedule *schedule, const struct asked *asked, int except, enum rank *rank)
{
    int best = -1;
    *rank = NOT_NOW;
    for (int i = 0; i < (int)schedule->places; i++) {
        const struct tenant *tenant = &schedule->tenants[i];
        if (!tenant->present || i == except || tenant->visits || !asked[i].wants || tenant->asleep_until_ns > schedule->now_ns)
            continue;
        enum rank its = rank_of(tenant, enough(tenant));
        if (its > *rank || (its == *rank && its && tenant->run_ns < schedule->tenants[best].run_ns)) {
            best = i;
            *rank = its;
        }
    }
    return best;
}

static void begin_turn(struct schedule *schedule, int place, const struct asked *asked)
{
    schedule->holder = place;
    schedule->over = schedule->answered = false;
    schedule->since_ns = schedule->until_ns = schedule->now_ns;
    schedule->begin_used_ns = asked[place].used_ns;
    schedule->begin_requests = asked[place].requests;
    schedule->tenants[place].active = true;
    schedule->tenants[place].began_ns = schedule->now_ns;
    schedule->tenants[place].room_ns = most(schedule->tenants[place].room_ns, 0);
}

static void fall_asleep(struct schedule *schedule, struct tenant *tenant, uint32_t requests)
{
    tenant->asleep_ns = most(SCHEDULE_ASLEEP_MIN_NS, least(2 * tenant->asleep_ns, SCHEDULE_ASLEEP_MAX_NS));
    tenant->asleep_until_ns = schedule->now_ns + (uint64_t)tenant->asleep_ns;
    tenant->asleep_requests = requests;
}

static void note_answer(struct schedule *schedule, const struct asked *asked)
{
    const struct asked *page = &asked[schedule->holder];
    if (schedule->answered || (page->wants && page->used_ns == schedule->begin_used_ns &&
                               page->requests == schedule->begin_requests))
        return;
    schedule->answered = true;
    schedule->tenants[schedule->holder].asleep_ns = 0;
}

/* From when on a turn or visit that began at `since_ns` counts as lying idle. */
static uint64_t quiet_ns(const struct schedule *schedule, const struct asked *page, uint64_t since_ns)
{
    uint64_t busy_ns = sooner(page->busy_until_ns, schedule->now_ns + SCHEDULE_HOLD_NS);
    return (busy_ns > since_ns ? busy_ns : since_ns) + SCHEDULE_LINGER_NS;
}

/* What becomes of a turn while `rival` waits for it. */
static void weigh(struct schedule *schedule, const struct asked *asked, int rival, enum rank rival_rank)
{
    struct tenant *holder = &schedule->tenants[schedule->holder];
    const struct asked *page = &asked[schedule->holder];
    uint64_t now_ns = schedule->now_ns, since_ns = schedule->since_ns;
    /* One that waits for more needs enough of it. */
    enum rank rank = rank_of(holder, page->wants ? enough(holder) : 1);
    if (!schedule->answered && now_ns >= since_ns + SCHEDULE_ANSWER_NS) {
        fall_asleep(schedule, holder, page->requests);
        end_turn(schedule);
    } else if (!page->wants && now_ns >= quiet_ns(schedule, page, since_ns)) {
        end_turn(schedule);
    } else if (rank == NOT_NOW || rival_rank > rank) {
        schedule->over = true;
    } else if (rival_rank < rank) {
        schedule->until_ns = now_ns + SCHEDULE_ALONE_NS;
    } else if (now_ns < since_ns + SCHEDULE_QUANTUM_NS) {
        schedule->until_ns = since_ns + SCHEDULE_QUANTUM_NS + SCHEDULE_HANDOVER_NS; /* the queue is not to run dry */
    } else if (schedule->tenants[rival].run_ns < holder->run_ns) {
        schedule->over = true;
    } else {
        schedule->since_ns = now_ns;
        schedule->until_ns = now_ns + SCHEDULE_QUANTUM_NS + SCHEDULE_HANDOVER_NS;
    }
    if (schedule->holder >= 0 && schedule->over) {
        schedule->over_ns = now_ns;
        schedule->until_ns = now_ns;
    }
}

static void end_if_through(struct schedule *schedule, const struct asked *asked)
{
    uint64_t now_ns = schedule->now_ns;
    if (schedule->holder >= 0 && schedule->over &&
        (left_ns(&asked[schedule->holder], now_ns) <= SCHEDULE_HANDOVER_NS || now_ns >= schedule->over_ns + SCHEDULE_HOLD_NS))
        end_turn(schedule);
}

static void look_at_turn(struct schedule *schedule, const struct asked *asked)
{
    uint64_t now_ns = schedule->now_ns;
    enum rank rival_rank;
    int rival = choose(schedule, asked, schedule->holder, &rival_rank);
    note_answer(schedule, asked);
    if (!schedule->over && rival >= 0)
        weigh(schedule, asked, rival, rival_rank);
    else if (!schedule->over && schedule->until_ns < now_ns + SCHEDULE_ALONE_NS * 3 / 4)
        schedule->until_ns = now_ns + SCHEDULE_ALONE_NS;
    end_if_through(schedule, asked);
}

/* How much the holder may use; what is borrowed, in pieces of a turn. One that waits for more does not get it in crumbs. */
static void allow(struct schedule *schedule, const struct asked *asked)
{
    enum rank rival_rank;
    struct tenant *tenant = &schedule->tenants[schedule->holder];
    const struct asked *page = &asked[schedule->holder];
    if (page->wants && rank_of(tenant, enough(tenant)) == NOT_NOW)
        return;
    int64_t more_ns = most(0, tenant->balance / 100);
    choose(schedule, asked, schedule->holder, &rival_rank);
    if (tenant->share.borrows && rival_rank != ENTITLED)
        more_ns = most(more_ns, SCHEDULE_ALONE_NS);
    tenant->allowed_ns = page->used_ns + (uint64_t)more_ns;
}

/* --- visits ---------------------------------------------------------------------------------------------------- */

static void begin_visit(struct schedule *schedule, struct tenant *tenant, const struct asked *page)
{
    tenant->visits = true;
    tenant->paused = tenant->comes_back;
    tenant->began_ns = tenant->visit_since_ns = schedule->now_ns;
    tenant->visit_used_ns = page->used_ns;
    tenant->allowed_ns = page->used_ns + (uint64_t)least(tenant->balance / 100, SCHEDULE_VISIT_NS);
    tenant->room_ns = most(tenant->room_ns, 0);
    schedule->visitors++;
}

static bool is_visit_over(const struct schedule *schedule, const struct tenant *tenant, const struct asked *page)
{
    if (schedule->now_ns >= tenant->visit_since_ns + SCHEDULE_VISIT_NS)
        return true;
    if (page->wants)
        return (int64_t)(tenant->allowed_ns - page->used_ns) <= 0;
    return schedule->now_ns >= quiet_ns(schedule, page, tenant->visit_since_ns);
}

/* A class says when a container goes, never how much it has: all that it does is paid from its balance. */
static bool may_visit(const struct schedule *schedule, unsigned place)
{
    const struct tenant *tenant = &schedule->tenants[place];
    if (!tenant->wants || tenant->share.class == CORE_BATCH)
        return false;
    /* Without a pause it goes on with what 50 ms bring, as in turns: visits of a millisecond each would be all beginning and end. One that
     * did nothing with its last visit is stopped, or asleep. */
    bool goes_on = tenant->share.class == CORE_LATENCY && !holds(schedule, place) && tenant->balance >= enough(tenant) &&
                   tenant->used_ns != tenant->visit_used_ns;
    return goes_on || (tenant->comes_back && tenant->balance >= 100 * SCHEDULE_CREDIT_NS);
}

static void look_at_visits(struct schedule *schedule, const struct asked *asked)
{
    for (int i = 0; i < (int)schedule->places; i++) {
        struct tenant *tenant = &schedule->tenants[i];
        if (!tenant->present)
            continue;
        if (tenant->visits && is_visit_over(schedule, tenant, &asked[i]))
            end_visit(schedule, tenant);
        if (!tenant->visits && may_visit(schedule, (unsigned)i))
            begin_visit(schedule, tenant, &asked[i]);
        if (!tenant->visits)
            continue;
        if (schedule->last_visitor != i)
            schedule->other_visit_ns = schedule->last_visit_ns;
        schedule->last_visitor = i;
        schedule->last_visit_ns = schedule->now_ns;
    }
}

/* From which balance on turns of a container do not give way to visits. */
static int64_t patience(const struct tenant *tenant)
{
    return tenant->share.class == CORE_LATENCY ? 0 : 100 * SCHEDULE_PATIENCE_NS;
}

static bool rests(const struct schedule *schedule, int place)
{
    return schedule->visitors && schedule->tenants[place].balance < patience(&schedule->tenants[place]);
}

static void go_on(struct schedule *schedule)
{
    schedule->rests = false;
    /* What was measured meanwhile has others' work in it; and it could not answer. */
    schedule->tenants[schedule->holder].began_ns = schedule->now_ns;
    if (!schedule->answered)
        schedule->since_ns = schedule->now_ns;
}

static uint64_t ahead_of(const struct schedule *schedule, int place)
{
    uint64_t last_ns = schedule->last_visitor == place ? schedule->other_visit_ns : schedule->last_visit_ns;
    return last_ns && schedule->now_ns < last_ns + SCHEDULE_SHALLOW_FOR_NS ? SCHEDULE_SHALLOW_NS : 0;
}

/* GPU time that others had beside a container, with what is left of their work. On a visit after a pause, which is short and always beside
 * others' work, that is not to be charged by: 0. */
static uint64_t beside_of(const struct schedule *schedule, unsigned place)
{
    const struct tenant *tenant = &schedule->tenants[place];
    if (tenant->visits && tenant->paused)
        return 0;
    return 1 + tenant->beside_ns + others_had_ns(schedule, place, UINT64_MAX);
}

/* --- when to look again --------------------------------------------------------------------------------------- */

static uint64_t after_turn(const struct schedule *schedule, const struct asked *asked)
{
    const struct asked *page = &asked[schedule->holder];
    enum rank rival_rank;
    if (schedule->over) {
        uint64_t through_ns = schedule->now_ns + (uint64_t)most(0, left_ns(page, schedule->now_ns) - SCHEDULE_HANDOVER_NS);
        return sooner(through_ns, schedule->over_ns + SCHEDULE_HOLD_NS);
    }
    if (schedule->rests) {
        const struct tenant *tenant = &schedule->tenants[schedule->holder];
        return schedule->now_ns + (uint64_t)((patience(tenant) - tenant->balance) / tenant->share.percent + 1);
    }
    if (choose(schedule, asked, schedule->holder, &rival_rank) < 0)
        return schedule->until_ns - SCHEDULE_ALONE_NS / 2;
    uint64_t next_ns = schedule->until_ns - SCHEDULE_HANDOVER_NS;
    if (!page->wants)
        next_ns = sooner(next_ns, quiet_ns(schedule, page, schedule->since_ns));
    if (!schedule->answered)
        next_ns = sooner(next_ns, schedule->since_ns + SCHEDULE_ANSWER_NS);
    return next_ns;
}

static uint64_t next_look(const struct schedule *schedule, const struct asked *asked)
{
    uint64_t next_ns = schedule->holder >= 0 ? after_turn(schedule, asked) : SCHEDULE_NEVER;
    for (unsigned i = 0; i < schedule->places; i++) {
        const struct tenant *tenant = &schedule->tenants[i];
        if (!tenant->present)
            continue;
        if (tenant->visits) {
            next_ns = sooner(next_ns, tenant->visit_since_ns + SCHEDULE_VISIT_NS);
            next_ns = sooner(next_ns, asked[i].wants ? schedule->now_ns + SCHEDULE_TAKEN_UP_NS
                                                     : quiet_ns(schedule, &asked[i], tenant->visit_since_ns));
            continue;
        }
        if (!asked[i].wants)
            continue;
        int64_t missing = (schedule->visitors ? most(enough(tenant), patience(tenant)) : enough(tenant)) - tenant->balance;
        if (tenant->asleep_until_ns > schedule->now_ns)
            next_ns = sooner(next_ns, tenant->asleep_until_ns);
        else if (missing > 0)
            next_ns = sooner(next_ns, schedule->now_ns + (uint64_t)(missing / tenant->share.percent + 1));
    }
    return next_ns;
}

uint64_t schedule_step(struct schedule *schedule, uint64_t now_ns, const struct asked *asked, struct granted *granted)
{
    enum rank rank;
    account(schedule, now_ns > schedule->now_ns ? now_ns : schedule->now_ns, asked);
    look_at_visits(schedule, asked);
    if (schedule->holder >= 0) {
        bool rested = schedule->rests;
        schedule->rests = rests(schedule, schedule->holder);
        if (rested && !schedule->rests)
            go_on(schedule);
        if (schedule->rests)
            end_if_through(schedule, asked);
        else
            look_at_turn(schedule, asked);
    }
    if (schedule->holder < 0) {
        int next = choose(schedule, asked, -1, &rank);
        if (next >= 0 && !rests(schedule, next)) {
            begin_turn(schedule, next, asked);
            look_at_turn(schedule, asked);
        }
    }
    if (schedule->holder >= 0)
        allow(schedule, asked);
    for (int i = 0; i < (int)schedule->places; i++) {
        const struct tenant *tenant = &schedule->tenants[i];
        granted[i] = (struct granted){0, tenant->allowed_ns, tenant->began_ns, ahead_of(schedule, i), beside_of(schedule, (unsigned)i)};
        if (tenant->visits)
            granted[i].until_ns = tenant->visit_since_ns + SCHEDULE_VISIT_NS;
        else if (holds(schedule, i) && !schedule->over && !schedule->rests)
            granted[i].until_ns = schedule->until_ns;
    }
    memset(granted + schedule->places, 0, (SCHEDULE_TENANTS_MAX - schedule->places) * sizeof *granted);
    return next_look(schedule, asked);
}
