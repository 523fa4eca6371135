/** Memory of accelerators: the driver, copies on streams of the messenger's own, and exports to other processes. */
package io.kvmessenger.transfer.device;
