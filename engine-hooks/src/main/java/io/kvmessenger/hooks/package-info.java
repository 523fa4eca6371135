/** The layer counter: one ABI in Java and Python (CUDA later), and its watcher. */
package io.kvmessenger.hooks;
