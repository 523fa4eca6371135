/** Deterministic simulation: production messengers in a simulated world, one thread, everything drawn from a seed. */
package io.kvmessenger.testkit.sim;
