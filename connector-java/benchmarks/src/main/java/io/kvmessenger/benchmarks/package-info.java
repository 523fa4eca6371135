/**
 * kvperf, the two-process benchmark of the TransferEngine, and JMH.
 *
 * <p>{@link io.kvmessenger.benchmarks.KvPerf} writes pages into {@link io.kvmessenger.benchmarks.KvPerfTarget}, a process
 * it starts, and, interleaved with it, has a C {@link io.kvmessenger.benchmarks.Yardstick} do the same work.
 */
package io.kvmessenger.benchmarks;
