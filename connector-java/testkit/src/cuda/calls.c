/* Counts, logs and fails calls, and what the driver says of itself, its devices and its contexts. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_MAX 128
#define FAULTS_MAX 64
#define ATTRIBUTES_MAX 256

typedef struct {
    const char *name;
    long count;
} Count;

typedef struct {
    char name[64];
    long nth;
    CUresult code;
} Fault;

struct Context {
    int device;
    int retained;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Count counts[NAMES_MAX];
static int name_count;
static Fault faults[FAULTS_MAX];
static int fault_count;
static FILE *call_log;
static int wanted_attributes[ATTRIBUTES_MAX];
static int attribute_is_wanted[ATTRIBUTES_MAX];
static pid_t initialised_by;
static int apart = -1, occupied_device = -1;
static struct Context contexts[DEVICES_MAX];
static __thread CUcontext stack[16];
static __thread int stack_depth;

static void read_environment(void) {
    const char *path = getenv("STAND_IN_LOG");
    if (path != NULL) {
        call_log = fopen(path, "a");
    }
    const char *wanted = getenv("STAND_IN_FAIL");
    char *all = wanted == NULL ? NULL : strdup(wanted);
    for (char *rest = all, *one; all != NULL && (one = strsep(&rest, ",")) != NULL && fault_count < FAULTS_MAX;) {
        Fault *fault = &faults[fault_count];
        if (sscanf(one, "%63[^:]:%ld:%d", fault->name, &fault->nth, &fault->code) == 3) {
            fault_count++;
        }
    }
    free(all);
}

static long *count_of(const char *name) {
    for (int i = 0; i < name_count; i++) {
        if (strcmp(counts[i].name, name) == 0) {
            return &counts[i].count;
        }
    }
    if (name_count == NAMES_MAX) {
        abort();
    }
    counts[name_count].name = strdup(name);
    return &counts[name_count++].count;
}

CUresult called(const char *name, const char *format, ...) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
    CUresult wanted = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    long nth = ++*count_of(name);
    for (int i = 0; i < fault_count; i++) {
        if (faults[i].nth == nth && strcmp(faults[i].name, name) == 0) {
            wanted = faults[i].code;
        }
    }
    if (call_log != NULL) {
        va_list arguments;
        va_start(arguments, format);
        fprintf(call_log, "%s ", name);
        vfprintf(call_log, format, arguments);
        fprintf(call_log, wanted == CUDA_SUCCESS ? "\n" : " fails with %d\n", wanted);
        fflush(call_log);
        va_end(arguments);
    }
    pthread_mutex_unlock(&lock);
    if (initialised_by != 0 && initialised_by != getpid()) {
        return refused(name, "this process is the one that called cuInit", CUDA_ERROR_NOT_INITIALIZED);
    }
    if (initialised_by == 0 && strcmp(name, "cuInit") != 0 && strcmp(name, "cuDriverGetVersion") != 0
            && strncmp(name, "cuGetError", 10) != 0) {
        return refused(name, "cuInit was called", CUDA_ERROR_NOT_INITIALIZED);
    }
    return wanted != CUDA_SUCCESS ? wanted : beside_captures(name);
}

CUresult refused(const char *name, const char *condition, CUresult code) {
    pthread_mutex_lock(&lock);
    if (call_log != NULL) {
        fprintf(call_log, "%s refused with %d, wanted: %s\n", name, code, condition);
        fflush(call_log);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* For tests: how often a function was called. */
EXPORTED long standInCallCount(const char *name) {
    pthread_mutex_lock(&lock);
    long count = *count_of(name);
    pthread_mutex_unlock(&lock);
    return count;
}

/* For tests: the n-th call from now on, from 1, returns code. */
EXPORTED void standInFail(const char *name, long nth, CUresult code) {
    pthread_mutex_lock(&lock);
    if (fault_count == FAULTS_MAX || strlen(name) >= sizeof faults[0].name) {
        abort();
    }
    Fault *fault = &faults[fault_count++];
    strcpy(fault->name, name);
    fault->nth = *count_of(name) + nth;
    fault->code = code;
    pthread_mutex_unlock(&lock);
}

EXPORTED CUresult cuInit(unsigned flags) {
    CALLED("%u", flags);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    initialised_by = getpid();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDriverGetVersion(int *version) {
    CALLED("%s", "");
    *version = 13000;
    return CUDA_SUCCESS;
}

int device_count(void) {
    const char *said = getenv("STAND_IN_DEVICES");
    int count = said == NULL ? 2 : atoi(said);
    return count < 0 ? 0 : count > DEVICES_MAX ? DEVICES_MAX : count;
}

EXPORTED CUresult cuDeviceGetCount(int *count) {
    CALLED("%s", "");
    *count = device_count();
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CALLED("%d", ordinal);
    REQUIRE(ordinal >= 0 && ordinal < device_count(), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CALLED("%d", device);
    snprintf(name, (size_t)length, "stand-in %d", device);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetUuid_v2(uint8_t *uuid, CUdevice device) {
    CALLED("%d", device);
    REQUIRE(device >= 0 && device < device_count(), CUDA_ERROR_INVALID_DEVICE);
    memset(uuid, 0, 16);
    memcpy(uuid, "stand-in", 8);
    uuid[15] = (uint8_t)device;
    return CUDA_SUCCESS;
}

/* For tests: what all devices say of themselves from now on. */
EXPORTED void standInAttribute(int attribute, int value) {
    if (attribute < 0 || attribute >= ATTRIBUTES_MAX) {
        abort();
    }
    pthread_mutex_lock(&lock);
    wanted_attributes[attribute] = value;
    attribute_is_wanted[attribute] = 1;
    pthread_mutex_unlock(&lock);
}

/* Whether the environment says that devices do not have it. */
static int is_lacking(int attribute) {
    const char *at = getenv("STAND_IN_LACKS");
    for (; at != NULL && *at != '\0'; at += *at == ',') {
        char *end;
        if (strtol(at, &end, 10) == attribute) {
            return 1;
        }
        at = end == at ? "" : end;
    }
    return 0;
}

/* A NIC's writes are not ordered, and can be flushed. */
int attribute_of(int attribute, int device) {
    if (is_lacking(attribute)) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    int wanted = attribute >= 0 && attribute < ATTRIBUTES_MAX && attribute_is_wanted[attribute];
    int value = wanted ? wanted_attributes[attribute] : 0;
    pthread_mutex_unlock(&lock);
    if (wanted) {
        return value;
    }
    switch (attribute) {
        case ATTRIBUTE_PCI_BUS: return 0x10 + device;
        case ATTRIBUTE_MAJOR: return 9;
        case ATTRIBUTE_MAPS_HOST: case ATTRIBUTE_UNIFIED_ADDRESSING: case ATTRIBUTE_VMM: case ATTRIBUTE_POSIX_FD: case ATTRIBUTE_MEM_OPS_64:
        case ATTRIBUTE_RDMA_WITH_VMM: case ATTRIBUTE_RDMA_FLUSH_OPTIONS: case ATTRIBUTE_DMA_BUF: return 1;
        default: return 0;
    }
}

EXPORTED CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    CALLED("%d of %d", attribute, device);
    REQUIRE(device >= 0 && device < device_count(), CUDA_ERROR_INVALID_DEVICE);
    *value = attribute_of(attribute, device);
    return CUDA_SUCCESS;
}

/* For tests: whether the devices lack peer access from now on. */
EXPORTED void standInApart(int lacks) {
    apart = lacks;
}

/* For tests: another process has the device for itself (compute mode EXCLUSIVE_PROCESS); -1: none has. */
EXPORTED void standInOccupied(int device) {
    occupied_device = device;
}

int reaches(int device, int other) {
    return device == other || (apart >= 0 ? apart == 0 : getenv("STAND_IN_APART") == NULL);
}

EXPORTED CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CALLED("%d, %d", device, peer);
    REQUIRE(device >= 0 && device < device_count(), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(peer >= 0 && peer < device_count(), CUDA_ERROR_INVALID_DEVICE);
    *can = device != peer && reaches(device, peer);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CALLED("%d", device);
    REQUIRE(device >= 0 && device < device_count(), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(device != occupied_device, CUDA_ERROR_DEVICE_UNAVAILABLE);
    pthread_mutex_lock(&lock);
    contexts[device].device = device;
    contexts[device].retained++;
    pthread_mutex_unlock(&lock);
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

/* For tests: how often the device's context is held. */
EXPORTED int standInRetained(int device) {
    pthread_mutex_lock(&lock);
    int retained = contexts[device].retained;
    pthread_mutex_unlock(&lock);
    return retained;
}

EXPORTED CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CALLED("%d", device);
    REQUIRE(device >= 0 && device < device_count(), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(contexts[device].retained > 0, CUDA_ERROR_INVALID_CONTEXT);
    pthread_mutex_lock(&lock);
    int last = --contexts[device].retained == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        free_memory_of_context(device);
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxSetCurrent(CUcontext context) {
    CALLED("%p", (void *)context);
    stack_depth = context != NULL;
    stack[0] = context;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetCurrent(CUcontext *context) {
    CALLED("%s", "");
    *context = stack_depth == 0 ? NULL : stack[stack_depth - 1];
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CALLED("%p", (void *)context);
    REQUIRE(context != NULL && stack_depth < 16, CUDA_ERROR_INVALID_CONTEXT);
    stack[stack_depth++] = context;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CALLED("%s", "");
    REQUIRE(stack_depth > 0, CUDA_ERROR_INVALID_CONTEXT);
    stack_depth--;
    if (context != NULL) {
        *context = stack[stack_depth];
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetDevice(CUdevice *device) {
    CALLED("%s", "");
    REQUIRE_CONTEXT();
    *device = current_device();
    return CUDA_SUCCESS;
}

int current_device(void) {
    return stack_depth == 0 || stack[stack_depth - 1]->retained == 0 ? -1 : stack[stack_depth - 1]->device;
}

EXPORTED CUresult cuGetErrorName(CUresult code, const char **name) {
    static const struct { CUresult code; const char *name; } names[] = {
            {CUDA_SUCCESS, "CUDA_SUCCESS"},
            {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
            {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
            {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
            {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
            {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
            {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
            {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
            {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
            {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
            {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
            {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
            {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
            {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
            {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
            {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    };
    CALLED("%d", code);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].code == code) {
            *name = names[i].name;
            return CUDA_SUCCESS;
        }
    }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
