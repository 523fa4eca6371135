/** Metrics over HTTP and as JSON: the only package that depends on client_java. */
package io.kvmessenger.connector.metrics;
