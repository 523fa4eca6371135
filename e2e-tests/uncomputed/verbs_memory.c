/* The devices of the stand-in for libibverbs, and the memory that they have registered. */
#define _GNU_SOURCE
#include "verbs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define REGIONS_MAX 1024
#define HOST (-1L)

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

pthread_mutex_t verbs_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device devices[DEVICES_MAX];
static Region *regions[REGIONS_MAX];
static int64_t dma_bufs, device_reads, device_writes;

/* For tests: dma-bufs that were registered, and writes that were read from and written to memory of a device. */
EXPORTED void uncomputedRdmaFigures(int64_t *registered, int64_t *read, int64_t *written) {
    pthread_mutex_lock(&verbs_lock);
    *registered = dma_bufs, *read = device_reads, *written = device_writes;
    pthread_mutex_unlock(&verbs_lock);
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
union ibv_gid gid_of(const struct ibv_context *context) {
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
    pthread_mutex_lock(&verbs_lock);
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
    pthread_mutex_unlock(&verbs_lock);
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
    pthread_mutex_lock(&verbs_lock);
    for (int i = 0; i < REGIONS_MAX; i++) {
        regions[i] = regions[i] == given ? NULL : regions[i];
    }
    if (given->of_device != HOST) {
        standInNicDeregister(given->of_device);
    }
    pthread_mutex_unlock(&verbs_lock);
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

int read_source(const struct ibv_pd *domain, const Request *request, uint8_t *to) {
    const Region *from = region_of(request->local_key, domain, request->source, request->length_bytes, 0);
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

int land(const struct ibv_pd *domain, const Message *message, const uint8_t *bytes) {
    if (message->length_bytes == 0) {
        return 0;
    }
    const Region *to = region_of(
            message->remote_key, domain, message->remote, message->length_bytes, IBV_ACCESS_REMOTE_WRITE);
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

