/** Transport over TCP sockets: always available, needs no library; bytes land directly in the target pages. */
package io.kvmessenger.transfer.tcp;
