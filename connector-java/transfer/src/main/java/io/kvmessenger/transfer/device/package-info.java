/** Memory of accelerators: their driver, copies on streams of the messenger's own, and what other processes map of it. */
package io.kvmessenger.transfer.device;
