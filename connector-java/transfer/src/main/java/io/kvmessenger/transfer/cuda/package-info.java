/** Transport between processes of one user on one host: maps the target's device memory; the writer's device copies. */
package io.kvmessenger.transfer.cuda;
