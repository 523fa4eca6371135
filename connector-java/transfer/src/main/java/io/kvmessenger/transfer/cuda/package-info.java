/** Transport between processes of one user on one host: the target's device memory is mapped, the writer's device copies. */
package io.kvmessenger.transfer.cuda;
