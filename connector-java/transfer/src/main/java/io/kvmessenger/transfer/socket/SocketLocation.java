package io.kvmessenger.transfer.socket;

import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;

/** {@code host:port} with a literal host, as it stands in an engine's address. Pure functions. */
public final class SocketLocation {
    private SocketLocation() {}

    public static String format(InetAddress host, int port) {
        String literal = host.getHostAddress();
        return (host instanceof Inet6Address ? "[" + literal + "]" : literal) + ":" + port;
    }

    /** Parses without asking any name service; @throws IllegalArgumentException naming what is wrong */
    public static InetSocketAddress parse(String location) {
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
