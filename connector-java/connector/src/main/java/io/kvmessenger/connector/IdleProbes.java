package io.kvmessenger.connector;

import io.netty.channel.ChannelOption;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.SocketChannelConfig;
import java.util.Map;

/**
 * TCP keepalive of a dialled control link: while nothing is sent on it, the kernel asks the peer's whether it is open.
 *
 * <p>The listening side sends the first frame. If it closes at the very moment of the dial, the kernel may leave the
 * dialling side a connection of which the other one knows nothing; without a probe it stands until the limit of the
 * handshake. No state; the event loop calls it.
 */
final class IdleProbes {
    static final int IDLE_SECONDS = 2;

    /** Unanswered probes end a link after 32 s, later than silence does by default; an answer that denies it, at once. */
    static final int COUNT = 15;

    /** By the names of the JDK's options, which a Java runtime without the module jdk.net lacks: then none is set. */
    static final Map<String, Integer> VALUES =
            Map.of("TCP_KEEPIDLE", IDLE_SECONDS, "TCP_KEEPINTERVAL", IDLE_SECONDS, "TCP_KEEPCOUNT", COUNT);

    private IdleProbes() {}

    static void begin(SocketChannel channel) {
        SocketChannelConfig config = channel.config();
        config.setKeepAlive(true);
        config.getOptions().forEach((option, before) -> {
            Integer value = VALUES.get(option.name());
            if (value != null) {
                set(config, option, value);
            }
        });
    }

    @SuppressWarnings("unchecked") // options of these names are integers
    private static void set(SocketChannelConfig config, ChannelOption<?> option, Integer value) {
        config.setOption((ChannelOption<Integer>) option, value);
    }
}
