package io.kvmessenger.connector;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;

/** Hands connections on to another port of the same host, as NAT does. */
final class PortRelay implements AutoCloseable {
    private final ServerSocket listener;
    private final InetSocketAddress target;
    private final AtomicInteger connections = new AtomicInteger();
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();

    PortRelay(int targetPort) throws IOException {
        this("127.0.0.1", targetPort);
    }

    PortRelay(String host, int targetPort) throws IOException {
        InetAddress address = InetAddress.ofLiteral(host);
        target = new InetSocketAddress(address, targetPort);
        listener = new ServerSocket(0, 16, address);
        Thread.ofPlatform().daemon().start(this::accept);
    }

    int port() {
        return listener.getLocalPort();
    }

    int connections() {
        return connections.get();
    }

    private void accept() {
        try {
            while (true) {
                Socket from = listener.accept();
                sockets.add(from);
                connections.incrementAndGet();
                Socket to = new Socket();
                sockets.add(to);
                to.connect(target);
                Thread.ofPlatform().daemon().start(() -> pump(from, to));
                Thread.ofPlatform().daemon().start(() -> pump(to, from));
            }
        } catch (IOException e) {
            sockets.forEach(PortRelay::end); // the listener is closed
        }
    }

    private static void pump(Socket from, Socket to) {
        try {
            from.getInputStream().transferTo(to.getOutputStream());
        } catch (IOException e) {
            end(from);
        } finally {
            end(to);
        }
    }

    private static void end(Socket socket) {
        try {
            socket.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    public void close() throws IOException {
        listener.close();
        sockets.forEach(PortRelay::end);
    }
}
