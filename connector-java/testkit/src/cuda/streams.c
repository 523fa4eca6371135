/* Streams, each a thread that runs its operations in order; events, graphs, and the kernels that are known. */
#define _GNU_SOURCE
#include "stand_in.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREADS_MAX 1024 /* In a block, of any device. */
#define RECORD_EXTERNAL 1

typedef void (*HostFunction)(void *);

typedef struct Operation {
    enum { COPY, COPY_RUNS, WRITE_32, WRITE_64, BUMP, PLACE, HOST_FUNCTION, RECORD, WAIT } kind;
    uint64_t target, source, value;
    HostFunction function;
    void *data;
    long number; /* In the order in which all streams were given theirs. */
    struct Operation *next;
} Operation;

typedef struct {
    Operation *first, *last;
    long count;
} Operations;

struct Event {
    long recorded, reached;
    int destroyed;
};

struct Stream {
    pthread_t thread;
    int device, ending, capturing;
    uint64_t capture;
    Capture allowance;
    Operations queued;
    Operations captured;
    long given, done;
    long running; /* The number of the operation that it runs; 0 = none. */
    struct Stream *started_before;
};

typedef struct Graph {
    Operations operations;
} *CUgraph;
typedef CUgraph CUgraphExec;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct Stream default_streams[DEVICES_MAX];
static struct Stream *last_started;
static uint64_t captures_begun;
static CUresult sticky; /* As with a real context: after an illegal address no call goes well any more. */
static long chosen_delay_ns = -1;
static int events_lie;
static int chosen_to_wait = -1;
static long operations_given;

/* ---- what a stream does, on its thread */

static void append(Operations *to, Operation operation) {
    Operation *added = malloc(sizeof *added);
    *added = operation;
    added->next = NULL;
    if (to->last == NULL) {
        to->first = added;
    } else {
        to->last->next = added;
    }
    to->last = added;
    to->count++;
}

/* For tests that cannot set the environment of their own process: the delay from now on. */
EXPORTED void standInDelay(long length_ns) {
    __atomic_store_n(&chosen_delay_ns, length_ns, __ATOMIC_RELAXED);
}

static void delay(void) {
    const char *variable = getenv("STAND_IN_OP_DELAY_NS");
    long chosen_ns = __atomic_load_n(&chosen_delay_ns, __ATOMIC_RELAXED);
    long delay_ns = chosen_ns >= 0 ? chosen_ns : variable == NULL ? 0 : atol(variable);
    if (delay_ns > 0) {
        struct timespec length = {delay_ns / 1000000000, delay_ns % 1000000000};
        nanosleep(&length, NULL);
    }
}

static void *reached(uint64_t address, size_t length_bytes, int device) {
    void *bytes = bytes_at(address, length_bytes, device);
    if (bytes == NULL && !is_device_address(address)) {
        bytes = (void *)address; /* Pageable host memory: real drivers copy through a buffer of their own. */
    }
    return bytes;
}

void end_all(const char *what, const char *condition) {
    refused(what, condition, CUDA_ERROR_ILLEGAL_ADDRESS);
    pthread_mutex_lock(&lock);
    sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    pthread_mutex_unlock(&lock);
}

static void copy(const Operation *operation, int device) {
    void *target = reached(operation->target, operation->value, device);
    void *source = reached(operation->source, operation->value, device);
    if (target == NULL || source == NULL) {
        end_all("copy", "both ranges mapped, with access for the stream's device");
        return;
    }
    memmove(target, source, operation->value);
}

/* For tests, which have one process for all: as if no address had been illegal. */
EXPORTED void standInForget(void) {
    pthread_mutex_lock(&lock);
    sticky = CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
}

/* The count, its bound and the word's address are the device's own; the word is what it shows. */
static void count_on(uint64_t *state) {
    if (state[0] != state[1]) {
        state[0]++;
        __atomic_store_n((uint64_t *)state[2], state[0], __ATOMIC_RELEASE);
    }
}

static void wait_for(struct Event *event, long until) {
    pthread_mutex_lock(&lock);
    while (event->reached < until) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void reach(struct Event *event, long at) {
    pthread_mutex_lock(&lock);
    event->reached = at;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void run(const Operation *operation, int device) {
    switch (operation->kind) {
        case COPY: copy(operation, device); break;
        case COPY_RUNS: copy_runs(operation->target, operation->value, device); break;
        case WRITE_32: __atomic_store_n((uint32_t *)operation->target, (uint32_t)operation->value, __ATOMIC_RELEASE); break;
        case WRITE_64: __atomic_store_n((uint64_t *)operation->target, operation->value, __ATOMIC_RELEASE); break;
        case BUMP: count_on((uint64_t *)operation->target); break;
        case PLACE: {
            uint64_t *state = (uint64_t *)operation->target;
            state[0] = operation->value;
            state[1] = (uint64_t)operation->data;
            state[2] = operation->source;
            __atomic_store_n((uint64_t *)operation->source, state[0], __ATOMIC_RELEASE);
            break;
        }
        case HOST_FUNCTION: operation->function(operation->data); break;
        case RECORD: reach(operation->data, (long)operation->value); break;
        case WAIT: wait_for(operation->data, (long)operation->value); break;
    }
}

static void *run_stream(void *argument) {
    struct Stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->queued.first == NULL && !stream->ending) {
            pthread_cond_wait(&changed, &lock);
        }
        Operation *next = stream->queued.first;
        if (next == NULL) {
            break;
        }
        stream->queued.first = next->next;
        if (next->next == NULL) {
            stream->queued.last = NULL;
        }
        stream->running = next->number;
        pthread_mutex_unlock(&lock);
        delay();
        run(next, stream->device);
        free(next);
        pthread_mutex_lock(&lock);
        stream->running = 0;
        stream->done++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---- streams */

/* With the lock held. */
static void start(struct Stream *stream, int device) {
    stream->device = device;
    stream->started_before = last_started;
    last_started = stream;
    pthread_create(&stream->thread, NULL, run_stream, stream);
}

/* Handles 0, 1 and 2 are the context's default stream. */
static struct Stream *stream_of(CUstream handle) {
    if ((uintptr_t)handle > 2) {
        return handle;
    }
    struct Stream *stream = &default_streams[current_device()];
    pthread_mutex_lock(&lock);
    if (stream->thread == 0) {
        start(stream, current_device());
    }
    pthread_mutex_unlock(&lock);
    return stream;
}

static CUresult give(CUstream handle, Operation operation) {
    struct Stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    CUresult result = sticky;
    if (result == CUDA_SUCCESS && stream->capturing) {
        int joins = operation.kind == WAIT || (operation.kind == RECORD && operation.source != RECORD_EXTERNAL);
        result = joins ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) {
            append(&stream->captured, operation);
        }
    } else if (result == CUDA_SUCCESS) {
        if (operation.kind == RECORD) {
            operation.value = (uint64_t)++((struct Event *)operation.data)->recorded;
        }
        operation.number = ++operations_given;
        append(&stream->queued, operation);
        stream->given++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORTED CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    CALLED("flags %u", flags);
    REQUIRE_CONTEXT();
    REQUIRE(flags <= 1, CUDA_ERROR_INVALID_VALUE);
    *stream = calloc(1, sizeof **stream);
    pthread_mutex_lock(&lock);
    start(*stream, current_device());
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}

EXPORTED CUresult cuStreamDestroy_v2(CUstream stream) {
    CALLED("%p", (void *)stream);
    REQUIRE((uintptr_t)stream > 2, CUDA_ERROR_INVALID_HANDLE);
    pthread_mutex_lock(&lock);
    struct Stream **link = &last_started;
    while (*link != stream) {
        link = &(*link)->started_before;
    }
    *link = stream->started_before;
    stream->ending = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    free(stream);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamSynchronize(CUstream handle) {
    CALLED("%p", (void *)handle);
    REQUIRE_CONTEXT();
    struct Stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    int capturing = stream->capturing;
    for (long given = stream->given; !capturing && stream->done < given;) {
        pthread_cond_wait(&changed, &lock);
    }
    CUresult result = sticky;
    pthread_mutex_unlock(&lock);
    REQUIRE(!capturing, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return result;
}

static int is_behind(int device) {
    for (const struct Stream *each = last_started; each != NULL; each = each->started_before) {
        if (each->device == device && each->done < each->given) {
            return 1;
        }
    }
    return 0;
}

/* Waits for all of the device's streams: a primary context is the only one here. */
EXPORTED CUresult cuCtxSynchronize(void) {
    CALLED("device %d", current_device());
    REQUIRE_CONTEXT();
    int device = current_device();
    pthread_mutex_lock(&lock);
    while (is_behind(device)) {
        pthread_cond_wait(&changed, &lock);
    }
    CUresult result = sticky;
    pthread_mutex_unlock(&lock);
    return result;
}

/* For tests that cannot set the environment of their own process: whether calls wait from now on. */
EXPORTED void standInWaitingCalls(int wait) {
    __atomic_store_n(&chosen_to_wait, wait, __ATOMIC_RELAXED);
}

/* Whether a stream has not run what had that number or one before it. */
static int has_work(long until) {
    for (const struct Stream *each = last_started; each != NULL; each = each->started_before) {
        const Operation *first = each->queued.first;
        if ((each->running != 0 && each->running <= until) || (first != NULL && first->number <= until)) {
            return 1;
        }
    }
    return 0;
}

void wait_for_work(void) {
    int chosen = __atomic_load_n(&chosen_to_wait, __ATOMIC_RELAXED);
    if (chosen == 0 || (chosen < 0 && getenv("STAND_IN_WAITING_CALLS") == NULL)) {
        return;
    }
    pthread_mutex_lock(&lock);
    for (long until = operations_given; has_work(until);) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

EXPORTED CUresult cuStreamQuery(CUstream handle) {
    CALLED("%p", (void *)handle);
    REQUIRE_CONTEXT();
    struct Stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    CUresult result = stream->capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            : stream->done < stream->given ? CUDA_ERROR_NOT_READY : sticky;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORTED CUresult cuLaunchHostFunc(CUstream stream, HostFunction function, void *data) {
    CALLED("%p", (void *)stream);
    REQUIRE_CONTEXT();
    REQUIRE(function != NULL, CUDA_ERROR_INVALID_VALUE);
    return give(stream, (Operation){.kind = HOST_FUNCTION, .function = function, .data = data});
}

static CUresult write_word(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags, int length_bytes) {
    REQUIRE_CONTEXT();
    REQUIRE(flags <= 1 && address % (unsigned)length_bytes == 0, CUDA_ERROR_INVALID_VALUE);
    void *bytes = bytes_at(address, (size_t)length_bytes, current_device());
    REQUIRE(bytes != NULL, CUDA_ERROR_INVALID_VALUE);
    return give(stream, (Operation){.kind = length_bytes == 4 ? WRITE_32 : WRITE_64, .target = (uint64_t)bytes, .value = value});
}

EXPORTED CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    CALLED("%p, %u", (void *)stream, value);
    return write_word(stream, address, value, flags, 4);
}

EXPORTED CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
    CALLED("%p, %llu", (void *)stream, (unsigned long long)value);
    return write_word(stream, address, value, flags, 8);
}

CUresult queue_copy(CUstream stream, uint64_t target, uint64_t source, size_t length_bytes) {
    return length_bytes == 0 ? CUDA_SUCCESS
            : give(stream, (Operation){.kind = COPY, .target = target, .source = source, .value = length_bytes});
}

/* ---- events */

EXPORTED CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CALLED("flags %u", flags);
    REQUIRE_CONTEXT();
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventDestroy_v2(CUevent event) {
    CALLED("%p", (void *)event);
    REQUIRE(event != NULL && !event->destroyed, CUDA_ERROR_INVALID_HANDLE);
    event->destroyed = 1; /* Its memory stays: operations that are queued may name it. */
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuEventRecord(CUevent event, CUstream stream) {
    CALLED("%p on %p", (void *)event, (void *)stream);
    REQUIRE_CONTEXT();
    REQUIRE(event != NULL && !event->destroyed, CUDA_ERROR_INVALID_HANDLE);
    return give(stream, (Operation){.kind = RECORD, .data = event});
}

/* In a capture an external record becomes a part of the graph, which records the event whenever it is launched. */
EXPORTED CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    CALLED("%p on %p, flags %u", (void *)event, (void *)stream, flags);
    REQUIRE_CONTEXT();
    REQUIRE(event != NULL && !event->destroyed, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(flags <= RECORD_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
    return give(stream, (Operation){.kind = RECORD, .data = event, .source = flags});
}

EXPORTED CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    CALLED("%p on %p", (void *)stream, (void *)event);
    REQUIRE_CONTEXT();
    REQUIRE(event != NULL && !event->destroyed && flags == 0, CUDA_ERROR_INVALID_HANDLE);
    return give(stream, (Operation){.kind = WAIT, .data = event, .value = (uint64_t)event->recorded});
}

/* For tests of tests: whether each event is said to have been reached, whatever its stream has done. */
EXPORTED void standInLie(int lies) {
    __atomic_store_n(&events_lie, lies, __ATOMIC_RELAXED);
}

EXPORTED CUresult cuEventQuery(CUevent event) {
    CALLED("%p", (void *)event);
    REQUIRE(event != NULL && !event->destroyed, CUDA_ERROR_INVALID_HANDLE);
    if (__atomic_load_n(&events_lie, __ATOMIC_RELAXED)) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    CUresult result = sticky != CUDA_SUCCESS ? sticky
            : event->reached < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORTED CUresult cuEventSynchronize(CUevent event) {
    CALLED("%p", (void *)event);
    REQUIRE(event != NULL && !event->destroyed, CUDA_ERROR_INVALID_HANDLE);
    wait_for(event, event->recorded);
    return sticky;
}

/* ---- graphs */

EXPORTED CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CALLED("%p, mode %d", (void *)stream, mode);
    REQUIRE((uintptr_t)stream > 2, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!stream->capturing, CUDA_ERROR_ILLEGAL_STATE);
    pthread_mutex_lock(&lock);
    stream->capturing = 1;
    stream->capture = ++captures_begun;
    capture_begins(&stream->allowance, mode);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static int capture_status(const struct Stream *stream) {
    enum { NONE, ACTIVE, INVALIDATED };
    return !stream->capturing ? NONE : capture_is_sound(&stream->allowance) ? ACTIVE : INVALIDATED;
}

EXPORTED CUresult cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *number, CUgraph *graph,
        const void **dependencies, size_t *dependency_count) {
    CALLED("%p", (void *)handle);
    REQUIRE_CONTEXT();
    REQUIRE(graph == NULL && dependencies == NULL && dependency_count == NULL, CUDA_ERROR_NOT_SUPPORTED);
    const struct Stream *stream = stream_of(handle);
    *status = capture_status(stream);
    if (stream->capturing) {
        *number = stream->capture;
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamIsCapturing(CUstream handle, int *status) {
    CALLED("%p", (void *)handle);
    REQUIRE_CONTEXT();
    *status = capture_status(stream_of(handle));
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgraph graph) {
    for (Operation *each = graph->operations.first, *next; each != NULL; each = next) {
        next = each->next;
        free(each);
    }
    free(graph);
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CALLED("%p", (void *)stream);
    REQUIRE((uintptr_t)stream > 2 && stream->capturing, CUDA_ERROR_ILLEGAL_STATE);
    *graph = calloc(1, sizeof **graph);
    pthread_mutex_lock(&lock);
    (*graph)->operations = stream->captured;
    memset(&stream->captured, 0, sizeof stream->captured);
    stream->capturing = 0;
    int sound = capture_ends(&stream->allowance);
    pthread_mutex_unlock(&lock);
    if (!sound) {
        destroy(*graph);
        *graph = NULL;
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, uint64_t flags) {
    CALLED("%ld operations", graph->operations.count);
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    *made = calloc(1, sizeof **made);
    for (const Operation *each = graph->operations.first; each != NULL; each = each->next) {
        append(&(*made)->operations, *each);
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    CALLED("%ld operations", graph->operations.count);
    REQUIRE_CONTEXT();
    for (const Operation *each = graph->operations.first; each != NULL; each = each->next) {
        CUresult result = give(stream, *each);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphDestroy(CUgraph graph) {
    CALLED("%p", (void *)graph);
    return destroy(graph);
}

EXPORTED CUresult cuGraphExecDestroy(CUgraphExec graph) {
    CALLED("%p", (void *)graph);
    return destroy(graph);
}

/* ---- launches of the kernels that modules.c knows */

/* Parameters, 64 bits each: the table's address as the device sees it, and how many runs it has. */
static CUresult launch_copy_of_runs(unsigned grid_x, unsigned block_x, CUstream stream, void **parameters) {
    uint64_t table, count;
    REQUIRE(grid_x > 0 && block_x > 0 && block_x <= THREADS_MAX, CUDA_ERROR_INVALID_VALUE);
    memcpy(&table, parameters[0], sizeof table);
    memcpy(&count, parameters[1], sizeof count);
    return give(stream, (Operation){.kind = COPY_RUNS, .target = table, .value = count});
}

/* Parameters, 64 bits each: where the count, its bound and the address of the word are; of the second, the word and both. */
EXPORTED CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra) {
    CALLED("%p", (void *)stream);
    REQUIRE_CONTEXT();
    int kernel = kernel_of(function);
    REQUIRE(kernel != NO_KERNEL && parameters != NULL && extra == NULL, CUDA_ERROR_INVALID_HANDLE);
    if (kernel == COPY_OF_RUNS) {
        REQUIRE(grid_y * grid_z == 1 && block_y * block_z == 1 && shared_bytes == 0, CUDA_ERROR_INVALID_VALUE);
        return launch_copy_of_runs(grid_x, block_x, stream, parameters);
    }
    REQUIRE(grid_x * grid_y * grid_z == 1 && block_x * block_y * block_z == 1 && shared_bytes == 0, CUDA_ERROR_INVALID_VALUE);
    uint64_t said[4] = {0};
    for (int i = 0; i < (kernel == BUMP_OF_COUNTER ? 1 : 4); i++) {
        memcpy(&said[i], parameters[i], sizeof said[i]);
    }
    void *state = bytes_at(said[0], 3 * sizeof said[0], current_device());
    void *word = kernel == BUMP_OF_COUNTER ? NULL : bytes_at(said[1], sizeof said[1], current_device());
    REQUIRE(state != NULL && said[0] % 8 == 0, CUDA_ERROR_ILLEGAL_ADDRESS);
    REQUIRE(kernel == BUMP_OF_COUNTER || (word != NULL && said[1] % 8 == 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    return give(stream, (Operation){.kind = kernel == BUMP_OF_COUNTER ? BUMP : PLACE, .target = (uint64_t)state,
            .source = (uint64_t)word, .value = said[2], .data = (void *)said[3]});
}
