/* What the two halves of the stand-in for libibverbs share: verbs_memory.c has devices and what they register, verbs.c the rest. */
#ifndef UNCOMPUTED_VERBS_H
#define UNCOMPUTED_VERBS_H

#include <infiniband/verbs.h>

#include <pthread.h>

#define EXPORTED __attribute__((visibility("default")))
#define ENTRIES_MAX 4096
#define MESSAGE_MAX_BYTES (1u << 23)

/* Of a writer: what a pair's device is to do. */
typedef struct {
    uint64_t id, remote, source;
    uint32_t length_bytes, local_key, remote_key, imm;
    int with_imm, signalled;
} Request;

/* Of it, what the target's device hears. */
typedef struct {
    uint64_t remote;
    uint32_t length_bytes, remote_key, imm;
    int with_imm;
} Message;

/* Of all that is not an object's own. */
extern pthread_mutex_t verbs_lock;

union ibv_gid gid_of(const struct ibv_context *context);

/* Under the lock: -1 where the memory is not registered for it in the domain. */
int read_source(const struct ibv_pd *domain, const Request *request, uint8_t *to);
int land(const struct ibv_pd *domain, const Message *message, const uint8_t *bytes);

/* The data path, which a context has in its table. */
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int poll_queue(struct ibv_cq *cq, int entries, struct ibv_wc *wc);

#endif
