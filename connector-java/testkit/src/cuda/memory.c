/* Device memory behind memfds. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE ((size_t)2 << 20)
#define TABLE_MAX 4096

enum { POSIX_FILE_DESCRIPTOR = 1, ALL_DEVICES = (1 << DEVICES_MAX) - 1 };

typedef struct {
    int type, requestedHandleTypes;
    struct {
        int type, id;
    } location;
    void *win32HandleMetaData;
    struct {
        uint8_t compressionType, gpuDirectRDMACapable;
        uint16_t usage;
        uint8_t reserved[4];
    } allocFlags;
} AllocationProp;

typedef struct {
    struct {
        int type, id;
    } location;
    int flags;
} AccessDesc;

/* Physical memory: lives until its handles and its mappings are gone. */
typedef struct {
    int memfd, handles, mappings, handle_types, device, for_hardware;
    size_t length_bytes;
} Allocation;

/* Addresses: the device's, which fault, and beside them the same bytes where the stand-in reaches them. */
typedef struct {
    uint8_t *device, *bytes;
    size_t length_bytes;
    int legacy, imported;
} Reservation;

typedef struct {
    CUdeviceptr address;
    size_t length_bytes;
    Allocation *allocation;
    unsigned readers;
} Mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Allocation *allocations[TABLE_MAX];
static Reservation reservations[TABLE_MAX];
static Mapping mappings[TABLE_MAX];
/* Behind the last one that was ever used: looked for with each copy. */
static int reservations_end, mappings_end;

/* ---- tables; all under the lock */

#define FIND_FREE(table, field)                                                                                        \
    ({                                                                                                                 \
        int found = -1;                                                                                                \
        for (int i = 0; i < TABLE_MAX && found < 0; i++) {                                                             \
            found = table[i].field == 0 ? i : -1;                                                                      \
        }                                                                                                              \
        table##_end = found >= table##_end ? found + 1 : table##_end;                                                  \
        if (found < 0) {                                                                                               \
            abort();                                                                                                   \
        }                                                                                                              \
        &table[found];                                                                                                 \
    })

static Allocation *allocation_of(AllocationHandle handle) {
    return handle == 0 || handle > TABLE_MAX || allocations[handle - 1] == NULL || allocations[handle - 1]->handles == 0
            ? NULL
            : allocations[handle - 1];
}

static AllocationHandle add_allocation(int memfd, size_t length_bytes, int handle_types, int device, int for_hardware) {
    for (int i = 0; i < TABLE_MAX; i++) {
        if (allocations[i] == NULL) {
            Allocation *made = calloc(1, sizeof *made);
            *made = (Allocation){memfd, 1, 0, handle_types, device, for_hardware, length_bytes};
            allocations[i] = made;
            return (AllocationHandle)i + 1;
        }
    }
    abort();
}

static void let_go(Allocation *allocation) {
    if (allocation->handles > 0 || allocation->mappings > 0) {
        return;
    }
    for (int i = 0; i < TABLE_MAX; i++) {
        if (allocations[i] == allocation) {
            allocations[i] = NULL;
        }
    }
    close(allocation->memfd);
    free(allocation);
}

static Reservation *reservation_of(CUdeviceptr address, size_t length_bytes) {
    for (int i = 0; i < reservations_end; i++) {
        Reservation *each = &reservations[i];
        CUdeviceptr begin = (CUdeviceptr)each->device;
        if (each->device != NULL && address >= begin && address - begin < each->length_bytes
                && length_bytes <= each->length_bytes - (address - begin)) {
            return each;
        }
    }
    return NULL;
}

static Mapping *mapping_at(CUdeviceptr address) {
    for (int i = 0; i < mappings_end; i++) {
        if (mappings[i].allocation != NULL && address >= mappings[i].address
                && address - mappings[i].address < mappings[i].length_bytes) {
            return &mappings[i];
        }
    }
    return NULL;
}

static int is_mapped(CUdeviceptr address, size_t length_bytes, int device) {
    for (CUdeviceptr at = address; at < address + length_bytes;) {
        Mapping *mapping = mapping_at(at);
        if (mapping == NULL || (mapping->readers & 1u << device) == 0) {
            return 0;
        }
        at = mapping->address + mapping->length_bytes;
    }
    return 1;
}

void *bytes_at(CUdeviceptr address, size_t length_bytes, int device) {
    pthread_mutex_lock(&lock);
    void *bytes = NULL;
    Reservation *reservation = reservation_of(address, length_bytes);
    if (reservation != NULL && is_mapped(address, length_bytes, device)) {
        bytes = reservation->bytes + (address - (CUdeviceptr)reservation->device);
    } else if (reservation == NULL && is_pinned((void *)address, length_bytes)) {
        bytes = (void *)address;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

int is_for_hardware(CUdeviceptr address, size_t length_bytes, int device) {
    int all = bytes_at(address, length_bytes, device) != NULL && is_device_address(address);
    pthread_mutex_lock(&lock);
    for (CUdeviceptr at = address; all && at < address + length_bytes;) {
        Mapping *mapping = mapping_at(at);
        all = mapping != NULL && mapping->allocation->for_hardware && mapping->allocation->device == device;
        at = all ? mapping->address + mapping->length_bytes : at;
    }
    pthread_mutex_unlock(&lock);
    return all;
}

int is_device_address(CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    int found = reservation_of(address, 1) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

/* For tests: where the processor finds the bytes of mapped device memory; NULL when the range is not all mapped. */
EXPORTED void *standInBytes(CUdeviceptr address, size_t length_bytes) {
    for (int device = 0; device < device_count(); device++) {
        void *bytes = bytes_at(address, length_bytes, device);
        if (bytes != NULL) {
            return bytes;
        }
    }
    return NULL;
}

/* For tests: allocations, reservations, mappings and page-locked ranges that are held; 0 when all was given back. */
EXPORTED long standInHeld(void) {
    long held = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TABLE_MAX; i++) {
        held += (allocations[i] != NULL) + (reservations[i].device != NULL) + (mappings[i].allocation != NULL);
    }
    pthread_mutex_unlock(&lock);
    return held + pinned_count() + nic_region_count();
}

/* Bytes of physical memory that exist on a device. */
EXPORTED size_t standInUsedBytes(int device) {
    size_t used = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TABLE_MAX; i++) {
        used += allocations[i] != NULL && allocations[i]->device == device ? allocations[i]->length_bytes : 0;
    }
    pthread_mutex_unlock(&lock);
    return used;
}

/* ---- virtual memory management */

static CUresult new_memory(size_t length_bytes, int handle_types, int device, int for_hardware, AllocationHandle *handle) {
    int memfd = file_of_device(device, for_hardware);
    if (memfd < 0 || ftruncate(memfd, (off_t)length_bytes) != 0) {
        close(memfd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    *handle = add_allocation(memfd, length_bytes, handle_types, device, for_hardware);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemGetAllocationGranularity(size_t *granularity, const AllocationProp *prop, int option) {
    CALLED("%d", option);
    REQUIRE(prop->type == 1 && prop->location.type == 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(option == 0 || option == 1, CUDA_ERROR_INVALID_VALUE);
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemCreate(AllocationHandle *handle, size_t length, const AllocationProp *prop, uint64_t flags) {
    CALLED("%zu on %d, handle types %d", length, prop->location.id, prop->requestedHandleTypes);
    static const uint8_t zeros[4];
    REQUIRE(flags == 0 && length > 0 && length % GRANULE == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->type == 1 && prop->location.type == 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->location.id >= 0 && prop->location.id < device_count(), CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(prop->win32HandleMetaData == NULL, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->allocFlags.compressionType == 0 && prop->allocFlags.usage == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(prop->allocFlags.gpuDirectRDMACapable <= 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memcmp(prop->allocFlags.reserved, zeros, sizeof zeros) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE((prop->requestedHandleTypes & ~POSIX_FILE_DESCRIPTOR) == 0, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(attribute_of(ATTRIBUTE_VMM, prop->location.id), CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(prop->requestedHandleTypes == 0 || attribute_of(ATTRIBUTE_POSIX_FD, prop->location.id), CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(!prop->allocFlags.gpuDirectRDMACapable || attribute_of(ATTRIBUTE_RDMA_WITH_VMM, prop->location.id),
            CUDA_ERROR_NOT_SUPPORTED);
    return new_memory(length, prop->requestedHandleTypes, prop->location.id, prop->allocFlags.gpuDirectRDMACapable, handle);
}

EXPORTED CUresult cuMemRelease(AllocationHandle handle) {
    CALLED("%llu", (unsigned long long)handle);
    pthread_mutex_lock(&lock);
    Allocation *allocation = allocation_of(handle);
    if (allocation != NULL) {
        allocation->handles--;
        let_go(allocation);
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(allocation != NULL, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult reserve(size_t length_bytes, int legacy, CUdeviceptr *address) {
    size_t with_slack = length_bytes + GRANULE;
    uint8_t *device = mmap(NULL, with_slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *bytes = mmap(NULL, length_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device == MAP_FAILED || bytes == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint8_t *aligned = (uint8_t *)(((uintptr_t)device + GRANULE - 1) & ~(GRANULE - 1));
    if (aligned > device) {
        munmap(device, (size_t)(aligned - device));
    }
    munmap(aligned + length_bytes, with_slack - length_bytes - (size_t)(aligned - device));
    pthread_mutex_lock(&lock);
    Reservation *slot = FIND_FREE(reservations, device);
    *slot = (Reservation){aligned, bytes, length_bytes, legacy, 0};
    pthread_mutex_unlock(&lock);
    *address = (CUdeviceptr)aligned;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAddressReserve(CUdeviceptr *address, size_t length, size_t align, CUdeviceptr hint, uint64_t flags) {
    CALLED("%zu, alignment %zu", length, align);
    REQUIRE(length > 0 && length % GRANULE == 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(align == 0 || (align & (align - 1)) == 0, CUDA_ERROR_INVALID_VALUE);
    (void)hint;
    return reserve(length, 0, address);
}

EXPORTED CUresult cuMemAddressFree(CUdeviceptr address, size_t length) {
    CALLED("%#llx, %zu", (unsigned long long)address, length);
    pthread_mutex_lock(&lock);
    Reservation *reservation = reservation_of(address, length);
    int whole = reservation != NULL && (CUdeviceptr)reservation->device == address
            && reservation->length_bytes == length && mapping_at(address) == NULL;
    if (whole) {
        munmap(reservation->device, length);
        munmap(reservation->bytes, length);
        reservation->device = NULL;
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(whole, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t length_bytes, AllocationHandle handle, unsigned readers) {
    pthread_mutex_lock(&lock);
    Allocation *allocation = allocation_of(handle);
    Reservation *reservation = reservation_of(address, length_bytes);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (allocation != NULL && reservation != NULL && length_bytes == allocation->length_bytes) {
        result = mapping_at(address) != NULL ? CUDA_ERROR_ALREADY_MAPPED : CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        uint8_t *bytes = reservation->bytes + (address - (CUdeviceptr)reservation->device);
        void *mapped = mmap(bytes, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, allocation->memfd, 0);
        result = mapped == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) {
        allocation->mappings++;
        Mapping *slot = FIND_FREE(mappings, allocation);
        *slot = (Mapping){address, length_bytes, allocation, readers};
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORTED CUresult cuMemMap(CUdeviceptr address, size_t length, size_t offset, AllocationHandle handle, uint64_t flags) {
    CALLED("%#llx, %zu", (unsigned long long)address, length);
    REQUIRE(offset == 0 && flags == 0, CUDA_ERROR_INVALID_VALUE);
    return map(address, length, handle, 0);
}

static int unmap(CUdeviceptr address, size_t length_bytes) {
    wait_for_work();
    if (is_held_by_nic(address, length_bytes)) {
        return 0;
    }
    drop_nic_writes(address, length_bytes);
    pthread_mutex_lock(&lock);
    Mapping *mapping = mapping_at(address);
    int whole = mapping != NULL && mapping->address == address && mapping->length_bytes == length_bytes;
    if (whole) {
        Reservation *reservation = reservation_of(address, length_bytes);
        uint8_t *bytes = reservation->bytes + (address - (CUdeviceptr)reservation->device);
        mmap(bytes, length_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        Allocation *allocation = mapping->allocation;
        mapping->allocation = NULL;
        allocation->mappings--;
        let_go(allocation);
    }
    pthread_mutex_unlock(&lock);
    return whole;
}

EXPORTED CUresult cuMemUnmap(CUdeviceptr address, size_t length) {
    CALLED("%#llx, %zu", (unsigned long long)address, length);
    REQUIRE(unmap(address, length), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemSetAccess(CUdeviceptr address, size_t length, const AccessDesc *desc, size_t count) {
    CALLED("%#llx, %zu, %zu descriptions", (unsigned long long)address, length, count);
    for (size_t i = 0; i < count; i++) {
        REQUIRE(desc[i].location.type == 1 && desc[i].location.id < device_count(), CUDA_ERROR_INVALID_DEVICE);
        REQUIRE(desc[i].flags == 1 || desc[i].flags == 3, CUDA_ERROR_INVALID_VALUE);
    }
    int all_mapped = 1, all_reached = 1;
    pthread_mutex_lock(&lock);
    for (CUdeviceptr at = address; at < address + length && all_mapped;) {
        Mapping *mapping = mapping_at(at);
        all_mapped = mapping != NULL;
        for (size_t i = 0; i < count && all_mapped; i++) {
            int reached = reaches(desc[i].location.id, mapping->allocation->device);
            mapping->readers |= (unsigned)reached << desc[i].location.id;
            all_reached &= reached;
        }
        at = all_mapped ? mapping->address + mapping->length_bytes : 0;
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(all_mapped, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(all_reached, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemExportToShareableHandle(void *exported, AllocationHandle handle, int type, uint64_t flags) {
    CALLED("%llu as %d", (unsigned long long)handle, type);
    REQUIRE(type == POSIX_FILE_DESCRIPTOR && flags == 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    Allocation *allocation = allocation_of(handle);
    int exportable = allocation != NULL && (allocation->handle_types & type) != 0;
    int duplicate = exportable ? fcntl(allocation->memfd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    REQUIRE(exportable, CUDA_ERROR_INVALID_VALUE);
    *(int *)exported = duplicate;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemImportFromShareableHandle(AllocationHandle *handle, void *descriptor, int type) {
    CALLED("%p as %d", descriptor, type);
    REQUIRE_CONTEXT();
    struct stat seen;
    int own = type == POSIX_FILE_DESCRIPTOR ? fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 0) : -1;
    int for_hardware = 0, device = own >= 0 ? imported_device(own, &for_hardware) : -1;
    if (own >= 0 && (device < 0 || device >= device_count() || fstat(own, &seen) != 0)) {
        close(own);
        own = -1;
    }
    REQUIRE(own >= 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    *handle = add_allocation(own, (size_t)seen.st_size, 0, device, for_hardware);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemRetainAllocationHandle(AllocationHandle *handle, void *address) {
    CALLED("%p", address);
    *handle = 0;
    pthread_mutex_lock(&lock);
    Mapping *mapping = mapping_at((CUdeviceptr)address);
    Reservation *reservation = reservation_of((CUdeviceptr)address, 1);
    for (int i = 0; i < TABLE_MAX && mapping != NULL && !reservation->legacy; i++) {
        if (allocations[i] == mapping->allocation) {
            allocations[i]->handles++;
            *handle = (AllocationHandle)i + 1;
        }
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(*handle != 0, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemGetAllocationPropertiesFromHandle(AllocationProp *prop, AllocationHandle handle) {
    CALLED("%llu", (unsigned long long)handle);
    pthread_mutex_lock(&lock);
    Allocation *allocation = allocation_of(handle);
    if (allocation != NULL) {
        *prop = (AllocationProp){1, allocation->handle_types, {1, allocation->device}, NULL,
                {0, (uint8_t)allocation->for_hardware, 0, {0}}};
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(allocation != NULL, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

/* ---- memory of cudaMalloc, which has no handle, and its way to other processes */

typedef struct {
    char magic[8];
    int pid, memfd, device;
    uint64_t length_bytes;
    uint8_t rest[32];
} IpcHandle;

_Static_assert(sizeof(AllocationProp) == 32 && sizeof(AccessDesc) == 12 && sizeof(IpcHandle) == 64, "as in cuda.h");

static CUresult place(size_t length_bytes, AllocationHandle handle, CUdeviceptr *address) {
    CUresult result = reserve(length_bytes, 1, address);
    if (result == CUDA_SUCCESS) {
        result = map(*address, length_bytes, handle, ALL_DEVICES);
    }
    pthread_mutex_lock(&lock);
    Allocation *allocation = allocation_of(handle);
    allocation->handles--;
    let_go(allocation);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORTED CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t length) {
    CALLED("%zu", length);
    REQUIRE_CONTEXT();
    REQUIRE(length > 0, CUDA_ERROR_INVALID_VALUE);
    size_t whole = (length + GRANULE - 1) / GRANULE * GRANULE;
    AllocationHandle handle;
    CUresult result = new_memory(whole, 0, current_device(), 1, &handle);
    return result == CUDA_SUCCESS ? place(whole, handle, address) : result;
}

static CUresult free_legacy(CUdeviceptr address, int imported) {
    pthread_mutex_lock(&lock);
    Reservation *reservation = reservation_of(address, 1);
    int found = reservation != NULL && reservation->legacy && reservation->imported == imported
            && (CUdeviceptr)reservation->device == address;
    size_t length_bytes = found ? reservation->length_bytes : 0;
    pthread_mutex_unlock(&lock);
    if (!found) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return unmap(address, length_bytes) ? cuMemAddressFree(address, length_bytes) : CUDA_ERROR_INVALID_VALUE;
}

void free_memory_of_context(int device) {
    for (int i = 0; i < TABLE_MAX; i++) {
        pthread_mutex_lock(&lock);
        Reservation each = reservations[i];
        Mapping *mapping = each.device != NULL && each.legacy ? mapping_at((CUdeviceptr)each.device) : NULL;
        int goes = mapping != NULL && mapping->allocation->device == device;
        pthread_mutex_unlock(&lock);
        if (goes) {
            free_legacy((CUdeviceptr)each.device, each.imported);
        }
    }
}

EXPORTED CUresult cuMemFree_v2(CUdeviceptr address) {
    CALLED("%#llx", (unsigned long long)address);
    return free_legacy(address, 0);
}

EXPORTED CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *length, CUdeviceptr address) {
    CALLED("%#llx", (unsigned long long)address);
    pthread_mutex_lock(&lock);
    Mapping *mapping = mapping_at(address);
    if (mapping != NULL) {
        *base = mapping->address;
        *length = mapping->length_bytes;
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(mapping != NULL, CUDA_ERROR_NOT_FOUND);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuIpcGetMemHandle(IpcHandle *handle, CUdeviceptr address) {
    CALLED("%#llx", (unsigned long long)address);
    pthread_mutex_lock(&lock);
    Mapping *mapping = mapping_at(address);
    Reservation *reservation = reservation_of(address, 1);
    int capable = mapping != NULL && reservation->legacy && !reservation->imported;
    if (capable) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle->magic, "stand-in", 8);
        handle->pid = getpid();
        handle->memfd = mapping->allocation->memfd;
        handle->device = mapping->allocation->device;
        handle->length_bytes = mapping->length_bytes;
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(capable, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, IpcHandle handle, unsigned flags) {
    CALLED("of process %d, flags %u", handle.pid, flags);
    REQUIRE_CONTEXT();
    REQUIRE(flags == 1, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(memcmp(handle.magic, "stand-in", 8) == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(handle.pid != getpid(), CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(reaches(current_device(), handle.device), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.memfd);
    int memfd = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(memfd >= 0, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    AllocationHandle imported = add_allocation(memfd, handle.length_bytes, 0, handle.device, 0);
    pthread_mutex_unlock(&lock);
    CUresult result = place(handle.length_bytes, imported, address);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        reservation_of(*address, 1)->imported = 1;
        pthread_mutex_unlock(&lock);
    }
    return result;
}

EXPORTED CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    CALLED("%#llx", (unsigned long long)address);
    return free_legacy(address, 1);
}

/* Writes 4 bytes where a real driver writes an int or a bool as one, 8 where it writes an address or a length. */
EXPORTED CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    CALLED("%d of %#llx", attribute, (unsigned long long)address);
    enum { MEMORY_TYPE = 2, ORDINAL = 9, LEGACY_IPC = 10, RANGE_START = 11, RANGE_SIZE = 12, HANDLE_TYPES = 14 };
    pthread_mutex_lock(&lock);
    Mapping *mapping = mapping_at(address);
    Reservation *reservation = reservation_of(address, 1);
    int host = is_pinned((void *)address, 1);
    int known = attribute == MEMORY_TYPE || attribute == ORDINAL || (attribute >= LEGACY_IPC && attribute <= RANGE_SIZE)
            || attribute == HANDLE_TYPES;
    if (known && mapping != NULL) {
        switch (attribute) {
            case MEMORY_TYPE: *(int *)value = 2; break;
            case ORDINAL: *(int *)value = mapping->allocation->device; break;
            case LEGACY_IPC: *(int *)value = reservation->legacy; break;
            case RANGE_START: *(uint64_t *)value = (uint64_t)reservation->device; break;
            case RANGE_SIZE: *(uint64_t *)value = reservation->length_bytes; break;
            default: *(int *)value = mapping->allocation->handle_types;
        }
    } else if (known && host && attribute == MEMORY_TYPE) {
        *(int *)value = 1;
    } else {
        known = 0;
    }
    pthread_mutex_unlock(&lock);
    REQUIRE(known, CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}
