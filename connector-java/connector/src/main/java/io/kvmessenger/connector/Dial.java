package io.kvmessenger.connector;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * The attempts to connect to one peer: every address of its name, one after the other, within one limit.
 *
 * <p>One thread at a time. It opens no socket and reads no clock.
 */
final class Dial {
    private final long link;
    private final String host;
    private final int port;
    private final List<InetAddress> addresses;
    private final long limitMillis;
    private final List<String> refusals = new ArrayList<>();
    private int tried;
    private long deadlineNs;

    /**
     * @param host the name or address that was asked for
     * @param addresses of the host, at least one
     * @param limitMillis for all of them together, from the first attempt on
     */
    Dial(long link, String host, int port, List<InetAddress> addresses, long limitMillis) {
        this.link = link;
        this.host = host;
        this.port = port;
        this.addresses = List.copyOf(addresses);
        this.limitMillis = limitMillis;
    }

    long link() {
        return link;
    }

    String host() {
        return host;
    }

    int port() {
        return port;
    }

    boolean hasNext() {
        return tried < addresses.size();
    }

    InetSocketAddress next() {
        return new InetSocketAddress(addresses.get(tried++), port);
    }

    /** The limit of the attempt that {@link #next} began: what is left, shared with the addresses after it. */
    int limitMillis(long nowNs) {
        if (tried == 1) {
            deadlineNs = nowNs + TimeUnit.MILLISECONDS.toNanos(limitMillis);
        }
        long leftMillis = TimeUnit.NANOSECONDS.toMillis(deadlineNs - nowNs);
        long share = leftMillis / (addresses.size() - tried + 1);
        return Math.clamp(share, 1, Integer.MAX_VALUE);
    }

    /** Notes why the attempt failed. */
    void refused(String reason) {
        String address = addresses.get(tried - 1).getHostAddress();
        refusals.add(address.equals(host) ? reason : address + ": " + reason);
    }

    /** Each address with its reason; an address that was asked for as such is not repeated. */
    String refusals() {
        return String.join("; ", refusals);
    }
}
