package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.MessengerState;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * What the pages are made of.
 *
 * @param healthProblem why the messenger does not work, if it does not
 * @param describe completes what it is given, on any thread, soon
 */
record Pages(
        PrometheusRegistry registry,
        Supplier<Optional<String>> healthProblem,
        Consumer<CompletableFuture<MessengerState>> describe) {}
