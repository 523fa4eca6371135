package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.MessengerState.GrantRow;
import io.kvmessenger.messenger.port.MessengerState.PrefillRow;
import java.util.Collection;
import java.util.List;

/** Describes for an operator what each prefill and grant waits for. Pure functions, on the messenger's thread. */
final class PrefillRows {
    private PrefillRows() {}

    static List<PrefillRow> of(Collection<Prefill> prefills, int rowsMax) {
        return prefills.stream()
                .limit(rowsMax)
                .map(prefill -> new PrefillRow(
                        prefill.request,
                        prefill.transfer().id(),
                        prefill.promptTokens,
                        prefill.settledTokens,
                        waitsFor(prefill)))
                .toList();
    }

    static List<GrantRow> of(Collection<PageGrant> grants, int rowsMax, long nowNs) {
        return grants.stream()
                .limit(rowsMax)
                .map(grant -> new GrantRow(
                        grant.transfer().id(),
                        grant.session().peerName(),
                        grant.promptTokens(),
                        nowNs - grant.receivedNs()))
                .toList();
    }

    private static List<String> waitsFor(Prefill prefill) {
        if (prefill.deliveries.isEmpty()) {
            return List.of(
                    prefill.stopped()
                            ? "the engine's end of it: " + prefill.stop().sentence()
                            : "a decoder's grant");
        }
        return prefill.deliveries.stream()
                .map(delivery -> delivery.grant.session().peerName() + ": " + waitsFor(prefill, delivery))
                .toList();
    }

    private static String waitsFor(Prefill prefill, Delivery delivery) {
        if (delivery.sent()) {
            return "nothing, " + delivery.pagesSent + " pages have left";
        }
        String writes = delivery.writesInFlight + " writes under way, " + delivery.pagesSent + " pages have left";
        if (delivery.stopped()) {
            String why = delivery.stop().sentence();
            return "the end of " + writes + "; stopped" + (why.isEmpty() ? "" : ": " + why);
        }
        if (!delivery.grant.session().writable()) {
            return "the data path";
        }
        return (prefill.computed() ? "" : "the rest of its forward passes; ") + writes;
    }
}
