package io.kvmessenger.connector.metrics;

import static java.util.Map.entry;

import io.kvmessenger.messenger.port.MessengerMetric;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.EnumMap;
import java.util.Map;
import java.util.function.DoubleSupplier;

/**
 * The JVM's metrics, read when the page is requested: the first access loads Java's management classes, which would
 * delay an engine's start and its {@code stats}.
 *
 * <p>Any thread.
 */
final class RuntimeFigures {
    private static final double MILLIS_PER_SECOND = 1_000;

    static final Map<MessengerMetric, DoubleSupplier> ALL =
            new EnumMap<>(Map.<MessengerMetric, DoubleSupplier>ofEntries(
                    entry(MessengerMetric.JVM_HEAP_USED_BYTES, RuntimeFigures::heapUsedBytes),
                    entry(
                            MessengerMetric.JVM_HEAP_MAX_BYTES,
                            () -> Runtime.getRuntime().maxMemory()),
                    entry(MessengerMetric.JVM_GC_SECONDS, RuntimeFigures::collectedSeconds),
                    entry(
                            MessengerMetric.JVM_THREADS,
                            () -> ManagementFactory.getThreadMXBean().getThreadCount())));

    private RuntimeFigures() {}

    private static double heapUsedBytes() {
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }

    private static double collectedSeconds() {
        return ManagementFactory.getGarbageCollectorMXBeans().stream()
                        .mapToLong(GarbageCollectorMXBean::getCollectionTime)
                        .sum()
                / MILLIS_PER_SECOND;
    }
}
