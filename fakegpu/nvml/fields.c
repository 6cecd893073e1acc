/* Figures by number: the interface's second way to ask, for those that have no function of their own. */
#include "node/node.h"
#include "nvml/answers.h"
#include "nvml/topology.h"

enum field {
    ECC_CURRENT = 1,
    ECC_PENDING,
    CORRECTED_VOLATILE,
    UNCORRECTED_VOLATILE,
    CORRECTED_AGGREGATE,
    UNCORRECTED_AGGREGATE,
    CORRECTED_VOLATILE_MEMORY = 11,
    UNCORRECTED_VOLATILE_MEMORY = 12,
    CORRECTED_AGGREGATE_MEMORY = 22,
    UNCORRECTED_AGGREGATE_MEMORY = 23,
    NVLINK_ERRORS_FIRST = 32,
    NVLINK_ERRORS_LAST = 59,
    NVLINK_SPEED_FIRST = 84,
    NVLINK_SPEED_LAST = 89,
    NVLINK_SPEED_COMMON = 90,
    NVLINK_COUNT = 91,
    PCIE_REPLAYS = 94,
    NVLINK_HIGH_ERRORS_FIRST = 96,
    NVLINK_HIGH_ERRORS_LAST = 119,
    NVLINK_HIGH_SPEED_FIRST = 132,
    NVLINK_HIGH_SPEED_LAST = 137,
    NVLINK_THROUGHPUT_FIRST = 138,
    NVLINK_THROUGHPUT_LAST = 141,
    ROWS_FIRST = 142,
    ROWS_LAST = 145,
    NVLINK_REMOTE_LINK = 146,
    SWITCH_LINK_COUNT = 147,
    LINK_REPLAYS = 161,
    LINK_CRC_ERRORS = 163,
    LINK_SPEED = 164,
    LINK_STATE,
    LINK_VERSION,
    POWER_AVERAGE = 185,
    POWER_INSTANT,
    POWER_LEAST_LIMIT,
    POWER_MOST_LIMIT,
    POWER_DEFAULT_LIMIT,
    POWER_CURRENT_LIMIT,
    RECOVERY_ACTION = 230,
};

/* What a field is asked about. */
struct question {
    const struct description *description;
    const struct gpu *gpu;
    uint32_t position, field, scope;
};

static nvmlReturn_t answer_unsigned(nvmlFieldValue_t *answer, uint32_t value)
{
    answer->valueType = VALUE_UNSIGNED;
    answer->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t answer_count(nvmlFieldValue_t *answer, uint64_t value)
{
    answer->valueType = VALUE_UNSIGNED_LONG_LONG;
    answer->value.ullVal = value;
    return NVML_SUCCESS;
}

static bool within(uint32_t field, uint32_t first, uint32_t last)
{
    return field >= first && field <= last;
}

static nvmlReturn_t answer_ecc(const struct question *question, nvmlFieldValue_t *answer)
{
    const struct gpu *gpu = question->gpu;
    if (!gpu_has_ecc(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (question->field <= ECC_PENDING)
        return answer_unsigned(answer, gpu->ecc == SWITCH_ON);
    if (gpu->ecc != SWITCH_ON)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (question->field) {
    case CORRECTED_VOLATILE:
    case CORRECTED_AGGREGATE:
    case CORRECTED_VOLATILE_MEMORY:
    case CORRECTED_AGGREGATE_MEMORY:
        return answer_count(answer, gpu->ecc_corrected);
    default:
        return answer_count(answer, gpu->ecc_uncorrected);
    }
}

/* Of one link, whose number is the scope or part of the field's number. */
static nvmlReturn_t answer_link(const struct question *question, uint32_t link, nvmlFieldValue_t *answer)
{
    struct link_end end;
    if (!link_end(question->description, question->position, link, &end))
        return NVML_ERROR_NOT_SUPPORTED;
    switch (question->field) {
    case LINK_STATE:
        return answer_unsigned(answer, 1);
    case LINK_VERSION:
        return answer_unsigned(answer, link_generation(question->gpu));
    case NVLINK_REMOTE_LINK:
        return answer_unsigned(answer, link);
    default:
        return answer_unsigned(answer, link_speed_mbps(question->gpu));
    }
}

static nvmlReturn_t answer_nvlink(const struct question *question, nvmlFieldValue_t *answer)
{
    uint32_t field = question->field, links = link_count(question->description, question->position);
    if (field == NVLINK_COUNT)
        return answer_unsigned(answer, links);
    if (!links)
        return NVML_ERROR_NOT_SUPPORTED;
    if (within(field, NVLINK_SPEED_FIRST, NVLINK_SPEED_LAST))
        return answer_link(question, field - NVLINK_SPEED_FIRST, answer);
    if (within(field, NVLINK_HIGH_SPEED_FIRST, NVLINK_HIGH_SPEED_LAST))
        return answer_link(question, 6 + field - NVLINK_HIGH_SPEED_FIRST, answer);
    if (within(field, LINK_SPEED, LINK_VERSION) || field == NVLINK_REMOTE_LINK)
        return answer_link(question, question->scope, answer);
    if (field == NVLINK_SPEED_COMMON)
        return answer_unsigned(answer, link_speed_mbps(question->gpu));
    if (field == SWITCH_LINK_COUNT)
        return answer_unsigned(answer, question->gpu->switch_links);
    return answer_count(answer, 0); /* errors and traffic */
}

static bool is_nvlink(uint32_t field)
{
    return within(field, NVLINK_ERRORS_FIRST, NVLINK_ERRORS_LAST) || within(field, NVLINK_SPEED_FIRST, NVLINK_COUNT) ||
           within(field, NVLINK_HIGH_ERRORS_FIRST, NVLINK_HIGH_ERRORS_LAST) ||
           within(field, NVLINK_HIGH_SPEED_FIRST, NVLINK_THROUGHPUT_LAST) ||
           within(field, NVLINK_REMOTE_LINK, SWITCH_LINK_COUNT) || within(field, LINK_REPLAYS, LINK_VERSION);
}

static nvmlReturn_t answer_field(const struct question *question, nvmlFieldValue_t *answer)
{
    const struct gpu *gpu = question->gpu;
    uint32_t field = question->field;
    if (within(field, ECC_CURRENT, UNCORRECTED_AGGREGATE) ||
        within(field, CORRECTED_VOLATILE_MEMORY, UNCORRECTED_VOLATILE_MEMORY) ||
        within(field, CORRECTED_AGGREGATE_MEMORY, UNCORRECTED_AGGREGATE_MEMORY))
        return answer_ecc(question, answer);
    if (is_nvlink(field))
        return answer_nvlink(question, answer);
    if (within(field, ROWS_FIRST, ROWS_LAST) && gpu->compute_major >= 8)
        return answer_unsigned(answer, 0);
    if (within(field, POWER_AVERAGE, POWER_CURRENT_LIMIT) && question->scope)
        return NVML_ERROR_NOT_SUPPORTED; /* of the module that carries GPU and CPU */
    switch (field) {
    case PCIE_REPLAYS:
        return answer_unsigned(answer, 0);
    case POWER_AVERAGE:
    case POWER_INSTANT:
        return answer_unsigned(answer, gpu->power_w * 1000);
    case POWER_LEAST_LIMIT:
        return answer_unsigned(answer, gpu->power_limit_w * 500);
    case POWER_MOST_LIMIT:
    case POWER_DEFAULT_LIMIT:
    case POWER_CURRENT_LIMIT:
        return answer_unsigned(answer, gpu->power_limit_w * 1000);
    case RECOVERY_ACTION:
        return answer_unsigned(answer, gpu->recovery);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Each value carries its own result; the call succeeds as long as the GPU answers at all. */
EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    const struct node *node;
    uint32_t position;
    REQUIRE(count > 0 && values);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    status = node_find(node, device, &position);
    if (status == NVML_SUCCESS)
        status = gpu_state(&node->description->gpus[position]);
    for (int i = 0; status == NVML_SUCCESS && i < count; i++) {
        struct question question = {.description = node->description, .gpu = &node->description->gpus[position],
                                    .position = position, .field = values[i].fieldId, .scope = values[i].scopeId};
        values[i].timestamp = wall_clock_us();
        values[i].latencyUsec = 0;
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = answer_field(&question, &values[i]);
    }
    node_unlock();
    return status;
}
