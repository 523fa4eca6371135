/**
 * The layer counter: one ABI in Java and Python (CUDA later), and the progress of forward passes that follows from it.
 *
 * <p>The engine increments it for each layer whose KV is complete; this package converts the count into layers that may
 * be read. It allocates no counter, owns no thread, reads no clock and has no dependencies.
 */
package io.kvmessenger.hooks;
