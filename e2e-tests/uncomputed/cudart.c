/*
 * A stand-in for libcudart.so.13 over the stand-in for libcuda.so.1: what torch's CUDA build calls of the runtime.
 *
 * Memory, copies, streams, events, captures and graphs are those of the driver's stand-in. Kernels compute nothing: a launch is
 * counted and forgotten. What is not here is made by stubs.py and answers cudaErrorNotSupported.
 *
 * It has a context for each device that a thread selects, and none before.
 */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES_MAX 16
#define MEMORY_BYTES (80ul << 30)

/* ---- the driver's stand-in */

int cuInit(unsigned), cuDeviceGetCount(int *), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuCtxGetCurrent(void **), cuCtxSynchronize(void), cuDeviceGetAttribute(int *, int, int), cuDeviceCanAccessPeer(int *, int, int);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemcpyAsync(uint64_t, uint64_t, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuStreamCreateWithPriority(void **, unsigned, int), cuStreamDestroy_v2(void *), cuStreamSynchronize(void *), cuStreamQuery(void *);
int cuStreamWaitEvent(void *, void *, unsigned), cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuStreamIsCapturing(void *, int *), cuStreamGetCaptureInfo_v2(void *, int *, uint64_t *, void *, void *, void *);
int cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventRecordWithFlags(void *, void *, unsigned);
int cuEventSynchronize(void *), cuGraphInstantiateWithFlags(void **, void *, uint64_t), cuGraphLaunch(void *, void *);
int cuGraphDestroy(void *), cuGraphExecDestroy(void *), cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *), cuPointerGetAttribute(void *, int, uint64_t);
int cuLaunchHostFunc(void *, void (*)(void *), void *), cuThreadExchangeStreamCaptureMode(int *), cuGetErrorName(int, const char **);
size_t standInUsedBytes(int);

/* ---- threads, devices, errors */

static __thread int selected = -1;
static __thread int last_error;
static void *contexts[DEVICES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long launches;

static cudaError_t noted(int result) {
    if (result != 0) {
        last_error = result;
    }
    return (cudaError_t)result;
}

static int use(int device) {
    int result = 0;
    pthread_mutex_lock(&lock);
    if (contexts[device] == NULL) {
        cuInit(0);
        result = cuDevicePrimaryCtxRetain(&contexts[device], device);
    }
    pthread_mutex_unlock(&lock);
    selected = device;
    return result != 0 ? result : cuCtxSetCurrent(contexts[device]);
}

/* Makes a context current where the thread has none, as the runtime does. */
static int need(void) {
    void *current = NULL;
    cuInit(0);
    cuCtxGetCurrent(&current);
    return current != NULL ? 0 : use(selected < 0 ? 0 : selected);
}

#define ON_DEVICE(call)                                                                                                \
    do {                                                                                                               \
        int needed = need();                                                                                           \
        return noted(needed != 0 ? needed : (call));                                                                   \
    } while (0)

cudaError_t cudaGetDeviceCount(int *count) {
    cuInit(0);
    return noted(cuDeviceGetCount(count));
}

cudaError_t cudaSetDevice(int device) {
    return noted(device < 0 || device >= DEVICES_MAX ? cudaErrorInvalidDevice : use(device));
}

cudaError_t cudaGetDevice(int *device) {
    *device = selected < 0 ? 0 : selected;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { ON_DEVICE(cuCtxSynchronize()); }

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return noted(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *name, int length, int device) {
    snprintf(name, length, "0000:%02x:00.0", 16 + device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 13000, cudaSuccess; }

cudaError_t cudaGetLastError(void) {
    int error = last_error;
    last_error = 0;
    return (cudaError_t)error;
}

cudaError_t cudaPeekAtLastError(void) { return (cudaError_t)last_error; }

const char *cudaGetErrorName(cudaError_t error) {
    const char *name = NULL;
    cuGetErrorName(error, &name);
    return name != NULL ? name : "an error without a name";
}

const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* What an H100 says of itself, as far as torch and Triton ask. */
static const int of_an_h100[][2] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},      {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},            {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},       {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},            {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrWarpSize, 32},                  {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrClockRate, 1980000},            {cudaDevAttrMultiProcessorCount, 132},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048}, {cudaDevAttrComputeCapabilityMajor, 9},
    {cudaDevAttrComputeCapabilityMinor, 0},     {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32}, {cudaDevAttrMemoryPoolsSupported, 1},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    for (size_t i = 0; i < sizeof of_an_h100 / sizeof *of_an_h100; i++) {
        if (of_an_h100[i][0] == (int)attribute) {
            *value = of_an_h100[i][1];
            return cudaSuccess;
        }
    }
    cuInit(0);
    return noted(cuDeviceGetAttribute(value, attribute, device));
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    *properties = (struct cudaDeviceProp){
        .name = "a device that computes nothing",
        .major = 9,
        .multiProcessorCount = 132,
        .totalGlobalMem = MEMORY_BYTES,
        .warpSize = 32,
        .maxThreadsPerBlock = 1024,
        .maxThreadsPerMultiProcessor = 2048,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = 49152,
        .sharedMemPerBlockOptin = 232448,
        .sharedMemPerMultiprocessor = 233472,
        .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536,
        .l2CacheSize = 50 << 20,
        .textureAlignment = 512,
        .pciBusID = 16 + device,
    };
    return cudaSuccess;
}

/* ---- memory */

cudaError_t cudaMalloc(void **address, size_t length) { ON_DEVICE(cuMemAlloc_v2((uint64_t *)address, length)); }

/* The runtime waits for all that was given to the device before: torch frees memory that queued operations still name. */
static int freed(void *address) {
    int result = address == NULL ? 0 : cuCtxSynchronize();
    return address == NULL || result != 0 ? result : cuMemFree_v2((uint64_t)address);
}
cudaError_t cudaFree(void *address) { ON_DEVICE(freed(address)); }

cudaError_t cudaHostAlloc(void **address, size_t length, unsigned flags) {
    (void)flags;
    ON_DEVICE(cuMemHostAlloc(address, length, 1));
}
cudaError_t cudaFreeHost(void *address) { ON_DEVICE(cuMemFreeHost(address)); }
cudaError_t cudaHostRegister(void *address, size_t length, unsigned flags) {
    ON_DEVICE(cuMemHostRegister_v2(address, length, flags & 3));
}
cudaError_t cudaHostUnregister(void *address) { ON_DEVICE(cuMemHostUnregister(address)); }

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = MEMORY_BYTES - (1ul << 30) - standInUsedBytes(selected < 0 ? 0 : selected), *total_bytes = MEMORY_BYTES;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9 };
    int type = 0, device = 0, needed = need();
    *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered};
    if (needed != 0 || cuPointerGetAttribute(&type, MEMORY_TYPE, (uint64_t)address) != 0) {
        return noted(needed);
    }
    attributes->type = (enum cudaMemoryType)type;
    attributes->devicePointer = (void *)address;
    if (type == cudaMemoryTypeDevice) {
        cuPointerGetAttribute(&device, DEVICE_ORDINAL, (uint64_t)address);
    } else {
        attributes->hostPointer = (void *)address;
        device = selected < 0 ? 0 : selected; /* that in whose context it was page-locked: a process has one */
    }
    attributes->device = device;
    return cudaSuccess;
}

/* Whether it is host memory that is not page-locked. */
static int is_pageable(const void *address) {
    enum { MEMORY_TYPE = 2 };
    int type = 0;
    return cuPointerGetAttribute(&type, MEMORY_TYPE, (uint64_t)address) != 0;
}

/*
 * A caller may free or write its pageable memory as soon as the call has returned, as with the runtime itself: what is to
 * be read of it has been put aside, and what is to be written has been written. A captured copy reads it when it runs.
 */
static int copy_queued(void *to, const void *from, size_t length, void *stream) {
    int capturing = 0, result = cuStreamIsCapturing(stream, &capturing);
    if (result != 0 || capturing || !is_pageable(from)) {
        result = result != 0 ? result : cuMemcpyAsync((uint64_t)to, (uint64_t)from, length, stream);
        return result != 0 || capturing || !is_pageable(to) ? result : cuStreamSynchronize(stream);
    }
    void *aside = memcpy(malloc(length), from, length);
    result = cuMemcpyAsync((uint64_t)to, (uint64_t)aside, length, stream);
    if (result != 0) {
        free(aside);
        return result;
    }
    result = cuLaunchHostFunc(stream, free, aside);
    return result != 0 || !is_pageable(to) ? result : cuStreamSynchronize(stream);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t length, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    ON_DEVICE(length == 0 ? 0 : copy_queued(to, from, length, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t length, enum cudaMemcpyKind kind) {
    cudaError_t copied = cudaMemcpyAsync(to, from, length, kind, NULL);
    return copied != cudaSuccess ? copied : noted(cuStreamSynchronize(NULL));
}

cudaError_t cudaMemsetAsync(void *address, int value, size_t length, cudaStream_t stream) {
    ON_DEVICE(cuMemsetD8Async((uint64_t)address, (unsigned char)value, length, stream));
}

cudaError_t cudaMemset(void *address, int value, size_t length) {
    cudaError_t queued = cudaMemsetAsync(address, value, length, NULL);
    return queued != cudaSuccess ? queued : noted(cuStreamSynchronize(NULL));
}

/* ---- streams, events, graphs */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    ON_DEVICE(cuStreamCreateWithPriority((void **)stream, flags, priority));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { ON_DEVICE(cuStreamDestroy_v2(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { ON_DEVICE(cuStreamSynchronize(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { ON_DEVICE(cuStreamQuery(stream)); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    (void)stream;
    return *priority = 0, cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    ON_DEVICE(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    ON_DEVICE(cuThreadExchangeStreamCaptureMode((int *)mode));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    ON_DEVICE(cuStreamBeginCapture_v2(stream, mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    ON_DEVICE(cuStreamEndCapture(stream, (void **)graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    int capturing = 0, needed = need();
    int result = needed != 0 ? needed : cuStreamIsCapturing(stream, &capturing);
    *status = (enum cudaStreamCaptureStatus)capturing;
    return noted(result);
}

/* Of the graph and its nodes, which the driver's stand-in does not show, there are none. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *number,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    int capturing = 0, needed = need();
    uint64_t seen = 0;
    (void)nodes, (void)edges;
    int result = needed != 0 ? needed : cuStreamGetCaptureInfo_v2(stream, &capturing, &seen, NULL, NULL, NULL);
    *status = (enum cudaStreamCaptureStatus)capturing;
    if (number != NULL) {
        *number = seen;
    }
    if (graph != NULL) {
        *graph = NULL;
    }
    if (count != NULL) {
        *count = 0;
    }
    return noted(result);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    ON_DEVICE(cuEventCreate((void **)event, flags));
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { ON_DEVICE(cuEventDestroy_v2(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { ON_DEVICE(cuEventRecord(event, stream)); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    ON_DEVICE(cuEventRecordWithFlags(event, stream, flags));
}
cudaError_t cudaEventQuery(cudaEvent_t event) { ON_DEVICE(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { ON_DEVICE(cuEventSynchronize(event)); }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    (void)from, (void)to;
    return *milliseconds = 1, cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    ON_DEVICE(cuGraphInstantiateWithFlags((void **)made, graph, 0));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { ON_DEVICE(cuGraphLaunch(graph, stream)); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { ON_DEVICE(cuGraphDestroy(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { ON_DEVICE(cuGraphExecDestroy(graph)); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    (void)graph, (void)nodes;
    return *count = 1, cudaSuccess;
}

/* ---- kernels */

static cudaError_t launched(void) {
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    return cudaSuccess;
}

/* How many kernels would have run. */
long uncomputedLaunches(void) { return launches; }

cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) {
    (void)f, (void)grid, (void)block, (void)given, (void)shared, (void)stream;
    return launched();
}
cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(f, grid, block, given, shared, stream);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3 grid, dim3 block, void **given, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel((const void *)f, grid, block, given, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *f, void **given) {
    (void)how, (void)f, (void)given;
    return launched();
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    ON_DEVICE(cuLaunchHostFunc(stream, function, data));
}

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
    return cudaSuccess;
}

static void *binary[1];
void **__cudaRegisterFatBinary(void *from) { return (void)from, binary; }
void __cudaRegisterFatBinaryEnd(void **of) { (void)of; }
void __cudaUnregisterFatBinary(void **of) { (void)of; }
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}
char __cudaInitModule(void **of) { return (void)of, 0; }
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    return *kernel = (cudaKernel_t)function, cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    (void)function;
    *attributes = (struct cudaFuncAttributes){.maxThreadsPerBlock = 1024, .numRegs = 32, .binaryVersion = 90, .ptxVersion = 90};
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int block, size_t shared) {
    (void)function, (void)block, (void)shared;
    return *count = 2, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int block, size_t shared,
                                                                   unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, block, shared);
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

/* A function that is not there is no error: what is found says so. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
    static const char *const endings[] = {"_v2", "_v3", ""};
    (void)version, (void)flags;
    *function = NULL;
    for (int i = 0; i < 3 && *function == NULL; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", name, endings[i]);
        *function = dlsym(RTLD_DEFAULT, full);
    }
    if (found != NULL) {
        *found = *function != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
}
