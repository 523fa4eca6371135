/*
 * A stand-in for libnccl.so.2 among the ranks of one machine, each a process of its own: a collective is a host function in its
 * stream or graph, which waits there until all ranks have come, moves the bytes through shared memory, and reduces them.
 *
 * So a collective keeps what an engine relies on: behind it in a stream, all ranks have done what was before it. What is not here
 * is made by stubs.py and answers ncclInvalidUsage; types and operations that are not known are refused.
 *
 * With UNCOMPUTED_COLLECTIVES=apart no rank waits for another: what a test of the tests is to notice.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define RANKS_MAX 16
#define SLOT_BYTES (1ul << 20)
#define VERSION 22907

enum { SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 };
enum { SUM, PROD, MAX, MIN };
enum { ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER };

int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
int cuStreamIsCapturing(void *stream, int *status);
int cuCtxGetDevice(int *device);
void *standInBytes(uint64_t address, size_t length_bytes);

typedef struct {
    char name[128];
} Id;

/* Memory that all ranks have: a place for each to come to, and a slot for each to put bytes in. */
struct Meeting {
    pthread_barrier_t all_here;
    int64_t splits[RANKS_MAX][2];
    _Alignas(64) unsigned char slots[];
};

struct Communicator {
    struct Meeting *meeting;
    int rank, count, device, split_count;
    Id id;
};

struct Collective {
    struct Communicator *among;
    int kind, type, operation, root, once;
    uint64_t source, target;
    size_t count; /* of the values that a rank gives, or of those it gets where they are scattered */
};

static const size_t sizes_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static char last_error[200];

static int refused(const char *what, int64_t value) {
    snprintf(last_error, sizeof last_error, "the stand-in for NCCL does not have %s %ld", what, (long)value);
    fprintf(stderr, "%s\n", last_error);
    return INVALID_USAGE;
}

/* ---- numbers */

static float half(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static float wide(uint16_t bits) {
    uint32_t shifted = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &shifted, sizeof value);
    return value;
}

static uint16_t bits_of(float value, int type) {
    uint32_t all;
    uint16_t bits;
    if (type == FLOAT16) {
        _Float16 narrow = (_Float16)value;
        memcpy(&bits, &narrow, sizeof bits);
        return bits;
    }
    memcpy(&all, &value, sizeof all);
    return (uint16_t)(all >> 16);
}

#define REDUCED(a, b) (operation == SUM ? (a) + (b) : operation == PROD ? (a) * (b) : operation == MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))
#define REDUCE_AS(type_of_c)                                                                                           \
    for (size_t i = 0; i < count; i++) {                                                                               \
        type_of_c *into = (type_of_c *)result + i, value = ((const type_of_c *)more)[i];                               \
        *into = (type_of_c)REDUCED(*into, value);                                                                      \
    }                                                                                                                  \
    break

static void reduce(void *result, const void *more, size_t count, int type, int operation) {
    switch (type) {
        case INT8: REDUCE_AS(int8_t);
        case UINT8: REDUCE_AS(uint8_t);
        case INT32: REDUCE_AS(int32_t);
        case UINT32: REDUCE_AS(uint32_t);
        case INT64: REDUCE_AS(int64_t);
        case UINT64: REDUCE_AS(uint64_t);
        case FLOAT32: REDUCE_AS(float);
        case FLOAT64: REDUCE_AS(double);
        default:
            for (size_t i = 0; i < count; i++) {
                float (*read)(uint16_t) = type == FLOAT16 ? half : wide;
                float one = read(((uint16_t *)result)[i]), other = read(((const uint16_t *)more)[i]);
                ((uint16_t *)result)[i] = bits_of(REDUCED(one, other), type);
            }
    }
}

/* ---- collectives, on the stream's thread */

static void meet(struct Communicator *among) {
    static int apart = -1;
    if (apart < 0) {
        const char *wanted = getenv("UNCOMPUTED_COLLECTIVES");
        apart = wanted != NULL && strcmp(wanted, "apart") == 0;
    }
    if (!apart) {
        pthread_barrier_wait(&among->meeting->all_here);
    }
}

static unsigned char *slot(struct Communicator *among, int rank) { return among->meeting->slots + rank * SLOT_BYTES; }

static unsigned char *bytes(uint64_t address, size_t length_bytes) {
    unsigned char *found = length_bytes == 0 ? NULL : standInBytes(address, length_bytes);
    if (found == NULL && length_bytes > 0) {
        fprintf(stderr, "a collective's %zu bytes at %lx are not mapped\n", length_bytes, (unsigned long)address);
        abort();
    }
    return found;
}

/* What this rank gets of values from `first` on, which all ranks have put in their slots. */
static void take(struct Collective *wanted, size_t first, size_t count) {
    struct Communicator *among = wanted->among;
    size_t size = sizes_bytes[wanted->type];
    if (wanted->kind == ALL_GATHER) {
        for (int rank = 0; rank < among->count; rank++) {
            memcpy(bytes(wanted->target + (rank * wanted->count + first) * size, count * size), slot(among, rank), count * size);
        }
        return;
    }
    if (wanted->kind == REDUCE && among->rank != wanted->root) {
        return;
    }
    unsigned char *target = bytes(wanted->target + first * size, count * size);
    int from = wanted->kind == BROADCAST ? wanted->root : 0;
    memcpy(target, slot(among, from), count * size);
    for (int rank = 1; wanted->kind != BROADCAST && rank < among->count; rank++) {
        reduce(target, slot(among, rank), count, wanted->type, wanted->operation);
    }
}

/* One rank's part of the values, which all ranks give: as a reduction to that rank. */
static void scatter_part(struct Collective *wanted, int to, size_t first, size_t count) {
    struct Communicator *among = wanted->among;
    size_t size = sizes_bytes[wanted->type];
    memcpy(slot(among, among->rank), bytes(wanted->source + (to * wanted->count + first) * size, count * size), count * size);
    meet(among);
    if (among->rank == to) {
        take(wanted, first, count);
    }
    meet(among);
}

static void run(void *given) {
    struct Collective *wanted = given;
    struct Communicator *among = wanted->among;
    size_t size = sizes_bytes[wanted->type], most = SLOT_BYTES / size;
    for (size_t first = 0; first < wanted->count; first += most) {
        size_t count = wanted->count - first < most ? wanted->count - first : most;
        if (wanted->kind == REDUCE_SCATTER) {
            for (int to = 0; to < among->count; to++) {
                scatter_part(wanted, to, first, count);
            }
            continue;
        }
        if (wanted->kind != BROADCAST || among->rank == wanted->root) {
            memcpy(slot(among, among->rank), bytes(wanted->source + first * size, count * size), count * size);
        }
        meet(among);
        take(wanted, first, count);
        meet(among);
    }
    if (wanted->once) {
        free(wanted);
    }
}

/* In a graph the collective is kept as long as the process lives. */
static int queue(struct Collective given, void *stream) {
    int capturing = 0;
    if (given.type < 0 || given.type > BFLOAT16) {
        return refused("type", given.type);
    }
    if (given.operation < SUM || given.operation > MIN) {
        return refused("operation", given.operation);
    }
    if (cuStreamIsCapturing(stream, &capturing) != 0) {
        return UNHANDLED_CUDA_ERROR;
    }
    struct Collective *kept = malloc(sizeof *kept);
    *kept = given;
    kept->once = !capturing;
    return cuLaunchHostFunc(stream, run, kept) == 0 ? SUCCESS : UNHANDLED_CUDA_ERROR;
}

EXPORTED int ncclAllReduce(const void *source, void *target, size_t count, int type, int operation, struct Communicator *among, void *stream) {
    return queue((struct Collective){among, ALL_REDUCE, type, operation, 0, 0, (uint64_t)source, (uint64_t)target, count}, stream);
}
EXPORTED int ncclBroadcast(const void *source, void *target, size_t count, int type, int root, struct Communicator *among, void *stream) {
    return queue((struct Collective){among, BROADCAST, type, SUM, root, 0, (uint64_t)source, (uint64_t)target, count}, stream);
}
EXPORTED int ncclBcast(void *both, size_t count, int type, int root, struct Communicator *among, void *stream) {
    return ncclBroadcast(both, both, count, type, root, among, stream);
}
EXPORTED int ncclReduce(const void *source, void *target, size_t count, int type, int operation, int root, struct Communicator *among, void *stream) {
    return queue((struct Collective){among, REDUCE, type, operation, root, 0, (uint64_t)source, (uint64_t)target, count}, stream);
}
EXPORTED int ncclAllGather(const void *source, void *target, size_t count, int type, struct Communicator *among, void *stream) {
    return queue((struct Collective){among, ALL_GATHER, type, SUM, 0, 0, (uint64_t)source, (uint64_t)target, count}, stream);
}
EXPORTED int ncclReduceScatter(const void *source, void *target, size_t count, int type, int operation, struct Communicator *among, void *stream) {
    return queue((struct Collective){among, REDUCE_SCATTER, type, operation, 0, 0, (uint64_t)source, (uint64_t)target, count}, stream);
}

/* Between two ranks, which both come to it, what one gives another is a broadcast. */
EXPORTED int ncclSend(const void *source, size_t count, int type, int peer, struct Communicator *among, void *stream) {
    return among->count != 2 || peer == among->rank
            ? refused("sends among so many ranks as", among->count)
            : ncclBroadcast(source, (void *)source, count, type, among->rank, among, stream);
}
EXPORTED int ncclRecv(void *target, size_t count, int type, int peer, struct Communicator *among, void *stream) {
    return among->count != 2 || peer == among->rank
            ? refused("receives among so many ranks as", among->count)
            : ncclBroadcast(target, target, count, type, peer, among, stream);
}

/* ---- communicators */

static void *mapped(const char *name, int count) {
    size_t length_bytes = sizeof(struct Meeting) + count * SLOT_BYTES;
    int descriptor = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (descriptor < 0 || ftruncate(descriptor, (off_t)length_bytes) != 0) {
        return NULL;
    }
    void *memory = mmap(NULL, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Rank 0 makes the meeting, the others wait for its second name. */
static struct Meeting *meeting(const char *id, int rank, int count) {
    char name[160], ready[170];
    snprintf(name, sizeof name, "/%s", id);
    snprintf(ready, sizeof ready, "%s-ready", name);
    struct Meeting *made = mapped(name, count);
    if (made == NULL) {
        return NULL;
    }
    if (rank == 0) {
        pthread_barrierattr_t shared;
        pthread_barrierattr_init(&shared);
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&made->all_here, &shared, (unsigned)count);
        close(shm_open(ready, O_RDWR | O_CREAT, 0600));
    }
    int seen = -1;
    while ((seen = shm_open(ready, O_RDWR, 0)) < 0) {
        usleep(1000);
    }
    close(seen);
    pthread_barrier_wait(&made->all_here);
    if (rank == 0) {
        shm_unlink(name);
        shm_unlink(ready);
    }
    return made;
}

EXPORTED int ncclCommInitRankConfig(struct Communicator **made, int count, Id id, int rank, void *settings) {
    (void)settings;
    if (count < 1 || count > RANKS_MAX) {
        return refused("communicators of so many ranks as", count);
    }
    struct Communicator *communicator = calloc(1, sizeof *communicator);
    *communicator = (struct Communicator){.rank = rank, .count = count, .id = id};
    cuCtxGetDevice(&communicator->device);
    communicator->meeting = meeting(id.name, rank, count);
    *made = communicator;
    return communicator->meeting != NULL ? SUCCESS : SYSTEM_ERROR;
}
EXPORTED int ncclCommInitRank(struct Communicator **made, int count, Id id, int rank) {
    return ncclCommInitRankConfig(made, count, id, rank, NULL);
}
EXPORTED int ncclCommInitRankScalable(struct Communicator **made, int count, int rank, int id_count, Id *ids, void *settings) {
    return id_count != 1 ? refused("communicators by so many names as", id_count) : ncclCommInitRankConfig(made, count, *ids, rank, settings);
}

EXPORTED int ncclGetUniqueId(Id *id) {
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->name, sizeof id->name, "kv-messenger-uncomputed-%d-%d", getpid(), __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED));
    return SUCCESS;
}

/* Called by all ranks; those of a colour get a communicator, in the order of their keys. */
EXPORTED int ncclCommSplit(struct Communicator *of, int color, int key, struct Communicator **made, void *settings) {
    of->meeting->splits[of->rank][0] = color;
    of->meeting->splits[of->rank][1] = key;
    pthread_barrier_wait(&of->meeting->all_here);
    int rank = 0, count = 0;
    for (int other = 0; other < of->count; other++) {
        int64_t *given = of->meeting->splits[other];
        int before = given[1] < key || (given[1] == key && other < of->rank);
        count += given[0] == color;
        rank += given[0] == color && before;
    }
    pthread_barrier_wait(&of->meeting->all_here);
    Id id = {{0}};
    snprintf(id.name, sizeof id.name, "%.90s-%d-%d", of->id.name, of->split_count++, color);
    *made = NULL;
    return color < 0 ? SUCCESS : ncclCommInitRankConfig(made, count, id, rank, settings);
}

EXPORTED int ncclCommCount(const struct Communicator *of, int *count) { return *count = of->count, SUCCESS; }
EXPORTED int ncclCommUserRank(const struct Communicator *of, int *rank) { return *rank = of->rank, SUCCESS; }
EXPORTED int ncclCommCuDevice(const struct Communicator *of, int *device) { return *device = of->device, SUCCESS; }
EXPORTED int ncclCommGetAsyncError(const struct Communicator *of, int *error) { return (void)of, *error = SUCCESS, SUCCESS; }
EXPORTED int ncclCommFinalize(struct Communicator *of) { return (void)of, SUCCESS; }
/* Kept: what is still queued reaches it. */
EXPORTED int ncclCommDestroy(struct Communicator *of) { return (void)of, SUCCESS; }
EXPORTED int ncclCommAbort(struct Communicator *of) { return (void)of, SUCCESS; }

/* Collectives of a group are queued one by one. */
EXPORTED int ncclGroupStart(void) { return SUCCESS; }
EXPORTED int ncclGroupEnd(void) { return SUCCESS; }

EXPORTED int ncclGetVersion(int *version) { return *version = VERSION, SUCCESS; }
EXPORTED const char *ncclGetErrorString(int result) { return result == SUCCESS ? "no error" : "refused by a stand-in for NCCL"; }
EXPORTED const char *ncclGetLastError(const struct Communicator *of) { return (void)of, last_error; }
