/* A fuzz target: one function over arbitrary bytes, driven by libFuzzer, or by files with replay.c. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* A condition that holds for any bytes. */
#define MUST(true_)                                                                                                    \
    do {                                                                                                               \
        if (!(true_)) {                                                                                                \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #true_);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The input, consumed from its beginning; missing bytes at its end read as zeros. */
struct input {
    const uint8_t *at;
    size_t size;
};

static inline uint64_t eat(struct input *input, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++) {
        if (!input->size)
            break;
        value |= (uint64_t)*input->at << 8 * i;
        input->at++;
        input->size--;
    }
    return value;
}

/* One readable line; tabs in quoted text are kept. */
static inline void must_be_a_message(const char *message, size_t room)
{
    size_t length = strnlen(message, room);
    MUST(length && length < room);
    for (size_t i = 0; i < length; i++)
        MUST((message[i] >= ' ' && message[i] < 127) || message[i] == '\t');
}

#endif
