/** The simulation's checkers: each judges the world by observed events, never by querying the code under test. */
package io.kvmessenger.testkit.sim.check;
