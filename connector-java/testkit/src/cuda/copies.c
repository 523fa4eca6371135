/* Copies that a stream runs in its order, and which of them a real driver would make wait. */
#include "stand_in.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long pageable_copies;

static CUresult give_copy(CUstream stream, uint64_t target, uint64_t source, size_t length_bytes) {
    int host_side = !is_device_address(target) || !is_device_address(source);
    if (host_side && (bytes_at(target, length_bytes, current_device()) == NULL
            || bytes_at(source, length_bytes, current_device()) == NULL)) {
        pthread_mutex_lock(&lock);
        pageable_copies++;
        pthread_mutex_unlock(&lock);
    }
    return queue_copy(stream, target, source, length_bytes);
}

/* For tests: copies one side of which was host memory that is not page-locked; a real driver makes those wait. */
EXPORTED long standInPageableCopies(void) {
    pthread_mutex_lock(&lock);
    long count = pageable_copies;
    pthread_mutex_unlock(&lock);
    return count;
}

EXPORTED CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t length, CUstream stream) {
    CALLED("%zu", length);
    REQUIRE_CONTEXT();
    return give_copy(stream, target, source, length);
}

EXPORTED CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t length, CUstream stream) {
    CALLED("%zu", length);
    REQUIRE_CONTEXT();
    REQUIRE(is_device_address(target), CUDA_ERROR_INVALID_VALUE);
    return give_copy(stream, target, (uint64_t)source, length);
}

EXPORTED CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t length, CUstream stream) {
    CALLED("%zu", length);
    REQUIRE_CONTEXT();
    REQUIRE(is_device_address(source), CUDA_ERROR_INVALID_VALUE);
    return give_copy(stream, (uint64_t)target, source, length - (getenv("STAND_IN_SHORT_COPIES") != NULL));
}

EXPORTED CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t length, CUstream stream) {
    CALLED("%zu", length);
    REQUIRE_CONTEXT();
    REQUIRE(is_device_address(source) && is_device_address(target), CUDA_ERROR_INVALID_VALUE);
    return give_copy(stream, target, source, length);
}

typedef struct {
    int srcAccessOrder;
    int srcLocHint[2], dstLocHint[2];
    unsigned flags;
} CopyAttributes;

_Static_assert(sizeof(CopyAttributes) == 24, "as in cuda.h");

/* As of CUDA 13; that of 12.8, without _v2, has one argument more. */
EXPORTED CUresult cuMemcpyBatchAsync_v2(const CUdeviceptr *targets, const CUdeviceptr *sources, const size_t *lengths,
        size_t count, const CopyAttributes *attributes, const size_t *first_of_attributes, size_t attributes_count,
        CUstream stream) {
    CALLED("%zu copies", count);
    REQUIRE_CONTEXT();
    REQUIRE(count > 0 && attributes_count > 0 && attributes_count <= count, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(first_of_attributes[0] == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((uintptr_t)stream > 2, CUDA_ERROR_INVALID_HANDLE); /* Not on a legacy or default stream. */
    for (size_t i = 0; i < attributes_count; i++) {
        REQUIRE(attributes[i].srcAccessOrder >= 1 && attributes[i].srcAccessOrder <= 3, CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; i++) {
        REQUIRE(lengths[i] > 0, CUDA_ERROR_INVALID_VALUE);
    }
    /* No order among the copies of a batch: the last goes first. */
    for (size_t i = count; i-- > 0;) {
        CUresult result = give_copy(stream, targets[i], sources[i], lengths[i]);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}
