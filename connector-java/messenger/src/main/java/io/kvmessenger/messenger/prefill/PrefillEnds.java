package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.Tally;

/**
 * Ends prefills of which nothing will be sent any more: completes the fences that wait for them, counts them, and
 * releases their pages to the engine.
 *
 * <p>Owned by the messenger's thread. It stops none, and answers no decoder.
 */
final class PrefillEnds {
    private final Meetings meetings;
    private final Fences fences;
    private final EngineEvents engine;
    private final Tally tally;
    private final History history;
    private final NanoClock clock;

    PrefillEnds(Meetings meetings, Fences fences, KvPorts ports) {
        this.meetings = meetings;
        this.fences = fences;
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.history = ports.history();
        this.clock = ports.clock();
    }

    /** Ends the prefill as far as its deliveries and the engine allow. */
    void settle(Prefill prefill) {
        fences.onDrained(prefill);
        if (!prefill.over()) {
            return;
        }
        switch (prefill.state()) {
            case RUNNING -> {
                if (prefill.stopped()) {
                    prefill.become(Prefill.State.CONCLUDED);
                    conclude(prefill);
                }
            }
            case ENDED -> {
                prefill.become(Prefill.State.RELEASED);
                conclude(prefill);
                release(prefill);
            }
            case CONCLUDED, RELEASED -> {}
        }
    }

    /** The engine has ended a prefill that was concluded before. */
    void releaseConcluded(Prefill prefill) {
        prefill.become(Prefill.State.RELEASED);
        release(prefill);
    }

    private void release(Prefill prefill) {
        meetings.end(prefill, clock.nowNs());
        engine.released(prefill.request);
    }

    private void conclude(Prefill prefill) {
        if (prefill.isOffer()) {
            return; // counted when it was made; that a peer did not want it is no failure
        }
        if (!prefill.sent()) {
            tally.add(MessengerMetric.PREFILLS_UNDELIVERED, prefill.failure());
            String why = prefill.shortfall().sentence();
            history.prefillFailed(prefill.request, prefill.transfer(), clock.nowNs(), prefill.failure(), why);
            return;
        }
        tally.add(MessengerMetric.PREFILLS_SENT, 1);
        long lastLeftNs = 0;
        for (Delivery delivery : prefill.deliveries) {
            lastLeftNs = Math.max(lastLeftNs, delivery.lastLeftNs);
        }
        tally.observe(
                MessengerMetric.PREFILL_TAIL_SECONDS, Math.max(0, lastLeftNs - prefill.chunks.forwardEndNs()) / 1e9);
    }
}
