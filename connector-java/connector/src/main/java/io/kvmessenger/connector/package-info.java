/** Composition root: wires everything; the C function table Python calls; Netty control plane; metrics over HTTP. */
package io.kvmessenger.connector;
