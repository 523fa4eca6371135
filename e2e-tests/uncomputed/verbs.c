/*
 * A stand-in for libibverbs.so.1: RDMA devices that connect processes of one machine by sockets, one for each queue pair.
 *
 * What it keeps of a device, because code goes wrong there:
 *  - a write is read from its source by a thread of the device, after it was posted, and lands in the target without its process;
 *  - a device's memory is reached by a dma-buf alone, and what is written there is seen once it is flushed (connector-java's
 *    hardware.c); an address of a device is none of the host's;
 *  - a key is good for its protection domain, its range and its uses only; a write without that right ends the queue pair;
 *  - an immediate takes a receive, and waits where there is none; queues have the depth that they were made with;
 *  - a queue pair takes its states one after another, with the attributes that the manual wants of each;
 *  - requests to a process that is gone fail, and those behind them are flushed, with receives, when the pair is in error.
 *
 * What it cannot show: speed, lost packets, order between a completion and the data in a device's memory beyond the flush.
 *
 * Environment: UNCOMPUTED_RDMA_DEVICES (default 2).
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define DEVICES_MAX 8
#define REGIONS_MAX 1024
#define NUMBERS (1u << 24)
#define ENTRIES_MAX 4096
#define MESSAGE_MAX_BYTES (1u << 23)
#define HOST (-1L)
/* How late a device reads a source. */
#define LATE_US 20

long standInNicRegister(int fd, uint64_t offset, uint64_t length_bytes);
void standInNicDeregister(long region);
int standInNicRead(long region, uint64_t offset, void *to, uint64_t length_bytes);
int standInNicWrite(long region, uint64_t offset, const void *from, uint64_t length_bytes);

typedef struct {
    struct ibv_mr mr;
    uint64_t begin;
    int access;
    long of_device; /* its number with the stand-in for the driver, or HOST */
} Region;

typedef struct {
    uint64_t id, remote, source;
    uint32_t length_bytes, local_key, remote_key, imm;
    int with_imm, signalled;
} Request;

typedef struct Pair Pair;

typedef struct {
    struct ibv_wc wc;
    Pair *of;
    uint64_t sends_end; /* requests before it are off the send queue once this is polled */
} Completion;

typedef struct {
    struct ibv_cq cq;
    Completion *ring;
    uint64_t added, polled;
} Queue;

struct Pair {
    struct ibv_qp qp;
    struct ibv_qp_cap cap;
    int access, listener, data, stops, has_thread;
    pthread_t thread;
    uint32_t peer, first_sent, first_received;
    union ibv_gid peer_gid;
    Request *sends;
    uint64_t *receives;
    uint64_t sends_posted, sends_done, sends_free, receives_posted, receives_done;
};

/* What a writer begins with: a target takes it from the pair that it was connected with only. */
typedef struct {
    uint32_t from, first_packet;
    union ibv_gid to;
} Hello;

typedef struct {
    uint64_t remote;
    uint32_t length_bytes, remote_key, imm;
    int with_imm;
} Message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ibv_device devices[DEVICES_MAX];
static Region *regions[REGIONS_MAX];
static int64_t dma_bufs, device_reads, device_writes;

/* For tests: dma-bufs that were registered, and writes that were read from and written to memory of a device. */
EXPORTED void uncomputedRdmaFigures(int64_t *registered, int64_t *read, int64_t *written) {
    pthread_mutex_lock(&lock);
    *registered = dma_bufs, *read = device_reads, *written = device_writes;
    pthread_mutex_unlock(&lock);
}

/* ---- devices */

static int device_count(void) {
    const char *wanted = getenv("UNCOMPUTED_RDMA_DEVICES");
    int count = wanted == NULL ? 2 : atoi(wanted);
    return count < 0 ? 0 : count > DEVICES_MAX ? DEVICES_MAX : count;
}

EXPORTED struct ibv_device **ibv_get_device_list(int *count) {
    *count = device_count();
    struct ibv_device **list = calloc((size_t)*count + 1, sizeof *list);
    for (int i = 0; i < *count; i++) {
        snprintf(devices[i].name, sizeof devices[i].name, "uncomputed_%d", i);
        list[i] = &devices[i];
    }
    return list;
}

EXPORTED void ibv_free_device_list(struct ibv_device **list) {
    free(list);
}

EXPORTED const char *ibv_get_device_name(struct ibv_device *device) {
    return device->name;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
static int poll_queue(struct ibv_cq *cq, int entries, struct ibv_wc *wc);

EXPORTED struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_receive;
    context->ops.poll_cq = poll_queue;
    return context;
}

EXPORTED int ibv_close_device(struct ibv_context *context) {
    free(context);
    return 0;
}

EXPORTED int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
    (void)context;
    *attributes = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp_wr = ENTRIES_MAX, .max_cqe = ENTRIES_MAX};
    return 0;
}

#undef ibv_query_port
EXPORTED int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attributes) {
    (void)context;
    if (port != 1) {
        return errno = EINVAL;
    }
    struct ibv_port_attr *said = (struct ibv_port_attr *)attributes;
    said->state = IBV_PORT_ACTIVE;
    said->active_mtu = IBV_MTU_4096;
    said->gid_tbl_len = 1;
    said->pkey_tbl_len = 1;
    said->max_msg_sz = MESSAGE_MAX_BYTES;
    said->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

/* 127.0.0.1 is the first one's. */
static union ibv_gid gid_of(const struct ibv_context *context) {
    uint8_t last = (uint8_t)(1 + (context->device - devices));
    return (union ibv_gid){.raw = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last}};
}

EXPORTED int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
        uint32_t flags, size_t entry_bytes) {
    if (port != 1 || index != 0 || flags != 0 || entry_bytes != sizeof *entry) {
        return errno = ENODATA;
    }
    *entry = (struct ibv_gid_entry){.gid = gid_of(context), .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2};
    return 0;
}

EXPORTED struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *domain = calloc(1, sizeof *domain);
    domain->context = context;
    return domain;
}

EXPORTED int ibv_dealloc_pd(struct ibv_pd *domain) {
    free(domain);
    return 0;
}

/* ---- memory */

static struct ibv_mr *add_region(struct ibv_pd *domain, uint64_t begin, size_t length_bytes, int access, long of_device) {
    static uint32_t last_key;
    if ((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
        errno = EINVAL;
        return NULL;
    }
    pthread_mutex_lock(&lock);
    int slot = 0;
    while (slot < REGIONS_MAX && regions[slot] != NULL) {
        slot++;
    }
    if (slot == REGIONS_MAX) {
        abort();
    }
    last_key = last_key == 0 ? (uint32_t)getpid() << 8 : last_key; /* so that another process's keys are unlike */
    Region *made = calloc(1, sizeof *made);
    made->mr = (struct ibv_mr){.context = domain->context, .pd = domain, .length = length_bytes, .lkey = ++last_key, .rkey = last_key};
    made->begin = begin;
    made->access = access;
    made->of_device = of_device;
    regions[slot] = made;
    dma_bufs += of_device != HOST;
    pthread_mutex_unlock(&lock);
    return &made->mr;
}

/* Whether the processor reaches it: an address of a device's memory is none that can be locked. */
static int is_of_host(uint64_t address) {
    char byte;
    struct iovec own = {&byte, 1}, there = {(void *)address, 1};
    return process_vm_readv(getpid(), &own, 1, &there, 1, 0) == 1;
}

#undef ibv_reg_mr_iova2
EXPORTED struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *address, size_t length, uint64_t iova, unsigned access) {
    if (length == 0 || !is_of_host((uint64_t)address) || !is_of_host((uint64_t)address + length - 1)) {
        errno = EFAULT;
        return NULL;
    }
    if (iova != (uint64_t)address) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    return add_region(domain, iova, length, (int)access, HOST);
}

EXPORTED struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *domain, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
    int same_in_page = (iova - offset) % (uint64_t)sysconf(_SC_PAGESIZE) == 0;
    long of_device = same_in_page ? standInNicRegister(fd, offset, length) : HOST;
    if (of_device == HOST) {
        errno = EINVAL;
        return NULL;
    }
    return add_region(domain, iova, length, access, of_device);
}

EXPORTED int ibv_dereg_mr(struct ibv_mr *region) {
    Region *given = (Region *)region;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < REGIONS_MAX; i++) {
        regions[i] = regions[i] == given ? NULL : regions[i];
    }
    if (given->of_device != HOST) {
        standInNicDeregister(given->of_device);
    }
    pthread_mutex_unlock(&lock);
    free(given);
    return 0;
}

/* Under the lock; NULL for what the key is not good for. */
static Region *region_of(uint32_t key, const struct ibv_pd *domain, uint64_t address, uint64_t length_bytes, int access) {
    for (int i = 0; i < REGIONS_MAX; i++) {
        Region *each = regions[i];
        if (each != NULL && each->mr.lkey == key) {
            uint64_t offset = address - each->begin;
            int inside = address >= each->begin && length_bytes <= each->mr.length && offset <= each->mr.length - length_bytes;
            return each->mr.pd == domain && inside && (each->access & access) == access ? each : NULL;
        }
    }
    return NULL;
}

static int read_source(const Pair *pair, const Request *request, uint8_t *to) {
    const Region *from = region_of(request->local_key, pair->qp.pd, request->source, request->length_bytes, 0);
    if (from == NULL) {
        return -1;
    }
    if (from->of_device != HOST) {
        device_reads++;
        return standInNicRead(from->of_device, request->source - from->begin, to, request->length_bytes);
    }
    memcpy(to, (const void *)request->source, request->length_bytes);
    return 0;
}

static int land(const Pair *pair, const Message *message, const uint8_t *bytes) {
    if (message->length_bytes == 0) {
        return 0;
    }
    const Region *to = region_of(
            message->remote_key, pair->qp.pd, message->remote, message->length_bytes, IBV_ACCESS_REMOTE_WRITE);
    if (to == NULL) {
        return -1;
    }
    if (to->of_device != HOST) {
        device_writes++;
        return standInNicWrite(to->of_device, message->remote - to->begin, bytes, message->length_bytes);
    }
    memcpy((void *)message->remote, bytes, message->length_bytes);
    return 0;
}

/* ---- completions */

EXPORTED struct ibv_cq *ibv_create_cq(
        struct ibv_context *context, int entries, void *of_user, struct ibv_comp_channel *channel, int vector) {
    (void)channel, (void)vector;
    Queue *made = calloc(1, sizeof *made);
    made->cq = (struct ibv_cq){.context = context, .cq_context = of_user, .cqe = entries};
    made->ring = calloc((size_t)entries, sizeof *made->ring);
    return &made->cq;
}

EXPORTED int ibv_destroy_cq(struct ibv_cq *cq) {
    free(((Queue *)cq)->ring);
    free(cq);
    return 0;
}

static void complete(Pair *pair, uint64_t id, int status, int opcode, uint32_t imm, uint64_t sends_end) {
    Queue *queue = (Queue *)(opcode == IBV_WC_RECV_RDMA_WITH_IMM ? pair->qp.recv_cq : pair->qp.send_cq);
    if (queue->added - queue->polled == (uint64_t)queue->cq.cqe) {
        fprintf(stderr, "uncomputed RDMA: a completion queue of %d entries overflows\n", queue->cq.cqe);
        abort();
    }
    struct ibv_wc wc = {.wr_id = id, .status = status, .opcode = opcode, .qp_num = pair->qp.qp_num};
    wc.imm_data = imm;
    queue->ring[queue->added++ % (uint64_t)queue->cq.cqe] = (Completion){wc, pair, sends_end};
}

static int poll_queue(struct ibv_cq *cq, int entries, struct ibv_wc *wc) {
    Queue *queue = (Queue *)cq;
    int count = 0;
    pthread_mutex_lock(&lock);
    for (; count < entries && queue->polled < queue->added; queue->polled++) {
        const Completion *next = &queue->ring[queue->polled % (uint64_t)cq->cqe];
        if (next->of == NULL) {
            continue; /* its pair is gone, and its completions with it */
        }
        next->of->sends_free = next->sends_end > next->of->sends_free ? next->sends_end : next->of->sends_free;
        wc[count++] = next->wc;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

EXPORTED const char *ibv_wc_status_str(enum ibv_wc_status status) {
    switch (status) {
        case IBV_WC_SUCCESS: return "success";
        case IBV_WC_LOC_PROT_ERR: return "local protection error";
        case IBV_WC_WR_FLUSH_ERR: return "Work Request Flushed Error";
        case IBV_WC_REM_ACCESS_ERR: return "remote access error";
        case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
        default: return "unknown";
    }
}

/* ---- queue pairs; all under the lock where nothing else is said */

/* Requests, where there are any, complete as flushed. */
static void flush(Pair *pair) {
    pair->qp.state = IBV_QPS_ERR;
    for (; pair->sends_done < pair->sends_posted; pair->sends_done++) {
        const Request *each = &pair->sends[pair->sends_done % pair->cap.max_send_wr];
        complete(pair, each->id, IBV_WC_WR_FLUSH_ERR, IBV_WC_RDMA_WRITE, 0, pair->sends_done + 1);
    }
    for (; pair->receives_done < pair->receives_posted; pair->receives_done++) {
        complete(pair, pair->receives[pair->receives_done % pair->cap.max_recv_wr], IBV_WC_WR_FLUSH_ERR,
                IBV_WC_RECV_RDMA_WITH_IMM, 0, 0);
    }
}

static int all(int fd, int sends, void *bytes, size_t length_bytes) {
    for (size_t done = 0; done < length_bytes;) {
        uint8_t *at = (uint8_t *)bytes + done;
        ssize_t part = sends ? send(fd, at, length_bytes - done, MSG_NOSIGNAL) : recv(fd, at, length_bytes - done, 0);
        if (part <= 0 && !(part < 0 && errno == EINTR)) {
            return -1;
        }
        done += part > 0 ? (size_t)part : 0;
    }
    return 0;
}

static socklen_t named(struct sockaddr_un *address, uint32_t number) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "kv-messenger-uncomputed-rdma-%u", number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* Not under the lock; the answer is the status that the request completes with. */
static uint8_t carried(Pair *pair, const Request *request, uint8_t *bytes) {
    Message message = {request->remote, request->length_bytes, request->remote_key, request->imm, request->with_imm};
    uint8_t status;
    int failed = all(pair->data, 1, &message, sizeof message) != 0 || all(pair->data, 1, bytes, message.length_bytes) != 0
            || all(pair->data, 0, &status, sizeof status) != 0;
    return failed ? IBV_WC_RETRY_EXC_ERR : status;
}

static void *send_all(void *of) {
    Pair *pair = of;
    uint8_t *bytes = malloc(MESSAGE_MAX_BYTES);
    pthread_mutex_lock(&lock);
    while (!pair->stops && pair->qp.state == IBV_QPS_RTS) {
        if (pair->sends_done == pair->sends_posted) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        Request request = pair->sends[pair->sends_done % pair->cap.max_send_wr];
        pthread_mutex_unlock(&lock);
        usleep(LATE_US);
        pthread_mutex_lock(&lock);
        int unread = request.length_bytes > 0 && read_source(pair, &request, bytes) != 0;
        pthread_mutex_unlock(&lock);
        int status = unread ? IBV_WC_LOC_PROT_ERR : carried(pair, &request, bytes);
        pthread_mutex_lock(&lock);
        if (pair->stops && status != IBV_WC_SUCCESS) {
            break; /* flushed, like those behind it */
        }
        pair->sends_done++;
        if (request.signalled || status != IBV_WC_SUCCESS) {
            complete(pair, request.id, status, IBV_WC_RDMA_WRITE, 0, pair->sends_done);
        }
        if (status != IBV_WC_SUCCESS) {
            flush(pair);
        }
    }
    pthread_mutex_unlock(&lock);
    free(bytes);
    return NULL;
}

/* Whether a pair that this one was connected with begins to write. Not under the lock. */
static int greeted(Pair *pair) {
    Hello hello;
    union ibv_gid own = gid_of(pair->qp.context);
    int data = accept4(pair->listener, NULL, NULL, SOCK_CLOEXEC);
    pthread_mutex_lock(&lock);
    pair->data = data;
    int stops = pair->stops;
    pthread_mutex_unlock(&lock);
    return data >= 0 && !stops && all(data, 0, &hello, sizeof hello) == 0 && hello.from == pair->peer
            && hello.first_packet == pair->first_received && memcmp(&hello.to, &own, sizeof own) == 0;
}

static void *receive_all(void *of) {
    Pair *pair = of;
    uint8_t *bytes = malloc(MESSAGE_MAX_BYTES), status = IBV_WC_SUCCESS;
    Message message;
    int goes_on = greeted(pair);
    while (goes_on && status == IBV_WC_SUCCESS && all(pair->data, 0, &message, sizeof message) == 0
            && message.length_bytes <= MESSAGE_MAX_BYTES && all(pair->data, 0, bytes, message.length_bytes) == 0) {
        pthread_mutex_lock(&lock);
        while (message.with_imm && pair->receives_done == pair->receives_posted && !pair->stops) {
            pthread_cond_wait(&changed, &lock);
        }
        goes_on = !pair->stops;
        if (goes_on && land(pair, &message, bytes) != 0) {
            status = IBV_WC_REM_ACCESS_ERR;
            flush(pair);
        } else if (goes_on && message.with_imm) {
            uint64_t id = pair->receives[pair->receives_done++ % pair->cap.max_recv_wr];
            complete(pair, id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, message.imm, 0);
        }
        pthread_mutex_unlock(&lock);
        goes_on = goes_on && all(pair->data, 1, &status, sizeof status) == 0;
    }
    shutdown(pair->data, SHUT_RDWR);
    free(bytes);
    return NULL;
}

EXPORTED struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *attributes) {
    static unsigned last;
    if (attributes->qp_type != IBV_QPT_RC || attributes->cap.max_send_wr > ENTRIES_MAX
            || attributes->cap.max_recv_wr > ENTRIES_MAX || attributes->cap.max_send_sge > 1) {
        errno = EINVAL;
        return NULL;
    }
    Pair *made = calloc(1, sizeof *made);
    made->qp = (struct ibv_qp){.context = domain->context, .pd = domain, .send_cq = attributes->send_cq,
            .recv_cq = attributes->recv_cq, .qp_type = attributes->qp_type, .state = IBV_QPS_RESET};
    made->cap = attributes->cap;
    made->sends = calloc(made->cap.max_send_wr + 1, sizeof *made->sends);
    made->receives = calloc(made->cap.max_recv_wr + 1, sizeof *made->receives);
    made->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    made->data = -1;
    struct sockaddr_un address;
    pthread_mutex_lock(&lock);
    do { /* numbers are the machine's, so that a pair is found by its number */
        last = last == 0 ? (unsigned)getpid() * 4099 : last + 1;
        made->qp.qp_num = last % NUMBERS;
    } while (bind(made->listener, (struct sockaddr *)&address, named(&address, made->qp.qp_num)) != 0 && errno == EADDRINUSE);
    pthread_mutex_unlock(&lock);
    if (listen(made->listener, 8) != 0) {
        abort();
    }
    return &made->qp;
}

/* The state of before, and what the manual wants to be given. */
static int allows(const struct ibv_qp *qp, const struct ibv_qp_attr *attributes, int mask) {
    static const int initial = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            receiving = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            sending = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY;
    switch (attributes->qp_state) {
        case IBV_QPS_INIT:
            return qp->state == IBV_QPS_RESET && mask == initial && attributes->pkey_index == 0 && attributes->port_num == 1;
        case IBV_QPS_RTR:
            return qp->state == IBV_QPS_INIT && mask == receiving && attributes->ah_attr.is_global
                    && attributes->ah_attr.grh.sgid_index == 0 && attributes->ah_attr.port_num == 1;
        case IBV_QPS_RTS: return qp->state == IBV_QPS_RTR && mask == sending;
        default: return attributes->qp_state == IBV_QPS_ERR && mask == IBV_QP_STATE;
    }
}

static void begin(Pair *pair, void *(*run)(void *)) {
    pair->has_thread = 1;
    if (pthread_create(&pair->thread, NULL, run, pair) != 0) {
        abort();
    }
}

/* Connects where the peer is; where it is not, the first request fails. */
static void begin_sending(Pair *pair) {
    struct sockaddr_un address;
    socklen_t length = named(&address, pair->peer);
    Hello hello = {pair->qp.qp_num, pair->first_sent, pair->peer_gid};
    pair->data = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(pair->data, (struct sockaddr *)&address, length) == 0) {
        all(pair->data, 1, &hello, sizeof hello);
    }
    begin(pair, send_all);
}

/* Nothing lands through it and no source is read any more when this returns. Not under the lock. */
static void stop(Pair *pair) {
    pthread_mutex_lock(&lock);
    pair->stops = 1;
    shutdown(pair->listener, SHUT_RDWR);
    shutdown(pair->data, SHUT_RDWR);
    pthread_cond_broadcast(&changed);
    int joins = pair->has_thread;
    pair->has_thread = 0;
    pthread_mutex_unlock(&lock);
    if (joins) {
        pthread_join(pair->thread, NULL);
    }
}

EXPORTED int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    Pair *pair = (Pair *)qp;
    pthread_mutex_lock(&lock);
    int allowed = allows(qp, attributes, mask);
    if (allowed) {
        qp->state = attributes->qp_state;
    }
    if (allowed && attributes->qp_state == IBV_QPS_INIT) {
        pair->access = (int)attributes->qp_access_flags;
    } else if (allowed && attributes->qp_state == IBV_QPS_RTR) {
        pair->peer = attributes->dest_qp_num;
        pair->peer_gid = attributes->ah_attr.grh.dgid;
        pair->first_received = attributes->rq_psn;
        if (pair->access & IBV_ACCESS_REMOTE_WRITE) {
            begin(pair, receive_all);
        }
    } else if (allowed && attributes->qp_state == IBV_QPS_RTS) {
        pair->first_sent = attributes->sq_psn;
        begin_sending(pair);
    }
    pthread_mutex_unlock(&lock);
    if (allowed && attributes->qp_state == IBV_QPS_ERR) {
        stop(pair);
        pthread_mutex_lock(&lock);
        flush(pair);
        pthread_mutex_unlock(&lock);
    }
    return allowed ? 0 : EINVAL;
}

EXPORTED int ibv_destroy_qp(struct ibv_qp *qp) {
    Pair *pair = (Pair *)qp;
    stop(pair);
    pthread_mutex_lock(&lock);
    Queue *queues[] = {(Queue *)qp->send_cq, (Queue *)qp->recv_cq};
    for (int i = 0; i < 2; i++) {
        for (uint64_t at = queues[i]->polled; at < queues[i]->added; at++) {
            Completion *each = &queues[i]->ring[at % (uint64_t)queues[i]->cq.cqe];
            each->of = each->of == pair ? NULL : each->of;
        }
    }
    pthread_mutex_unlock(&lock);
    close(pair->listener);
    if (pair->data >= 0) {
        close(pair->data);
    }
    free(pair->sends);
    free(pair->receives);
    free(pair);
    return 0;
}

static int take(Pair *pair, const struct ibv_send_wr *wr) {
    int with_imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if ((!with_imm && wr->opcode != IBV_WR_RDMA_WRITE) || wr->num_sge > 1
            || (pair->qp.state != IBV_QPS_RTS && pair->qp.state != IBV_QPS_ERR)) {
        return EINVAL;
    }
    if (pair->sends_posted - pair->sends_free == pair->cap.max_send_wr) {
        return ENOMEM;
    }
    struct ibv_sge none = {0}, part = wr->num_sge == 1 ? wr->sg_list[0] : none;
    pair->sends[pair->sends_posted++ % pair->cap.max_send_wr] = (Request){wr->wr_id, wr->wr.rdma.remote_addr, part.addr,
            part.length, part.lkey, wr->wr.rdma.rkey, wr->imm_data, with_imm, (wr->send_flags & IBV_SEND_SIGNALED) != 0};
    return part.length > MESSAGE_MAX_BYTES ? EINVAL : 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    Pair *pair = (Pair *)qp;
    int result = 0;
    pthread_mutex_lock(&lock);
    for (; wr != NULL && result == 0; wr = result == 0 ? wr->next : wr) {
        result = take(pair, wr);
    }
    *bad = wr;
    if (qp->state == IBV_QPS_ERR) {
        flush(pair);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return result;
}

static int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    Pair *pair = (Pair *)qp;
    int result = 0;
    pthread_mutex_lock(&lock);
    for (; wr != NULL && result == 0; wr = result == 0 ? wr->next : wr) {
        int full = pair->receives_posted - pair->receives_done == pair->cap.max_recv_wr;
        result = qp->state == IBV_QPS_RESET || wr->num_sge != 0 ? EINVAL : full ? ENOMEM : 0;
        if (result == 0) {
            pair->receives[pair->receives_posted++ % pair->cap.max_recv_wr] = wr->wr_id;
        }
    }
    *bad = wr;
    if (qp->state == IBV_QPS_ERR) {
        flush(pair);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return result;
}
