package io.kvmessenger.connector;

import java.io.IOException;
import java.net.ConnectException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.List;

/**
 * Chooses the address of an HTTP URL whose host has several: the JDK's client takes the first, whether anything listens
 * there or not.
 *
 * <p>Blocks while it looks names up and connects; any thread.
 */
final class ReachableUrl {
    private static final int HTTP_PORT = 80;

    private ReachableUrl() {}

    /**
     * The URL itself if its host has one address, else the URL with the first address that takes a connection.
     *
     * @param limit for all addresses together
     * @throws IOException naming each address with its reason
     */
    static URI of(URI url, Duration limit) throws IOException {
        List<InetAddress> addresses = addresses(url.getHost());
        if (addresses.size() == 1) {
            return url;
        }
        int port = url.getPort() < 0 ? HTTP_PORT : url.getPort();
        Dial dial = new Dial(0, url.getHost(), port, addresses, limit.toMillis());
        while (dial.hasNext()) {
            InetSocketAddress address = dial.next();
            try (Socket probe = new Socket()) {
                probe.connect(address, dial.limitMillis(System.nanoTime()));
                return at(url, address);
            } catch (IOException e) {
                dial.refused(e.getMessage());
            }
        }
        throw new ConnectException(dial.refusals());
    }

    private static List<InetAddress> addresses(String host) throws IOException {
        try {
            return List.of(InetAddress.getAllByName(host));
        } catch (UnknownHostException e) {
            throw new UnknownHostException("no such host is known (" + e.getMessage() + ")");
        }
    }

    private static URI at(URI url, InetSocketAddress address) {
        String literal = address.getAddress().getHostAddress();
        String host = literal.indexOf(':') < 0 ? literal : "[" + literal.split("%", 2)[0] + "]";
        return URI.create("http://" + host + ":" + address.getPort() + url.getRawPath());
    }
}
