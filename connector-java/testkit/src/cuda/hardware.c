/* Device memory as other hardware gets at it: dma-bufs, what a NIC reads and writes by them, and when its writes are seen. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REGIONS_MAX 256

enum {
    RANGE_DMA_BUF = 1,
    FLUSH_OPTION_HOST = 1,
    FLUSH_TARGET_CURRENT_CONTEXT = 0,
    SCOPE_OWNER = 100,
    SCOPE_ALL_DEVICES = 200
};

/* What the file behind a dma-buf's descriptor says. */
typedef struct {
    char magic[8];
    int pid, device;
    CUdeviceptr address;
    size_t length_bytes;
} DmaBuf;

/* What a NIC has registered. */
typedef struct {
    CUdeviceptr address;
    size_t length_bytes;
    int device;
} NicRegion;

/* On its way into a device's memory. */
typedef struct NicWrite {
    struct NicWrite *next;
    CUdeviceptr address;
    size_t length_bytes;
    int device;
    uint8_t bytes[];
} NicWrite;

static const char MAGIC[8] = "dma-buf";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static NicRegion regions[REGIONS_MAX];
static NicWrite *first_write, **behind_last_write = &first_write;

#define NAME "stand-in-device-"

int file_of_device(int device, int for_hardware) {
    char name[64];
    snprintf(name, sizeof name, NAME "%d-%d", device, for_hardware);
    return memfd_create(name, MFD_CLOEXEC);
}

int imported_device(int memfd, int *for_hardware) {
    char path[64], target[128] = "";
    int device;
    snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
    return readlink(path, target, sizeof target - 1) > 0
                    && sscanf(target, "/memfd:" NAME "%d-%d", &device, for_hardware) == 2
            ? device
            : -1;
}

int is_held_by_nic(CUdeviceptr address, size_t length_bytes) {
    int held = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGIONS_MAX; i++) {
        held |= regions[i].length_bytes > 0 && regions[i].address < address + length_bytes
                && address < regions[i].address + regions[i].length_bytes;
    }
    pthread_mutex_unlock(&lock);
    return held;
}

long nic_region_count(void) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGIONS_MAX; i++) {
        count += regions[i].length_bytes > 0;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

EXPORTED CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t length, int type, uint64_t flags) {
    CALLED("%#llx, %zu", (unsigned long long)address, length);
    REQUIRE_CONTEXT();
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    REQUIRE(type == RANGE_DMA_BUF && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(length > 0 && length % page_bytes == 0 && address % page_bytes == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(attribute_of(ATTRIBUTE_DMA_BUF, current_device()) != 0, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(is_for_hardware(address, length, current_device()), CUDA_ERROR_NOT_SUPPORTED);
    DmaBuf said = {.pid = getpid(), .device = current_device(), .address = address, .length_bytes = length};
    memcpy(said.magic, MAGIC, sizeof said.magic);
    int fd = memfd_create("stand-in-dma-buf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &said, sizeof said) != sizeof said) {
        close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}

/* Takes those out of the queue that are for the device and, where it has a length, for a part of the range. */
static void take_writes(int device, CUdeviceptr address, size_t length_bytes, void (*take)(const NicWrite *)) {
    pthread_mutex_lock(&lock);
    for (NicWrite **at = &first_write; *at != NULL;) {
        NicWrite *each = *at;
        int outside = length_bytes > 0
                && (each->address >= address + length_bytes || address >= each->address + each->length_bytes);
        if ((device >= 0 && each->device != device) || outside) {
            at = &each->next;
            continue;
        }
        take(each);
        *at = each->next;
        free(each);
    }
    for (behind_last_write = &first_write; *behind_last_write != NULL;) {
        behind_last_write = &(*behind_last_write)->next;
    }
    pthread_mutex_unlock(&lock);
}

static void show(const NicWrite *write) {
    void *bytes = bytes_at(write->address, write->length_bytes, write->device);
    if (bytes != NULL) {
        memcpy(bytes, write->bytes, write->length_bytes);
    }
}

static void drop(const NicWrite *write) {
    (void)write;
}

static void land(int device) {
    take_writes(device, 0, 0, show);
}

void drop_nic_writes(CUdeviceptr address, size_t length_bytes) {
    take_writes(-1, address, length_bytes, drop);
}

EXPORTED CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
    CALLED("target %d, scope %d", target, scope);
    REQUIRE_CONTEXT();
    REQUIRE(target == FLUSH_TARGET_CURRENT_CONTEXT, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(scope == SCOPE_OWNER || scope == SCOPE_ALL_DEVICES, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(attribute_of(ATTRIBUTE_RDMA_FLUSH_OPTIONS, current_device()) & FLUSH_OPTION_HOST, CUDA_ERROR_NOT_SUPPORTED);
    land(current_device());
    return CUDA_SUCCESS;
}

/* ---- for tests: the side of a NIC in this process */

/* Registers a part of a dma-buf, whose descriptor may be closed then; returns the region's number, -1 for what is none. */
EXPORTED long standInNicRegister(int fd, uint64_t offset, uint64_t length_bytes) {
    DmaBuf said;
    if (pread(fd, &said, sizeof said, 0) != sizeof said || memcmp(said.magic, MAGIC, sizeof said.magic) != 0
            || said.pid != getpid() || length_bytes == 0 || length_bytes > said.length_bytes
            || offset > said.length_bytes - length_bytes) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    long found = -1;
    for (int i = 0; i < REGIONS_MAX && found < 0; i++) {
        found = regions[i].length_bytes == 0 ? i : -1;
    }
    if (found < 0) {
        abort();
    }
    regions[found] = (NicRegion){said.address + offset, length_bytes, said.device};
    pthread_mutex_unlock(&lock);
    return found;
}

EXPORTED void standInNicDeregister(long region) {
    pthread_mutex_lock(&lock);
    regions[region].length_bytes = 0;
    pthread_mutex_unlock(&lock);
}

/* -1 when a part of it is not registered. */
static int range_of(long region, uint64_t offset, uint64_t length_bytes, NicRegion *range) {
    pthread_mutex_lock(&lock);
    NicRegion whole = regions[region];
    pthread_mutex_unlock(&lock);
    if (length_bytes > whole.length_bytes || offset > whole.length_bytes - length_bytes) {
        return -1;
    }
    *range = (NicRegion){whole.address + offset, length_bytes, whole.device};
    return 0;
}

EXPORTED int standInNicRead(long region, uint64_t offset, void *to, uint64_t length_bytes) {
    NicRegion range;
    const void *bytes = range_of(region, offset, length_bytes, &range) != 0
            ? NULL
            : bytes_at(range.address, range.length_bytes, range.device);
    if (bytes == NULL) {
        return -1;
    }
    memcpy(to, bytes, length_bytes);
    return 0;
}

/* Seen in the memory at once where the device orders such writes, else once they are flushed. */
EXPORTED int standInNicWrite(long region, uint64_t offset, const void *from, uint64_t length_bytes) {
    NicRegion range;
    if (range_of(region, offset, length_bytes, &range) != 0) {
        return -1;
    }
    NicWrite *made = malloc(sizeof *made + length_bytes);
    *made = (NicWrite){NULL, range.address, range.length_bytes, range.device};
    memcpy(made->bytes, from, length_bytes);
    pthread_mutex_lock(&lock);
    *behind_last_write = made;
    behind_last_write = &made->next;
    pthread_mutex_unlock(&lock);
    if (attribute_of(ATTRIBUTE_RDMA_ORDERING, range.device) >= SCOPE_OWNER) {
        land(range.device);
    }
    return 0;
}
