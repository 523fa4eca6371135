/** The simulation's checkers: each judges the world by what it sees happen, never by asking the code under test. */
package io.kvmessenger.testkit.sim.check;
