package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.link.LinkEvents;
import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.link.OutboundLink;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.List;

/**
 * Links that are open at once and carry only messages: the {@link SimulatedFabric} itself authenticates peers, and ends
 * links and paths. Worker only.
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

    private final class Link implements OutboundLink, FabricLink.Writer {
        private final LinkEvents events;
        private final String location;
        private final FabricLink link;
        /** Messages in flight; the first has reached the target or is next. */
        private final ArrayDeque<MemorySegment> sent = new ArrayDeque<>();

        private boolean opened;
        private boolean closed;

        Link(String location, byte[] admissionKey, LinkEvents events) {
            this.location = location;
            this.events = events;
            link = new FabricLink(fabric, transport, admissionKey, this);
            transport.opened.add(link);
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
        public void lose(TransferFault fault, String detail) {
            if (!closed) {
                events.onLost(fault, detail);
            }
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

        @Override
        public int sendAnswers(MessageQueue answers) {
            if (answers.peek() != null) {
                throw new AssertionError("a simulated link carries no reads");
            }
            return 0;
        }

        private void deliverFirst() {
            fabric.laterAt(transport, location, link.key, this::arrive);
        }

        private void arrive(SimulatedTransport target) {
            if (closed || target.take(link.key, sent.element())) {
                sent.remove();
                transport.wakeWorker();
            }
            if (!closed && !sent.isEmpty()) {
                deliverFirst();
            }
        }

        @Override
        public OutboundChannel channel(Domain domain) {
            return new LinkChannel(link);
        }

        @Override
        public void detach(PeerChannel channel) {
            fabric.sourceClosed(((LinkChannel) channel).paths);
        }

        @Override
        public void close() {
            closed = true;
            transport.opened.remove(link);
            fabric.writerClosed(link);
        }
    }
}
