/** Transport over libfabric: writes with immediates by whatever NIC the machine's provider drives; bytes land without a look at them. */
package io.kvmessenger.transfer.libfabric;
