/* Prints what a GPU's shared state says of its time.
 *
 * Usage: engine_state DIRECTORY UUID. One line "busy NANOSECONDS", then for each living process "process PID NANOSECONDS". */
#include <stdio.h>

#include "node/state.h"

int main(int count, char **arguments)
{
    struct state_files files;
    char message[STATE_MESSAGE_MAX];
    if (count != 3)
        return 2;
    if (state_open(arguments[1], arguments[2], false, &files, message) != STATE_OK) {
        fprintf(stderr, "%s/%s: not there\n", arguments[1], arguments[2]);
        return 1;
    }
    printf("busy %llu\n", (unsigned long long)files.state->busy_ns);
    for (unsigned slot = 0; slot < files.state->slots_used; slot++) {
        pid_t pid;
        if (state_alive(&files, slot, &pid))
            printf("process %d %llu\n", (int)pid, (unsigned long long)files.state->slots[slot].busy_ns);
    }
    return 0;
}
