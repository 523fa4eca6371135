package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.LinkEvents;
import io.kvmessenger.transfer.spi.Links;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundLink;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;
import java.util.List;

/**
 * Links that are open at once and carry nothing: the {@link SimulatedFabric} itself shows who is who, and ends paths. Worker
 * only.
 */
final class SimulatedLinks implements Links {
    @Override
    public void use(List<Domain> domains) {}

    @Override
    public OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents events, long nowNs) {
        return new Link(admissionKey, events);
    }

    @Override
    public int poll(long nowNs) {
        return 0;
    }

    @Override
    public void close() {}

    private static final class Link implements OutboundLink, OutboundChannel {
        private final byte[] admissionKey;
        private final LinkEvents events;
        private boolean opened;

        Link(byte[] admissionKey, LinkEvents events) {
            this.admissionKey = admissionKey;
            this.events = events;
        }

        @Override
        public int doWork(long nowNs) {
            if (opened) {
                return 0;
            }
            opened = true;
            events.onOpened();
            return 1;
        }

        @Override
        public int send(MessageQueue messages) {
            if (messages.peek() != null) {
                throw new AssertionError("a simulated link carries no messages");
            }
            return 0;
        }

        @Override
        public OutboundChannel channel(Domain domain) {
            return this;
        }

        @Override
        public void detach(PeerChannel channel) {}

        @Override
        public void close() {}

        @Override
        public boolean open(MemorySegment wish, Reader reader) {
            return true;
        }

        @Override
        public byte[] admissionKey() {
            return admissionKey;
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
        public boolean tell(int kind, MemorySegment payload) {
            return false;
        }

        @Override
        public boolean tell(int kind, MemorySegment payload, int... descriptors) {
            return false;
        }
    }
}
