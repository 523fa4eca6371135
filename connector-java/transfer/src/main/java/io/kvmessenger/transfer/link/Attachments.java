package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.LinkError;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Predicate;

/**
 * The paths of domains that one admitted peer has opened, by the numbers that the peer has given them.
 *
 * <p>Worker only. What their end means for the admission is the link's to decide.
 */
final class Attachments {
    /** How many a peer may have at a time. */
    static final int COUNT_MAX = 32;

    /** The link of the peer, whose control socket all paths share. */
    interface Link {
        boolean watchesProcess();

        /** From then on no event has an effect. */
        boolean isClosed();

        /** A path is ready; may be called again. */
        void onReady();

        /** Paths have ended by themselves, and are no longer among the attachments. */
        void onOver(String detail);

        void dismiss(TransferFault fault, String detail);

        void onError(Throwable error);
    }

    private final List<Domain> domains;
    private final InboundPort port;
    private final InboundAdmission from;
    private final Figures figures;
    private final ControlStream control;
    private final boolean local;
    private final Link link;
    private final Attachment[] byNumber = new Attachment[COUNT_MAX];
    private final TargetNumbers numbers = new TargetNumbers();

    /** @param local whether descriptors can travel on the control socket */
    Attachments(
            List<Domain> domains,
            InboundPort port,
            InboundAdmission from,
            Figures figures,
            ControlStream control,
            boolean local,
            Link link) {
        this.domains = domains;
        this.port = port;
        this.from = from;
        this.figures = figures;
        this.control = control;
        this.local = local;
        this.link = link;
    }

    /** The paths of this number; null if there are none. */
    InboundPaths paths(int number) {
        return number < COUNT_MAX && byNumber[number] != null ? byNumber[number].paths : null;
    }

    /** Whether the peer has ever used the number. */
    boolean isKnown(int number) {
        return numbers.isKnown(number);
    }

    /** Takes the number for paths to be attached; false when the peer may not use it now. */
    boolean mayAttach(int number) {
        return numbers.attach(number);
    }

    boolean isFirstUse(int number) {
        return numbers.earlierUses(number) == 0;
    }

    /** Opens paths, or tells the peer why not; {@code wanted} is null if the request was malformed. */
    void attach(int number, Attach wanted, long nowNs) {
        Attachment attachment = new Attachment(number);
        String refusal = wanted == null ? "the peer wants no transport" : attachment.open(wanted, nowNs);
        if (refusal == null) {
            byNumber[number] = attachment;
        } else {
            figures.increment(TransferCounter.PATHS_REJECTED);
            control.offer(
                    ControlRecord.type(ControlRecord.REFUSED, number),
                    new Notice(TransferFault.UNREACHABLE, refusal).encode());
        }
    }

    /** The peer uses these paths no more. */
    void detach(int number) {
        numbers.detach(number);
        if (byNumber[number] == null) {
            numbers.end(number);
        } else {
            byNumber[number].endInOrder("the peer uses its paths no more");
        }
    }

    /** Lets the peer use numbers again whose paths are over. */
    void confirmEnds() {
        if (numbers.owes()) {
            numbers.sendOwed(type -> control.offer(type, MemorySegment.NULL));
        }
    }

    /** Takes over a data socket; false when there is no place for it. */
    boolean take(int fd, Hello hello) {
        int name = Hello.attachment(hello.role());
        int number = Attach.number(name);
        Attachment attachment = number < COUNT_MAX ? byNumber[number] : null;
        return attachment != null
                && attachment.number() == name
                && attachment.paths.take(fd, Hello.lane(hello.role()), hello.count());
    }

    /** Whether nothing of the peer can land any more. */
    boolean areOver() {
        return !any(paths -> !paths.isOver());
    }

    boolean areCopying() {
        return any(InboundPaths::isCopying);
    }

    /** Whether writes may still land after the control socket has closed. */
    boolean outliveHangUp() {
        return any(InboundPaths::outlivesHangUp);
    }

    private boolean any(Predicate<InboundPaths> holds) {
        for (Attachment attachment : byNumber) {
            if (attachment != null && holds.test(attachment.paths)) {
                return true;
            }
        }
        return false;
    }

    /** Whether closed paths are open all the same, since a device refuses: then the peer may still write. */
    boolean areRefused() {
        return any(paths -> !paths.isOver() && !paths.isCopying());
    }

    void onPeerGone() {
        forEach(InboundPaths::onPeerGone);
    }

    /** Returns what went wrong, as the end of a sentence. */
    String stop() {
        return forEach(InboundPaths::stop);
    }

    /** Closes all paths, even if one fails to close properly; returns what went wrong, as the end of a sentence. */
    String close() {
        return forEach(paths -> {
            try {
                paths.close();
            } catch (RuntimeException | Error error) {
                paths.close(); // without what failed
                throw error;
            }
        });
    }

    private String forEach(Consumer<InboundPaths> action) {
        String faults = "";
        for (Attachment attachment : byNumber) {
            if (attachment == null) {
                continue;
            }
            try {
                action.accept(attachment.paths);
            } catch (RuntimeException | Error error) {
                faults += "; " + LinkError.describe(error);
            }
        }
        return faults;
    }

    /** The paths of one domain, and their end of the control socket. */
    private final class Attachment implements InboundChannel {
        final int number;
        /** Of this use of the number. */
        private final int name;
        /** Not null once opened. */
        InboundPaths paths;
        /** The number may soon belong to another. */
        private boolean over;

        Attachment(int number) {
            this.number = number;
            name = Attach.name(number, numbers.earlierUses(number));
        }

        /** Returns why the paths cannot be opened, or null. */
        String open(Attach wanted, long nowNs) {
            for (Domain domain : domains) {
                if (!domain.name().equals(wanted.transport())) {
                    continue;
                }
                if (!port.reachesAll(domain)) {
                    return wanted.transport() + " does not reach all memory of the target: "
                            + TransferOptions.OTHER_TRANSPORT;
                }
                try {
                    paths = domain.admit(this, from, wanted.wish(), nowNs);
                    return null;
                } catch (IllegalArgumentException | IllegalStateException e) {
                    return e.getMessage();
                }
            }
            return "this engine has no transport " + wanted.transport();
        }

        @Override
        public int number() {
            return name;
        }

        @Override
        public boolean watchesProcess() {
            return link.watchesProcess();
        }

        @Override
        public boolean carriesDescriptors() {
            return local;
        }

        @Override
        public boolean report(int kind, MemorySegment payload) {
            return !over && control.offer(ControlRecord.type(kind, number), payload);
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... descriptors) {
            return !over && control.offerDescriptors(ControlRecord.type(kind, number), payload, descriptors);
        }

        @Override
        public void onReady() {
            link.onReady();
        }

        @Override
        public void onOver(String detail) {
            if (!link.isClosed()) {
                over = true;
                byNumber[number] = null;
                numbers.end(number);
                link.onOver(detail);
            }
        }

        /** What is refused leaves the paths open, so the peer has to go. */
        void endInOrder(String detail) {
            try {
                end(detail);
            } catch (IllegalStateException e) {
                link.dismiss(TransferFault.DISCONNECTED, LinkError.describe(e));
            }
        }

        private void end(String detail) {
            paths.close();
            if (!paths.isCopying()) {
                onOver(detail);
            }
        }

        @Override
        public void dismiss(TransferFault fault, String detail) {
            link.dismiss(fault, detail);
        }

        @Override
        public void onError(Throwable error) {
            link.onError(error);
        }
    }
}
