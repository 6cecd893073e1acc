/* What a kind of work is taken for, as measurements come in. Each line of the input: what the next piece took in nanoseconds, and `sure` or
 * `unsure`; each line of the output: what the kind is taken for after it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "compute/estimate.h"

int main(void)
{
    uint64_t took_ns, taken_for_ns;
    char word[8];
    unsigned place = estimate_place(42);
    while (scanf("%" SCNu64 " %7s", &took_ns, word) == 2) {
        estimate_learn(place, ESTIMATE_ONE, took_ns, !strcmp(word, "sure"));
        if (!estimate_of(place, ESTIMATE_ONE, &taken_for_ns))
            return 1;
        printf("%" PRIu64 "\n", taken_for_ns);
    }
    return 0;
}
