/* Reads descriptions from stdin, each a 32-bit length and that many bytes, and answers each on
 * stdout with a 32-bit length and a message; the message is empty for a good description. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "description/reading.h"

int main(void)
{
    uint32_t size;
    struct description *description = malloc(sizeof *description);
    while (description && fread(&size, sizeof size, 1, stdin) == 1) {
        char message[MESSAGE_MAX] = "";
        char *text = malloc(size ? size : 1); /* of its own, so that a sanitizer sees a read past its end */
        if (!text || fread(text, 1, size, stdin) != size)
            return 1;
        if (description_read(text, size, "file", description, message)) {
            for (uint32_t a = 0; a < description->gpu_count; a++)
                for (uint32_t b = 0; b < description->gpu_count; b++)
                    if (description_path(description, a, b) == PATH_UNSAID)
                        return 2;
        } else if (!message[0] || strchr(message, '\n')) {
            return 3;
        }
        free(text);
        uint32_t length = (uint32_t)strlen(message);
        fwrite(&length, sizeof length, 1, stdout);
        fwrite(message, 1, length, stdout);
        fflush(stdout);
    }
    free(description);
    return 0;
}
