/* The memory half of the usage file: accounts and slots of several members, between which a tenant writes arbitrary data.
 *
 * The bytes are steps. Until something was overwritten, the accounts must equal those of a model; afterwards nothing may hang or end
 * the process, and nothing may be allocated above the limit by the sum in the file itself. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files/account.h"
#include "fuzz.h"
#include "files/members.h"

enum { MEMBERS = 4, GPUS = 3, STEPS_MOST = 512 };

static struct region *region;
static int file = -1;

struct world {
    struct member members[MEMBERS];
    uint64_t held[REGION_SLOTS][GPUS]; /* the model, by slot, also of dead owners */
    bool dead[REGION_SLOTS];
    unsigned holds[REGION_SLOTS]; /* of memory slots */
    unsigned top; /* slots from here on were never used */
    bool scribbled;
};

static void begin(struct world *world)
{
    memset(world, 0, sizeof *world);
    member_share_forget();
    for (unsigned i = 0; i < MEMBERS; i++)
        world->members[i].slot = -1;
    if (file >= 0) {
        struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
        MUST(!fcntl(file, F_SETLK, &all));
        MUST(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)REGION_BYTES));
        return;
    }
    file = memfd_create("usage", MFD_CLOEXEC);
    MUST(file >= 0 && !ftruncate(file, (off_t)REGION_BYTES));
    region = mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(region != MAP_FAILED);
}

static void forget_slot(struct world *world, unsigned slot)
{
    memset(world->held[slot], 0, sizeof world->held[slot]);
    world->dead[slot] = false;
}

/* Like the library (charge.c): a cleared slot is abandoned, and another one taken. */
static bool joined(struct world *world, struct member *member)
{
    if (member_holds(region, member))
        return true;
    member_leave(file, member);
    if (!member_join(region, file, member)) {
        MUST(world->scribbled); /* there are more slots than members */
        return false;
    }
    MUST(member->slot >= 0 && member->slot < REGION_SLOTS);
    if ((unsigned)member->slot >= world->top)
        world->top = (unsigned)member->slot + 1;
    forget_slot(world, (unsigned)member->slot);
    return true;
}

/* Its lock is released and its memory still charged, as when a process is killed. */
static void die(struct world *world, struct member *member)
{
    if (member->slot >= 0)
        world->dead[member->slot] = true;
    member_leave(file, member);
}

static void sweep(struct world *world, const struct member *member)
{
    unsigned dead = 0;
    for (unsigned i = 0; i < world->top; i++) {
        dead += world->dead[i];
        if (world->dead[i])
            forget_slot(world, i);
    }
    unsigned swept = members_sweep(region, file, member);
    MUST(swept == dead || world->scribbled);
}

static void take(struct world *world, struct member *member, struct input *input)
{
    unsigned gpu = (unsigned)eat(input, 1) % GPUS;
    uint64_t units = eat(input, 5), limit_units = eat(input, 5), before = account_total_units(region, gpu);
    if (!joined(world, member))
        return;
    unsigned slot = (unsigned)member->slot;
    before = account_total_units(region, gpu);
    bool taken = account_take(region, gpu, slot, units, limit_units);
    MUST(!taken || (units <= limit_units && before <= limit_units - units));
    MUST(taken || world->scribbled || units > limit_units || before > limit_units - units || limit_units >> 36);
    if (taken)
        world->held[slot][gpu] += units;
}

static void give(struct world *world, struct member *member, struct input *input)
{
    unsigned gpu = (unsigned)eat(input, 1) % GPUS;
    uint64_t units = eat(input, 5);
    if (!joined(world, member))
        return;
    uint64_t *held = &world->held[member->slot][gpu];
    account_give(region, gpu, (unsigned)member->slot, units);
    *held -= units < *held ? units : *held;
}

/* Memory of a few keys, existing or new. */
static void share(struct world *world, struct input *input)
{
    unsigned gpu = (unsigned)eat(input, 1) % GPUS;
    uint64_t key = 1 + eat(input, 1) % 4, units = eat(input, 4);
    int slot = member_share_hold(region, file, key);
    if (slot < 0 && (slot = member_share(region, file, key)) >= 0) {
        MUST(slot < REGION_SLOTS);
        if ((unsigned)slot >= world->top)
            world->top = (unsigned)slot + 1;
        forget_slot(world, (unsigned)slot);
        world->holds[slot] = 0;
        if (account_take(region, gpu, (unsigned)slot, units, UINT64_MAX))
            world->held[slot][gpu] = units;
        member_share_open(region, file, slot);
    }
    MUST(slot >= 0 || world->scribbled);
    if (slot >= 0)
        world->holds[slot]++;
}

static void leave(struct world *world, struct input *input)
{
    unsigned slot = (unsigned)eat(input, 1) % 8;
    if (!world->holds[slot])
        return;
    MUST(member_share_is_last((int)slot) == (world->holds[slot] == 1));
    member_share_leave(region, file, (int)slot);
    if (!--world->holds[slot])
        forget_slot(world, slot);
}

/* A word anywhere, or at a sensitive place. */
static void scribble(struct world *world, struct input *input)
{
    unsigned where = (unsigned)eat(input, 1), slot = (unsigned)eat(input, 1) % 8, gpu = (unsigned)eat(input, 1) % GPUS;
    struct region_account *account = &region->slots[slot].accounts[gpu];
    uint64_t word = eat(input, 8);
    world->scribbled = true;
    switch (where % 13) {
    case 0: region->gpus[gpu].total = word; break;
    case 1: account->held = word; break;
    case 2: account->intent = word; break;
    case 3: account->applied = word; break;
    case 4: region->slots[slot].owner = word; break;
    case 5: region->slots[slot].pid = (int32_t)word; break;
    case 6: region->slots[slot].pid_namespace = word; break;
    case 7: region->slots[slot].unused = word; break;
    case 8: region->header.slots_used = (uint32_t)word; break;
    case 9: region->header.magic = word; break;
    case 10: region->slots[slot].shared = (uint32_t)word; break;
    default: memcpy((char *)region + eat(input, 3) % (REGION_BYTES - sizeof word), &word, sizeof word); break;
    }
}

static void compare(const struct world *world)
{
    for (unsigned gpu = 0; gpu < GPUS; gpu++) {
        uint64_t sum = 0;
        for (unsigned slot = 0; slot < world->top; slot++) {
            if (!world->held[slot][gpu])
                continue;
            MUST(account_held_units(region, gpu, slot) == world->held[slot][gpu]);
            sum += world->held[slot][gpu];
        }
        MUST(account_total_units(region, gpu) == sum);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct world world;
    struct input input = {bytes, size};
    begin(&world);
    for (unsigned step = 0; input.size && step < STEPS_MOST; step++) {
        struct member *member = &world.members[eat(&input, 1) % MEMBERS];
        switch (eat(&input, 1) % 10) {
        case 0: case 1: take(&world, member, &input); break;
        case 2: give(&world, member, &input); break;
        case 3: die(&world, member); break;
        case 4: sweep(&world, member); break;
        case 5: joined(&world, member); break;
        case 6: scribble(&world, &input); break;
        case 8: share(&world, &input); break;
        case 9: leave(&world, &input); break;
        default:
            if (joined(&world, member) && world.scribbled)
                account_clear(region, (unsigned)member->slot);
        }
        if (!world.scribbled)
            compare(&world);
    }
    return 0;
}
