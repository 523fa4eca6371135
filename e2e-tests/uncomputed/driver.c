/*
 * What torch and Triton look up in libcuda.so.1 by name, beside what the stand-in for the driver has for KV Messenger.
 */
#include "stand_in.h"

int standInRetained(int device);

EXPORTED CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = standInRetained(device) > 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGetErrorString(CUresult code, const char **text) {
    CUresult cuGetErrorName(CUresult, const char **);
    return cuGetErrorName(code, text);
}

/* Looked up and not called where kernels compute nothing. */
#define LOOKED_UP(name)                                                                                                \
    EXPORTED CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
LOOKED_UP(cuCtxGetLimit)
LOOKED_UP(cuCtxSetLimit)
LOOKED_UP(cuFuncGetAttribute)
LOOKED_UP(cuFuncSetAttribute)
LOOKED_UP(cuFuncSetCacheConfig)
