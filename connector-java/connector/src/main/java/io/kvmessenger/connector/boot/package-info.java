/** The Java end of docs/boundary.md: a table of C functions, and what they ask of the composition root. */
package io.kvmessenger.connector.boot;
