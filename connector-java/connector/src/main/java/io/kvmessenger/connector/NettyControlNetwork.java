package io.kvmessenger.connector;

import io.kvmessenger.messenger.ControlNetwork;
import io.kvmessenger.messenger.ProtocolLimits;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufInputStream;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.LengthFieldBasedFrameDecoder;
import io.netty.handler.codec.LengthFieldPrepender;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Control links over TCP by Netty: 4-byte length, then one {@link ControlFrame}.
 *
 * <p>One daemon event-loop thread, which only moves frames into the {@link Inbox}; who may say what, and for how long a
 * link may stay silent, is the messenger's business. Bytes that are no frame, and frames over the limit, close their link.
 */
final class NettyControlNetwork implements ControlNetwork, AutoCloseable {
    /** Links open at once; further ones are closed on arrival, so that strangers cannot use up descriptors. */
    static final int LINKS_MAX = 4096;

    private static final int LENGTH_FIELD_BYTES = 4;
    private static final long CLOSE_LIMIT_MILLIS = 1_000;

    private final EventLoopGroup loop;
    private final Inbox inbox;
    private final int connectLimitMillis;
    private final AtomicLong nextLink = new AtomicLong(1);
    private final Map<Long, Channel> channels = new ConcurrentHashMap<>();
    private Channel listener;

    NettyControlNetwork(Inbox inbox, long connectLimitMillis) {
        this.inbox = inbox;
        this.connectLimitMillis = (int) Math.min(connectLimitMillis, Integer.MAX_VALUE);
        this.loop = new MultiThreadIoEventLoopGroup(
                1,
                (ThreadFactory) task -> Thread.ofPlatform()
                        .name("kv-messenger-control")
                        .daemon()
                        .unstarted(task),
                NioIoHandler.newFactory());
    }

    /** Starts to listen; port 0 takes any. Returns the port. */
    int listen(String host, int port) {
        try {
            listener = new ServerBootstrap()
                    .group(loop)
                    .channel(NioServerSocketChannel.class)
                    .option(ChannelOption.SO_REUSEADDR, true)
                    .childOption(ChannelOption.TCP_NODELAY, true)
                    .childHandler(new ChannelInitializer<SocketChannel>() {
                        @Override
                        protected void initChannel(SocketChannel channel) {
                            accept(channel);
                        }
                    })
                    .bind(new InetSocketAddress(host, port))
                    .sync()
                    .channel();
            return ((InetSocketAddress) listener.localAddress()).getPort();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while binding " + host + ":" + port, e);
        } catch (Exception e) { // Netty throws BindException unchecked
            throw new IllegalArgumentException(
                    "listen_port " + port + " on listen_host " + host + " cannot be used (" + e.getMessage()
                            + "): end the program that uses it, or choose another port, or 0 for any free one",
                    e);
        }
    }

    @Override
    public long dial(String host, int port) {
        long link = nextLink.getAndIncrement();
        new Bootstrap()
                .group(loop)
                .channel(NioSocketChannel.class)
                .option(ChannelOption.TCP_NODELAY, true)
                .option(ChannelOption.CONNECT_TIMEOUT_MILLIS, connectLimitMillis)
                .handler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        channels.put(link, channel);
                        prepare(channel, link, false);
                    }
                })
                .connect(host, port)
                .addListener((ChannelFutureListener) done -> {
                    if (!done.isSuccess()) {
                        channels.remove(link);
                        String reason = "prefiller " + host + ":" + port + " cannot be reached: "
                                + done.cause().getMessage();
                        inbox.add(m -> m.onLinkClosed(link, reason));
                    }
                });
        return link;
    }

    @Override
    public void send(long link, ControlFrame frame) {
        Channel channel = channels.get(link);
        if (channel != null) {
            ByteBuf bytes = channel.alloc().buffer(frame.getSerializedSize());
            bytes.writeBytes(frame.toByteArray());
            var unused = channel.writeAndFlush(bytes).addListener(ChannelFutureListener.CLOSE_ON_FAILURE);
        }
    }

    @Override
    public void close(long link) {
        Channel channel = channels.remove(link);
        if (channel != null) {
            // behind what was sent before, so that a refusal reaches the peer
            channel.eventLoop().execute(() -> hangUp(channel));
        }
    }

    @Override
    public void close() {
        if (listener != null) {
            hangUp(listener);
        }
        channels.values().forEach(NettyControlNetwork::hangUp);
        loop.shutdownGracefully(0, CLOSE_LIMIT_MILLIS, TimeUnit.MILLISECONDS).awaitUninterruptibly(CLOSE_LIMIT_MILLIS);
    }

    /** Closing cannot fail in a way that matters: {@code channelInactive} follows in any case. */
    private static void hangUp(Channel channel) {
        var unused = channel.close();
    }

    private void accept(SocketChannel channel) {
        if (channels.size() >= LINKS_MAX) {
            inbox.add(messenger -> messenger.onGarbage());
            hangUp(channel);
            return;
        }
        long link = nextLink.getAndIncrement();
        channels.put(link, channel);
        prepare(channel, link, true);
    }

    private void prepare(SocketChannel channel, long link, boolean inbound) {
        channel.pipeline()
                .addLast(new LengthFieldBasedFrameDecoder(
                        ProtocolLimits.FRAME_LENGTH_MAX_BYTES, 0, LENGTH_FIELD_BYTES, 0, LENGTH_FIELD_BYTES))
                .addLast(new LengthFieldPrepender(LENGTH_FIELD_BYTES))
                .addLast(new LinkHandler(link, inbound));
    }

    /** One link's events, on the event loop. */
    private final class LinkHandler extends SimpleChannelInboundHandler<ByteBuf> {
        private final long link;
        private final boolean inbound;
        private String reason = "the peer closed the control link";

        LinkHandler(long link, boolean inbound) {
            this.link = link;
            this.inbound = inbound;
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            String peer = address(context.channel().remoteAddress());
            inbox.add(m -> m.onLinkOpened(link, inbound, peer));
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf bytes) throws IOException {
            ControlFrame frame = ControlFrame.parseFrom(new ByteBufInputStream(bytes));
            if (!inbox.addFrame(m -> m.onFrame(link, frame))) {
                throw new IOException("more than " + Inbox.FRAMES_MAX + " frames wait");
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            reason = "the control link broke: " + cause.getMessage();
            inbox.add(messenger -> messenger.onGarbage());
            hangUp(context.channel());
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            channels.remove(link);
            inbox.add(m -> m.onLinkClosed(link, reason));
        }

        private static String address(SocketAddress address) {
            return address instanceof InetSocketAddress inet
                    ? inet.getHostString() + ":" + inet.getPort()
                    : String.valueOf(address);
        }
    }
}
