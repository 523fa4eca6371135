/** The Java end of docs/boundary.md: a table of C functions, and the interface that the composition root implements. */
package io.kvmessenger.connector.boot;
