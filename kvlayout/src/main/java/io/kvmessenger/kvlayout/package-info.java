/**
 * What a KV cache looks like, and which bytes go where.
 *
 * <p>Pure values and functions: no I/O, no threads, no dependencies. Each side describes itself with a {@link
 * io.kvmessenger.kvlayout.KvGeometry}; {@link io.kvmessenger.kvlayout.Compatibility} says whether two can exchange
 * pages, {@link io.kvmessenger.kvlayout.LayoutPlanner} which bytes of a page go where, and {@link
 * io.kvmessenger.kvlayout.ExpectedWrites}, independently of the planner, how many pieces arrive.
 */
package io.kvmessenger.kvlayout;
