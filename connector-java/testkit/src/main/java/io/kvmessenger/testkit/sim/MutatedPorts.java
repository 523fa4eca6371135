package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.specdecode.ContextKinds;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferEngine;
import java.util.List;

/**
 * The ports of one process, with the bug of a {@link Mutation} between them and the messenger. Bugs that do not fit
 * there, such as in a limit or in the generations of slots, are implemented by the {@link Mutation} and the fabric.
 */
final class MutatedPorts {
    private final Mutation mutation;
    private final SimulatedTransport transport;
    /** The regions of context rows, by kind. */
    private final List<Region> context;

    private final ContextKinds kinds;
    private final MutatedEvents.FreeOnCancel events;
    private final MutatedEvents.FailWithLink failing;
    private final MutatedOffers offers;

    MutatedPorts(
            Mutation mutation,
            EngineEvents events,
            MutatedOffers offers,
            SimulatedTransport transport,
            List<Region> context,
            ContextKinds kinds) {
        this.transport = transport;
        this.context = context;
        this.kinds = kinds;
        this.mutation = mutation;
        this.events = new MutatedEvents.FreeOnCancel(events);
        this.failing = new MutatedEvents.FailWithLink(events);
        this.offers = offers;
    }

    KvPorts wrap(KvPorts ports, ComputedLayers layers) {
        TransferEngine transfer = switch (mutation) {
            case EXPECTATION_OFF_BY_ONE -> new ExpectingLess(ports.transfer(), 1);
            case CONTEXT_NOT_EXPECTED -> new ExpectingLess(ports.transfer(), context.size());
            case CONTEXT_OF_ANOTHER -> new SendingFirstSlot(ports.transfer(), context);
            case DUPLICATE_GRANT_ACCEPTED -> new ServingTwice(ports.transfer());
            case ONE_SOURCE_SUFFICES -> new OneSourceSuffices(ports.transfer());
            case COUNTED_WHEN_POSTED, SHARE_COUNTED_WHEN_POSTED -> new CountingPosted(ports.transfer(), transport);
            case GENERATION_IGNORED ->
                transport.looksAtWrites() ? new CountingPosted(ports.transfer(), transport) : ports.transfer();
            case FREED_WITHOUT_PROOF -> new ClosingAtOnce(ports.transfer());
            case FULL_QUEUE_TAKEN_AS_ACCEPTED -> new TakingFullAsAccepted(ports.transfer());
            case ALLOWANCE_UNCHECKED -> new WritingOn(ports.transfer());
            default -> ports.transfer();
        };
        return new KvPorts(
                transfer,
                switch (mutation) {
                    case FREE_ON_CANCEL -> events;
                    case VERDICT_BEFORE_PROOF -> failing;
                    case QUARANTINE_SKIPPED -> new MutatedEvents.WithoutQuarantine(ports.engine());
                    case GRANT_NOT_REPORTED -> new MutatedEvents.WithoutGrants(ports.engine());
                    case RELEASED_AT_OFFER, LATE_OFFER_ACCEPTED, WITHDRAWN_OFFER_GRANTED, OFFER_OF_ENDED_SESSION_KEPT ->
                        offers;
                    default -> ports.engine();
                },
                ports.intake(),
                mutated(ports.progress(), layers),
                switch (mutation) {
                    case VERDICT_BEFORE_PROOF -> failing.tally(ports.tally());
                    case OFFER_OF_ENDED_SESSION_KEPT -> offers.tally(ports.tally());
                    default -> ports.tally();
                },
                ports.history(),
                ports.clock(),
                ports.random());
    }

    private LayerProgress mutated(LayerProgress progress, ComputedLayers layers) {
        return switch (mutation) {
            case COUNTER_READ_EARLY -> new MutatedProgress.ReadingEarly(progress, layers.count());
            case COUNTER_LAG_LOST ->
                layers.counterLag() > 0 ? new MutatedProgress.ReadingEarly(progress, layers.count()) : progress;
            case STEP_OVER_WHEN_REPORTED -> new MutatedProgress.OverWhenReported(progress, layers.count());
            case STEP_BASE_FORGOTTEN -> new MutatedProgress.ForgettingBases(progress);
            default -> progress;
        };
    }

    /** Receives each command before the messenger. Returns the command as misread; null when it is lost. */
    EngineCommand heard(EngineCommand command) {
        return switch (mutation) {
            case FREE_ON_CANCEL -> {
                events.onCommand(command);
                yield command;
            }
            case VERDICT_BEFORE_PROOF -> {
                failing.onCommand(command);
                yield command;
            }
            case RELEASED_AT_OFFER, LATE_OFFER_ACCEPTED, WITHDRAWN_OFFER_GRANTED, OFFER_OF_ENDED_SESSION_KEPT ->
                offers.onCommand(command) ? command : null;
            case ANNOUNCEMENT_LOST -> command instanceof EngineCommand.Announce ? null : command;
            case REQUESTED_ROW_FORGOTTEN ->
                command instanceof EngineCommand.Fetch fetch && kinds.anyAlways() ? withoutRequest(fetch) : command;
            default -> command;
        };
    }

    private static EngineCommand withoutRequest(EngineCommand.Fetch fetch) {
        return new EngineCommand.Fetch(
                fetch.request(),
                fetch.transferId(),
                fetch.prefillers(),
                fetch.promptTokens(),
                fetch.firstToken(),
                fetch.pages(),
                fetch.contextSlot(),
                List.of(),
                fetch.limitNs(),
                fetch.promptDigest(),
                fetch.prompt(),
                fetch.waits());
    }
}
