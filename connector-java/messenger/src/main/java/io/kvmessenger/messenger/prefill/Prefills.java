package io.kvmessenger.messenger.prefill;

import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The prompts that the engine computes in order to send them, by the engine's requests, and which of them may have
 * something to submit.
 *
 * <p>Owned by the messenger's thread. {@link Meetings} adds and removes them; {@link Prefiller} stops and releases them.
 */
final class Prefills {
    private final Map<String, Prefill> byRequest = new LinkedHashMap<>();
    /** Those that may have something to submit, now or when a layer becomes readable. */
    private final Set<Prefill> active = new LinkedHashSet<>();

    private long visits;

    /** The prefill of the engine's request, or null. */
    Prefill of(String request) {
        return byRequest.get(request);
    }

    boolean has(Prefill prefill) {
        return byRequest.get(prefill.request) == prefill;
    }

    void add(Prefill prefill) {
        byRequest.put(prefill.request, prefill);
        active.add(prefill);
    }

    void remove(Prefill prefill) {
        active.remove(prefill);
        byRequest.remove(prefill.request, prefill);
    }

    /** The prefill's state has changed: it may have something to submit. */
    void touch(Prefill prefill) {
        if (has(prefill)) {
            active.add(prefill);
        }
    }

    /** The prefill has nothing to submit until its state changes. */
    void rest(Prefill prefill) {
        active.remove(prefill);
    }

    /** Prefills that may have something to submit; a copy. */
    List<Prefill> active() {
        visits += active.size();
        return List.copyOf(active);
    }

    /** All prefills, a live view: copy it before making changes. Not for use in every duty cycle. */
    Collection<Prefill> all() {
        visits += byRequest.size();
        return byRequest.values();
    }

    /** Whether a prompt is being delivered to the session, or kept for it. */
    boolean anyFor(DecoderSession session) {
        return all().stream()
                .anyMatch(prefill -> prefill.isOfferedTo(session)
                        || prefill.deliveries.stream().anyMatch(delivery -> delivery.isOf(session)));
    }

    List<Delivery> deliveriesTo(DecoderSession session) {
        return all().stream()
                .flatMap(prefill -> prefill.deliveries.stream())
                .filter(delivery -> delivery.isOf(session))
                .toList();
    }

    /** The cached prefixes that are kept for a session. */
    List<Prefill> offeredTo(DecoderSession session) {
        return all().stream().filter(prefill -> prefill.isOfferedTo(session)).toList();
    }

    /** Pages of all groups that are kept for other engines. */
    int offeredPageCount() {
        return byRequest.values().stream()
                .filter(Prefill::isOffer)
                .flatMap(offer -> offer.pages.stream())
                .mapToInt(PromptPages::count)
                .sum();
    }

    /** Number of prefills visited by loops over several of them: a bound on the cost of duty cycles. */
    long visits() {
        return visits;
    }

    int count() {
        return byRequest.size();
    }
}
