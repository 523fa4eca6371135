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
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NUMBERS (1u << 24)
/* How late a device reads a source. */
#define LATE_US 20

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

static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

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

int poll_queue(struct ibv_cq *cq, int entries, struct ibv_wc *wc) {
    Queue *queue = (Queue *)cq;
    int count = 0;
    pthread_mutex_lock(&verbs_lock);
    for (; count < entries && queue->polled < queue->added; queue->polled++) {
        const Completion *next = &queue->ring[queue->polled % (uint64_t)cq->cqe];
        if (next->of == NULL) {
            continue; /* its pair is gone, and its completions with it */
        }
        next->of->sends_free = next->sends_end > next->of->sends_free ? next->sends_end : next->of->sends_free;
        wc[count++] = next->wc;
    }
    pthread_mutex_unlock(&verbs_lock);
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
    pthread_mutex_lock(&verbs_lock);
    while (!pair->stops && pair->qp.state == IBV_QPS_RTS) {
        if (pair->sends_done == pair->sends_posted) {
            pthread_cond_wait(&changed, &verbs_lock);
            continue;
        }
        Request request = pair->sends[pair->sends_done % pair->cap.max_send_wr];
        pthread_mutex_unlock(&verbs_lock);
        usleep(LATE_US);
        pthread_mutex_lock(&verbs_lock);
        int unread = request.length_bytes > 0 && read_source(pair->qp.pd, &request, bytes) != 0;
        pthread_mutex_unlock(&verbs_lock);
        int status = unread ? IBV_WC_LOC_PROT_ERR : carried(pair, &request, bytes);
        pthread_mutex_lock(&verbs_lock);
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
    pthread_mutex_unlock(&verbs_lock);
    free(bytes);
    return NULL;
}

/* Whether a pair that this one was connected with begins to write. Not under the lock. */
static int greeted(Pair *pair) {
    Hello hello;
    union ibv_gid own = gid_of(pair->qp.context);
    int data = accept4(pair->listener, NULL, NULL, SOCK_CLOEXEC);
    pthread_mutex_lock(&verbs_lock);
    pair->data = data;
    int stops = pair->stops;
    pthread_mutex_unlock(&verbs_lock);
    return data >= 0 && !stops && all(data, 0, &hello, sizeof hello) == 0 && hello.from == pair->peer
            && hello.first_packet == pair->first_received && memcmp(&hello.to, &own, sizeof own) == 0;
}

/* For tests: how long a device takes between what its own process sees of a message and the answer to the other. */
static useconds_t answers_late_us(void) {
    const char *variable = getenv("UNCOMPUTED_ANSWERS_LATE_US");
    return variable == NULL ? 0 : (useconds_t)atol(variable);
}

static void *receive_all(void *of) {
    Pair *pair = of;
    uint8_t *bytes = malloc(MESSAGE_MAX_BYTES), status = IBV_WC_SUCCESS;
    Message message;
    useconds_t late_us = answers_late_us();
    int goes_on = greeted(pair);
    while (goes_on && status == IBV_WC_SUCCESS && all(pair->data, 0, &message, sizeof message) == 0
            && message.length_bytes <= MESSAGE_MAX_BYTES && all(pair->data, 0, bytes, message.length_bytes) == 0) {
        pthread_mutex_lock(&verbs_lock);
        while (message.with_imm && pair->receives_done == pair->receives_posted && !pair->stops) {
            pthread_cond_wait(&changed, &verbs_lock);
        }
        goes_on = !pair->stops;
        if (goes_on && land(pair->qp.pd, &message, bytes) != 0) {
            status = IBV_WC_REM_ACCESS_ERR;
            flush(pair);
        } else if (goes_on && message.with_imm) {
            uint64_t id = pair->receives[pair->receives_done++ % pair->cap.max_recv_wr];
            complete(pair, id, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, message.imm, 0);
        }
        pthread_mutex_unlock(&verbs_lock);
        usleep(late_us);
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
    pthread_mutex_lock(&verbs_lock);
    do { /* numbers are the machine's, so that a pair is found by its number */
        last = last == 0 ? (unsigned)getpid() * 4099 : last + 1;
        made->qp.qp_num = last % NUMBERS;
    } while (bind(made->listener, (struct sockaddr *)&address, named(&address, made->qp.qp_num)) != 0 && errno == EADDRINUSE);
    pthread_mutex_unlock(&verbs_lock);
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
    pthread_mutex_lock(&verbs_lock);
    pair->stops = 1;
    shutdown(pair->listener, SHUT_RDWR);
    shutdown(pair->data, SHUT_RDWR);
    pthread_cond_broadcast(&changed);
    int joins = pair->has_thread;
    pair->has_thread = 0;
    pthread_mutex_unlock(&verbs_lock);
    if (joins) {
        pthread_join(pair->thread, NULL);
    }
}

EXPORTED int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    Pair *pair = (Pair *)qp;
    pthread_mutex_lock(&verbs_lock);
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
    pthread_mutex_unlock(&verbs_lock);
    if (allowed && attributes->qp_state == IBV_QPS_ERR) {
        stop(pair);
        pthread_mutex_lock(&verbs_lock);
        flush(pair);
        pthread_mutex_unlock(&verbs_lock);
    }
    return allowed ? 0 : EINVAL;
}

EXPORTED int ibv_destroy_qp(struct ibv_qp *qp) {
    Pair *pair = (Pair *)qp;
    stop(pair);
    pthread_mutex_lock(&verbs_lock);
    Queue *queues[] = {(Queue *)qp->send_cq, (Queue *)qp->recv_cq};
    for (int i = 0; i < 2; i++) {
        for (uint64_t at = queues[i]->polled; at < queues[i]->added; at++) {
            Completion *each = &queues[i]->ring[at % (uint64_t)queues[i]->cq.cqe];
            each->of = each->of == pair ? NULL : each->of;
        }
    }
    pthread_mutex_unlock(&verbs_lock);
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

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    Pair *pair = (Pair *)qp;
    int result = 0;
    pthread_mutex_lock(&verbs_lock);
    for (; wr != NULL && result == 0; wr = result == 0 ? wr->next : wr) {
        result = take(pair, wr);
    }
    *bad = wr;
    if (qp->state == IBV_QPS_ERR) {
        flush(pair);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&verbs_lock);
    return result;
}

int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    Pair *pair = (Pair *)qp;
    int result = 0;
    pthread_mutex_lock(&verbs_lock);
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
    pthread_mutex_unlock(&verbs_lock);
    return result;
}
