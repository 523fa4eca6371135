/*
 * Writes random pages by libfabric, each by one fi_writedata with a count as its immediate, as many at a time as the window
 * has; the second process counts immediates. The provider is named by KVPERF_PROVIDER, or is the first that libfabric offers.
 */
#include "yardstick.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <sched.h>

#define WINDOW 64
#define NAME_BYTES_MAX 256
#define COMPLETIONS 64

struct side {
    struct fi_info *info;
    struct fid_domain *domain;
    struct fid_cq *queue;
    struct fid_av *vector;
    struct fid_ep *endpoint;
    struct fid_mr *memory;
    fi_addr_t peer;
    uint64_t peer_base;
    uint64_t peer_key;
};

/* What each process tells the other. */
struct hello {
    uint64_t base;
    uint64_t key;
    char name[NAME_BYTES_MAX];
};

static void check(const char *what, long result) {
    if (result < 0) {
        fprintf(stderr, "yardstick: %s: %s\n", what, fi_strerror((int)-result));
        exit(1);
    }
}

static struct fi_info *find_provider(void) {
    struct fi_info *hints = fi_allocinfo(), *found = NULL;
    const char *provider = getenv("KVPERF_PROVIDER");
    hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->av_type = FI_AV_TABLE;
    hints->domain_attr->cq_data_size = sizeof(uint32_t);
    if (provider && *provider) hints->fabric_attr->prov_name = strdup(provider);
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE | FI_NUMERICHOST, hints, &found));
    return found;
}

static void open_side(struct side *side, char *pool, size_t length) {
    struct fid_fabric *fabric;
    struct fi_cq_attr queue = {.size = 4096, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr vector = {.type = FI_AV_TABLE, .count = 1};
    side->info = find_provider();
    check("fi_fabric", fi_fabric(side->info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, side->info, &side->domain, NULL));
    check("fi_cq_open", fi_cq_open(side->domain, &queue, &side->queue, NULL));
    check("fi_av_open", fi_av_open(side->domain, &vector, &side->vector, NULL));
    check("fi_endpoint", fi_endpoint(side->domain, side->info, &side->endpoint, NULL));
    check("fi_ep_bind", fi_ep_bind(side->endpoint, &side->vector->fid, 0));
    check("fi_ep_bind", fi_ep_bind(side->endpoint, &side->queue->fid, FI_TRANSMIT | FI_RECV));
    check("fi_enable", fi_enable(side->endpoint));
    check("fi_mr_reg", fi_mr_reg(side->domain, pool, length, FI_WRITE | FI_REMOTE_WRITE, 0, 1, 0, &side->memory, NULL));
}

static struct hello greeting(const struct side *side, const char *pool) {
    struct hello hello = {.key = fi_mr_key(side->memory)};
    size_t name_bytes = NAME_BYTES_MAX;
    hello.base = side->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)pool : 0;
    check("fi_getname", fi_getname(&side->endpoint->fid, hello.name, &name_bytes));
    return hello;
}

/* A pool that the other process can write to, and the way to its. */
static char *meet(struct side *side, const struct work *work, int in, int out) {
    char *pool = map_pool(work, MAP_SHARED);
    open_side(side, pool, work->pool_pages * work->page_bytes);
    struct hello own = greeting(side, pool), other;
    write_all(out, &own, sizeof own);
    if (!read_all(in, &other, sizeof other)) fail("the other process ended");
    check("fi_av_insert", fi_av_insert(side->vector, other.name, 1, &side->peer, 0, NULL));
    side->peer_base = other.base;
    side->peer_key = other.key;
    return pool;
}

/* How many operations have completed, or pages of the peer's have arrived. On few cores both sides need what the other has. */
static size_t completed(struct side *side) {
    struct fi_cq_data_entry entries[COMPLETIONS];
    ssize_t count = fi_cq_read(side->queue, entries, COMPLETIONS);
    if (count == -FI_EAGAIN) {
        sched_yield();
        return 0;
    }
    check("fi_cq_read", count);
    return (size_t)count;
}

static void receive_pages(void *path, const struct work *work, char *pool) {
    (void)pool;
    for (size_t arrived = 0; arrived < work->page_count;) arrived += completed(path);
}

/* A provider may keep what it needs of a write in its context, until the write has completed: they complete in order. */
static void send_pages(void *path, const struct work *work, char *pool) {
    struct side *side = path;
    static struct fi_context2 contexts[WINDOW];
    size_t posted = 0, done = 0;
    while (done < work->page_count) {
        if (posted < work->page_count && posted - done < WINDOW) {
            ssize_t result = fi_writedata(side->endpoint, pool + work->source_pages[posted] * work->page_bytes,
                                          work->page_bytes, fi_mr_desc(side->memory), 1, side->peer,
                                          side->peer_base + work->target_pages[posted] * work->page_bytes, side->peer_key,
                                          &contexts[posted % WINDOW]);
            if (result == 0) {
                posted++;
                continue;
            }
            if (result != -FI_EAGAIN) check("fi_writedata", result);
        }
        done += completed(side);
    }
}

int main(int argc, char **argv) {
    struct work work = parse_work(argc, argv);
    int to_target[2], to_source[2];
    if (pipe(to_target) || pipe(to_source)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    struct side side = {0};
    if (child == 0) {
        close(to_target[1]);
        char *pool = meet(&side, &work, to_target[0], to_source[1]);
        serve_rounds(&work, pool, to_target[0], to_source[1], receive_pages, &side);
        return 0;
    }
    close(to_target[0]);
    char *pool = meet(&side, &work, to_source[0], to_target[1]);
    run_rounds(&work, pool, to_target[1], to_source[0], send_pages, &side);
    close(to_target[1]);
    waitpid(child, NULL, 0);
    return 0;
}
