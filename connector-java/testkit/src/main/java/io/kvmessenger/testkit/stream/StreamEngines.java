package io.kvmessenger.testkit.stream;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.EngineLimits;
import io.kvmessenger.transfer.engine.EnginePorts;
import io.kvmessenger.transfer.engine.InvokedEngine;
import io.kvmessenger.transfer.link.SocketLinks;
import io.kvmessenger.transfer.socket.EventLoop;
import java.security.SecureRandom;
import java.util.List;

/** Opens engines that have this transport only, and work while they are polled or waited for. */
public final class StreamEngines {
    private static final int COMPLETIONS = 1 << 16;
    private static final int PEERS = 1 << 10;

    private StreamEngines() {}

    public static TransferEngine open(TransferOptions options) {
        LibC libC = new FfmLibC();
        EventLoop loop = new EventLoop(libC, System::nanoTime);
        long connectLimitNs = options.get(TransferOptions.CONNECT_LIMIT_NS);
        SocketLinks links = new SocketLinks(loop, connectLimitNs, options.get(TransferOptions.IDLE_LIMIT_NS));
        StreamTransport transport = new StreamTransport(loop, links, connectLimitNs);
        EnginePorts ports =
                new EnginePorts(libC, System::nanoTime, new SecureRandom(), loop, links, List.of(transport));
        return new Invoked(new InvokedEngine(limits(options), ports, () -> {}), loop);
    }

    private static EngineLimits limits(TransferOptions options) {
        return new EngineLimits(
                options.get(TransferOptions.REQUESTS_PER_PEER_MAX),
                Imm.SLOT_COUNT_MAX,
                Imm.GENERATION_COUNT,
                COMPLETIONS,
                PEERS);
    }

    private static final class Invoked extends PassingTransferEngine {
        private static final int WAIT_MS = 1;

        private final InvokedEngine engine;
        private final EventLoop loop;
        private volatile boolean woken;

        Invoked(InvokedEngine engine, EventLoop loop) {
            super(engine.engine());
            this.engine = engine;
            this.loop = loop;
        }

        @Override
        public int poll(CompletionHandler handler, int limit) {
            engine.doWork();
            return super.poll(handler, limit);
        }

        @Override
        public void await(long limitNs) {
            long begunNs = System.nanoTime();
            while (!woken && engine.doWork() == 0 && System.nanoTime() - begunNs < limitNs) {
                loop.poll(WAIT_MS);
            }
            woken = false;
        }

        @Override
        public void wake() {
            woken = true;
            loop.wake();
        }
    }
}
