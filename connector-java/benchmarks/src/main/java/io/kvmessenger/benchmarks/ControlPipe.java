package io.kvmessenger.benchmarks;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.RegionDescriptor;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.List;

/**
 * Carries what the two processes exchange besides writes: the role of a messenger's control link in production. Runs
 * over the target's standard streams, or over a connection between two hosts; both ends must be of the same build.
 *
 * <p>For one thread.
 */
final class ControlPipe {
    /** What one side must know about the other before it can write. */
    record Hello(EngineAddress address, byte[] admissionKey, RegionDescriptor region) {}

    /**
     * The target's measurements of a round.
     *
     * @param compiledMillis time that its JVM has spent compiling since it began
     */
    record RoundOutcome(long filledNs, long cpuNs, long compiledMillis) {}

    /** Marks the beginning: a JVM may print text of its own on standard output before. */
    private static final long BEGIN = 0x6b76_7065_7266_3a0aL;

    /** Longest wait of one side for the other; a write of 2 GiB over 64 Mb/s takes 270 s. Beyond it something hangs. */
    static final long WAIT_LIMIT_NS = 3_600_000_000_000L;

    private final DataInputStream in;
    private final DataOutputStream out;
    private Runnable meanwhile = () -> {};

    ControlPipe(InputStream in, OutputStream out) {
        this.in = new DataInputStream(new BufferedInputStream(in));
        this.out = new DataOutputStream(new BufferedOutputStream(out));
    }

    /** Sets the work to run repeatedly while waiting for the other side: an engine may move bytes only then. */
    void meanwhile(Runnable dutyCycle) {
        meanwhile = dutyCycle;
    }

    private void await() throws IOException {
        long startedNs = System.nanoTime();
        while (in.available() == 0) {
            meanwhile.run();
            if (System.nanoTime() - startedNs > WAIT_LIMIT_NS) {
                throw new IllegalStateException(
                        "the other side has said nothing for " + WAIT_LIMIT_NS / 1_000_000_000 + " s");
            }
        }
    }

    void sendBegin() throws IOException {
        out.writeLong(BEGIN);
        out.flush();
    }

    /** Drops all input before the other side's {@link #sendBegin}. */
    void awaitBegin() throws IOException {
        for (long seen = 0; seen != BEGIN; ) {
            seen = seen << Byte.SIZE | in.readUnsignedByte();
        }
    }

    void sendHellos(List<Hello> hellos) throws IOException {
        out.writeInt(hellos.size());
        for (Hello hello : hellos) {
            sendHello(hello);
        }
    }

    List<Hello> receiveHellos() throws IOException {
        List<Hello> hellos = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            hellos.add(receiveHello());
        }
        return hellos;
    }

    private void sendHello(Hello hello) throws IOException {
        out.writeInt(hello.address().transports().size());
        for (TransportAddress transport : hello.address().transports()) {
            out.writeUTF(transport.transport());
            out.writeUTF(transport.location());
        }
        out.writeInt(hello.admissionKey().length);
        out.write(hello.admissionKey());
        RegionDescriptor region = hello.region();
        out.writeInt(region.regionId());
        out.writeLong(region.lengthBytes());
        out.writeInt(region.version());
        out.writeBoolean(region.shareable());
        out.flush();
    }

    private Hello receiveHello() throws IOException {
        List<TransportAddress> transports = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            transports.add(new TransportAddress(in.readUTF(), in.readUTF()));
        }
        byte[] key = in.readNBytes(in.readInt());
        RegionDescriptor region = new RegionDescriptor(in.readInt(), in.readLong(), in.readInt(), in.readBoolean());
        return new Hello(new EngineAddress(transports), key, region);
    }

    void sendOutcome(RoundOutcome outcome) throws IOException {
        out.writeLong(outcome.filledNs());
        out.writeLong(outcome.cpuNs());
        out.writeLong(outcome.compiledMillis());
        out.flush();
    }

    RoundOutcome receiveOutcome() throws IOException {
        await();
        return new RoundOutcome(in.readLong(), in.readLong(), in.readLong());
    }

    /** Sends the result of verifying the round's target pages. */
    void sendBadBytes(long count) throws IOException {
        out.writeLong(count);
        out.flush();
    }

    long receiveBadBytes() throws IOException {
        await();
        return in.readLong();
    }

    void sendInts(int... values) throws IOException {
        out.writeInt(values.length);
        for (int value : values) {
            out.writeInt(value);
        }
        out.flush();
    }

    int[] receiveInts() throws IOException {
        await();
        int[] values = new int[in.readInt()];
        for (int i = 0; i < values.length; i++) {
            values[i] = in.readInt();
        }
        return values;
    }

    /** Tells whether another round follows. */
    void sendNextRound(boolean follows) throws IOException {
        out.writeBoolean(follows);
        out.flush();
    }

    boolean receiveNextRound() throws IOException {
        await();
        return in.readBoolean();
    }
}
