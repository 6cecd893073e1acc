/* What nodes can still take: the units of GPU memory that a node allocates when the expected pods are offered to it, one after the other.
 *
 * src/gpushare/ledger/placement/fragmentation/lookahead.py describes what is computed and calls this; rollout.py beside it computes the same in
 * Python. A test compares both. Whole numbers only, so both agree exactly. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The same in rollout.py. */
enum { MOST_GPUS = 64, MOST_KINDS = 256, OPEN_TO_MEMORY = 1, OPEN_TO_CORE = 2 };
static const int64_t unknown_cpu_milli = INT64_C(1) << 31;
/* Where a value may be in the table, counted from the place that its key belongs to; the steps that reading one takes. */
enum { WAYS = 4, TABLE_STEPS = 5 };

struct kind {
    int64_t gpus, units, core_percent, cpu_milli, whole;
};

/* Sequences of offers, as indexes of kinds, and a table of values by the hash of the state (0: empty). */
struct plan {
    const struct kind *kinds;
    const uint16_t *offers;
    uint64_t *keys;
    int64_t *values;
    int64_t kind_count, sequences, length, slots;
};

/* Planes of (rows, nodes), lines of (nodes). */
struct nodes {
    const int64_t *units, *core_percent, *untouched;
    const int64_t *cpu_milli, *open_to;
};

struct gpu {
    int64_t units, core_percent, untouched;
};

/* The GPUs that have something free, in ascending order: the first that takes a request is the tightest. */
struct state {
    int64_t cpu_milli, open_to;
    int first, end;
    struct gpu gpus[MOST_GPUS];
};

static bool before(const struct gpu *one, const struct gpu *other)
{
    if (one->units != other->units)
        return one->units < other->units;
    if (one->core_percent != other->core_percent)
        return one->core_percent < other->core_percent;
    return one->untouched < other->untouched;
}

static bool takes(const struct gpu *gpu, const struct kind *kind)
{
    return gpu->units >= kind->units && (!kind->core_percent || gpu->core_percent >= kind->core_percent) &&
           (!kind->whole || gpu->untouched);
}

static int64_t need(const struct kind *kind)
{
    return kind->core_percent ? OPEN_TO_CORE : OPEN_TO_MEMORY;
}

/* Finds the tightest GPUs for a pod; false if it does not fit. */
static bool find(const struct state *state, const struct kind *kind, int *found)
{
    if (!(state->open_to & need(kind)) || state->cpu_milli < kind->cpu_milli || kind->gpus > state->end - state->first)
        return false;
    int count = 0;
    for (int at = state->first; at < state->end && count < kind->gpus; at++)
        if (takes(&state->gpus[at], kind))
            found[count++] = at;
    return count == kind->gpus;
}

/* Places a pod; returns the units that it is allocated. */
static int64_t place(struct state *state, const struct kind *kind, const int *found)
{
    int64_t placed = 0;
    for (int number = 0; number < kind->gpus; number++) {
        int at = found[number];
        struct gpu gpu = state->gpus[at];
        int64_t units = kind->whole ? gpu.units : kind->units;
        gpu.units -= units;
        gpu.core_percent -= kind->core_percent;
        gpu.untouched = 0;
        placed += units;
        for (; at > state->first && before(&gpu, &state->gpus[at - 1]); at--)
            state->gpus[at] = state->gpus[at - 1];
        state->gpus[at] = gpu;
    }
    while (state->first < state->end && state->gpus[state->first].units <= 0)
        state->first++;
    if (state->cpu_milli != unknown_cpu_milli)
        state->cpu_milli -= kind->cpu_milli;
    state->open_to &= need(kind);
    return placed;
}

/* The units that are allocated over all sequences. Takes a step for each pod that is tried. */
static int64_t roll_out(const struct plan *plan, const struct state *start, int64_t *steps)
{
    int found[MOST_GPUS];
    /* What does not fit once never fits again. */
    bool fits_first[MOST_KINDS], fits[MOST_KINDS];
    for (int64_t kind = 0; kind < plan->kind_count; kind++)
        fits_first[kind] = find(start, &plan->kinds[kind], found);
    *steps -= plan->kind_count;
    int64_t placed = 0;
    const uint16_t *offer = plan->offers;
    for (int64_t sequence = 0; sequence < plan->sequences; sequence++, offer += plan->length) {
        struct state state;
        memcpy(&state, start, offsetof(struct state, gpus) + (size_t)start->end * sizeof(struct gpu));
        memcpy(fits, fits_first, sizeof fits);
        for (int64_t number = 0; number < plan->length && state.first < state.end; number++) {
            int kind = offer[number];
            if (!fits[kind])
                continue;
            *steps -= 1;
            fits[kind] = find(&state, &plan->kinds[kind], found);
            if (fits[kind])
                placed += place(&state, &plan->kinds[kind], found);
        }
    }
    return placed;
}

static uint64_t hash(const struct state *state)
{
    uint64_t hash = (uint64_t)state->end;
    const int64_t lines[] = {state->cpu_milli, state->open_to};
    const int64_t *words[] = {lines, (const int64_t *)state->gpus};
    const int64_t counts[] = {2, 3 * (int64_t)state->end};
    for (int part = 0; part < 2; part++)
        for (int64_t word = 0; word < counts[part]; word++) {
            hash = (hash ^ (uint64_t)words[part][word]) * UINT64_C(0x9E3779B97F4A7C15);
            hash ^= hash >> 29;
        }
    return hash | 1;
}

/* The value of a state, from the table if it is there. */
static int64_t value(const struct plan *plan, const struct state *state, int64_t *steps)
{
    *steps -= TABLE_STEPS;
    uint64_t key = hash(state);
    uint64_t slot = (key >> 1) & (uint64_t)(plan->slots - 1);
    uint64_t into = slot;
    for (uint64_t way = 0; way < WAYS; way++) {
        uint64_t at = (slot + way) & (uint64_t)(plan->slots - 1);
        if (plan->keys[at] == key)
            return plan->values[at];
        if (!plan->keys[at]) {
            into = at;
            break;
        }
    }
    plan->keys[into] = key;
    plan->values[into] = roll_out(plan, state, steps);
    return plan->values[into];
}

static void add(struct state *state, const struct nodes *nodes, int64_t at)
{
    struct gpu gpu = {nodes->units[at], nodes->core_percent[at], nodes->untouched[at]};
    if (gpu.units <= 0 || state->end == MOST_GPUS)
        return;
    int place = state->end++;
    for (; place > 0 && before(&gpu, &state->gpus[place - 1]); place--)
        state->gpus[place] = state->gpus[place - 1];
    state->gpus[place] = gpu;
}

/* The node, with the GPU `replaced` and its lines as in `after`; `replaced` < 0: none. */
static int64_t value_of(const struct plan *plan, const struct nodes *now, const struct nodes *after, int64_t rows,
                        int64_t count, int64_t node, int64_t replaced, int64_t *steps)
{
    const struct nodes *lines = replaced < 0 ? now : after;
    struct state state = {.cpu_milli = lines->cpu_milli[node], .open_to = lines->open_to[node]};
    for (int64_t row = 0; row < rows; row++)
        add(&state, row == replaced ? after : now, row * count + node);
    return value(plan, &state, steps);
}

static bool same(const struct nodes *nodes, int64_t one, int64_t other)
{
    return nodes->units[one] == nodes->units[other] && nodes->core_percent[one] == nodes->core_percent[other] &&
           nodes->untouched[one] == nodes->untouched[other];
}

/* Writes for each node its value now into `values`, and for each GPU in `replaced` the value if that GPU, and the lines, become as in `after`.
 * Stops before the node for which no steps are left; `steps` has those that remain. Returns how many nodes have values. */
__attribute__((visibility("default"))) int64_t lookahead_values(const struct plan *plan, const struct nodes *now,
                                                                const struct nodes *after, const uint8_t *replaced,
                                                                int64_t rows, int64_t count, int64_t *steps,
                                                                int64_t *values, int64_t *values_after)
{
    int64_t node = 0;
    for (; node < count && *steps > 0; node++) {
        values[node] = value_of(plan, now, after, rows, count, node, -1, steps);
        for (int64_t row = 0; row < rows; row++) {
            int64_t at = row * count + node;
            if (!replaced[at])
                continue;
            int64_t like = node;
            while (like < at && !(replaced[like] && same(now, like, at) && same(after, like, at)))
                like += count;
            values_after[at] = like < at ? values_after[like]
                                         : value_of(plan, now, after, rows, count, node, row, steps);
        }
    }
    return node;
}
