/* Reads a good limits file with random changes, many times; for the sanitizers to watch.
 *
 *     limits_mutations FILE ROUNDS SEED */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/limits.h"

enum { ROOM = 4096 };

static size_t change(char *text, size_t size, unsigned *seed)
{
    static const char *const words[] = {"memory_bytes=", "core_percent=100", "gpu GPU-", "container ", "1.0", "1.1", "1.9",
                                        "\n", " ", "=", "18446744073709551616", "99999999999999999999999", "core_policy=idle",
                                        "core_class=batch"};
    size_t at = size ? (size_t)rand_r(seed) % size : 0;
    switch (rand_r(seed) % 4) {
    case 0:
        if (size)
            text[at] = (char)rand_r(seed);
        return size;
    case 1: /* takes a piece out */
        for (size_t length = (size_t)rand_r(seed) % 20; length && at < size; length--)
            memmove(text + at, text + at + 1, --size - at);
        return size;
    case 2: { /* puts a word in */
        const char *word = words[(size_t)rand_r(seed) % (sizeof words / sizeof *words)];
        size_t length = strlen(word);
        if (size + length > ROOM)
            return size;
        memmove(text + at + length, text + at, size - at);
        memcpy(text + at, word, length);
        return size + length;
    }
    default: /* says a line again */
        if (size * 2 > ROOM)
            return size;
        memcpy(text + size, text + at, size - at);
        return size + size - at;
    }
}

int main(int count, char **arguments)
{
    char good[ROOM];
    unsigned taken = 0;
    if (count != 4)
        return 2;
    FILE *file = fopen(arguments[1], "r");
    size_t size = file ? fread(good, 1, sizeof good, file) : 0;
    if (!size)
        return 2;
    fclose(file);
    unsigned rounds = (unsigned)atoi(arguments[2]), seed = (unsigned)atoi(arguments[3]);
    for (unsigned round = 0; round < rounds; round++) {
        struct limits limits;
        char message[LIMITS_MESSAGE_MAX], changed[ROOM];
        size_t now = size;
        memcpy(changed, good, size);
        for (int changes = rand_r(&seed) % 6; changes >= 0; changes--)
            now = change(changed, now, &seed);
        /* Exactly as large as it is, so that reading past its end is seen. */
        char *exact = malloc(now ? now : 1);
        memcpy(exact, changed, now);
        taken += limits_read(exact, now, &limits, message);
        free(exact);
    }
    printf("%u of %u taken\n", taken, rounds);
    return 0;
}
