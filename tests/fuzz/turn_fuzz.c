/* The compute half of the usage file: several containers' turn pages, which tenants overwrite arbitrarily or cut off; read by
 * the arbiter, scheduled and answered. The library's side of the page takes slots on it.
 *
 * For any content of the pages: at most one container has a turn (others may visit), none for longer than the rules allow, and none is
 * allowed more beyond its reported use than it can have saved up. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arbiter/page.h"
#include "arbiter/schedule.h"
#include "fuzz.h"
#include "files/region.h"

enum { CONTAINERS = 3, STEPS_MOST = 256 };

static struct turn_page *pages[CONTAINERS];
static int files[CONTAINERS] = {-1, -1, -1};
static uint64_t allowed_ns[CONTAINERS]; /* at the last step */

static void open_pages(void)
{
    char path[] = "/tmp/turn-fuzz.XXXXXX";
    const char *problem;
    MUST(mkdtemp(path));
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    MUST(folder >= 0);
    page_guard();
    for (unsigned i = 0; i < CONTAINERS; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        files[i] = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        MUST(files[i] >= 0 && !ftruncate(files[i], (off_t)REGION_BYTES));
        MUST(!page_map(folder, name, REGION_BYTES / REGION_PAGE_BYTES, &problem)); /* beyond its end */
        pages[i] = page_map(folder, name, i, &problem);
        MUST(pages[i]);
        unlinkat(folder, name, 0);
    }
    MUST(!page_map(folder, "none", 0, &problem));
    close(folder);
    rmdir(path);
}

static void begin(void)
{
    if (files[0] < 0)
        open_pages();
    for (unsigned i = 0; i < CONTAINERS; i++) {
        MUST(!ftruncate(files[i], (off_t)REGION_BYTES));
        memset(pages[i], 0, REGION_PAGE_BYTES);
        allowed_ns[i] = 0;
    }
}

/* True: the file ends before its page now. */
static void tamper(unsigned place, bool *cut_off, uint64_t now_ns, struct input *input)
{
    struct turn_page *page = pages[place];
    unsigned how = (unsigned)eat(input, 1) % 8;
    if (how == 0) {
        *cut_off = eat(input, 1) % 4 == 0;
        MUST(!ftruncate(files[place], *cut_off ? REGION_PAGE_BYTES : (off_t)REGION_BYTES));
        return;
    }
    if (*cut_off)
        return;
    struct turn_slot *slot = &page->slots[eat(input, 1) % TURN_SLOTS];
    uint64_t word = eat(input, 8);
    switch (how) {
    case 1: page->used_ns = word; break;
    case 2: page->used_ns += word % 100000000; break;
    case 3: page->requests++; break;
    case 4: slot->owner = 1; slot->busy_until_ns = word % 2 ? word : now_ns + word % 2000000000; break;
    case 5: slot->owner = 1; slot->wants_until_ns = word % 2 ? word : now_ns + word % 500000000; break;
    case 6: page->library_version = word % 4 ? TURN_VERSION : (uint32_t)word; break;
    default: memcpy((char *)page + eat(input, 2) % (sizeof *page - sizeof word), &word, sizeof word);
    }
}

static void take_slot(unsigned place, bool cut_off, uint64_t now_ns, struct input *input)
{
    uint64_t owner = eat(input, 2) + 1;
    if (cut_off)
        return; /* a library that touches such a page ends its own process */
    struct turn_slot *slot = turn_take_slot(pages[place], owner, now_ns);
    MUST(!slot || (slot >= pages[place]->slots && slot < pages[place]->slots + TURN_SLOTS && slot->owner == owner));
}

static void look(struct schedule *schedule, const bool *cut_off, uint64_t now_ns)
{
    static struct asked asked[SCHEDULE_TENANTS_MAX];
    static struct granted granted[SCHEDULE_TENANTS_MAX];
    unsigned turns = 0;
    memset(asked, 0, sizeof asked);
    for (unsigned i = 0; i < CONTAINERS; i++) {
        uint32_t seen = 0;
        bool present = schedule->tenants[i].present;
        bool read = page_read(pages[i], now_ns, &asked[i]);
        MUST(!read || !cut_off[i]);
        if (!read) {
            memset(&asked[i], 0, sizeof asked[i]);
            if (present)
                schedule_dismiss(schedule, i); /* like the arbiter */
        } else if (pages[i]->requests) {
            MUST(page_listen(pages[i], &seen) && seen == pages[i]->requests);
        }
    }
    uint64_t next_ns = schedule_step(schedule, now_ns, asked, granted);
    MUST(next_ns > 0);
    for (unsigned i = 0; i < SCHEDULE_TENANTS_MAX; i++) {
        turns += granted[i].until_ns > now_ns && !schedule->tenants[i].visits;
        MUST(granted[i].until_ns <= now_ns + (uint64_t)SCHEDULE_ALONE_NS);
        MUST(!granted[i].until_ns || schedule->tenants[i].present);
        if (i >= CONTAINERS)
            continue;
        /* An allowance stays, even if the page reports less than before. */
        MUST(granted[i].allowed_ns == allowed_ns[i] || (int64_t)(granted[i].allowed_ns - asked[i].used_ns) <= SCHEDULE_OWED_NS);
        allowed_ns[i] = granted[i].allowed_ns;
        MUST(page_write(pages[i], now_ns, granted[i], false) || cut_off[i]);
    }
    MUST(turns <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct schedule schedule;
    struct input input = {bytes, size};
    bool cut_off[CONTAINERS] = {false};
    uint64_t now_ns = UINT64_C(1000000000000);
    begin();
    schedule_begin(&schedule, now_ns);
    for (unsigned step = 0; input.size && step < STEPS_MOST; step++) {
        unsigned what = (unsigned)eat(&input, 1), place = what / 8 % CONTAINERS;
        switch (what % 8) {
        case 0:
        case 1:
            tamper(place, &cut_off[place], now_ns, &input);
            break;
        case 2:
            take_slot(place, cut_off[place], now_ns, &input);
            break;
        case 3: {
            uint32_t percent = (uint32_t)eat(&input, 1) % 100 + 1, rest = (uint32_t)eat(&input, 1);
            struct share share = {percent, rest % 2, rest / 2 % 3};
            if (schedule.tenants[place].present) {
                schedule_change(&schedule, place, share);
            } else {
                allowed_ns[place] = cut_off[place] ? 0 : pages[place]->used_ns;
                schedule_admit(&schedule, place, share, allowed_ns[place]);
            }
            break;
        }
        case 4:
            if (schedule.tenants[place].present)
                schedule_dismiss(&schedule, place);
            page_leave(pages[place]);
            break;
        default:
            now_ns += eat(&input, 4);
            look(&schedule, cut_off, now_ns);
        }
    }
    return 0;
}
