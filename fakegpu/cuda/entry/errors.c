/* Names and texts of errors. */
#include "interface/cuda.h"

static const struct error {
    CUresult code;
    const char *name, *text;
} errors[] = {
#define ERROR(code, name, text) {code, #name, text}
#include "cuda/entry/error_table.h"
};

static const struct error *error_of(CUresult code)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code)
            return &errors[i];
    }
    return NULL;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **name)
{
    const struct error *error = error_of(code);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = error ? error->name : NULL;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
    const struct error *error = error_of(code);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = error ? error->text : NULL;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
