package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.session.ControlNetwork;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SplittableRandom;

/**
 * Control links like those of TCP: frames of one direction arrive in order, late, or not at all because the link broke.
 * A link may break for one end only, or become silent without notice.
 */
final class SimulatedNetwork {
    private static final long HOP_NS = 50 * Scenario.MICRO;

    private final SimulatedClock clock;
    private final Trace trace;
    private final Swarm swarm;
    private final SplittableRandom random;
    private final WorldListener listener;
    private final Partitions partitions;
    private final Mutation mutation;
    private final MutatedFrames frames;
    private final Map<String, SimulatedNode> byAddress = new LinkedHashMap<>();
    private final List<Link> links = new ArrayList<>();
    private long lastLinkId;
    private boolean healed;

    /** One end of a link, as its process sees it. */
    private static final class End {
        final long id;
        final SimulatedNode node;
        final Link link;
        /** The process has closed it, or knows that it is closed. */
        boolean closed;
        /** Nothing arrives here any more, without notice. */
        boolean deaf;
        /** Arrival of the last frame to this end, which the next one must not precede. */
        long lastArrivalNs;

        End(long id, SimulatedNode node, Link link) {
            this.id = id;
            this.node = node;
            this.link = link;
        }
    }

    private static final class Link {
        End dialler;
        End listener;

        End other(End end) {
            return end == dialler ? listener : dialler;
        }

        boolean joins(SimulatedNode node) {
            return dialler.node == node || (listener != null && listener.node == node);
        }
    }

    SimulatedNetwork(
            SimulatedClock clock,
            Trace trace,
            Scenario scenario,
            SplittableRandom random,
            WorldListener listener,
            Partitions partitions,
            Mutation mutation) {
        this.clock = clock;
        this.trace = trace;
        this.swarm = scenario.swarm();
        this.random = random;
        this.listener = listener;
        this.partitions = partitions;
        this.mutation = mutation;
        this.frames = new MutatedFrames(mutation, scenario.traffic());
    }

    MutatedFrames frames() {
        return frames;
    }

    void heal() {
        healed = true;
    }

    /** The node listens; silent links of its earlier incarnation are reset. */
    void started(SimulatedNode node) {
        byAddress.put(node.address(), node);
        for (Link link : List.copyOf(links)) {
            for (End end : List.of(link.dialler, link.listener == null ? link.dialler : link.listener)) {
                if (end.node.name().equals(node.name()) && end.node != node) {
                    reportClosed(link.other(end), "connection reset by peer");
                    links.remove(link);
                }
            }
        }
    }

    void died(SimulatedNode node, boolean silentDeath) {
        for (Link link : List.copyOf(links)) {
            if (link.joins(node)) {
                End own = link.dialler.node == node ? link.dialler : link.listener;
                own.closed = true;
                if (!silentDeath) {
                    reportClosed(link.other(own), "connection reset by peer");
                    links.remove(link);
                }
            }
        }
    }

    /** A fault: some link breaks for both ends; frames in flight are lost. */
    void resetAnyLink() {
        Link link = anyOpenLink();
        if (link != null) {
            trace.add(link.dialler.node.process(), "linkReset", "to " + link.listener.node.process());
            reset(link);
        }
    }

    private void reset(Link link) {
        links.remove(link);
        reportClosed(link.dialler, "connection reset");
        reportClosed(link.listener, "connection reset");
    }

    /** A fault: the links between two processes break, or all of the first one if the second is null. */
    void resetLinks(SimulatedNode one, SimulatedNode other) {
        for (Link link : openLinks()) {
            if (link.joins(one) && (other == null || link.joins(other))) {
                reset(link);
            }
        }
    }

    /** A fault: some link stops delivering to one end or both, without notice. */
    void silenceAnyLink() {
        Link link = anyOpenLink();
        if (link != null) {
            int which = random.nextInt(3);
            trace.add(link.dialler.node.process(), "halfOpen", "to " + link.listener.node.process() + " " + which);
            link.dialler.deaf |= which != 1;
            link.listener.deaf |= which != 0;
        }
    }

    private List<Link> openLinks() {
        return links.stream()
                .filter(link -> link.listener != null && !link.dialler.closed && !link.listener.closed)
                .toList();
    }

    private Link anyOpenLink() {
        List<Link> open = openLinks();
        return open.isEmpty() ? null : open.get(random.nextInt(open.size()));
    }

    int openLinks(SimulatedNode node) {
        return (int) links.stream()
                .filter(link -> link.joins(node))
                .filter(link -> !(link.dialler.node == node ? link.dialler : link.listener).closed)
                .count();
    }

    /** The network as one process sees it. */
    ControlNetwork portOf(SimulatedNode node, FailingPorts failing) {
        return new Port(node, failing);
    }

    private final class Port implements ControlNetwork {
        private final SimulatedNode node;
        private final FailingPorts failing;
        private final Map<Long, End> ends = new LinkedHashMap<>();
        private final Set<String> dialled = new HashSet<>();

        Port(SimulatedNode node, FailingPorts failing) {
            this.node = node;
            this.failing = failing;
            node.onAccepted(id -> ends.put(id, endOf(id)));
        }

        @Override
        public long dial(String host, int port) {
            Link link = new Link();
            link.dialler = new End(++lastLinkId, node, link);
            links.add(link);
            ends.put(link.dialler.id, link.dialler);
            String address = host + ":" + port;
            trace.add(node.process(), "dial", address + " link " + link.dialler.id);
            if (failing.happens("dial", failing.faults().dialRefused())) {
                links.remove(link);
                reportClosed(link.dialler, "connection refused");
                return link.dialler.id;
            }
            if (!dialled.add(address) && mutation == Mutation.DIALS_ONCE) {
                return link.dialler.id;
            }
            clock.after(
                    delayNs(), () -> partitions.whenControlConnected(node.name(), host, () -> arrive(link, address)));
            return link.dialler.id;
        }

        @Override
        public void send(long link, ControlFrame frame) {
            End end = ends.get(link);
            if (end == null || end.closed || end.link.other(end) == null) {
                return;
            }
            if (failing.happens("send", failing.faults().sendFull())) {
                endFull(end);
            } else {
                SimulatedNetwork.this.send(end, frame);
            }
        }

        @Override
        public void trust(long link) {} // frames are objects here, and have no length

        @Override
        public void close(long link) {
            End end = ends.remove(link);
            if (end == null || end.closed) {
                return;
            }
            end.closed = true;
            clock.after(delayNs(), () -> end.node.input(m -> m.onLinkClosed(end.id, "closed")));
            End peer = end.link.other(end);
            listener.linkClosed(node.process(), nameOf(peer), end == end.link.dialler, "it closed the link");
            listener.linkEnded(node.process(), end.id);
            if (peer != null) {
                inOrder(peer, () -> {
                    if (!peer.deaf) {
                        reportClosed(peer, "the peer closed the control link");
                        links.remove(end.link);
                    }
                });
            }
        }
    }

    /** A link whose peer does not read fast enough ends for both, as does what is on its way. */
    private void endFull(End end) {
        links.remove(end.link);
        reportClosed(end, "the peer has stopped reading");
        reportClosed(end.link.other(end), "connection reset by peer");
    }

    private End endOf(long id) {
        for (Link link : links) {
            if (link.listener != null && link.listener.id == id) {
                return link.listener;
            }
        }
        throw new IllegalStateException("no link " + id);
    }

    private void arrive(Link link, String address) {
        SimulatedNode node = byAddress.get(address);
        End dialler = link.dialler;
        if (dialler.closed || !dialler.node.alive()) {
            links.remove(link);
        } else if (node == null || !node.alive()) {
            if (node == null || !node.diedSilently()) {
                links.remove(link);
                reportClosed(dialler, "connection refused");
            }
        } else {
            link.listener = new End(++lastLinkId, node, link);
            long id = link.listener.id;
            node.accepted(id);
            node.input(m -> m.onLinkOpened(id, true, dialler.node.address()));
            inOrder(dialler, () -> {
                if (!dialler.closed) {
                    dialler.node.input(m -> m.onLinkOpened(dialler.id, false, address));
                }
            });
        }
    }

    private void send(End from, ControlFrame meant) {
        End to = from.link.other(from);
        ControlFrame frame = frames.sent(from.node.process(), meant);
        trace.add(from.node.process(), "send", to.node.process() + " " + describe(frame));
        if (frame.getGoodbye().getIdle()) {
            trace.add(from.node.process(), "leaves", to.node.process());
        }
        listener.frameSent(from.node.process(), to.node.process(), frame);
        inOrder(to, () -> {
            if (!to.closed && !to.deaf && to.node.alive() && links.contains(from.link)) {
                listener.frameDelivered(from.node.process(), to.node.process(), frame);
                if (frame.hasAsk()) {
                    listener.askDelivered(from.node.process(), to.node.process(), to.id, frame.getAsk());
                }
                ControlFrame heard = frames.heard(to.node.process(), frame);
                if (heard != null) {
                    to.node.input(m -> m.onFrame(to.id, heard));
                }
            }
        });
    }

    /** Schedules an arrival after everything sent to this end before. */
    private void inOrder(End to, Runnable arrival) {
        to.lastArrivalNs = Math.max(to.lastArrivalNs + 1, clock.nowNs() + delayNs());
        End from = to.link.other(to);
        clock.at(to.lastArrivalNs, () -> partitions.whenControlConnected(from.node.name(), to.node.name(), arrival));
    }

    private static String nameOf(End peer) {
        return peer == null ? "no peer" : peer.node.process();
    }

    private void reportClosed(End end, String reason) {
        if (end != null && !end.closed && end.node.alive()) {
            clock.after(delayNs(), () -> {
                if (!end.closed) {
                    end.closed = true;
                    End peer = end.link.other(end);
                    listener.linkClosed(end.node.process(), nameOf(peer), end == end.link.dialler, reason);
                    listener.linkEnded(end.node.process(), end.id);
                    end.node.input(m -> m.onLinkClosed(end.id, reason));
                }
            });
        }
    }

    private long delayNs() {
        if (!healed && random.nextDouble() < swarm.slowNetwork() * 0.1) {
            return random.nextLong(20 * Scenario.MILLI);
        }
        return HOP_NS + random.nextLong(400 * Scenario.MICRO);
    }

    static String describe(ControlFrame frame) {
        return switch (frame.getBodyCase()) {
            case GRANT ->
                "GRANT " + frame.getGrant().getTransferId() + " #"
                        + frame.getGrant().getGrantId() + " imm "
                        + Integer.toHexString(frame.getGrant().getImm()) + " tokens "
                        + frame.getGrant().getFirstToken() + ".."
                        + frame.getGrant().getPromptTokens();
            case CANNOT_DELIVER ->
                "CANNOT_DELIVER " + frame.getCannotDeliver().getTransferId() + " #"
                        + frame.getCannotDeliver().getGrantId() + " "
                        + frame.getCannotDeliver().getReason() + ": "
                        + frame.getCannotDeliver().getSentence();
            case CANCEL ->
                "CANCEL " + frame.getCancel().getTransferId() + " #"
                        + frame.getCancel().getGrantId();
            case CANCEL_CONFIRMED ->
                "CANCEL_CONFIRMED #" + frame.getCancelConfirmed().getGrantId();
            default -> frame.getBodyCase().name();
        };
    }
}
