/** The messenger: the agent that joins an engine, its peers and the transfer engine. No threads, no sockets. */
package io.kvmessenger.messenger;
