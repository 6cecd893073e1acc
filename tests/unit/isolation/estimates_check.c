/* What a kind of work is taken for, as measurements come in. Each line of the input: what the next piece took in nanoseconds, and `sure`,
 * `unsure` or `visit`; or `0 outlasted`: neighbours do not explain what pieces took; or what pieces took and were charged together, and `charged` between the two. Each line of the output: what the kind is taken for
 * after it, whether it is uneven, and how many measurements confirmed it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "compute/estimate.h"

int main(void)
{
    uint64_t took_ns, taken_for_ns;
    char word[16];
    unsigned place = estimate_place(42);
    while (scanf("%" SCNu64 " %15s", &took_ns, word) == 2) {
        uint64_t charged_ns = 0;
        bool sure = !strcmp(word, "sure"), visit = !strcmp(word, "visit");
        if (!strcmp(word, "outlasted")) {
            estimate_set_uneven(place);
        } else if (!strcmp(word, "charged")) {
            if (scanf("%" SCNu64, &charged_ns) != 1)
                return 2;
            if (!estimate_of(place, ESTIMATE_ONE, &taken_for_ns))
                return 1;
            estimate_stretch(place, ESTIMATE_ONE, taken_for_ns, took_ns, charged_ns);
        } else {
            estimate_compare(place, ESTIMATE_ONE, took_ns, sure, visit);
            if (visit || !estimate_uneven(place))
                estimate_learn(place, ESTIMATE_ONE, took_ns, sure);
        }
        if (!estimate_of(place, ESTIMATE_ONE, &taken_for_ns))
            return 1;
        printf("%" PRIu64 " %d %u\n", taken_for_ns, estimate_uneven(place), estimate_trust(place));
    }
    return 0;
}
