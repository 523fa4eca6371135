package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.transfer.TransferEngine;
import java.util.HashSet;
import java.util.Set;

/**
 * The ports of one process with the bug of a {@link Mutation} between them and the messenger. What cannot be put there, a
 * limit or the generations of slots, the {@link Mutation} and the fabric change themselves.
 */
final class MutatedPorts {
    private final Mutation mutation;
    private final SimulatedTransport transport;
    private final FreeOnCancel events;

    MutatedPorts(Mutation mutation, EngineEvents events, SimulatedTransport transport) {
        this.transport = transport;
        this.mutation = mutation;
        this.events = new FreeOnCancel(events);
    }

    Messenger.Ports wrap(Messenger.Ports ports, ComputedLayers layers) {
        TransferEngine transfer = switch (mutation) {
            case EXPECTATION_OFF_BY_ONE -> new ExpectingOneLess(ports.transfer());
            case DUPLICATE_GRANT_ACCEPTED -> new ServingTwice(ports.transfer());
            case ONE_SOURCE_SUFFICES -> new OneSourceSuffices(ports.transfer());
            case COUNTED_WHEN_POSTED -> new CountingPosted(ports.transfer(), transport);
            case GENERATION_IGNORED ->
                transport.looksAtWrites() ? new CountingPosted(ports.transfer(), transport) : ports.transfer();
            case FREED_WITHOUT_PROOF -> new ClosingAtOnce(ports.transfer());
            case ALLOWANCE_UNCHECKED -> new WritingOn(ports.transfer());
            default -> ports.transfer();
        };
        return new Messenger.Ports(
                transfer,
                ports.network(),
                mutation == Mutation.FREE_ON_CANCEL ? events : ports.engine(),
                ports.intake(),
                mutated(ports.progress(), layers),
                ports.tally(),
                ports.clock(),
                ports.random());
    }

    private LayerProgress mutated(LayerProgress progress, ComputedLayers layers) {
        return switch (mutation) {
            case COUNTER_READ_EARLY -> new MutatedProgress.ReadingEarly(progress, layers.count());
            case COUNTER_LAG_LOST ->
                layers.counterLag() > 0 ? new MutatedProgress.ReadingEarly(progress, layers.count()) : progress;
            case STEP_OVER_WHEN_TOLD -> new MutatedProgress.OverWhenTold(progress, layers.count());
            case STEP_BASE_FORGOTTEN -> new MutatedProgress.ForgettingBases(progress);
            default -> progress;
        };
    }

    /** Sees each command before the messenger does. */
    void onCommand(EngineCommand command) {
        if (mutation == Mutation.FREE_ON_CANCEL) {
            events.onCommand(command);
        }
    }

    /** Tells the engine that a fetch has failed as soon as it was abandoned, and swallows the real end. */
    private static final class FreeOnCancel implements EngineEvents {
        private final EngineEvents engine;
        private final Set<String> open = new HashSet<>();
        private final Set<String> freedEarly = new HashSet<>();

        FreeOnCancel(EngineEvents engine) {
            this.engine = engine;
        }

        void onCommand(EngineCommand command) {
            if (command instanceof EngineCommand.Fetch fetch) {
                open.add(fetch.request());
            } else if (command instanceof EngineCommand.Abandon abandon && open.remove(abandon.request())) {
                freedEarly.add(abandon.request());
                engine.failed(abandon.request(), "freed when cancelled");
            }
        }

        @Override
        public void released(String request) {
            engine.released(request);
        }

        @Override
        public void granted(String request, int promptTokens, int firstToken) {
            engine.granted(request, promptTokens, firstToken);
        }

        @Override
        public void stopped(String request, String reason) {
            engine.stopped(request, reason);
        }

        @Override
        public void arrived(String request, int pageCount) {
            open.remove(request);
            if (!freedEarly.remove(request)) {
                engine.arrived(request, pageCount);
            }
        }

        @Override
        public void failed(String request, String reason) {
            open.remove(request);
            if (!freedEarly.remove(request)) {
                engine.failed(request, reason);
            }
        }

        @Override
        public void quarantined(String request, String reason) {
            if (!freedEarly.contains(request)) {
                engine.quarantined(request, reason);
            }
        }

        @Override
        public void prefilled(TransferKey transfer) {
            engine.prefilled(transfer);
        }

        @Override
        public void timeline(PrefillTimeline timeline) {
            engine.timeline(timeline);
        }

        @Override
        public void timeline(FetchTimeline timeline) {
            engine.timeline(timeline);
        }

        @Override
        public void log(Level level, String message) {
            engine.log(level, message);
        }
    }
}
