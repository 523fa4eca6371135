package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.agent.IdleThreads;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;

/**
 * One look-up of a peer's name, which may take as long as a name server is silent: on a daemon thread that ends when
 * idle, never on a worker's.
 *
 * <p>Any thread begins it and asks for its result, which never blocks. It opens no sockets.
 */
final class NameLookup {
    /** Limit on concurrent look-ups, as the names come from peers. */
    private static final int LOOKUPS_MAX = 32;

    private static final ExecutorService LOOKUPS = IdleThreads.rejecting(LOOKUPS_MAX, "kvm-names-");

    private final CompletableFuture<List<InetAddress>> found;
    private volatile String fault = "";

    private NameLookup(String host) {
        CompletableFuture<List<InetAddress>> begun;
        try {
            begun = CompletableFuture.supplyAsync(() -> look(host), LOOKUPS);
        } catch (RejectedExecutionException e) {
            fault = LOOKUPS_MAX + " names are being looked up already: fix this machine's name service";
            begun = CompletableFuture.completedFuture(List.of());
        }
        found = begun;
    }

    static NameLookup of(String host) {
        return new NameLookup(host);
    }

    private List<InetAddress> look(String host) {
        try {
            return List.of(InetAddress.getAllByName(host));
        } catch (UnknownHostException e) {
            fault = "no such host is known here (" + e.getMessage() + ")";
            return List.of();
        }
    }

    boolean isDone() {
        return found.isDone();
    }

    /** The addresses in the order of the name service; empty while it looks, and if it has failed. */
    List<InetAddress> addresses() {
        return found.isCompletedExceptionally() ? List.of() : found.getNow(List.of());
    }

    /** Why there is no address, once it is done. */
    String fault() {
        return fault.isEmpty() ? "its name cannot be looked up" : fault;
    }
}
