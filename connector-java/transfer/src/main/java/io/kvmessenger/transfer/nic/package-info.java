/** What the transports of network cards have in common: memory that is registered with them, and that of peers. */
package io.kvmessenger.transfer.nic;
