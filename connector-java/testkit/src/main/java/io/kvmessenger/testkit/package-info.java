/** Simulated fabric, network, clock and engine; contract suites; fault wrappers. */
package io.kvmessenger.testkit;
