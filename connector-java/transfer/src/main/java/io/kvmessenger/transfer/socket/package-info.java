/** What socket-based transports share: the event loop, the opening handshake, the control stream. */
package io.kvmessenger.transfer.socket;
