/*
 * Two processes with a queue pair each on the stand-in for RDMA devices (verbs.c), and what a story does with them:
 *
 *     verbs_story STORY [LATE]
 *
 * The target is a child. Prints what test_rdma.py compares. LATE, the target or the writer, waits before each of its steps, so that
 * the other is as far as it can be.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH_BYTES 4096
#define DEPTH 8
#define FIRST_PACKET 77
#define DEVICE_BYTES ((size_t)2 << 20)
#define LATE_US 30000

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *address, size_t length);
int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t length, int type, uint64_t flags);
int cuFlushGPUDirectRDMAWrites(int target, int scope);
void *standInBytes(uint64_t address, size_t length_bytes);

typedef struct {
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_cq *queue;
    struct ibv_qp *pair;
    struct ibv_mr *region;
    union ibv_gid gid;
} End;

/* What an end says of itself to the other. */
typedef struct {
    uint32_t number, key;
    uint64_t address;
    union ibv_gid gid;
} Name;

static int to_other, from_other, is_late;
static _Alignas(4096) uint8_t memory[2 * LENGTH_BYTES];

static void begin_step(void) {
    if (is_late) {
        usleep(LATE_US);
    }
}

static End opened(struct ibv_mr *(*registered)(struct ibv_pd *)) {
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    End end = {.context = ibv_open_device(list[0])};
    struct ibv_gid_entry entry;
    if (_ibv_query_gid_ex(end.context, 1, 0, &entry, 0, sizeof entry) != 0) {
        abort();
    }
    end.gid = entry.gid;
    end.domain = ibv_alloc_pd(end.context);
    end.queue = ibv_create_cq(end.context, 4 * DEPTH, NULL, NULL, 0);
    end.pair = ibv_create_qp(end.domain, &(struct ibv_qp_init_attr){.send_cq = end.queue, .recv_cq = end.queue, .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}});
    end.region = registered(end.domain);
    return end;
}

static struct ibv_mr *of_host(struct ibv_pd *domain) {
    return ibv_reg_mr_iova2(domain, memory, LENGTH_BYTES, (uint64_t)memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static uint64_t device_address;

static struct ibv_mr *of_device(struct ibv_pd *domain) {
    void *context;
    int fd = -1;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)
            || cuMemAlloc_v2(&device_address, DEVICE_BYTES)
            || cuMemGetHandleForAddressRange(&fd, device_address, DEVICE_BYTES, 1, 0)) {
        abort();
    }
    printf("as the host's: %d\n", ibv_reg_mr_iova2(domain, (void *)device_address, LENGTH_BYTES, device_address, 1) == NULL ? errno : 0);
    return ibv_reg_dmabuf_mr(domain, 0, LENGTH_BYTES, device_address, fd, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static int initialise(End *end) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
    return ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int ready_to_receive(End *end, const Name *other) {
    begin_step();
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other->number, .rq_psn = FIRST_PACKET,
            .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = other->gid, .hop_limit = 64}}};
    return ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int ready_to_send(End *end) {
    begin_step();
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTS, .sq_psn = FIRST_PACKET, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7};
    return ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY);
}

/* Both ends at once; the other's name. */
static Name connected(End *end, int writes) {
    Name own = {end->pair->qp_num, end->region->rkey, device_address != 0 && !writes ? device_address : (uint64_t)memory, end->gid}, other;
    if (initialise(end) != 0 || write(to_other, &own, sizeof own) != sizeof own || read(from_other, &other, sizeof other) != sizeof other
            || ready_to_receive(end, &other) != 0 || (writes && ready_to_send(end) != 0)) {
        abort();
    }
    return other;
}

static void receive(End *end, int count) {
    begin_step();
    for (int i = 0; i < count; i++) {
        struct ibv_recv_wr wr = {.wr_id = 100}, *bad;
        if (end->context->ops.post_recv(end->pair, &wr, &bad) != 0) {
            abort();
        }
    }
}

/* An immediate behind it, by which the target knows; the result of the post. */
static int send_write(End *end, const Name *to, uint64_t at, uint32_t key, uint32_t imm) {
    begin_step();
    struct ibv_sge part = {(uint64_t)memory, LENGTH_BYTES, end->region->lkey};
    struct ibv_send_wr wr = {.wr_id = imm, .sg_list = &part, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(imm), .wr.rdma = {to->address + at, key}}, *bad;
    return end->context->ops.post_send(end->pair, &wr, &bad);
}

static struct ibv_wc completed(End *end) {
    begin_step();
    struct ibv_wc wc;
    while (end->context->ops.poll_cq(end->queue, 1, &wc) == 0) {
        usleep(100);
    }
    return wc;
}

static void signal_other(void) {
    begin_step();
    if (write(to_other, "", 1) != 1) {
        abort();
    }
}

/* Also for an end that destroys its pair: until then its device answers what the other has sent. */
static void await_other(void) {
    char byte;
    if (read(from_other, &byte, 1) != 1) {
        abort();
    }
    begin_step();
}

static void show(const char *who, End *end) {
    struct ibv_wc wc = completed(end);
    printf("%s: %s, id %d, imm %u\n", who, ibv_wc_status_str(wc.status), (int)wc.wr_id, wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM ? ntohl(wc.imm_data) : 0);
}

/* ---- stories: what the target does, what the writer does */

static void host_target(End *end) {
    connected(end, 0);
    await_other(); /* posted where there is no receive */
    printf("target: %d before\n", memory[0]);
    receive(end, 2);
    show("target", end);
    show("target", end);
    printf("target: %d\n", memory[LENGTH_BYTES - 1]);
    await_other();
}

static void host_writer(End *end) {
    Name to = connected(end, 1);
    memset(memory, 9, LENGTH_BYTES);
    send_write(end, &to, 0, to.key, 1);
    send_write(end, &to, 0, to.key, 2);
    signal_other();
    show("writer", end);
    show("writer", end);
    signal_other();
}

static void device_target(End *end) {
    connected(end, 0);
    receive(end, 1);
    show("target", end);
    uint8_t *bytes = standInBytes(device_address, LENGTH_BYTES);
    printf("target: %d before the flush\n", bytes[0]);
    cuFlushGPUDirectRDMAWrites(0, 200);
    printf("target: %d\n", bytes[0]);
    await_other();
}

static void device_writer(End *end) {
    Name to = connected(end, 1);
    memset(memory, 9, LENGTH_BYTES);
    send_write(end, &to, 0, to.key, 1);
    show("writer", end);
    signal_other();
}

static void waiting_target(End *end) {
    connected(end, 0);
    receive(end, 1);
    show("target", end);
    printf("target: %d\n", memory[0] | memory[LENGTH_BYTES]);
    await_other();
}

static void writer_with_wrong_key(End *end) {
    Name to = connected(end, 1);
    memset(memory, 9, LENGTH_BYTES);
    send_write(end, &to, 0, to.key + 1, 1);
    show("writer", end);
    printf("writer: state %d\n", end->pair->state);
    signal_other();
}

static void writer_beyond(End *end) {
    Name to = connected(end, 1);
    memset(memory, 9, LENGTH_BYTES);
    send_write(end, &to, 1, to.key, 1);
    show("writer", end);
    signal_other();
}

static void dying_target(End *end) {
    connected(end, 0);
    await_other();
    raise(SIGKILL);
}

static void bereft_writer(End *end) {
    Name to = connected(end, 1);
    send_write(end, &to, 0, to.key, 1);
    send_write(end, &to, 0, to.key, 2);
    signal_other();
    show("writer", end);
    show("writer", end);
}

static void other_target(End *end) {
    Name own = {end->pair->qp_num, end->region->rkey, (uint64_t)memory, end->gid}, other;
    if (initialise(end) != 0 || write(to_other, &own, sizeof own) != sizeof own || read(from_other, &other, sizeof other) != sizeof other) {
        abort();
    }
    other.number++; /* connected with another pair than the one that writes */
    if (ready_to_receive(end, &other) != 0) {
        abort();
    }
    await_other();
}

static void unknown_writer(End *end) {
    Name to = connected(end, 1);
    send_write(end, &to, 0, to.key, 1);
    show("writer", end);
    signal_other();
}

static void strict_target(End *end) {
    Name other = {.number = 1};
    printf("connected first: %d\n", ready_to_receive(end, &other));
    printf("sends first: %d\n", send_write(end, &other, 0, 0, 1));
    initialise(end);
    printf("initialised twice: %d\n", initialise(end));
    receive(end, DEPTH);
    struct ibv_recv_wr wr = {0}, *bad;
    printf("one receive more: %d\n", end->context->ops.post_recv(end->pair, &wr, &bad));
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_ERR};
    printf("stopped: %d\n", ibv_modify_qp(end->pair, &to, IBV_QP_STATE));
    for (int i = 0; i < DEPTH; i++) {
        if (completed(end).status != IBV_WC_WR_FLUSH_ERR) {
            abort();
        }
    }
    printf("all flushed\n");
}

static void idle(End *end) {
    (void)end;
}

static const struct {
    const char *name;
    struct ibv_mr *(*registered)(struct ibv_pd *);
    void (*target)(End *), (*writer)(End *);
} stories[] = {
    {"host", of_host, host_target, host_writer},
    {"device", of_device, device_target, device_writer},
    {"wrong-key", of_host, waiting_target, writer_with_wrong_key},
    {"beyond", of_host, waiting_target, writer_beyond},
    {"killed", of_host, dying_target, bereft_writer},
    {"not-connected", of_host, other_target, unknown_writer},
    {"strict", of_host, strict_target, idle},
};

int main(int count, char **arguments) {
    int there[2], back[2], status;
    if (count < 2 || count > 3 || pipe(there) != 0 || pipe(back) != 0) {
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof stories / sizeof *stories; i++) {
        if (strcmp(stories[i].name, arguments[1]) != 0) {
            continue;
        }
        pid_t child = fork();
        to_other = child == 0 ? back[1] : there[1];
        from_other = child == 0 ? there[0] : back[0];
        is_late = count == 3 && strcmp(arguments[2], child == 0 ? "target" : "writer") == 0;
        End end = opened(child == 0 ? stories[i].registered : of_host);
        (child == 0 ? stories[i].target : stories[i].writer)(&end);
        begin_step();
        ibv_destroy_qp(end.pair);
        ibv_destroy_cq(end.queue);
        ibv_dereg_mr(end.region);
        if (child == 0) {
            return 0;
        }
        wait(&status);
        return WIFSIGNALED(status) ? WTERMSIG(status) != SIGKILL : status;
    }
    return 2;
}
