package io.kvmessenger.connector;

import io.kvmessenger.transfer.agent.IdleThreads;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;

/**
 * Resolves host names, which may block for as long as a name server is silent, on daemon threads of its own that end
 * when idle.
 *
 * <p>Any thread asks; the answer comes on a thread of this class, or at once when the name is an address.
 */
final class HostNames implements AutoCloseable {
    /** Limit on concurrent look-ups, as the names come from requests. */
    static final int LOOKUPS_MAX = 32;

    /** Receives the result for one name. */
    interface Answer {
        /** All addresses of the name, at least one, in the order of the name service. */
        void onFound(List<InetAddress> addresses);

        void onUnknown(String reason);
    }

    private final ExecutorService lookups = IdleThreads.rejecting(LOOKUPS_MAX, "kv-messenger-names-");

    void find(String host, Answer answer) {
        InetAddress literal = literal(host);
        if (literal != null) {
            answer.onFound(List.of(literal));
            return;
        }
        try {
            lookups.execute(() -> lookUp(host, answer));
        } catch (RejectedExecutionException e) {
            answer.onUnknown(LOOKUPS_MAX + " host names are being looked up already: name prefillers by address, or fix"
                    + " this machine's name service");
        }
    }

    private static void lookUp(String host, Answer answer) {
        List<InetAddress> found;
        try {
            found = List.of(InetAddress.getAllByName(host));
        } catch (UnknownHostException e) {
            answer.onUnknown("no such host is known (" + e.getMessage() + ")");
            return;
        }
        answer.onFound(found);
    }

    private static InetAddress literal(String host) {
        try {
            return InetAddress.ofLiteral(host);
        } catch (IllegalArgumentException e) {
            return null;
        }
    }

    /** Look-ups in progress are not interrupted; their answers are ignored. */
    @Override
    public void close() {
        lookups.shutdownNow();
    }
}
