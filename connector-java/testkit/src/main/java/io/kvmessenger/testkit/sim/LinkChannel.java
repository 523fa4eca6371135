package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.spi.OutboundChannel;
import java.lang.foreign.MemorySegment;

/** The paths of one domain on a {@link FabricLink}; carries no records. */
final class LinkChannel implements OutboundChannel {
    final FabricLink link;
    /** Null until they are attached. */
    SimulatedOutboundLink paths;

    LinkChannel(FabricLink link) {
        this.link = link;
    }

    @Override
    public boolean open(MemorySegment wish, Reader reader) {
        return true;
    }

    @Override
    public byte[] admissionKey() {
        return link.key;
    }

    @Override
    public int takeDescriptor() {
        return NO_DESCRIPTOR;
    }

    @Override
    public void drain(long nowNs) {}

    @Override
    public int number() {
        return 0;
    }

    @Override
    public boolean carriesDescriptors() {
        return false;
    }

    @Override
    public boolean report(int kind, MemorySegment payload) {
        return false;
    }

    @Override
    public boolean report(int kind, MemorySegment payload, int... descriptors) {
        return false;
    }
}
