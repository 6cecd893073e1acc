#include "description/keys.h"

#include <string.h>

#define VALUES(line) ((line)->word_count - 1)

static enum reading checked(bool fine)
{
    return fine ? READ : READ_MALFORMED;
}

static enum reading read_text(const struct line *line, char text[TEXT_MAX + 1])
{
    size_t size = strlen(line->rest);
    if (!size || size > TEXT_MAX)
        return READ_MALFORMED;
    memcpy(text, line->rest, size + 1);
    return READ;
}

static enum reading read_numbers(const struct line *line, uint32_t least, uint32_t most, uint32_t *first,
                                 uint32_t *second)
{
    return checked(VALUES(line) == (second ? 2u : 1u) && word_number(line->words[1], least, most, first) &&
                   (!second || word_number(line->words[2], least, most, second)));
}

static enum reading read_switch(const struct line *line, enum switched *value)
{
    static const char *const choices[] = {"off", "on", NULL};
    int choice = VALUES(line) == 1 ? word_choice(line->words[1], choices) : -1;
    *value = choice == 1 ? SWITCH_ON : SWITCH_OFF;
    return checked(choice >= 0);
}

/* --- header ------------------------------------------------------------------------------- */

static enum reading read_fakegpu(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node, (void)gpu;
    return checked(VALUES(line) == 1 && !strcmp(line->words[1], "1"));
}

static enum reading read_driver(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)gpu;
    size_t size = strlen(line->rest);
    if (!size || size >= sizeof node->driver_version || strspn(line->rest, "0123456789.") != size)
        return READ_MALFORMED;
    memcpy(node->driver_version, line->rest, size + 1);
    return READ;
}

static enum reading read_cuda(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)gpu;
    return checked(VALUES(line) == 1 && word_pair(line->words[1], &node->cuda_major, &node->cuda_minor) &&
                   node->cuda_major <= 99 && node->cuda_minor <= 99);
}

static enum reading read_driver_fault(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)gpu;
    static const char *const choices[] = {"driver-not-loaded", "version-mismatch", NULL};
    int choice = VALUES(line) == 1 ? word_choice(line->words[1], choices) : -1;
    if (choice < 0)
        return READ_MALFORMED;
    if (node->fault != DRIVER_WELL)
        return READ_TWICE;
    node->fault = (enum driver_fault)(choice + 1);
    return READ;
}

/* --- a GPU -------------------------------------------------------------------------------- */

static enum reading read_gpu(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)gpu;
    uint32_t index;
    if (VALUES(line) != 1 || !word_number(line->words[1], 0, UINT32_MAX, &index) || index != node->gpu_count)
        return READ_MALFORMED;
    if (index >= GPUS_MAX)
        return READ_TOO_MANY;
    gpu_defaults(&node->gpus[node->gpu_count++], index);
    return READ;
}

static enum reading read_model(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_text(line, gpu->model);
}

static enum reading read_uuid(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    if (VALUES(line) != 1 || !word_uuid(line->words[1]))
        return READ_MALFORMED;
    strcpy(gpu->uuid, line->words[1]);
    return READ;
}

static enum reading read_pci(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return checked(VALUES(line) == 1 && word_pci(line->words[1], &gpu->pci));
}

static enum reading read_memory(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 1, 16777216, &gpu->total_mib, NULL);
}

static enum reading read_reserved(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 0, 16777216, &gpu->reserved_mib, NULL);
}

static enum reading read_context(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 0, 65536, &gpu->context_mib, NULL);
}

static enum reading read_growth(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    gpu->grows = true;
    return checked(VALUES(line) == 3 && word_number(line->words[1], 0, 65536, &gpu->launch_mib) &&
                   word_number(line->words[2], 0, 1048576, &gpu->stream_kib) &&
                   word_number(line->words[3], 0, 1048576, &gpu->further_context_kib));
}

static enum reading read_compute(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return checked(VALUES(line) == 1 && word_pair(line->words[1], &gpu->compute_major, &gpu->compute_minor) &&
                   gpu->compute_major >= 1 && gpu->compute_major <= 99 && gpu->compute_minor <= 9);
}

static enum reading read_serial(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return VALUES(line) == 1 && strlen(line->rest) <= 29 ? read_text(line, gpu->serial) : READ_MALFORMED;
}

static enum reading read_vbios(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return VALUES(line) == 1 && strlen(line->rest) <= 31 ? read_text(line, gpu->vbios) : READ_MALFORMED;
}

static enum reading read_minor(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 0, 255, &gpu->minor, NULL);
}

static enum reading read_numa(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    uint32_t value = 0;
    enum reading reading = read_numbers(line, 0, 63, &value, NULL);
    gpu->numa = (int32_t)value;
    return reading;
}

static enum reading read_cpus(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return checked(VALUES(line) == 1 && word_cpus(line->words[1], gpu->cpus));
}

static enum reading read_pcie(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return checked(VALUES(line) == 2 && word_number(line->words[1], 1, 7, &gpu->pcie_generation) &&
                   word_number(line->words[2], 1, 32, &gpu->pcie_width));
}

static enum reading read_temperature(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 0, 200, &gpu->temperature_c, NULL);
}

static enum reading read_temperature_limits(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    enum reading reading = read_numbers(line, 1, 200, &gpu->slowdown_c, &gpu->shutdown_c);
    return reading == READ ? checked(gpu->slowdown_c <= gpu->shutdown_c) : reading;
}

static enum reading read_power(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 0, 10000, &gpu->power_w, &gpu->power_limit_w);
}

static enum reading read_clock(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    static const char *const choices[] = {"graphics", "sm", "memory", "video", NULL};
    uint32_t now, most;
    int kind = VALUES(line) == 3 ? word_choice(line->words[1], choices) : -1;
    if (kind < 0 || !word_number(line->words[2], 0, 100000, &now) ||
        !word_number(line->words[3], 1, 100000, &most) || now > most)
        return READ_MALFORMED;
    if (gpu->clock_max_mhz[kind])
        return READ_TWICE;
    gpu->clock_mhz[kind] = now;
    gpu->clock_max_mhz[kind] = most;
    return READ;
}

static enum reading read_fan(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    uint32_t value = 0;
    enum reading reading = read_numbers(line, 0, 100, &value, NULL);
    gpu->fan_percent = (int32_t)value;
    return reading;
}

static enum reading read_utilization(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 0, 100, &gpu->gpu_percent, &gpu->memory_percent);
}

static enum reading read_persistence(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_switch(line, &gpu->persistence);
}

static enum reading read_ecc(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_switch(line, &gpu->ecc);
}

static enum reading read_mig(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_switch(line, &gpu->mig);
}

/* "1c@2": slices and where they begin; "-": there is none with this id. */
static bool read_compute_instance(const char *word, struct compute_instance *compute)
{
    if (!strcmp(word, "-"))
        return true;
    if (strlen(word) != 4 || word[0] < '1' || word[0] > '7' || word[1] != 'c' || word[2] != '@' || word[3] < '0' || word[3] > '6')
        return false;
    *compute = (struct compute_instance){.start = (uint32_t)(word[3] - '0'), .slices = (uint32_t)(word[0] - '0')};
    return true;
}

/* Whether the GPU has such instances is known when all of its lines are read. */
static enum reading read_instance(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    struct gpu_instance instance = {0};
    size_t values = VALUES(line);
    if (values < 2 || values > 2 + COMPUTE_INSTANCES_MAX || strlen(line->words[1]) > PROFILE_NAME_MAX ||
        !word_number(line->words[2], 0, 6, &instance.start))
        return READ_MALFORMED;
    strcpy(instance.name, line->words[1]);
    for (size_t i = 3; i <= values; i++) {
        if (!read_compute_instance(line->words[i], &instance.compute[i - 3]))
            return READ_MALFORMED;
    }
    if (values == 2)
        instance.compute[0].slices = UINT32_MAX; /* all of the profile's */
    if (gpu->instance_count == GPU_INSTANCES_MAX)
        return READ_TOO_MANY;
    gpu->instances[gpu->instance_count++] = instance;
    return READ;
}

static enum reading read_nvswitch(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    return read_numbers(line, 1, LINKS_MAX, &gpu->switch_links, NULL);
}

static enum reading read_process(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    static const char *const choices[] = {"compute", "graphics", NULL};
    struct process process = {0};
    size_t values = VALUES(line);
    if (values < 2 || values > 4 || !word_number(line->words[1], 1, 4194304, &process.pid) ||
        !word_number(line->words[2], 0, 16777216, &process.used_mib))
        return READ_MALFORMED;
    int kind = values >= 3 ? word_choice(line->words[3], choices) : 0;
    if (kind < 0)
        return READ_MALFORMED;
    process.graphics = kind == 1;
    if (values == 4) {
        if (strlen(line->words[4]) > TEXT_MAX)
            return READ_MALFORMED;
        strcpy(process.name, line->words[4]);
    }
    for (uint32_t i = 0; i < gpu->process_count; i++) {
        if (gpu->processes[i].pid == process.pid && gpu->processes[i].graphics == process.graphics)
            return READ_TWICE;
    }
    if (gpu->process_count == PROCESSES_MAX)
        return READ_TOO_MANY;
    gpu->processes[gpu->process_count++] = process;
    return READ;
}

static enum reading read_xid(const struct line *line, struct gpu *gpu)
{
    struct xid xid = {.count = 1};
    size_t values = VALUES(line);
    if (values < 2 || values > 3 || !word_number(line->words[2], 1, 1000, &xid.number) ||
        (values == 3 && !word_number(line->words[3], 1, UINT32_MAX, &xid.count)))
        return READ_MALFORMED;
    for (uint32_t i = 0; i < gpu->xid_count; i++) {
        if (gpu->xids[i].number == xid.number)
            return READ_TWICE;
    }
    if (gpu->xid_count == XIDS_MAX)
        return READ_TOO_MANY;
    gpu->xids[gpu->xid_count++] = xid;
    return READ;
}

static enum reading read_recovery(const struct line *line, struct gpu *gpu)
{
    static const char *const actions[] = {"gpu-reset",           "node-reboot", "drain-p2p",     "drain-and-reset",
                                          "recover-imex-domain", "bus-reset",   "system-reboot", NULL};
    int action = VALUES(line) == 2 ? word_choice(line->words[2], actions) : -1;
    if (action < 0)
        return READ_MALFORMED;
    if (gpu->recovery != RECOVERY_NONE)
        return READ_TWICE;
    gpu->recovery = (enum recovery)(action + 1);
    return READ;
}

static enum reading read_ecc_errors(const struct line *line, uint32_t *errors)
{
    uint32_t before = *errors;
    if (VALUES(line) != 2 || !word_number(line->words[2], 1, UINT32_MAX, errors))
        return READ_MALFORMED;
    return before ? READ_TWICE : READ;
}

static enum reading read_gpu_fault(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)node;
    static const char *const choices[] = {"lost",          "reset-required",  "unknown-error", "xid",
                                          "ecc-corrected", "ecc-uncorrected", "recovery",      NULL};
    int choice = VALUES(line) ? word_choice(line->words[1], choices) : -1;
    switch (choice) {
    case 0:
    case 1:
    case 2:
        if (VALUES(line) != 1)
            return READ_MALFORMED;
        if (gpu->fault != GPU_WELL)
            return READ_TWICE;
        gpu->fault = (enum gpu_fault)(choice + 1);
        return READ;
    case 3:
        return read_xid(line, gpu);
    case 4:
        return read_ecc_errors(line, &gpu->ecc_corrected);
    case 5:
        return read_ecc_errors(line, &gpu->ecc_uncorrected);
    case 6:
        return read_recovery(line, gpu);
    default:
        return READ_MALFORMED;
    }
}

/* --- pairs of GPUs ------------------------------------------------------------------------ */

static enum reading read_ends(const struct line *line, const struct description *node, uint32_t *a, uint32_t *b)
{
    if (VALUES(line) != 3 || !word_number(line->words[1], 0, UINT32_MAX, a) ||
        !word_number(line->words[2], 0, UINT32_MAX, b) || *a == *b)
        return READ_MALFORMED;
    return *a < node->gpu_count && *b < node->gpu_count ? READ : READ_NO_SUCH_GPU;
}

static enum reading read_path(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)gpu;
    static const char *const choices[] = {"pix", "pxb", "phb", "node", "sys", NULL};
    uint32_t a, b;
    enum reading reading = read_ends(line, node, &a, &b);
    int choice = VALUES(line) == 3 ? word_choice(line->words[3], choices) : -1;
    if (choice < 0)
        return READ_MALFORMED;
    if (reading != READ)
        return reading;
    if (node->path[a][b])
        return READ_TWICE;
    node->path[a][b] = node->path[b][a] = (uint8_t)(choice + 1);
    return READ;
}

static enum reading read_nvlink(const struct line *line, struct description *node, struct gpu *gpu)
{
    (void)gpu;
    uint32_t a, b, links;
    enum reading reading = read_ends(line, node, &a, &b);
    if (VALUES(line) != 3 || !word_number(line->words[3], 1, LINKS_MAX, &links))
        return READ_MALFORMED;
    if (reading != READ)
        return reading;
    if (node->nvlinks[a][b])
        return READ_TWICE;
    node->nvlinks[a][b] = node->nvlinks[b][a] = (uint8_t)links;
    return READ;
}

const struct key description_keys[] = {
    {"fakegpu", PART_HEADER, true, false, "the version of the format", "fakegpu 1", read_fakegpu},
    {"driver", PART_HEADER, true, false, "digits and dots", "driver 580.95.05", read_driver},
    {"cuda", PART_HEADER, true, false, "MAJOR.MINOR", "cuda 13.0", read_cuda},
    {"fault", PART_HEADER, false, true, "driver-not-loaded or version-mismatch", "fault driver-not-loaded",
     read_driver_fault},
    {"gpu", PART_GPU, false, true, "the next whole number, counted from 0", "gpu 0", read_gpu},
    {"model", PART_GPU, true, false, "a name of at most 63 characters", "model Tesla V100-SXM2-16GB", read_model},
    {"uuid", PART_GPU, true, false, "GPU- and a UUID in lower case",
     "uuid GPU-5c1f3f6e-0d6b-4c2a-9a57-0b8f2f1d7e11", read_uuid},
    {"pci", PART_GPU, true, false, "DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal", "pci 00000000:3B:00.0", read_pci},
    {"memory", PART_GPU, true, false, "whole MiB from 1 to 16777216", "memory 16160", read_memory},
    {"compute", PART_GPU, true, false, "MAJOR.MINOR", "compute 7.0", read_compute},
    {"reserved", PART_GPU, false, false, "whole MiB from 0 to 16777216", "reserved 224", read_reserved},
    {"context", PART_GPU, false, false, "whole MiB from 0 to 65536", "context 256", read_context},
    {"growth", PART_GPU, false, false, "MiB of a first launch, KiB of a stream and KiB of a further context",
     "growth 92 512 5734", read_growth},
    {"serial", PART_GPU, false, false, "a word of at most 29 characters", "serial 0324218012345", read_serial},
    {"vbios", PART_GPU, false, false, "a word of at most 31 characters", "vbios 88.00.4F.00.09", read_vbios},
    {"minor", PART_GPU, false, false, "a whole number from 0 to 255", "minor 0", read_minor},
    {"numa", PART_GPU, false, false, "a whole number from 0 to 63", "numa 0", read_numa},
    {"cpus", PART_GPU, false, false, "rising numbers and ranges below 1024", "cpus 0-15,32-47", read_cpus},
    {"pcie", PART_GPU, false, false, "a generation from 1 to 7 and a width from 1 to 32", "pcie 3 16", read_pcie},
    {"temperature", PART_GPU, false, false, "whole degrees Celsius from 0 to 200", "temperature 34",
     read_temperature},
    {"temperature-limits", PART_GPU, false, false, "degrees of slowdown and, not below, of shutdown",
     "temperature-limits 87 90", read_temperature_limits},
    {"power", PART_GPU, false, false, "whole watts now and at most", "power 42 300", read_power},
    {"clock", PART_GPU, false, true, "graphics, sm, memory or video, and MHz now and at most",
     "clock sm 135 1530", read_clock},
    {"fan", PART_GPU, false, false, "percent from 0 to 100", "fan 30", read_fan},
    {"utilization", PART_GPU, false, false, "percent of the GPU and of its memory", "utilization 30 12",
     read_utilization},
    {"persistence", PART_GPU, false, false, "on or off", "persistence on", read_persistence},
    {"ecc", PART_GPU, false, false, "on or off", "ecc on", read_ecc},
    {"nvswitch", PART_GPU, false, false, "a number of links from 1 to 18", "nvswitch 18", read_nvswitch},
    {"mig", PART_GPU, false, false, "on or off", "mig on", read_mig},
    {"instance", PART_GPU, false, true, "a MIG profile, where it begins, and perhaps its compute instances",
     "instance 3g.40gb 4", read_instance},
    {"process", PART_GPU, false, true, "a pid, MiB, and perhaps compute or graphics and a name",
     "process 4711 512 compute python3", read_process},
    {"fault", PART_GPU, false, true,
     "lost, reset-required, unknown-error, recovery ACTION, xid N [COUNT], ecc-corrected N or ecc-uncorrected N",
     "fault xid 79", read_gpu_fault},
    {"path", PART_PAIRS, false, true, "two GPUs, and pix, pxb, phb, node or sys", "path 0 1 node", read_path},
    {"nvlink", PART_PAIRS, false, true, "two GPUs and a number of links from 1 to 18", "nvlink 0 1 6",
     read_nvlink},
};
const size_t description_key_count = sizeof description_keys / sizeof description_keys[0];
_Static_assert(sizeof description_keys / sizeof description_keys[0] <= KEYS, "KEYS bounds the table");

void gpu_defaults(struct gpu *gpu, uint32_t index)
{
    *gpu = (struct gpu){
        .context_mib = 256,
        .minor = index,
        .numa = -1,
        .pcie_generation = 3,
        .pcie_width = 16,
        .temperature_c = 34,
        .slowdown_c = 87,
        .shutdown_c = 90,
        .power_w = 42,
        .power_limit_w = 300,
        .fan_percent = -1,
        .gpu_instance = UINT32_MAX,
        .compute_instance = UINT32_MAX,
    };
}
