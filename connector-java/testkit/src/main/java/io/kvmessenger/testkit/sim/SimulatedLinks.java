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
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.List;

/**
 * Links that are open at once and carry messages alone: the {@link SimulatedFabric} itself shows who is who, and ends paths.
 * Worker only.
 */
final class SimulatedLinks implements Links {
    private static final int MESSAGES_ON_THEIR_WAY_MAX = 16;

    private final SimulatedFabric fabric;
    private SimulatedTransport transport;

    SimulatedLinks(SimulatedFabric fabric) {
        this.fabric = fabric;
    }

    @Override
    public void use(List<Domain> domains) {
        transport = (SimulatedTransport) domains.getFirst();
    }

    @Override
    public OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents events, long nowNs) {
        return new Link(target.transports().getFirst().location(), admissionKey, events);
    }

    @Override
    public int poll(long nowNs) {
        return 0;
    }

    @Override
    public void close() {}

    private final class Link implements OutboundLink, OutboundChannel {
        private final byte[] admissionKey;
        private final LinkEvents events;
        private final String location;
        /** On their way, the first of them at the target or before it. */
        private final ArrayDeque<MemorySegment> sent = new ArrayDeque<>();

        private boolean opened;
        private boolean closed;

        Link(String location, byte[] admissionKey, LinkEvents events) {
            this.location = location;
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
            int count = 0;
            while (messages.peek() != null && sent.size() < MESSAGES_ON_THEIR_WAY_MAX) {
                sent.add(MemorySegment.ofArray(messages.peek().toArray(ValueLayout.JAVA_BYTE)));
                messages.release();
                count++;
                if (sent.size() == 1) {
                    deliverFirst();
                }
            }
            return count;
        }

        private void deliverFirst() {
            fabric.laterAt(transport, location, this::arrive);
        }

        private void arrive(SimulatedTransport target) {
            if (closed || target.take(admissionKey, sent.element())) {
                sent.remove();
                transport.wakeWorker();
            }
            if (!closed && !sent.isEmpty()) {
                deliverFirst();
            }
        }

        @Override
        public OutboundChannel channel(Domain domain) {
            return this;
        }

        @Override
        public void detach(PeerChannel channel) {}

        @Override
        public void close() {
            closed = true;
        }

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
