package io.kvmessenger.transfer.socket;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.regex.Pattern;

/**
 * {@code host:port} as in an engine's address, with a marker if connections there are sealed. The host is a literal
 * address, or a name that only the engine which dials looks up. Pure functions.
 */
public final class SocketLocation {
    private static final String SEALED = "/sealed";

    private static final int PORT_MAX = 65_535;
    /** What DNS allows, and underscores; the last label has a letter, unlike a malformed address. */
    private static final Pattern NAME =
            Pattern.compile("(?=.{1,253}$)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\\.)*"
                    + "(?=[A-Za-z0-9_-]*[A-Za-z])[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\\.?");

    private SocketLocation() {}

    public static String format(InetAddress host, int port, boolean sealed) {
        return format(host.getHostAddress(), port, sealed);
    }

    /** @param host a literal address, or a name */
    public static String format(String host, int port, boolean sealed) {
        return (host.indexOf(':') < 0 ? host : "[" + host + "]") + ":" + port + (sealed ? SEALED : "");
    }

    /**
     * Parses without any name service: the result is unresolved if the host is a name.
     *
     * @param sealing whether this engine seals
     * @throws IllegalArgumentException naming what is wrong
     */
    public static InetSocketAddress parse(String given, boolean sealing) {
        boolean sealed = given.endsWith(SEALED);
        if (sealed != sealing) {
            throw new IllegalArgumentException(
                    "KV over tcp is " + (sealed ? "encrypted" : "in clear") + " at the peer, and "
                            + (sealing ? "encrypted" : "in clear") + " here: set tcp_in_clear alike on both sides");
        }
        String location = sealed ? given.substring(0, given.length() - SEALED.length()) : given;
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
        try {
            return new InetSocketAddress(InetAddress.ofLiteral(host), port);
        } catch (IllegalArgumentException e) {
            if (!NAME.matcher(host).matches() || port < 0 || port > PORT_MAX) {
                throw e;
            }
            return InetSocketAddress.createUnresolved(host, port);
        }
    }
}
