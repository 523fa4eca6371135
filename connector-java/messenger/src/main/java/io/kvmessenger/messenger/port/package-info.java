/**
 * A messenger's ports and what crosses them: an engine's commands and events, clock, metrics, limits. Knows no peer.
 */
package io.kvmessenger.messenger.port;
