#define _GNU_SOURCE
#include "files/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

/* A line under the reader, or what is left of one. Not terminated. */
struct text { const char *at; size_t size; };

struct reading {
    struct limits *limits;
    char *message;
    unsigned line;
    bool newer; /* of a higher minor version: what is unknown is passed over */
};

__attribute__((format(printf, 2, 3))) static bool refuse(struct reading *reading, const char *format, ...)
{
    char problem[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    snprintf(reading->message, LIMITS_MESSAGE_MAX, "line %u: %s", reading->line, problem);
    return false;
}

static bool is(struct text text, const char *word)
{
    return text.size == strlen(word) && !memcmp(text.at, word, text.size);
}

/* For messages, which the tenant's terminal may show: a piece of it, and printable. */
static const char *shown(struct text text, char room[41])
{
    size_t size = text.size < 40 ? text.size : 40;
    for (size_t i = 0; i < size; i++)
        room[i] = text.at[i] >= ' ' && text.at[i] < 127 ? text.at[i] : '?';
    room[size] = '\0';
    return room;
}

/* Cuts the first piece off, up to the separator. */
static struct text cut(struct text *rest, char separator)
{
    const char *end = rest->size ? memchr(rest->at, separator, rest->size) : NULL;
    struct text piece = {rest->at, end ? (size_t)(end - rest->at) : rest->size};
    size_t taken = piece.size + (end ? 1 : 0);
    if (taken)
        *rest = (struct text){rest->at + taken, rest->size - taken};
    return piece;
}

/* Decimal digits and nothing else, at most `most`. */
static bool number(struct text text, uint64_t most, uint64_t *value)
{
    uint64_t sum = 0;
    if (!text.size || text.size > 20)
        return false;
    for (size_t i = 0; i < text.size; i++) {
        unsigned digit = (unsigned)(text.at[i] - '0');
        if (digit > 9 || sum > (UINT64_MAX - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *value = sum;
    return sum <= most;
}

/* Copies a word that may not be empty and has no odd characters. */
static bool take(struct text text, char *room, size_t room_size)
{
    if (!text.size || text.size >= room_size)
        return false;
    for (size_t i = 0; i < text.size; i++) {
        if (text.at[i] <= ' ' || text.at[i] >= 127)
            return false;
    }
    memcpy(room, text.at, text.size);
    room[text.size] = '\0';
    return true;
}

static bool read_header(struct reading *reading, struct text line)
{
    char room[41];
    uint64_t major, minor;
    struct text whole = line, word = cut(&line, ' '), first = cut(&line, '.');
    if (!is(word, "gpushare-limits") || !number(first, 9999, &major) || !number(line, 9999, &minor))
        return refuse(reading, "'%s' is no limits file: its first line is 'gpushare-limits %d.%d'", shown(whole, room),
                      LIMITS_MAJOR, LIMITS_MINOR);
    if (major != LIMITS_MAJOR)
        return refuse(reading, "version %u.%u, and this library reads %d.x; install library and node agent of one release",
                      (unsigned)major, (unsigned)minor, LIMITS_MAJOR);
    reading->newer = minor > LIMITS_MINOR;
    return true;
}

static bool read_container(struct reading *reading, struct text line)
{
    struct text name = cut(&line, ' '), uid = cut(&line, ' ');
    if (reading->limits->container[0])
        return refuse(reading, "a second 'container' line");
    if (!take(name, reading->limits->container, sizeof reading->limits->container) ||
        !take(uid, reading->limits->pod_uid, sizeof reading->limits->pod_uid) || (line.size && !reading->newer))
        return refuse(reading, "not 'container <namespace>/<pod>/<container> <uid of the pod>'");
    return true;
}

static bool read_key(struct reading *reading, struct gpu_limit *gpu, struct text word, unsigned *seen)
{
    enum { MEMORY = 1, PERCENT = 2, POLICY = 4, CLASS = 8 };
    char room[41];
    uint64_t value = 0;
    struct text whole = word, key = cut(&word, '=');
    unsigned what = is(key, "memory_bytes")   ? MEMORY
                    : is(key, "core_percent") ? PERCENT
                    : is(key, "core_policy")  ? POLICY
                    : is(key, "core_class")   ? CLASS
                                              : 0;
    if (!what && reading->newer)
        return true;
    if (!what || (*seen & what))
        return refuse(reading, "'%s' is unknown or there twice", shown(whole, room));
    *seen |= what;
    if (what == MEMORY) {
        /* Bounded so that sums of a few limits never overflow. */
        if (!number(word, UINT64_C(1) << 48, &value) || value % MIB)
            return refuse(reading, "'%s': a multiple of 1048576 up to 2^48 is wanted", shown(whole, room));
        gpu->memory_bytes = value;
    } else if (what == PERCENT) {
        if (!number(word, 100, &value) || !value)
            return refuse(reading, "'%s': a whole number from 1 to 100 is wanted", shown(whole, room));
        gpu->core_percent = (unsigned)value;
    } else if (what == POLICY) {
        if (!is(word, "hard") && !is(word, "idle"))
            return refuse(reading, "'%s': 'hard' or 'idle' is wanted", shown(whole, room));
        gpu->core_policy = is(word, "idle") ? CORE_IDLE : CORE_HARD;
    } else {
        if (!is(word, "latency") && !is(word, "batch"))
            return refuse(reading, "'%s': 'latency' or 'batch' is wanted", shown(whole, room));
        gpu->core_class = is(word, "latency") ? CORE_LATENCY : CORE_BATCH;
    }
    return true;
}

static bool read_gpu(struct reading *reading, struct text line)
{
    struct limits *limits = reading->limits;
    struct gpu_limit gpu = {.core_policy = CORE_HARD};
    unsigned seen = 0;
    if (limits->gpu_count == LIMITED_GPUS_MAX)
        return refuse(reading, "more than %d GPUs", LIMITED_GPUS_MAX);
    if (!take(cut(&line, ' '), gpu.uuid, sizeof gpu.uuid) || (memcmp(gpu.uuid, "GPU-", 4) && memcmp(gpu.uuid, "MIG-", 4)))
        return refuse(reading, "a GPU's UUID is wanted after 'gpu'");
    for (unsigned i = 0; i < limits->gpu_count; i++) {
        if (!strcmp(limits->gpus[i].uuid, gpu.uuid))
            return refuse(reading, "%.48s is there twice", gpu.uuid);
    }
    while (line.size) {
        if (!read_key(reading, &gpu, cut(&line, ' '), &seen))
            return false;
    }
    if (!(seen & 1))
        return refuse(reading, "%.48s has no memory_bytes", gpu.uuid);
    limits->gpus[limits->gpu_count++] = gpu;
    return true;
}

static bool read_line(struct reading *reading, struct text line)
{
    char room[41];
    struct text whole = line;
    if (reading->line == 1)
        return read_header(reading, line);
    struct text word = cut(&line, ' ');
    if (is(word, "container"))
        return read_container(reading, line);
    if (is(word, "gpu"))
        return read_gpu(reading, line);
    if (is(whole, "allowance") && !reading->limits->allowance)
        return reading->limits->allowance = true;
    return reading->newer || refuse(reading, "'%s' is unknown or there twice", shown(whole, room));
}

bool limits_read(const char *text, size_t size, struct limits *limits, char message[LIMITS_MESSAGE_MAX])
{
    struct reading reading = {limits, message, 1, false};
    struct text rest = {text, size};
    memset(limits, 0, sizeof *limits);
    if (!size || text[size - 1] != '\n')
        return refuse(&reading, "the file ends in the middle of a line, or has none");
    for (; rest.size; reading.line++) {
        if (!read_line(&reading, cut(&rest, '\n')))
            return false;
    }
    return limits->container[0] || refuse(&reading, "no 'container' line");
}

static bool cannot(const char *path, const char *why, char message[LIMITS_MESSAGE_MAX])
{
    snprintf(message, LIMITS_MESSAGE_MAX, "%.150s: %.80s", path, why);
    return false;
}

/* At most one byte more than a limits file may have; -1 with errno. */
static ssize_t read_whole(int file, char *text)
{
    size_t size = 0;
    while (size <= LIMITS_MAX_BYTES) {
        ssize_t got = read(file, text + size, LIMITS_MAX_BYTES + 1 - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (!got)
            break;
        size += (size_t)got;
    }
    return (ssize_t)size;
}

bool limits_read_file(const char *path, struct limits *limits, char message[LIMITS_MESSAGE_MAX])
{
    char text[LIMITS_MAX_BYTES + 1], problem[LIMITS_MESSAGE_MAX];
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0)
        return cannot(path, strerror(errno), message);
    ssize_t size = read_whole(file, text);
    int why = errno;
    close(file);
    if (size < 0)
        return cannot(path, strerror(why), message);
    if (size > LIMITS_MAX_BYTES)
        return cannot(path, "too large for a limits file", message);
    return limits_read(text, (size_t)size, limits, problem) || cannot(path, problem, message);
}
