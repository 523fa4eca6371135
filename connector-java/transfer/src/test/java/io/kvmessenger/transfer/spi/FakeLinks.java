package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.link.LinkEvents;
import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.link.OutboundLink;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** Links that are open at their first duty cycle and lead nowhere; remembers what ended, in order. */
public final class FakeLinks implements Links {
    public final List<String> ended = new ArrayList<>();
    /** Of the link that was connected last. */
    public LinkEvents events;

    @Override
    public void use(List<Domain> domains) {}

    @Override
    public OutboundLink connect(EngineAddress target, byte[] admissionKey, LinkEvents linkEvents, long nowNs) {
        events = linkEvents;
        return new FakeLink(linkEvents);
    }

    @Override
    public int poll(long nowNs) {
        return 0;
    }

    @Override
    public void close() {}

    private final class FakeLink implements OutboundLink {
        private final LinkEvents linkEvents;
        private boolean opened;

        FakeLink(LinkEvents linkEvents) {
            this.linkEvents = linkEvents;
        }

        @Override
        public int doWork(long nowNs) {
            if (!opened) {
                opened = true;
                linkEvents.onOpened();
            }
            return 0;
        }

        @Override
        public int send(MessageQueue messages) {
            return 0;
        }

        @Override
        public int sendAnswers(MessageQueue answers) {
            return 0;
        }

        @Override
        public OutboundChannel channel(Domain domain) {
            return new FakeChannel(domain.name());
        }

        @Override
        public void detach(PeerChannel channel) {
            ended.add("paths of " + channel);
        }

        @Override
        public void close() {
            ended.add("link");
        }
    }

    /** Says nothing to anything. */
    public record FakeChannel(String name) implements OutboundChannel {
        @Override
        public boolean open(MemorySegment wish, Reader reader) {
            return true;
        }

        @Override
        public byte[] admissionKey() {
            return new byte[0];
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
            return true;
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... descriptors) {
            return true;
        }

        @Override
        public String toString() {
            return name;
        }
    }
}
