package io.kvmessenger.connector;

import io.kvmessenger.messenger.session.OpenHandshakes;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Refusal;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelPipeline;
import io.netty.handler.ssl.SslHandler;
import io.netty.util.concurrent.Future;
import java.net.InetSocketAddress;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;

/**
 * TLS 1.3 on control links, where both sides present a certificate of a CA that the other one trusts. Host names in
 * certificates are not checked: a router names peers, mostly by address, and the CA alone decides which ones are
 * admitted.
 *
 * <p>Event loop only. It limits the number and duration of handshakes. Of the protocol it knows only the frame by which
 * a peer without TLS is told that TLS is required.
 */
final class ControlTls {
    /** Limit on incomplete handshakes begun by peers; one more, and the host with the most loses its oldest. */
    static final int HANDSHAKES_MAX = 64;
    /**
     * How much of the limit on its handshake a peer that has dialled may stay silent. One with TLS sends as soon as it
     * has a core; one without waits to be spoken to, and is told why before it gives up.
     */
    private static final int FIRST_BYTE_SHARE = 6;
    /** The first byte of a TLS handshake record. */
    private static final int HANDSHAKE_RECORD = 0x16;

    static final String SET_ON_BOTH = "set tls_certificate, tls_key and tls_ca on both sides, or on none";

    private final SSLContext context;
    private final int handshakeLimitMillis;
    private final int firstByteLimitMillis;
    private final OpenHandshakes<Channel> handshaking = new OpenHandshakes<>();

    ControlTls(SSLContext context, int handshakeLimitMillis) {
        this.context = context;
        this.handshakeLimitMillis = handshakeLimitMillis;
        this.firstByteLimitMillis = handshakeLimitMillis / FIRST_BYTE_SHARE;
    }

    /** Inserts TLS before the following handlers of the pipeline. */
    void secure(Channel channel, boolean inbound) {
        SSLEngine engine = context.createSSLEngine();
        engine.setUseClientMode(!inbound);
        engine.setNeedClientAuth(inbound);
        SslHandler tls = new SslHandler(engine);
        tls.setHandshakeTimeoutMillis(handshakeLimitMillis);
        ChannelPipeline pipeline = channel.pipeline();
        if (inbound) {
            keepFew(channel, tls.handshakeFuture());
            pipeline.addLast(new FirstByte());
        }
        pipeline.addLast(tls);
    }

    private void keepFew(Channel channel, Future<Channel> handshake) {
        if (handshaking.count() >= HANDSHAKES_MAX) {
            Channel one = handshaking.ofTheFullest();
            handshaking.remove(one);
            var unused = one.close();
        }
        handshaking.add(channel, host(channel));
        handshake.addListener(done -> handshaking.remove(channel));
        channel.closeFuture().addListener(done -> handshaking.remove(channel));
    }

    private static String host(Channel channel) {
        return channel.remoteAddress() instanceof InetSocketAddress address ? address.getHostString() : "";
    }

    /** The refusal for a peer without TLS: a frame of the protocol, in clear. */
    private static ByteBuf refusal(ChannelHandlerContext context) {
        byte[] frame = ControlFrame.newBuilder()
                .setRefusal(Refusal.newBuilder()
                        .setField("tls")
                        .setSentence("control links have TLS here and not at the peer: " + SET_ON_BOTH))
                .build()
                .toByteArray();
        return context.alloc()
                .buffer(Integer.BYTES + frame.length)
                .writeInt(frame.length)
                .writeBytes(frame);
    }

    /** Bypasses TLS, whose closing messages mean nothing to such a peer. */
    private static void hangUp(ChannelHandlerContext context) {
        var unused = context.close();
    }

    /** Checks the first byte of an inbound link: whether it arrives in time, and whether it belongs to TLS. */
    private final class FirstByte extends ChannelInboundHandlerAdapter {
        private Future<?> limit;

        @Override
        public void channelActive(ChannelHandlerContext context) {
            limit = context.executor().schedule(() -> refuse(context), firstByteLimitMillis, TimeUnit.MILLISECONDS);
            context.fireChannelActive();
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf bytes = (ByteBuf) message;
            if (bytes.isReadable() && bytes.getByte(bytes.readerIndex()) != HANDSHAKE_RECORD) {
                bytes.release();
                refuse(context);
                return;
            }
            context.pipeline().remove(this);
            context.fireChannelRead(message);
        }

        private void refuse(ChannelHandlerContext context) {
            limit.cancel(false);
            context.channel().config().setAutoRead(false);
            context.fireExceptionCaught(new NoTlsException());
            var unused = context.writeAndFlush(refusal(context)).addListener(done -> hangUp(context));
        }

        @Override
        public void handlerRemoved(ChannelHandlerContext context) {
            if (limit != null) {
                limit.cancel(false);
            }
        }
    }
}
