/* The schedule, asked line by line; for a test that holds it against a model.
 *
 *     begin NOW
 *     admit PLACE PERCENT BORROWS USED CLASS
 *     change PLACE PERCENT BORROWS CLASS
 *     dismiss PLACE
 *     step NOW [PLACE USED BUSY_UNTIL REQUESTS WANTS]...
 *
 * The answer to `step` is one line: when to look again, then PLACE:UNTIL:ALLOWED:AHEAD of every place named. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "arbiter/schedule.h"

static struct schedule schedule;

static void step(char *text)
{
    struct asked asked[SCHEDULE_TENANTS_MAX];
    struct granted granted[SCHEDULE_TENANTS_MAX];
    unsigned places[SCHEDULE_TENANTS_MAX], count = 0, wants;
    uint64_t now_ns;
    struct asked one;
    int taken;
    memset(asked, 0, sizeof asked);
    if (sscanf(text, "%" SCNu64 "%n", &now_ns, &taken) != 1)
        return;
    text += taken;
    while (count < SCHEDULE_TENANTS_MAX &&
           sscanf(text, "%u %" SCNu64 " %" SCNu64 " %" SCNu32 " %u%n", &places[count], &one.used_ns, &one.busy_until_ns,
                  &one.requests, &wants, &taken) == 5) {
        one.wants = wants;
        if (places[count] < SCHEDULE_TENANTS_MAX)
            asked[places[count++]] = one;
        text += taken;
    }
    printf("%" PRIu64, schedule_step(&schedule, now_ns, asked, granted));
    for (unsigned i = 0; i < count; i++)
        printf(" %u:%" PRIu64 ":%" PRIu64 ":%" PRIu64 ":%" PRIu64, places[i], granted[places[i]].until_ns,
               granted[places[i]].allowed_ns, granted[places[i]].ahead_ns, granted[places[i]].beside_ns);
    printf("\n");
    fflush(stdout);
}

int main(void)
{
    char line[8192];
    unsigned place, percent, borrows, class;
    uint64_t number;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "begin %" SCNu64, &number) == 1)
            schedule_begin(&schedule, number);
        else if (sscanf(line, "admit %u %u %u %" SCNu64 " %u", &place, &percent, &borrows, &number, &class) == 5)
            schedule_admit(&schedule, place, (struct share){percent, borrows, class}, number);
        else if (sscanf(line, "change %u %u %u %u", &place, &percent, &borrows, &class) == 4)
            schedule_change(&schedule, place, (struct share){percent, borrows, class});
        else if (sscanf(line, "dismiss %u", &place) == 1)
            schedule_dismiss(&schedule, place);
        else if (!strncmp(line, "step ", 5))
            step(line + 5);
        else
            return 2;
    }
    return 0;
}
