#define _GNU_SOURCE
#include "place.h"

#include <stdio.h>
#include <stdlib.h>

void place_of(const char *name, char path[PLACE_MAX])
{
    const char *directory = RUN_DIRECTORY;
#ifdef GPUSHARE_RUN_FROM_ENVIRONMENT
    if (getenv("GPUSHARE_RUN"))
        directory = getenv("GPUSHARE_RUN");
#endif
    snprintf(path, PLACE_MAX, "%.400s/%.64s", directory, name);
}
