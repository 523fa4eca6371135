/** Writes the downcalls of an annotated interface, at build time. */
package io.kvmessenger.bindings;
