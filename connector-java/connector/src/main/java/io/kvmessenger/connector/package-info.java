/** The composition root, which wires everything; the C function table for Python; control plane; metrics over HTTP. */
package io.kvmessenger.connector;
