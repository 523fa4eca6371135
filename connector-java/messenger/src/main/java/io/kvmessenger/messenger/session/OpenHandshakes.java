package io.kvmessenger.messenger.session;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Links that peers have opened and whose handshake is not complete, oldest first. Where there are too many, the host that
 * has the most gives one up: a flood from one host ends no handshake of another, however old that is. Not thread-safe.
 *
 * @param <L> a link
 */
public final class OpenHandshakes<L> {
    private final Map<L, String> hosts = new LinkedHashMap<>();

    /** @param host from which the link came, without a port */
    public void add(L link, String host) {
        hosts.put(link, host);
    }

    public void remove(L link) {
        hosts.remove(link);
    }

    public int count() {
        return hosts.size();
    }

    /** The oldest link of the host that has the most; the oldest of these where hosts have equally many. */
    public L ofTheFullest() {
        Map<String, Integer> counts = new HashMap<>();
        hosts.values().forEach(host -> counts.merge(host, 1, Integer::sum));
        L fullest = null;
        int most = 0;
        for (Map.Entry<L, String> link : hosts.entrySet()) {
            if (counts.get(link.getValue()) > most) {
                fullest = link.getKey();
                most = counts.get(link.getValue());
            }
        }
        return fullest;
    }
}
