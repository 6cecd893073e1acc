#include "description/reading.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "description/keys.h"
#include "description/mig.h"

enum { NAME_SHOWN = 300, KEY_SHOWN = 40, VALUE_SHOWN = 60 };

struct reader {
    const char *name;
    char *message;
    struct description *node;
    enum part part;
    struct gpu *gpu;                     /* the one under way */
    unsigned line_number;
    unsigned gpu_lines[GPUS_MAX];        /* where each GPU began */
    bool header_seen[KEYS], gpu_seen[KEYS];
};

__attribute__((format(printf, 3, 4))) static bool refuse(struct reader *reader, unsigned line, const char *format, ...)
{
    va_list arguments;
    int size = snprintf(reader->message, MESSAGE_MAX, "%.*s:%u: ", NAME_SHOWN, reader->name, line);
    va_start(arguments, format);
    vsnprintf(reader->message + size, (size_t)(MESSAGE_MAX - size), format, arguments);
    va_end(arguments);
    return false;
}

/* --- which key a line begins with ---------------------------------------------------------- */

static bool fits_here(const struct key *key, enum part part)
{
    if (!strcmp(key->name, "gpu"))
        return part != PART_PAIRS;
    if (key->part == PART_PAIRS)
        return part != PART_HEADER;
    return key->part == part;
}

static const char *place_of(const struct key *key)
{
    if (!strcmp(key->name, "gpu"))
        return "before the first 'path' or 'nvlink'";
    switch (key->part) {
    case PART_HEADER:
        return "in the header, before the first 'gpu'";
    case PART_GPU:
        return "under a 'gpu' line";
    default:
        return "after the last GPU";
    }
}

static bool refuse_unknown(struct reader *reader, const char *word)
{
    const struct key *nearest = NULL;
    size_t least = 3;
    for (size_t i = 0; i < description_key_count; i++) {
        size_t distance = word_distance(word, description_keys[i].name);
        if (distance < least) {
            nearest = &description_keys[i];
            least = distance;
        }
    }
    if (nearest)
        return refuse(reader, reader->line_number, "%.*s: unknown key; did you mean '%s'?", KEY_SHOWN, word,
                      nearest->name);
    char known[512] = "";
    for (size_t i = 0; i < description_key_count; i++) {
        if (fits_here(&description_keys[i], reader->part)) {
            size_t size = strlen(known);
            snprintf(known + size, sizeof known - size, "%s%s", size ? ", " : "", description_keys[i].name);
        }
    }
    return refuse(reader, reader->line_number, "%.*s: unknown key; the keys here are %s", KEY_SHOWN, word, known);
}

static const struct key *find_key(struct reader *reader, const char *word)
{
    const struct key *elsewhere = NULL;
    for (size_t i = 0; i < description_key_count; i++) {
        const struct key *key = &description_keys[i];
        if (strcmp(key->name, word))
            continue;
        if (fits_here(key, reader->part))
            return key;
        elsewhere = elsewhere ? elsewhere : key;
    }
    if (elsewhere)
        refuse(reader, reader->line_number, "%s: belongs %s", word, place_of(elsewhere));
    else
        refuse_unknown(reader, word);
    return NULL;
}

/* --- what a finished part must hold -------------------------------------------------------- */

static bool finish_header(struct reader *reader)
{
    for (size_t i = 0; i < description_key_count; i++) {
        const struct key *key = &description_keys[i];
        if (key->part == PART_HEADER && key->required && !reader->header_seen[i])
            return refuse(reader, 1, "%s: missing; add a line such as '%s'", key->name, key->example);
    }
    return true;
}

static bool same_pci(const struct pci_address *a, const struct pci_address *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device && a->function == b->function;
}

/* What is wrong with an instance between those that are placed already; NULL: nothing. */
static const char *problem_of(const struct gpu *gpu, const struct gpu_instance *instance, const struct mig_profile *profile)
{
    if (!profile)
        return "the model has no such MIG profile";
    if (!mig_may_start(profile, instance->start))
        return "the profile cannot begin there";
    if (!mig_is_free(gpu, profile, instance->start))
        return "it overlaps another instance";
    return mig_remaining(gpu, profile) ? NULL : "there are too many of the profile";
}

static const char *place_compute(const struct gpu_instance *wanted, struct gpu_instance *instance)
{
    uint32_t starts[MIG_STARTS_MAX];
    for (uint32_t i = 0; i < COMPUTE_INSTANCES_MAX; i++) {
        struct compute_instance compute = wanted->compute[i];
        if (!compute.slices)
            continue;
        if (compute.slices == UINT32_MAX)
            compute.slices = instance->profile->slices;
        bool fits = false;
        for (uint32_t kind = 0; kind < MIG_COMPUTE_PROFILES; kind++)
            fits |= mig_compute_slices(instance->profile, kind) == compute.slices;
        uint32_t count = fits ? mig_compute_starts(instance->profile, compute.slices, starts) : 0;
        for (fits = false; count && !fits;)
            fits = starts[--count] == compute.start;
        if (!fits)
            return "it has no such compute instance";
        if (!mig_compute_is_free(instance, compute.slices, compute.start))
            return "its compute instances overlap";
        instance->compute[i] = compute;
    }
    return NULL;
}

/* Replaces the instances as they were read by those of the model. */
static bool finish_instances(struct reader *reader, struct gpu *gpu, uint32_t index)
{
    struct gpu_instance wanted[GPU_INSTANCES_MAX];
    uint32_t count = gpu->instance_count;
    unsigned line = reader->gpu_lines[index];
    memcpy(wanted, gpu->instances, sizeof wanted);
    gpu->instance_count = 0;
    if (count && gpu->mig != SWITCH_ON)
        return refuse(reader, line, "gpu %u: has instances without MIG mode; add 'mig on'", index);
    if (gpu->mig == SWITCH_ON && !mig_profiles(gpu))
        return refuse(reader, line, "gpu %u: MIG is known of A100 80GB, H100 80GB and H200 only; remove 'mig on'", index);
    for (uint32_t i = 0; i < count; i++) {
        const struct mig_profile *profile = mig_profile_named(gpu, wanted[i].name);
        const char *problem = problem_of(gpu, &wanted[i], profile);
        if (!problem)
            problem = place_compute(&wanted[i], mig_add(gpu, profile, wanted[i].start));
        if (problem)
            return refuse(reader, line, "gpu %u: instance %s %u: %s; see `nvidia-smi mig -lgipp`", index, wanted[i].name,
                          wanted[i].start, problem);
    }
    return true;
}

static bool finish_gpu(struct reader *reader)
{
    const struct gpu *gpu = reader->gpu;
    uint32_t index = reader->node->gpu_count - 1;
    unsigned line = reader->gpu_lines[index];
    for (size_t i = 0; i < description_key_count; i++) {
        const struct key *key = &description_keys[i];
        if (key->part == PART_GPU && key->required && !reader->gpu_seen[i])
            return refuse(reader, line, "gpu %u: '%s' is missing; add a line such as '%s'", index, key->name,
                          key->example);
    }
    for (uint32_t i = 0; i < index; i++) {
        const struct gpu *other = &reader->node->gpus[i];
        const char *shared = !strcmp(other->uuid, gpu->uuid)     ? "uuid"
                             : same_pci(&other->pci, &gpu->pci) ? "pci"
                             : other->minor == gpu->minor       ? "minor"
                                                                : NULL;
        if (shared)
            return refuse(reader, line, "gpu %u: its '%s' is that of gpu %u too; give every GPU its own", index,
                          shared, i);
    }
    uint64_t used_mib = gpu->reserved_mib;
    for (uint32_t i = 0; i < gpu->process_count; i++)
        used_mib += gpu->processes[i].used_mib;
    if (used_mib > gpu->total_mib)
        return refuse(reader, line, "gpu %u: reserved and processes take %llu MiB of %u MiB; lower them", index,
                      (unsigned long long)used_mib, gpu->total_mib);
    return finish_instances(reader, reader->gpu, index);
}

static bool finish_pairs(struct reader *reader)
{
    const struct description *node = reader->node;
    for (uint32_t i = 0; i < node->gpu_count; i++) {
        unsigned links = node->gpus[i].switch_links;
        for (uint32_t j = 0; j < node->gpu_count; j++)
            links += node->nvlinks[i][j];
        if (links > LINKS_MAX)
            return refuse(reader, reader->gpu_lines[i], "gpu %u: has %u NVLinks; leave at most %d", i, links,
                          LINKS_MAX);
    }
    return true;
}

/* Ends the part under way, where `key` begins another; a part begun twice is of GPUs. */
static bool turn_part(struct reader *reader, const struct key *key)
{
    bool new_gpu = !strcmp(key->name, "gpu");
    if (!new_gpu && key->part != PART_PAIRS)
        return true;
    if (reader->part == PART_HEADER && !finish_header(reader))
        return false;
    if (reader->part == PART_GPU && !finish_gpu(reader))
        return false;
    reader->part = key->part;
    reader->gpu = NULL;
    return true;
}

/* --- lines --------------------------------------------------------------------------------- */

static bool refuse_reading(struct reader *reader, const struct key *key, const struct line *line, enum reading reading)
{
    unsigned number = reader->line_number;
    switch (reading) {
    case READ_TWICE:
        return refuse(reader, number, "%s: given twice; keep one of the two", key->name);
    case READ_TOO_MANY:
        return refuse(reader, number, "%s: too many of them; leave some out", key->name);
    case READ_NO_SUCH_GPU:
        return refuse(reader, number, "%s: names a GPU that is not there; %u are described above", key->name,
                      reader->node->gpu_count);
    default:
        return refuse(reader, number, "%s: wants %s, as in '%s'; found '%.*s'", key->name, key->wants, key->example,
                      VALUE_SHOWN, line->rest);
    }
}

static bool take_line(struct reader *reader, const struct line *line)
{
    bool *seen;
    if (!reader->header_seen[0] && strcmp(line->words[0], description_keys[0].name))
        return refuse(reader, reader->line_number, "%.*s: the file must begin with '%s'", KEY_SHOWN, line->words[0],
                      description_keys[0].example);
    const struct key *key = find_key(reader, line->words[0]);
    if (!key || !turn_part(reader, key))
        return false;
    seen = reader->part == PART_HEADER ? reader->header_seen : reader->gpu_seen;
    if (!key->repeats && seen[key - description_keys])
        return refuse_reading(reader, key, line, READ_TWICE);
    enum reading reading = key->read(line, reader->node, reader->gpu);
    if (reading != READ)
        return refuse_reading(reader, key, line, reading);
    seen[key - description_keys] = true;
    if (!strcmp(key->name, "gpu")) {
        uint32_t index = reader->node->gpu_count - 1;
        reader->gpu = &reader->node->gpus[index];
        reader->gpu_lines[index] = reader->line_number;
        memset(reader->gpu_seen, 0, sizeof reader->gpu_seen);
    }
    return true;
}

static bool check_bytes(struct reader *reader, const char *text, size_t size)
{
    if (size > LINE_MAX_BYTES)
        return refuse(reader, reader->line_number, "line: longer than %d bytes; shorten it", LINE_MAX_BYTES);
    for (size_t i = 0; i < size && text[i] != '#'; i++) {
        unsigned char byte = (unsigned char)text[i];
        if ((byte < 0x20 && byte != '\t') || byte > 0x7e)
            return refuse(reader, reader->line_number, "byte 0x%02x: only printable ASCII is allowed outside comments",
                          byte);
    }
    return true;
}

bool description_read(const char *text, size_t size, const char *name, struct description *result,
                      char message[MESSAGE_MAX])
{
    struct reader reader = {.name = name, .message = message, .node = result};
    memset(result, 0, sizeof *result);
    if (size > DESCRIPTION_MAX_BYTES)
        return refuse(&reader, 1, "file: larger than %d bytes; it is no description", DESCRIPTION_MAX_BYTES);
    for (const char *end = text + size; text < end;) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((newline ? newline : end) - text);
        struct line line;
        reader.line_number++;
        if (!check_bytes(&reader, text, length))
            return false;
        line_split(&line, text, length);
        if (line.word_count && !take_line(&reader, &line))
            return false;
        text += length + (newline ? 1 : 0);
    }
    if (reader.part == PART_HEADER && !finish_header(&reader))
        return false;
    if (reader.part == PART_GPU && !finish_gpu(&reader))
        return false;
    return finish_pairs(&reader);
}

enum path description_path(const struct description *description, uint32_t a, uint32_t b)
{
    enum path said = (enum path)description->path[a][b];
    if (said != PATH_UNSAID)
        return said;
    return description->gpus[a].numa == description->gpus[b].numa ? PATH_NODE : PATH_SYS;
}
