/** Transport over libfabric: writes with immediates by the provider of the machine's NIC; writes land unchecked. */
package io.kvmessenger.transfer.libfabric;
