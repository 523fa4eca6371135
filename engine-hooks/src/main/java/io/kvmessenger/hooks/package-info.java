/**
 * The layer counter: one ABI in Java and Python (CUDA later), and the forward passes that it releases.
 *
 * <p>The engine adds one for each layer whose KV is complete; this package turns the count into layers that may be read.
 * It allocates no counter, owns no thread, knows no time and no dependency.
 */
package io.kvmessenger.hooks;
