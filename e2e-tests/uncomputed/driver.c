/*
 * What torch and Triton look up in libcuda.so.1 by name, beside what the stand-in for the driver has for KV Messenger.
 */
#include "stand_in.h"
#include <stdlib.h>
#include <string.h>

CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);
int standInRetained(int device);
void *standInBytes(uint64_t address, size_t length_bytes);

EXPORTED CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = standInRetained(device) > 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGetErrorString(CUresult code, const char **text) {
    CUresult cuGetErrorName(CUresult, const char **);
    return cuGetErrorName(code, text);
}

/* Values of `size` bytes each, side by side. */
struct Fill {
    CUdeviceptr address;
    size_t size, count;
    unsigned value;
    int once;
};

static void fill(void *given) {
    struct Fill *wanted = given;
    char *bytes = standInBytes(wanted->address, wanted->size * wanted->count);
    for (size_t i = 0; i < wanted->count; i++) {
        memcpy(bytes + i * wanted->size, &wanted->value, wanted->size); /* its lowest bytes come first */
    }
    if (wanted->once) {
        free(wanted);
    }
}

/* In a graph what is to be filled is kept as long as the process lives. */
static CUresult fill_queued(CUdeviceptr address, size_t size, unsigned value, size_t count, CUstream stream) {
    int capturing = 0;
    if (count == 0) {
        return CUDA_SUCCESS;
    }
    CUresult asked = cuStreamIsCapturing(stream, &capturing);
    struct Fill *wanted = malloc(sizeof *wanted);
    *wanted = (struct Fill){address, size, count, value, !capturing};
    return asked != CUDA_SUCCESS ? asked : cuLaunchHostFunc(stream, fill, wanted);
}
EXPORTED CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t count, CUstream stream) {
    return fill_queued(address, 1, value, count, stream);
}
EXPORTED CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, size_t count, CUstream stream) {
    return fill_queued(address, 2, value, count, stream);
}
EXPORTED CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t count, CUstream stream) {
    return fill_queued(address, 4, value, count, stream);
}

/* Looked up and not called where kernels compute nothing. */
#define LOOKED_UP(name)                                                                                                \
    EXPORTED CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
LOOKED_UP(cuCtxGetLimit)
LOOKED_UP(cuCtxSetLimit)
LOOKED_UP(cuFuncGetAttribute)
LOOKED_UP(cuFuncSetAttribute)
LOOKED_UP(cuFuncSetCacheConfig)
