package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.embedded.EmbeddedChannel;
import io.netty.handler.codec.TooLongFrameException;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Frames that one read has brought, taken a few at a time, with and without TLS before the decoder. */
@Timeout(300)
class ControlFrameDecoderTest {
    private static final int HANDSHAKE_LIMIT_MILLIS = 300_000;
    private static final int FRAMES = 7;

    @TempDir
    static Path folder;

    private static TestCertificates made;

    private final List<Integer> taken = new ArrayList<>();

    @BeforeAll
    static void make() {
        made = new TestCertificates(folder).authority("ca").signed("p", "ca").signed("d", "ca");
    }

    static Stream<Arguments> pauses() {
        return Stream.of(false, true)
                .flatMap(tls -> IntStream.rangeClosed(1, FRAMES + 1).mapToObj(each -> Arguments.of(tls, each)));
    }

    /** No byte follows them: what is left behind would wait for the peer's next frame. */
    @ParameterizedTest
    @MethodSource("pauses")
    void shouldGoOnAfterEachPauseWithWhatHasArrived(boolean tls, int framesUntilPause) {
        ControlFrameDecoder frames = new ControlFrameDecoder();
        EmbeddedChannel peer = new EmbeddedChannel(secured("d", false, tls));
        EmbeddedChannel here =
                new EmbeddedChannel(secured("p", true, tls), frames, new PausingReader(frames, framesUntilPause));
        try {
            carry(peer, here); // the handshake
            peer.writeOutbound(allFrames());
            carry(peer, here);
            for (int round = 1; round * framesUntilPause <= FRAMES; round++) {
                assertThat(taken).hasSize(round * framesUntilPause);
                frames.resume(here);
            }
            assertThat(taken).isEqualTo(IntStream.range(0, FRAMES).boxed().toList());
        } finally {
            peer.finishAndReleaseAll();
            here.finishAndReleaseAll();
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldReportWhatIsNoFrameBehindAPause(boolean tls) {
        ControlFrameDecoder frames = new ControlFrameDecoder();
        EmbeddedChannel peer = new EmbeddedChannel(secured("d", false, tls));
        EmbeddedChannel here = new EmbeddedChannel(secured("p", true, tls), frames, new PausingReader(frames, 1));
        try {
            carry(peer, here);
            peer.writeOutbound(
                    Unpooled.buffer().writeInt(Integer.BYTES).writeInt(0).writeInt(-1));
            carry(peer, here);
            here.checkException();
            frames.resume(here);
            assertThatThrownBy(here::checkException).isInstanceOf(TooLongFrameException.class);
        } finally {
            peer.finishAndReleaseAll();
            here.finishAndReleaseAll();
        }
    }

    private static ChannelInitializer<Channel> secured(String name, boolean inbound, boolean tls) {
        return new ChannelInitializer<>() {
            @Override
            protected void initChannel(Channel channel) {
                if (tls) {
                    new ControlTls(made.files(name, "ca").read(Instant.now()), HANDSHAKE_LIMIT_MILLIS)
                            .secure(channel, inbound);
                }
            }
        };
    }

    private static ByteBuf allFrames() {
        ByteBuf bytes = Unpooled.buffer();
        for (int frame = 0; frame < FRAMES; frame++) {
            bytes.writeInt(Integer.BYTES).writeInt(frame);
        }
        return bytes;
    }

    /** Carries what either has to send, as one read for the other, until both have nothing left. */
    private static void carry(EmbeddedChannel one, EmbeddedChannel other) {
        boolean carried = true;
        while (carried) {
            carried = carryOneWay(one, other);
            carried |= carryOneWay(other, one);
        }
    }

    private static boolean carryOneWay(EmbeddedChannel from, EmbeddedChannel to) {
        ByteBuf all = Unpooled.buffer();
        for (ByteBuf part = from.readOutbound(); part != null; part = from.readOutbound()) {
            all.writeBytes(part);
            part.release();
        }
        boolean any = all.isReadable();
        if (any) {
            to.writeInbound(all);
        }
        return any;
    }

    /** Takes frames, and pauses the decoder after each few. */
    private final class PausingReader extends SimpleChannelInboundHandler<ByteBuf> {
        private final ControlFrameDecoder frames;
        private final int framesUntilPause;

        PausingReader(ControlFrameDecoder frames, int framesUntilPause) {
            this.frames = frames;
            this.framesUntilPause = framesUntilPause;
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf frame) {
            taken.add(frame.readInt());
            if (taken.size() % framesUntilPause == 0) {
                frames.pause(context.channel());
            }
        }
    }
}
