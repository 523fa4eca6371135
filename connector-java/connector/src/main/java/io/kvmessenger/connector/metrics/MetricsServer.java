package io.kvmessenger.connector.metrics;

import io.kvmessenger.connector.boot.RefusedException;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;

/**
 * Serves the pages {@code /metrics}, {@code /health}, {@code /ready}, {@code /price}, and to requests with the key the messenger's
 * state, {@code /drain} and {@code /undrain}.
 *
 * <p>It listens on loopback too if its host is another address: {@code kubectl port-forward} and a shell in the pod
 * dial loopback.
 *
 * <p>One daemon thread, which no connection can block: an incomplete request is closed at its limit, or sooner when
 * newer connections need its place. It does not interpret metrics.
 */
final class MetricsServer implements AutoCloseable {
    /** Limit on open connections; one more, and the oldest is closed. */
    static final int CONNECTIONS_MAX = 64;

    private static final long CLOSE_LIMIT_MILLIS = 1_000;
    private static final List<String> LOOPBACK = List.of("127.0.0.1", "::1");

    private final EventLoopGroup loop;
    private final List<Channel> listeners = new ArrayList<>();
    private final List<String> notes = new ArrayList<>();
    /** Event loop only. */
    private final Set<Channel> connections = new LinkedHashSet<>();

    private MetricsServer(String host, int port, Pages pages, IntConsumer onSocket) {
        InetSocketAddress address = known(host, port);
        loop = new MultiThreadIoEventLoopGroup(
                1,
                (ThreadFactory) task -> Thread.ofPlatform()
                        .name("kv-messenger-metrics")
                        .daemon()
                        .unstarted(task),
                NioIoHandler.newFactory());
        ServerBootstrap bootstrap = new ServerBootstrap()
                .group(loop)
                .channel(NioServerSocketChannel.class)
                .option(ChannelOption.SO_REUSEADDR, true)
                .childHandler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        onSocket.accept(channel.localAddress().getPort());
                        keep(channel);
                        PageHandler.addTo(channel.pipeline(), pages);
                    }
                });
        listeners.add(listen(bootstrap, address));
        onSocket.accept(port());
        listenOnLoopback(bootstrap, address.getAddress());
        onSocket.accept(port());
    }

    static MetricsServer open(String host, int port, Pages pages, IntConsumer onSocket) {
        return new MetricsServer(host, port, pages, onSocket);
    }

    int port() {
        return ((InetSocketAddress) listeners.getFirst().localAddress()).getPort();
    }

    /** What an operator should know; mostly empty. */
    List<String> notes() {
        return List.copyOf(notes);
    }

    @Override
    public void close() {
        if (loop.isShuttingDown()) {
            return;
        }
        listeners.forEach(listener -> listener.close().awaitUninterruptibly(CLOSE_LIMIT_MILLIS));
        // the end of the loop would close them too, but leak the buffer of a partial request
        loop.submit(this::hangUp).awaitUninterruptibly(CLOSE_LIMIT_MILLIS);
        close(loop);
    }

    private void hangUp() {
        for (Channel connection : List.copyOf(connections)) {
            var unused = connection.close();
        }
    }

    private void keep(Channel connection) {
        if (connections.size() >= CONNECTIONS_MAX) {
            var unused = connections.iterator().next().close();
        }
        connections.add(connection);
        connection.closeFuture().addListener(closed -> connections.remove(connection));
    }

    private static InetSocketAddress known(String host, int port) {
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new RefusedException("metrics_host is '" + host + "', expected an address of this machine: no such"
                    + " host is known, set metrics_host to 127.0.0.1 or another address");
        }
        return address;
    }

    private Channel listen(ServerBootstrap bootstrap, InetSocketAddress address) {
        try {
            return bootstrap.bind(address).sync().channel();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            close(loop);
            throw new IllegalStateException("interrupted while binding " + address, e);
        } catch (Exception e) { // Netty throws BindException unchecked
            close(loop);
            throw refusal(address, e);
        }
    }

    /** The same port on loopback, where nothing else has it: a convenience, so it never ends a start. */
    private void listenOnLoopback(ServerBootstrap bootstrap, InetAddress host) {
        if (host.isAnyLocalAddress() || host.isLoopbackAddress()) {
            return;
        }
        for (String literal : LOOPBACK) {
            ChannelFuture bound = bootstrap
                    .bind(new InetSocketAddress(InetAddress.ofLiteral(literal), port()))
                    .awaitUninterruptibly();
            if (bound.isSuccess()) {
                listeners.add(bound.channel());
            }
        }
        if (listeners.size() == 1) {
            notes.add("the metrics pages are at " + host.getHostAddress() + ":" + port()
                    + " and not on 127.0.0.1 too, because another program has that port there");
        }
    }

    private static void close(EventLoopGroup unused) {
        var done = unused.shutdownGracefully(0, CLOSE_LIMIT_MILLIS, TimeUnit.MILLISECONDS);
        done.awaitUninterruptibly(CLOSE_LIMIT_MILLIS);
    }

    private static RefusedException refusal(InetSocketAddress address, Exception cause) {
        String reason = cause.getMessage();
        if (!isOfThisMachine(address)) {
            return new RefusedException(
                    "metrics_host is '" + address.getHostString() + "', expected an address of this machine (" + reason
                            + "): set metrics_host to 127.0.0.1 or another address of this machine",
                    cause);
        }
        return new RefusedException(
                "metrics_port is " + address.getPort() + " on " + address.getHostString()
                        + ", expected a free port of this machine (" + reason
                        + "): choose another metrics_port, 0 to take any free one, or -1 to do without the pages",
                cause);
    }

    /** Whether this machine has the address: on another machine's, not even an arbitrary port can be listened on. */
    private static boolean isOfThisMachine(InetSocketAddress address) {
        if (address.getAddress().isAnyLocalAddress()) {
            return true;
        }
        try (java.net.ServerSocket anyPort = new java.net.ServerSocket(0, 1, address.getAddress())) {
            return anyPort.isBound();
        } catch (java.io.IOException e) {
            return false;
        }
    }
}
