package io.kvmessenger.connector.metrics;

import io.kvmessenger.messenger.port.MessengerState;
import io.prometheus.metrics.model.registry.PrometheusRegistry;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * The sources of the pages.
 *
 * @param healthProblem why the messenger does not work, if it does not
 * @param notReady why the engine should get no new requests for as long as this messenger is open; empty = it may
 * @param pageKey opens the pages that name requests and those that change something; empty = they stay closed
 * @param draining whether the engine should get no new requests
 * @param prices what tokens take from other engines
 * @param describe completes its argument, on any thread, soon
 */
record Pages(
        PrometheusRegistry registry,
        Supplier<Optional<String>> healthProblem,
        Supplier<String> notReady,
        String pageKey,
        AtomicBoolean draining,
        PriceBoard prices,
        Consumer<CompletableFuture<MessengerState>> describe) {

    Optional<String> reasonNotReady() {
        return healthProblem
                .get()
                .or(() -> Optional.of(notReady.get()).filter(why -> !why.isEmpty()))
                .or(() -> draining.get() ? Optional.of("draining: the engine is about to end") : Optional.empty());
    }
}
