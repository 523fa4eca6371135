/** Sessions with peers: links, handshake, seals, frame rules, heartbeats. Knows no transfer. */
package io.kvmessenger.messenger.session;
