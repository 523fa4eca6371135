package io.kvmessenger.connector;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.messenger.Messenger;
import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.session.MessengerIdentity;
import io.kvmessenger.messenger.session.PeerWarnings;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.testkit.echo.EchoSubject;
import io.kvmessenger.testkit.sim.SilentTally;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.SplittableRandom;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** A messenger without any KV, on production's network and transfer engine. */
final class EchoSide implements AutoCloseable {
    static final int REGION_LENGTH_BYTES = 1 << 20;

    private static final NanoClock CLOCK = System::nanoTime;
    private static final long SECOND_NS = 1_000_000_000L;
    private static final ProtocolLimits LIMITS =
            new ProtocolLimits(30 * SECOND_NS, 30 * SECOND_NS, 30 * SECOND_NS, SECOND_NS, 10 * SECOND_NS);

    private final HostMemory memory = HostMemory.allocate("echo", REGION_LENGTH_BYTES);
    final MemorySegment bytes = memory.memory();
    final BlockingQueue<String> events = new LinkedBlockingQueue<>();
    final ConcurrentLinkedQueue<Throwable> faults = new ConcurrentLinkedQueue<>();
    final int port;
    private final CloseOnExec closeOnExec = new CloseOnExec(new FfmLibC());
    private final TransferEngine transfer;
    private final Inbox inbox;
    private final NettyControlNetwork network;
    private final EchoSubject subject;
    private final MessengerAgent agent;

    EchoSide(String name, String word, String secret, String transport) {
        transfer = TransferEngines.open(TransferOptions.defaults().withTransports(transport));
        inbox = new Inbox(CLOCK, transfer::wake);
        network = new NettyControlNetwork(inbox, 5_000, NettyControlNetwork.LINKS_MAX, closeOnExec, null);
        Tally tally = new SilentTally();
        EngineLog log = (level, message) -> {};
        PeerWarnings warnings = new PeerWarnings(log, CLOCK);
        Sessions sessions = new Sessions(
                new MessengerIdentity(name, name.hashCode(), secret.getBytes(StandardCharsets.UTF_8)),
                network,
                LIMITS,
                tally,
                new SplittableRandom(name.hashCode()),
                warnings);
        subject = new EchoSubject(
                word, transfer.register(new Memory.Host(bytes, memory.memfd())), sessions, transfer, events::add);
        Messenger messenger = new Messenger(sessions, subject, new Messenger.Ports(transfer, tally, warnings, CLOCK));
        port = network.listen("127.0.0.1", 0);
        agent = new MessengerAgent(transfer, messenger, inbox, CLOCK, faults::add);
        agent.start();
    }

    /** Asks the messenger at this port for the first bytes of its region. */
    void ask(long id, int ofPort, int lengthBytes) {
        inbox.add(messenger -> subject.ask(id, "127.0.0.1", ofPort, lengthBytes, CLOCK.nowNs()));
    }

    @Override
    public void close() {
        CompletableFuture<Void> left = new CompletableFuture<>();
        inbox.add(messenger -> messenger.leave("the echo is over", left));
        left.orTimeout(30, TimeUnit.SECONDS).join();
        if (!agent.stop(Duration.ofSeconds(30))) {
            throw new AssertionError("the messenger's thread has not ended");
        }
        network.close();
        closeOnExec.close();
        memory.close();
    }
}
