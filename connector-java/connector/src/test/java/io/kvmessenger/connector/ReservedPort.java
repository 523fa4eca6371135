package io.kvmessenger.connector;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;

/**
 * A port that no other socket of this machine is given, while a test needs it free, or refused. It is bound here and
 * never listened on: connections to it are refused, and only a listener that asks for this very port can bind it too.
 */
public final class ReservedPort implements AutoCloseable {
    private final List<Socket> holders = new ArrayList<>();

    /** @param hosts literal addresses at which the same port is reserved; loopback without any */
    public ReservedPort(String... hosts) {
        try {
            while (!reserve(hosts.length == 0 ? new String[] {"127.0.0.1"} : hosts)) {
                release();
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** False if the port that the first address has free is taken at another one. */
    private boolean reserve(String... hosts) throws IOException {
        for (String host : hosts) {
            Socket holder = new Socket();
            holder.setReuseAddress(
                    true); // as listeners have it: they may bind the port beside a socket that does not listen
            try {
                holder.bind(new InetSocketAddress(InetAddress.ofLiteral(host), holders.isEmpty() ? 0 : number()));
            } catch (BindException taken) {
                holder.close();
                return false;
            }
            holders.add(holder);
        }
        return true;
    }

    public int number() {
        return holders.getFirst().getLocalPort();
    }

    private void release() throws IOException {
        for (Socket holder : holders) {
            holder.close();
        }
        holders.clear();
    }

    @Override
    public void close() {
        try {
            release();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
