/* Prints the size of a usage file in bytes, for programs that create one. */
#include <stdio.h>

#include "files/region.h"

int main(void)
{
    return printf("%zu\n", REGION_BYTES) < 0;
}
