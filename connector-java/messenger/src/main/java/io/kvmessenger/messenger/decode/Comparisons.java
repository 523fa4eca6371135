package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;
import java.util.HashMap;
import java.util.Map;

/**
 * Counts what the engine has found when it compared received KV with its own, by prefiller. Decides nothing.
 *
 * <p>Owned by the messenger's thread. Bounded by the number of sessions.
 */
final class Comparisons {
    private final Tally tally;
    /** The difference of the last compared request of each connected prefiller. */
    private final Map<PrefillerSession, Long> millionths = new HashMap<>();

    Comparisons(Tally tally) {
        this.tally = tally;
    }

    /** @param session the prefiller's; null if it is not connected any more */
    void add(EngineCommand.Compared compared, PrefillerSession session) {
        tally.add(MessengerMetric.LAST_TOKENS_COMPARED, compared.outcome());
        if (session != null && session.ready()) {
            millionths.put(session, compared.differenceMillionths());
            session.figures().set(MessengerMetric.PEER_LAST_TOKEN_DIFFERENCE, compared.differenceMillionths());
            reportLargest();
        }
    }

    void onEnded(PrefillerSession session) {
        if (millionths.remove(session) != null) {
            reportLargest();
        }
    }

    private void reportLargest() {
        long largest =
                millionths.values().stream().mapToLong(Long::longValue).max().orElse(0);
        tally.set(MessengerMetric.LAST_TOKEN_DIFFERENCE, largest);
    }
}
