/** kvperf, the two-process benchmark of the TransferEngine, and JMH. */
package io.kvmessenger.benchmarks;
