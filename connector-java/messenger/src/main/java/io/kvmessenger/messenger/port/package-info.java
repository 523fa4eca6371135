/** The ports a messenger stands on, and what crosses them: commands and events of an engine, clock, metrics, limits. Knows no peer. */
package io.kvmessenger.messenger.port;
