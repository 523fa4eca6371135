package io.kvmessenger.transfer.samehost;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/** The writer's end of a peer's ring, and its means to wake the peer. Worker only. */
public final class PeerRing {
    private final LibC libC;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_LONG, 1L);
    private final MappedFile file;
    private final ImmRing ring;
    private final int wakeFd;

    private PeerRing(LibC libC, MappedFile file, int wakeFd) {
        this.libC = libC;
        this.file = file;
        this.wakeFd = wakeFd;
        ring = new ImmRing(file.memory());
    }

    /**
     * Maps the ring that came with {@link SameHostRecord#ACCEPTED}.
     *
     * @throws IllegalStateException when its descriptors are missing, or it cannot be mapped
     */
    public static PeerRing accept(LibC libC, OutboundChannel channel) {
        int ringFd = channel.takeDescriptor();
        if (ringFd < 0) {
            throw new IllegalStateException("the ring's descriptor did not come through");
        }
        int wakeFd = PeerChannel.NO_DESCRIPTOR;
        try {
            wakeFd = channel.takeDescriptor();
            if (wakeFd < 0) {
                throw new IllegalStateException("the descriptor that wakes the peer did not come through");
            }
            return new PeerRing(libC, MappedFile.map(libC, ringFd, ImmRing.LENGTH_BYTES), wakeFd);
        } catch (IllegalStateException e) {
            if (wakeFd >= 0) {
                libC.close(wakeFd);
            }
            throw e;
        } finally {
            libC.close(ringFd);
        }
    }

    /** Whether a push would succeed. */
    public boolean hasRoom() {
        return ring.hasRoom();
    }

    /** Pushes an immediate; false without room. The peer that takes it sees all earlier stores of this thread. */
    public boolean push(int imm) {
        return ring.push(imm);
    }

    /** After pushes: wakes the peer if it sleeps. */
    public void wake() {
        if (ring.claimWake()) {
            libC.write(wakeFd, one, Long.BYTES);
        }
    }

    /** At last: nothing of this engine writes to the peer any more. */
    public void showQuiet() {
        ring.showQuiet();
    }

    public void close() {
        file.close();
        libC.close(wakeFd);
        arena.close();
    }
}
