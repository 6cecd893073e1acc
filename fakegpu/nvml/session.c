/* Opening and closing, texts of errors, versions, and the first look at processes by name. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "node/node.h"
#include "nvml/answers.h"

EXPORT nvmlReturn_t nvmlInit(void) { return node_open(); }
EXPORT nvmlReturn_t nvmlInit_v2(void) { return node_open(); }

/* Flags allow a node without GPUs and a driver that is not attached; both need nothing here. */
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return node_open();
}

EXPORT nvmlReturn_t nvmlShutdown(void) { return node_close(); }

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    static const struct {
        nvmlReturn_t code;
        const char *text;
    } texts[] = {
        {NVML_SUCCESS, "Success"},
        {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
        {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
        {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
        {4, "Insufficient Permissions"},
        {5, "Already Initialized"},
        {NVML_ERROR_NOT_FOUND, "Not Found"},
        {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
        {8, "Insufficient External Power"},
        {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {NVML_ERROR_TIMEOUT, "Timeout"},
        {11, "Interrupt Request Issue"},
        {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"},
        {14, "Corrupted infoROM"},
        {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
        {NVML_ERROR_RESET_REQUIRED, "GPU requires restart"},
        {17, "The operating system has blocked the request."},
        {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."},
        {19, "In use by another client"},
        {NVML_ERROR_MEMORY, "Insufficient Memory"},
        {21, "No data"},
        {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
        {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].code == result)
            return texts[i].text;
    }
    return "Unknown Error";
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    const struct node *node;
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    status = answer_text(node->description->driver_version, version, length);
    node_unlock();
    return status;
}

/* NVML's own version is the CUDA major version, a dot, and the driver's version. */
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char text[64];
    const struct node *node;
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    snprintf(text, sizeof text, "%u.%s", node->description->cuda_major, node->description->driver_version);
    node_unlock();
    return answer_text(text, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    const struct node *node;
    REQUIRE(version);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    *version = (int)(node->description->cuda_major * 1000 + node->description->cuda_minor * 10);
    node_unlock();
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* The name of the process, from the description or else /proc. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    const struct node *node;
    char text[256] = "";
    REQUIRE(name && length);
    nvmlReturn_t status = node_lock(&node, __func__);
    if (status != NVML_SUCCESS)
        return status;
    for (uint32_t i = 0; i < node->visible_count; i++) {
        const struct gpu *gpu = &node->description->gpus[node->visible[i]];
        for (uint32_t j = 0; j < gpu->process_count; j++) {
            if (gpu->processes[j].pid == pid && gpu->processes[j].name[0])
                snprintf(text, sizeof text, "%s", gpu->processes[j].name);
        }
    }
    node_unlock();
    if (!text[0]) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        if (size <= 0)
            return NVML_ERROR_NOT_FOUND;
        text[size] = '\0';
    }
    snprintf(name, length, "%s", text); /* NVML cuts names that are too long, too */
    return NVML_SUCCESS;
}

/* Units are chassis of a line of products long gone; excluded GPUs are those an administrator hides. */
static nvmlReturn_t none_of_them(unsigned *count, const char *caller)
{
    const struct node *node;
    REQUIRE(count);
    nvmlReturn_t status = node_lock(&node, caller);
    if (status != NVML_SUCCESS)
        return status;
    node_unlock();
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned *count) { return none_of_them(count, __func__); }
EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count) { return none_of_them(count, __func__); }
EXPORT nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned *count) { return none_of_them(count, __func__); }
