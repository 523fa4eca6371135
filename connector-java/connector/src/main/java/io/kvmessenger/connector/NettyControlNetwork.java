package io.kvmessenger.connector;

import com.google.protobuf.InvalidProtocolBufferException;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.session.ControlNetwork;
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
import io.netty.channel.WriteBufferWaterMark;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.CorruptedFrameException;
import io.netty.handler.codec.DecoderException;
import io.netty.handler.ssl.SslHandshakeCompletionEvent;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import javax.net.ssl.SSLContext;

/**
 * Control links over TCP by Netty: 4-byte length, then one {@link ControlFrame}.
 *
 * <p>One daemon event-loop thread, which only moves frames into the {@link Inbox}; permissions and timeouts of links
 * are up to the messenger. Malformed input, and frames over the limit, close their link. A peer that sends faster than
 * the messenger processes is not read for a while, without effect on others.
 */
final class NettyControlNetwork implements ControlNetwork, AutoCloseable {
    /** Limit on open links; further ones are closed on arrival, so that unproven peers cannot exhaust descriptors. */
    static final int LINKS_MAX = 4096;

    /** Frames of one link that may wait for the messenger, one until it is trusted; at the limit it is not read. */
    static final int FRAMES_WAITING_MAX = 256;

    /** Limit on their bytes. */
    static final long FRAME_BYTES_WAITING_MAX = ProtocolLimits.FRAME_LENGTH_MAX_BYTES;
    /** Limit on unsent bytes of one link; a peer that lets more pile up does not read, and its link is closed. */
    static final int UNSENT_BYTES_MAX = 4 * ProtocolLimits.FRAME_LENGTH_MAX_BYTES;

    private static final long CLOSE_LIMIT_MILLIS = 1_000;
    private static final String LOOP_ENDED = "the thread of the control port has ended, its error is in the log";

    final EventLoopGroup loop;
    private final HostNames names = new HostNames();
    private final Inbox inbox;
    private final int connectLimitMillis;
    private final int linksMax;
    private final CloseOnExec closeOnExec;
    /** Null if links have no TLS. */
    private final ControlTls tls;

    /** Dialled links that are not connected yet, and that are still wanted. */
    private final Set<Long> dialled = ConcurrentHashMap.newKeySet();

    private final AtomicLong nextLink = new AtomicLong(1);
    private final Map<Long, Link> links = new ConcurrentHashMap<>();
    private Channel listener;
    private volatile boolean closing;

    /**
     * @param linksMax usually {@link #LINKS_MAX}
     * @param tls secures all links; null for none
     */
    NettyControlNetwork(Inbox inbox, long connectLimitMillis, int linksMax, CloseOnExec closeOnExec, SSLContext tls) {
        this.inbox = inbox;
        this.linksMax = linksMax;
        this.closeOnExec = closeOnExec;
        this.connectLimitMillis = (int) Math.min(connectLimitMillis, Integer.MAX_VALUE);
        this.tls = tls == null ? null : new ControlTls(tls, this.connectLimitMillis);
        this.loop = new MultiThreadIoEventLoopGroup(
                1,
                (ThreadFactory) task -> Thread.ofPlatform()
                        .name("kv-messenger-control")
                        .daemon()
                        .unstarted(task),
                NioIoHandler.newFactory());
        loop.terminationFuture().addListener(_ -> onLoopEnded());
    }

    /** An Error ends Netty's loop, as where a class cannot be loaded: from then on no peer is heard. */
    private void onLoopEnded() {
        if (!closing) {
            inbox.add(m -> m.onControlEnded(LOOP_ENDED));
        }
    }

    /** Runs a task on the event loop; a loop that has ended takes none, and would throw. */
    private void onLoop(Runnable task) {
        if (!loop.isShuttingDown()) {
            loop.execute(task);
        }
    }

    /** Starts to listen; port 0 takes any free one. Returns the port. */
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
            closeOnExec.opened(portOf(listener.localAddress()));
            return portOf(listener.localAddress());
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
        if (loop.isShuttingDown()) {
            inbox.add(m -> m.onLinkClosed(link, LOOP_ENDED));
            return link;
        }
        dialled.add(link);
        names.find(host, new HostNames.Answer() {
            @Override
            public void onFound(List<InetAddress> addresses) {
                connect(new Dial(link, host, port, addresses, connectLimitMillis));
            }

            @Override
            public void onUnknown(String reason) {
                dialled.remove(link);
                unreachable(link, host, port, reason);
            }
        });
        return link;
    }

    /** Tries the next address; the one after it follows if it fails. */
    private void connect(Dial dial) {
        if (!dialled.contains(dial.link()) || loop.isShuttingDown()) {
            return; // closed meanwhile
        }
        InetSocketAddress address = dial.next();
        new Bootstrap()
                .group(loop)
                .channel(NioSocketChannel.class)
                .option(ChannelOption.TCP_NODELAY, true)
                .option(ChannelOption.CONNECT_TIMEOUT_MILLIS, dial.limitMillis(System.nanoTime()))
                .handler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        IdleProbes.begin(channel);
                        prepare(channel, dial.link(), false);
                        if (!dialled.contains(dial.link())) { // closed before the link was there to be closed
                            links.remove(dial.link());
                            hangUp(channel);
                        }
                    }
                })
                .connect(address)
                .addListener((ChannelFutureListener) done -> {
                    if (done.isSuccess()) {
                        dialled.remove(dial.link());
                    } else {
                        onUnconnected(dial, withoutAddress(done.cause()));
                    }
                });
    }

    private void onUnconnected(Dial dial, String reason) {
        links.remove(dial.link());
        dial.refused(reason);
        if (dial.hasNext()) {
            connect(dial);
        } else if (dialled.remove(dial.link())) {
            unreachable(dial.link(), dial.host(), dial.port(), dial.refusals());
        }
    }

    private void unreachable(long link, String host, int port, String reason) {
        String sentence = "prefiller " + host + ":" + port + " cannot be reached: " + reason
                + "; start it, or look at its listen_host, listen_port and advertise_host";
        inbox.add(m -> m.onLinkClosed(link, sentence));
    }

    /** Removes the address that Netty appends to the kernel's message, as the sentence contains it already. */
    private static String withoutAddress(Throwable failure) {
        return failure.getCause() instanceof IOException kernels ? kernels.getMessage() : failure.getMessage();
    }

    @Override
    public void send(long link, ControlFrame frame) {
        Link to = links.get(link);
        if (to != null) {
            to.send(frame);
        }
    }

    @Override
    public void trust(long link) {
        Link proven = links.get(link);
        if (proven != null) {
            onLoop(proven.frames::trust);
        }
    }

    @Override
    public void close(long link) {
        dialled.remove(link);
        Link removed = links.remove(link);
        if (removed != null) {
            // after earlier frames, so that a refusal reaches the peer
            onLoop(() -> hangUp(removed.channel));
        }
    }

    @Override
    public void close() {
        closing = true;
        names.close();
        dialled.clear();
        if (listener != null) {
            hangUp(listener);
        }
        links.values().forEach(link -> hangUp(link.channel));
        loop.shutdownGracefully(0, CLOSE_LIMIT_MILLIS, TimeUnit.MILLISECONDS).awaitUninterruptibly(CLOSE_LIMIT_MILLIS);
    }

    /** A failure to close needs no handling: {@code channelInactive} follows in any case. */
    private static void hangUp(Channel channel) {
        var unused = channel.close();
    }

    private void accept(SocketChannel channel) {
        if (links.size() >= linksMax) {
            inbox.add(Messenger::onLinkTurnedAway);
            hangUp(channel);
            return;
        }
        prepare(channel, nextLink.getAndIncrement(), true);
    }

    private static int portOf(SocketAddress address) {
        return ((InetSocketAddress) address).getPort();
    }

    private void prepare(SocketChannel channel, long id, boolean inbound) {
        Link link = new Link(channel, id, inbound);
        links.put(id, link);
        channel.config().setWriteBufferWaterMark(new WriteBufferWaterMark(UNSENT_BYTES_MAX / 2, UNSENT_BYTES_MAX));
        if (tls != null) {
            tls.secure(channel, inbound);
        }
        channel.pipeline().addLast(link.frames).addLast(link);
    }

    /** One link: its events on the event loop, {@link #send} and {@link #onHandled} on the messenger's thread. */
    private final class Link extends SimpleChannelInboundHandler<ByteBuf> {
        final Channel channel;
        final ControlFrameDecoder frames = new ControlFrameDecoder();
        private final long id;
        private final boolean inbound;
        private final AtomicInteger framesWaiting = new AtomicInteger();
        private final AtomicLong bytesWaiting = new AtomicLong();
        private volatile boolean paused;
        private int localPort;
        private String peer = "";
        private boolean opened;
        private boolean tlsFailed;
        private volatile String reason = "the peer closed the control link";

        Link(Channel channel, long id, boolean inbound) {
            this.channel = channel;
            this.id = id;
            this.inbound = inbound;
        }

        void send(ControlFrame frame) {
            if (!channel.isActive()) {
                return; // it has ended, and the reason arrives through the inbox
            }
            if (!channel.isWritable()) {
                reason = "the peer does not read: more than " + UNSENT_BYTES_MAX + " bytes wait for it";
                hangUp(channel);
                return;
            }
            byte[] body = frame.toByteArray();
            ByteBuf bytes = channel.alloc().buffer(Integer.BYTES + body.length);
            bytes.writeInt(body.length).writeBytes(body);
            // Netty closes a channel whose write fails (AUTO_CLOSE); a listener would wake the event loop for each
            // frame.
            var unused = channel.writeAndFlush(bytes);
        }

        @Override
        public void channelActive(ChannelHandlerContext context) {
            peer = address(context.channel().remoteAddress());
            localPort = portOf(context.channel().localAddress());
            closeOnExec.opened(localPort);
            if (tls == null) {
                open();
            }
        }

        private void open() {
            opened = true;
            String from = peer;
            inbox.add(m -> m.onLinkOpened(id, inbound, from));
        }

        /** With TLS a link is open when both sides have presented their certificates, as far as this side can know. */
        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof SslHandshakeCompletionEvent handshake) {
                if (handshake.isSuccess()) {
                    open();
                } else {
                    onTlsFault(handshake.cause());
                }
            }
        }

        /** Reports the first fault only; later ones are its consequences. */
        private void onTlsFault(Throwable fault) {
            if (tlsFailed) {
                return;
            }
            tlsFailed = true;
            reason = TlsFaults.describe(fault);
            if (inbound && !opened) {
                String from = peer;
                String reported = reason;
                inbox.add(m -> m.onLinkRefused(from, reported));
            }
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf bytes) throws IOException {
            int lengthBytes = bytes.readableBytes();
            ControlFrame frame = ControlFrame.parseFrom(new ByteBufInputStream(bytes));
            int waiting = framesWaiting.incrementAndGet();
            int waitingMax = frames.trusted() ? FRAMES_WAITING_MAX : 1;
            if (bytesWaiting.addAndGet(lengthBytes) > FRAME_BYTES_WAITING_MAX || waiting >= waitingMax) {
                paused = true;
                frames.pause(channel);
            }
            inbox.add(m -> {
                onHandled(lengthBytes);
                m.onFrame(id, frame);
            });
        }

        /** The messenger has processed a frame: reading resumes once half of the limit is free. */
        private void onHandled(int lengthBytes) {
            int waiting = framesWaiting.decrementAndGet();
            long waitingBytes = bytesWaiting.addAndGet(-lengthBytes);
            if (paused && waiting <= FRAMES_WAITING_MAX / 2 && waitingBytes <= FRAME_BYTES_WAITING_MAX / 2) {
                paused = false;
                onLoop(() -> frames.resume(channel));
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            if (TlsFaults.in(cause) != null) {
                onTlsFault(TlsFaults.in(cause));
                hangUpUnlessRefusing(context, cause);
                return;
            }
            reason = "the control link broke: " + cause.getMessage();
            if (cause instanceof CorruptedFrameException) {
                String from = peer;
                inbox.add(m -> m.onLinkRefused(from, cause.getMessage()));
            }
            if (cause instanceof DecoderException || cause instanceof InvalidProtocolBufferException) {
                inbox.add(Messenger::onGarbage);
            }
            hangUp(context.channel());
        }

        /** Closes the link, unless a peer without TLS is being sent the reason: that closes it afterwards. */
        private static void hangUpUnlessRefusing(ChannelHandlerContext context, Throwable cause) {
            if (!(cause instanceof NoTlsException)) {
                hangUp(context.channel());
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            links.remove(id);
            if (!inbound) {
                closeOnExec.closed(localPort);
            }
            inbox.add(m -> m.onLinkClosed(id, reason));
        }

        private static String address(SocketAddress address) {
            return address instanceof InetSocketAddress inet
                    ? inet.getHostString() + ":" + inet.getPort()
                    : String.valueOf(address);
        }
    }
}
