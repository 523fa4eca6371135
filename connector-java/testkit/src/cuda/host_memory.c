/* Page-locked host memory: allocated by the driver, or the engine's own, registered. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PINNED_MAX 4096

typedef struct {
    uint8_t *address;
    size_t length_bytes;
    int allocated;
} Pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Pinned pinned[PINNED_MAX];
static int pinned_end; /* Behind the last one that was ever used. */

static Pinned *pinned_at(const void *address, size_t length_bytes) {
    const uint8_t *at = address;
    for (int i = 0; i < pinned_end; i++) {
        if (pinned[i].address != NULL && at >= pinned[i].address
                && at + length_bytes <= pinned[i].address + pinned[i].length_bytes) {
            return &pinned[i];
        }
    }
    return NULL;
}

static int overlaps_pinned(const uint8_t *begin, size_t length_bytes) {
    for (int i = 0; i < pinned_end; i++) {
        if (pinned[i].address != NULL && begin < pinned[i].address + pinned[i].length_bytes
                && pinned[i].address < begin + length_bytes) {
            return 1;
        }
    }
    return 0;
}

static Pinned *free_slot(void) {
    for (int i = 0; i < PINNED_MAX; i++) {
        if (pinned[i].address == NULL) {
            pinned_end = i >= pinned_end ? i + 1 : pinned_end;
            return &pinned[i];
        }
    }
    abort();
}

int is_pinned(const void *address, size_t length_bytes) {
    pthread_mutex_lock(&lock);
    int found = pinned_at(address, length_bytes) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

long pinned_count(void) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PINNED_MAX; i++) {
        count += pinned[i].address != NULL;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

static CUresult pin(void *address, size_t length_bytes, int allocated) {
    pthread_mutex_lock(&lock);
    int already = overlaps_pinned(address, length_bytes);
    if (!already) {
        *free_slot() = (Pinned){address, length_bytes, allocated};
    }
    pthread_mutex_unlock(&lock);
    return already ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

static int unpin(void *address, int allocated, size_t *length_bytes) {
    pthread_mutex_lock(&lock);
    Pinned *found = pinned_at(address, 1);
    int whole = found != NULL && found->address == address && found->allocated == allocated;
    if (whole) {
        *length_bytes = found->length_bytes;
        found->address = NULL;
    }
    pthread_mutex_unlock(&lock);
    return whole;
}

EXPORTED CUresult cuMemHostAlloc(void **address, size_t length, unsigned flags) {
    CALLED("%zu, flags %u", length, flags);
    REQUIRE_CONTEXT();
    REQUIRE(length > 0 && flags <= 7, CUDA_ERROR_INVALID_VALUE);
    wait_for_work();
    *address = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(*address != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    return pin(*address, length, 1);
}

EXPORTED CUresult cuMemFreeHost(void *address) {
    CALLED("%p", address);
    wait_for_work();
    size_t length_bytes = 0;
    REQUIRE(unpin(address, 1, &length_bytes), CUDA_ERROR_INVALID_VALUE);
    munmap(address, length_bytes);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemHostRegister_v2(void *address, size_t length, unsigned flags) {
    CALLED("%p, %zu, flags %u", address, length, flags);
    REQUIRE_CONTEXT();
    REQUIRE(address != NULL && length > 0 && flags <= 15, CUDA_ERROR_INVALID_VALUE);
    return pin(address, length, 0);
}

EXPORTED CUresult cuMemHostUnregister(void *address) {
    CALLED("%p", address);
    wait_for_work();
    size_t length_bytes = 0;
    REQUIRE(unpin(address, 0, &length_bytes), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags) {
    CALLED("%p", address);
    REQUIRE_CONTEXT();
    REQUIRE(flags == 0 && is_pinned(address, 1), CUDA_ERROR_INVALID_VALUE);
    *device = (CUdeviceptr)address;
    return CUDA_SUCCESS;
}
