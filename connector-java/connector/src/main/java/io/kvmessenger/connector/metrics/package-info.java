/** Figures over HTTP and as JSON: the only package that knows client_java. */
package io.kvmessenger.connector.metrics;
