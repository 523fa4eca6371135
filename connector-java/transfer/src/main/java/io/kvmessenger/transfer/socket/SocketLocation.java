package io.kvmessenger.transfer.socket;

import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;

/**
 * {@code host:port} with a literal host, as in an engine's address, with a marker if connections there are sealed. Pure
 * functions.
 */
public final class SocketLocation {
    private static final String SEALED = "/sealed";

    private SocketLocation() {}

    public static String format(InetAddress host, int port, boolean sealed) {
        String literal = host.getHostAddress();
        return (host instanceof Inet6Address ? "[" + literal + "]" : literal) + ":" + port + (sealed ? SEALED : "");
    }

    /**
     * Parses without any name service.
     *
     * @param sealing whether this engine seals
     * @throws IllegalArgumentException naming what is wrong
     */
    public static InetSocketAddress parse(String said, boolean sealing) {
        boolean sealed = said.endsWith(SEALED);
        if (sealed != sealing) {
            throw new IllegalArgumentException(
                    "KV over tcp is " + (sealed ? "encrypted" : "in clear") + " at the peer, and "
                            + (sealing ? "encrypted" : "in clear") + " here: set tcp_in_clear alike on both sides");
        }
        String location = sealed ? said.substring(0, said.length() - SEALED.length()) : said;
        int colon = location.lastIndexOf(':');
        if (colon < 0) {
            throw new IllegalArgumentException("location " + location + " is not host:port");
        }
        String host = location.substring(0, colon);
        if (host.startsWith("[") && host.endsWith("]")) {
            host = host.substring(1, host.length() - 1);
        }
        int port;
        try {
            port = Integer.parseInt(location.substring(colon + 1));
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException("location " + location + " has no port number", e);
        }
        return new InetSocketAddress(InetAddress.ofLiteral(host), port);
    }
}
