/** Transport between processes of one user on one host: the target's memory is mapped, the writer copies. */
package io.kvmessenger.transfer.shm;
