/** Protocol and state machines: Prefiller, Decoder, grants. Sees ports; no threads, no sockets. */
package io.kvmessenger.messenger;
