/* Takes as much memory of one kind as it gets, and keeps it.
 *
 * Usage: memory_fill KIND
 *
 * KIND is one of the first of client.h (0 plain, 1 managed, 2 pitched, 3 in order with a stream, 4 physical, 5 arrays, 6 pools of its own,
 * 7 mipmaps), or "every" for all of them in turn. Pieces become smaller until the smallest is refused. Prints the last refusal's
 * error once it is full, and ends when stdin does. */
#include <stdlib.h>
#include <string.h>

#include "client.h"

enum { FILLING = 8, PIECES_MOST = 1 << 16 };
_Static_assert((int)FILLING <= (int)KINDS, "kinds of client.h");

int main(int count, char **words)
{
    int refused = 0, pieces = 0, every = count == 2 && !strcmp(words[1], "every");
    int kind = count == 2 && !every ? atoi(words[1]) : 0;
    struct held held;
    void *context;
    char none;
    if (count != 2 || kind < 0 || kind >= FILLING)
        return 2;
    load();
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*retain)(void **, int) = (int (*)(void **, int))symbol(driver, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = (int (*)(void *))symbol(driver, "cuCtxSetCurrent");
    if (cuda.init(0) || retain(&context, 0) || set_current(context))
        return 1;
    for (size_t bytes = (size_t)256 * MIB; bytes >= MIB; bytes /= 2) {
        /* A kind that is refused may have room where another has none: each is asked. */
        for (int tried = 0; tried < (every ? FILLING : 1) && pieces < PIECES_MOST;) {
            int result = take(&held, kind, bytes);
            if (result) {
                refused = result;
                tried++;
            } else {
                pieces++;
                tried = 0;
            }
            kind = every ? (kind + 1) % FILLING : kind;
        }
    }
    printf("%d\n", refused);
    fflush(stdout);
    return read(STDIN_FILENO, &none, 1) > 0;
}
