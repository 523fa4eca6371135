/** The transport verbs: RDMA writes by libibverbs, with a reliable connection for each peer and direction. */
package io.kvmessenger.transfer.verbs;
