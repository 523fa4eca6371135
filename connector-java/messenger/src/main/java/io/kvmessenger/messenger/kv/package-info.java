/** The KV cache as the subject of a session: geometries that fit, and what a peer has of it. */
package io.kvmessenger.messenger.kv;
