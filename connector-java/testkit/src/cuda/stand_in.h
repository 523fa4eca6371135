/*
 * A stand-in for libcuda.so.1 on machines without a GPU: the parts of the driver API that KV Messenger calls.
 *
 * What it keeps of a real driver, because code goes wrong there:
 *  - an address of device memory faults when the processor touches it; its bytes are reached by copies alone;
 *  - streams run their operations later and on threads of their own, in order, each after a delay that a test chooses;
 *  - a captured stream runs nothing: its operations run each time the graph is launched;
 *  - while a graph is captured in the default mode, calls that are not allowed then fail on any thread and end the capture;
 *  - calls want a current context, granted access, whole granules, and the flags that a real driver wants;
 *  - they want the features that a device says it has, peer access where memory is another device's, and a device that no other
 *    process has for itself;
 *  - what was imported lies on its owner's device, is exported to NICs and not again to processes (an H100, driver 580.159);
 *  - a process that was forked after cuInit has no driver; memory of cudaMalloc goes with the last user of its context;
 *  - what a NIC has written into device memory by a dma-buf is seen there once the writes are flushed, unless the device says that
 *    it orders them; memory that a NIC has registered is not unmapped;
 *  - where a test wants it, calls that take memory away or page-lock it wait for all that streams were given before them.
 *
 * What it cannot show: speed, the order of a GPU's writes as a NIC or the processor sees them, how far a NIC's writes have come
 * when it reports them, the default stream's waiting for other streams, capture across streams.
 *
 * Environment: STAND_IN_DEVICES (default 2), STAND_IN_OP_DELAY_NS (before each operation of a stream, default 0; or standInDelay),
 * STAND_IN_FAIL=name:n:code[,...] (the n-th call of a function, from 1, returns code), STAND_IN_LOG=path (a line a call),
 * STAND_IN_APART=1 (no peer access; or standInApart), STAND_IN_LACKS=attribute[,...] (which devices have as 0; or standInAttribute),
 * STAND_IN_DROP_TAILS=bytes (the kernel of runs leaves out the last byte of each that is at least so long; or standInDropTails),
 * STAND_IN_SHORT_COPIES=1 (cuMemcpyDtoHAsync leaves out the last byte),
 * STAND_IN_WAITING_CALLS=1 (the calls named above wait; or standInWaitingCalls),
 * STAND_IN_DEFAULT_MODE=1 (threads that capture nothing stay in the default capture mode, as if they had asked for no other).
 */
#ifndef KV_MESSENGER_CUDA_STAND_IN_H
#define KV_MESSENGER_CUDA_STAND_IN_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t AllocationHandle;
typedef struct Context *CUcontext;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Module *CUmodule;
typedef struct Function *CUfunction;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_ALREADY_MAPPED = 208,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_ILLEGAL_STATE = 401
};

/* Attributes of devices. */
enum {
    ATTRIBUTE_MAPS_HOST = 19,
    ATTRIBUTE_PCI_BUS = 33,
    ATTRIBUTE_UNIFIED_ADDRESSING = 41,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_VMM = 102,
    ATTRIBUTE_POSIX_FD = 103,
    ATTRIBUTE_RDMA_WITH_VMM = 110,
    ATTRIBUTE_RDMA_FLUSH_OPTIONS = 117,
    ATTRIBUTE_RDMA_ORDERING = 118,
    ATTRIBUTE_MEM_OPS_64 = 122,
    ATTRIBUTE_DMA_BUF = 124
};

#define DEVICES_MAX 16
#define EXPORTED __attribute__((visibility("default")))

/* Each driver call begins with it: counts and logs the call, and returns the code that a test wants of it. */
#define CALLED(...)                                                                                                    \
    do {                                                                                                               \
        CUresult wanted = called(__func__, __VA_ARGS__);                                                               \
        if (wanted != CUDA_SUCCESS) {                                                                                  \
            return wanted;                                                                                             \
        }                                                                                                              \
    } while (0)

#define REQUIRE(condition, code)                                                                                       \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return refused(__func__, #condition, code);                                                                \
        }                                                                                                              \
    } while (0)

#define REQUIRE_CONTEXT() REQUIRE(current_device() >= 0, CUDA_ERROR_INVALID_CONTEXT)

__attribute__((format(printf, 2, 3))) CUresult called(const char *name, const char *format, ...);
CUresult refused(const char *name, const char *condition, CUresult code);

int device_count(void);
/* What the device says of itself; 0 for what is not known here. */
int attribute_of(int attribute, int device);
/* The device of the calling thread's context; -1 = none is current. */
int current_device(void);
/* Whether one device reaches the other's memory, or its own. */
int reaches(int device, int other);

/* Where the bytes of device or registered host memory lie; NULL when some of them may not be reached by the device. */
void *bytes_at(CUdeviceptr address, size_t length_bytes, int device);
/* Whether the range is page-locked host memory. */
int is_pinned(const void *address, size_t length_bytes);
long pinned_count(void);
int is_device_address(CUdeviceptr address);
/* Frees what the context of the device has by cudaMalloc. */
void free_memory_of_context(int device);
/* Whether other hardware may get at all of the range, which lies on the device and is its process's own. */
int is_for_hardware(CUdeviceptr address, size_t length_bytes, int device);
/*
 * The file of a device's memory, whose name says what an importer has to know: the device, and whether other hardware may get at it; and
 * the device that it says, -1 for another file.
 */
int file_of_device(int device, int for_hardware);
int imported_device(int memfd, int *for_hardware);
/* Whether a NIC has registered a part of the range. */
int is_held_by_nic(CUdeviceptr address, size_t length_bytes);
long nic_region_count(void);
/* The range is given back: what is on its way there is not seen any more. */
void drop_nic_writes(CUdeviceptr address, size_t length_bytes);

/* A capture of a stream; not copied while it is open. */
typedef struct {
    int is_global;
    uint64_t violations_before;
} Capture;

/* The code of a call that a capture does not allow; the capture is lost then. */
CUresult beside_captures(const char *name);
void capture_begins(Capture *capture, int mode);
/* Whether no call has ended it before. */
int capture_is_sound(const Capture *capture);
int capture_ends(const Capture *capture);

/* What was queued met an address that the device does not reach: no call goes well any more. */
void end_all(const char *what, const char *condition);

enum { NO_KERNEL, BUMP_OF_COUNTER, PLACE_OF_COUNTER, COPY_OF_RUNS };
int kernel_of(CUfunction function);

#define RUNS_KERNEL "kv_messenger_copy_runs"
void copy_runs(uint64_t at, uint64_t count, int device);

/* Where calls are to wait: until all streams have run what they have been given. As a driver may, which says of none how long. */
void wait_for_work(void);

/* One of the operations of a stream. */
CUresult queue_copy(CUstream stream, uint64_t target, uint64_t source, size_t length_bytes);

#endif
