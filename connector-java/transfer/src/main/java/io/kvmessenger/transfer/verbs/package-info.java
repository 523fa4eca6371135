/** The transport verbs: RDMA writes by libibverbs, a reliable connection for each peer and direction. */
package io.kvmessenger.transfer.verbs;
