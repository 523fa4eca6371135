package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.codec.CorruptedFrameException;
import io.netty.handler.codec.TooLongFrameException;
import java.util.List;

/**
 * Splits a link's bytes into frames: 4-byte length, then the frame. An unproven peer may send short frames only. While
 * paused it reads nothing more from the link, so that the peer is back-pressured instead of this process's memory
 * growing.
 *
 * <p>Event loop only.
 */
final class ControlFrameDecoder extends ByteToMessageDecoder {
    private static final int LENGTH_FIELD_BYTES = 4;
    /** The start of a TLS handshake record, as it appears in a frame's length without its last two bytes. */
    private static final int TLS_HANDSHAKE = 0x16_03;

    private int frameLengthMaxBytes = ProtocolLimits.HANDSHAKE_FRAME_LENGTH_MAX_BYTES;
    private boolean paused;
    private boolean broken;

    void trust() {
        frameLengthMaxBytes = ProtocolLimits.FRAME_LENGTH_MAX_BYTES;
    }

    boolean trusted() {
        return frameLengthMaxBytes == ProtocolLimits.FRAME_LENGTH_MAX_BYTES;
    }

    void pause(Channel channel) {
        paused = true;
        channel.config().setAutoRead(false);
    }

    void resume(Channel channel) {
        paused = false;
        channel.config().setAutoRead(true);
        ChannelHandlerContext own = channel.pipeline().context(this);
        if (own != null) {
            takeWhatHasArrived(own);
        }
    }

    /** Begins here, and not where bytes come in: TLS, which is before, passes nothing on when it is given nothing. */
    private void takeWhatHasArrived(ChannelHandlerContext own) {
        try {
            channelRead(own, Unpooled.EMPTY_BUFFER);
        } catch (Exception fault) {
            own.fireExceptionCaught(fault);
        }
    }

    @Override
    protected void decode(ChannelHandlerContext context, ByteBuf in, List<Object> out) {
        if (broken) {
            in.skipBytes(in.readableBytes()); // the link is being closed
            return;
        }
        if (paused || in.readableBytes() < LENGTH_FIELD_BYTES) {
            return;
        }
        int lengthBytes = in.getInt(in.readerIndex());
        if (lengthBytes < 0 || lengthBytes > frameLengthMaxBytes) {
            broken = true;
            if (lengthBytes >>> Short.SIZE == TLS_HANDSHAKE) {
                throw new CorruptedFrameException(
                        "the peer speaks TLS and this side does not: " + ControlTls.SET_ON_BOTH);
            }
            throw new TooLongFrameException("a frame of " + Integer.toUnsignedString(lengthBytes)
                    + " bytes, expected at most " + frameLengthMaxBytes
                    + (trusted() ? "" : ": look whether the port is that of a messenger"));
        }
        if (in.readableBytes() - LENGTH_FIELD_BYTES >= lengthBytes) {
            in.skipBytes(LENGTH_FIELD_BYTES);
            out.add(in.readRetainedSlice(lengthBytes));
        }
    }
}
