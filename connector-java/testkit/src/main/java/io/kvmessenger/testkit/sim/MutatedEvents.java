package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchTimeline;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PrefillTimeline;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

/** Forwards events to an engine, with a bug in subclasses. */
abstract class MutatedEvents implements EngineEvents {
    final EngineEvents engine;

    MutatedEvents(EngineEvents engine) {
        this.engine = engine;
    }

    @Override
    public void released(String request) {
        engine.released(request);
    }

    @Override
    public void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {
        engine.granted(request, promptTokens, firstToken, contextKinds);
    }

    @Override
    public void stopped(String request, String reason) {
        engine.stopped(request, reason);
    }

    @Override
    public void arrived(String request, int pageCount) {
        engine.arrived(request, pageCount);
    }

    @Override
    public void failed(String request, String reason) {
        engine.failed(request, reason);
    }

    @Override
    public void quarantined(String request, String reason) {
        engine.quarantined(request, reason);
    }

    @Override
    public void offered(String request, int heldTokens, OfferOutcome outcome) {
        engine.offered(request, heldTokens, outcome);
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

    /** The engine is told at once that a fetch has failed whose pages would be in quarantine. */
    static final class WithoutQuarantine extends MutatedEvents {
        private final Set<String> failed = new HashSet<>();

        WithoutQuarantine(EngineEvents engine) {
            super(engine);
        }

        @Override
        public void quarantined(String request, String reason) {
            failed.add(request);
            engine.failed(request, reason);
        }

        @Override
        public void failed(String request, String reason) {
            if (!failed.remove(request)) {
                engine.failed(request, reason);
            }
        }
    }

    /** An engine that waits for grants does not receive them. */
    static final class WithoutGrants extends MutatedEvents {
        WithoutGrants(EngineEvents engine) {
            super(engine);
        }

        @Override
        public void granted(String request, int promptTokens, int firstToken, List<String> contextKinds) {}
    }

    /** Reports a fetch as failed as soon as it is abandoned, and swallows its real end. */
    static final class FreeOnCancel extends MutatedEvents {
        private final Set<String> open = new HashSet<>();
        private final Set<String> freedEarly = new HashSet<>();

        FreeOnCancel(EngineEvents engine) {
            super(engine);
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
    }

    /** A fetch that arrives after a control link has ended is reported as failed. */
    static final class FailWithLink extends MutatedEvents {
        private final Set<String> open = new HashSet<>();
        private final Set<String> failing = new HashSet<>();

        FailWithLink(EngineEvents engine) {
            super(engine);
        }

        void onCommand(EngineCommand command) {
            if (command instanceof EngineCommand.Fetch fetch) {
                open.add(fetch.request());
            }
        }

        /** A messenger counts a lost link before it decides what becomes of its requests. */
        Tally tally(Tally counting) {
            return new SilentTally() {
                @Override
                public void add(MessengerMetric metric, long count) {
                    counting.add(metric, count);
                    if (metric == MessengerMetric.LINKS_LOST) {
                        failing.addAll(open);
                    }
                }
            };
        }

        @Override
        public void arrived(String request, int pageCount) {
            open.remove(request);
            if (failing.remove(request)) {
                engine.failed(request, "its control link has ended");
            } else {
                engine.arrived(request, pageCount);
            }
        }

        @Override
        public void failed(String request, String reason) {
            open.remove(request);
            failing.remove(request);
            engine.failed(request, reason);
        }
    }
}
