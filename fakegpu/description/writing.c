#include "description/writing.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "description/mig.h"
#include "description/words.h"

struct output {
    char *text;
    size_t size, room; /* a size above the room: it did not fit */
};

static void put(struct output *output, const char *text, size_t size)
{
    if (output->size + size <= output->room)
        memcpy(output->text + output->size, text, size);
    output->size += size;
}

__attribute__((format(printf, 2, 3))) static void put_text(struct output *output, const char *format, ...)
{
    char text[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(output, text, strlen(text));
}

/* Ids are places in the line, up to the last compute instance; a whole one need not be named. */
static void put_instance(struct output *output, const struct gpu_instance *instance)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < COMPUTE_INSTANCES_MAX; i++)
        count = instance->compute[i].slices ? i + 1 : count;
    put_text(output, "  instance %s %u", instance->profile->name, instance->start);
    if (!count)
        put_text(output, " -");
    for (uint32_t i = 0; i < count && instance->compute[0].slices != instance->profile->slices; i++) {
        const struct compute_instance *compute = &instance->compute[i];
        if (compute->slices)
            put_text(output, " %uc@%u", compute->slices, compute->start);
        else
            put_text(output, " -");
    }
    put_text(output, "\n");
}

size_t description_with_instances(const char *text, size_t size, uint32_t index, const struct gpu *gpu, char *result, size_t room)
{
    struct output output = {.text = result, .room = room};
    uint32_t gpus = 0;
    for (const char *end = text + size; text < end;) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text);
        struct line line;
        line_split(&line, text, length);
        const char *key = line.word_count ? line.words[0] : "";
        gpus += !strcmp(key, "gpu");
        bool ours = gpus == index + 1;
        if (!ours || (strcmp(key, "mig") && strcmp(key, "instance"))) {
            put(&output, text, length);
            put_text(&output, "\n");
        }
        if (ours && !strcmp(key, "gpu") && gpu->mig != SWITCH_UNSAID) {
            put_text(&output, "  mig %s\n", gpu->mig == SWITCH_ON ? "on" : "off");
            for (uint32_t i = 0; i < gpu->instance_count; i++)
                put_instance(&output, &gpu->instances[i]);
        }
        text += length + (newline ? 1 : 0);
    }
    return output.size <= output.room ? output.size : 0;
}
