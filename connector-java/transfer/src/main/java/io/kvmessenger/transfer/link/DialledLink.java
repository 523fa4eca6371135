package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Dialer;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Notice;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.LinkError;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntPredicate;

/**
 * The control socket to one peer: dials one address after the other until the peer accepts, then stays open until it
 * ends.
 *
 * <p>Worker only. It is not dialled again: a new admission needs a new link.
 */
final class DialledLink implements OutboundLink, ControlStream.Reader {
    /** Limit for one record. */
    private static final int DESCRIPTORS_MAX = 2;

    /** Pause before an address is dialled again; doubled each time. */
    static final long REST_MIN_NS = 10_000_000L;

    static final long REST_MAX_NS = 1_000_000_000L;

    /**
     * An address at which a peer listens.
     *
     * @param transport the transport that the address belongs to
     * @param local whether it is a Unix socket
     * @param at one of the addresses of the location's name; null if the location says the address itself
     * @param limitNs how long the attempt may take
     */
    record Way(String transport, boolean local, String location, InetAddress at, long limitNs) {
        /** In errors. */
        String given() {
            return at == null ? location : location + " (" + at.getHostAddress() + ")";
        }
    }

    private final EventLoop loop;
    private final Deque<Way> ways;
    /** Of locations with a name; each is looked up once, from the beginning on. */
    private final Map<String, NameLookup> names = new HashMap<>();
    /** What became of the addresses of one name. */
    private final List<String> refusals = new ArrayList<>();

    private final byte[] admissionKey;
    private final LinkEvents events;
    private final long idleLimitNs;
    private final IntPredicate ofThisUser;
    private final Channel[] channels = new Channel[Attachments.COUNT_MAX];
    private final WriterNumbers numbers = new WriterNumbers();
    private Way way;
    private Dialer dialer;
    private ControlStream control;
    private Heartbeats heartbeats = Heartbeats.none();
    /** Why the current attempt has failed already; reported in the next duty cycle. */
    private String fault;
    /** Whether the address is dialled again after a pause, since a target that turned one dial away may take the next. */
    private boolean resting;

    private long restNs;
    private long restEndNs;

    private long deadlineNs;
    private boolean accepted;
    private boolean lost;
    private boolean closed;

    /**
     * @param ways in the order in which they are tried
     * @param idleLimitNs how long the peer may be silent on a socket that is not local
     */
    DialledLink(
            EventLoop loop,
            List<Way> ways,
            byte[] admissionKey,
            LinkEvents events,
            long idleLimitNs,
            IntPredicate ofThisUser,
            long nowNs) {
        this.loop = loop;
        this.ways = new ArrayDeque<>(ways);
        this.admissionKey = admissionKey;
        this.events = events;
        this.idleLimitNs = idleLimitNs;
        this.ofThisUser = ofThisUser;
        ways.stream().filter(each -> !each.local).forEach(each -> lookUp(each.location));
        if (!this.ways.isEmpty()) {
            dial(this.ways.removeFirst(), nowNs);
        } else {
            fault = "no transport in common: " + TransferOptions.OTHER_TRANSPORT;
        }
    }

    /** Begins to look up the location's name, if it has one. */
    private void lookUp(String location) {
        try {
            InetSocketAddress target =
                    SocketLocation.parse(location, loop.seals().sealing());
            if (target.isUnresolved()) {
                names.computeIfAbsent(location, named -> NameLookup.of(target.getHostString()));
            }
        } catch (IllegalArgumentException e) {
            names.remove(location); // it is reported when it is dialled
        }
    }

    /** Whether the address is still unknown, because its name is being looked up. */
    private boolean awaitsName() {
        return way != null && !way.local && way.at == null && names.containsKey(way.location);
    }

    /** Puts one way for each of the name's addresses in place of the current one, each with its share of the time left. */
    private void onLookedUp(NameLookup name, long nowNs) {
        List<InetAddress> addresses = name.addresses();
        if (addresses.isEmpty()) {
            lose(TransferFault.UNREACHABLE, "connecting to " + way.location + ": " + name.fault());
            return;
        }
        long shareNs = Math.max(1, (deadlineNs - nowNs) / addresses.size());
        for (InetAddress address : addresses.reversed()) {
            ways.addFirst(new Way(way.transport, false, way.location, address, shareNs));
        }
        refusals.clear();
        dial(ways.removeFirst(), nowNs);
    }

    private void dial(Way next, long nowNs) {
        way = next;
        deadlineNs = nowNs + way.limitNs;
        restNs = REST_MIN_NS;
        dialAgain();
    }

    private void dialAgain() {
        fault = null;
        resting = false;
        if (awaitsName()) {
            return;
        }
        try {
            int fd = way.local ? openLocal() : openInet();
            if (fault == null) {
                dialer = new Dialer(loop, fd, way.given(), this::answer, new Dialing());
            }
        } catch (IllegalArgumentException e) {
            fault = e.getMessage();
        }
    }

    private int openLocal() {
        int fd = loop.sockets().connectAbstract(way.location);
        if (fd >= 0 && !ofThisUser.test(fd)) {
            // Nothing is sent to it: not even a proof, which it could relay to the real target.
            loop.libC().close(fd);
            fault = "the socket " + way.location + " belongs to another user";
        }
        return fd;
    }

    private int openInet() {
        InetSocketAddress target =
                SocketLocation.parse(way.location, loop.seals().sealing());
        InetAddress address = way.at == null ? target.getAddress() : way.at;
        int fd = loop.sockets().connectInet(address, target.getPort());
        if (fd >= 0) {
            loop.sockets().setNoDelay(fd);
            loop.sockets().keepAlive(fd, idleLimitNs);
        }
        return fd;
    }

    private Hello answer(Challenge asked) {
        byte[] nonce = loop.seals().freshNonce();
        return Hello.answer(asked, way.location, Hello.CONTROL, 0, admissionKey, nonce);
    }

    /** The events of the socket before it becomes the control stream. */
    private final class Dialing implements Dialer.Events {
        /** A Unix socket stays on this machine and belongs to this user. */
        @Override
        public void onAnswered(int fd, Challenge asked, Hello given) {
            heartbeats = Heartbeats.of(given, way.local, idleLimitNs, loop.nowNs());
            if (!way.local) {
                loop.seals().onDialled(fd, asked, given, admissionKey);
            }
        }

        @Override
        public void onConnected(int fd) {
            try {
                control = new ControlStream(loop, fd, DialledLink.this, way.local ? DESCRIPTORS_MAX : 0);
            } catch (IllegalStateException e) {
                loop.libC().close(fd);
                fault = "connecting to " + way.location + ": " + e.getMessage();
            }
        }

        @Override
        public void onFailed(String detail) {
            fault = detail;
        }

        @Override
        public void onTurnedAway(String detail) {
            if (!restUntilNextDial()) {
                fault = detail;
            }
        }
    }

    @Override
    public boolean onRecord(int type, MemorySegment payload, long nowNs) {
        int kind = ControlRecord.kind(type);
        int number = ControlRecord.number(type);
        Channel channel = number < channels.length ? channels[number] : null;
        heartbeats.onHeard();
        if (lost || (kind == ControlRecord.ALIVE && number == 0)) {
            return true;
        }
        if (kind == ControlRecord.ACCEPTED && !accepted) {
            accepted = true;
            events.onOpened();
        } else if (kind == ControlRecord.NOTICE) {
            Notice notice = Notice.parse(payload);
            lose(notice.fault(), notice.detail());
        } else if (kind == ControlRecord.RELEASED) {
            if (!numbers.release(number)) {
                lose(TransferFault.PROTOCOL, "the peer releases attachment " + number + ", which was not detached");
            }
        } else if (channel != null && kind == ControlRecord.REFUSED) {
            Notice notice = Notice.parse(payload);
            channel.reader.onRefused(notice.fault(), notice.detail());
        } else if (channel != null && kind >= PeerChannel.FIRST_KIND) {
            report(channel, kind, payload, nowNs);
        } else if (kind == ControlRecord.READ && number == 0 && accepted) {
            if (!events.onAsked(payload)) {
                lose(TransferFault.PROTOCOL, "the peer asks for more reads at once than it may");
            }
        } else if (!numbers.isKnown(number) || (kind < PeerChannel.FIRST_KIND && kind != ControlRecord.REFUSED)) {
            lose(TransferFault.PROTOCOL, "unexpected control record " + kind);
        } // else it was in flight when the paths ended
        return true;
    }

    private static void report(Channel channel, int kind, MemorySegment payload, long nowNs) {
        try {
            channel.reader.onRecord(kind, payload, nowNs);
        } catch (RuntimeException | Error error) {
            channel.reader.onError(error);
        }
    }

    @Override
    public void onEnd(String detail, boolean garbage) {
        if (!garbage && !accepted && restUntilNextDial()) {
            return;
        }
        lose(garbage ? TransferFault.PROTOCOL : TransferFault.PEER_CLOSED, detail);
    }

    @Override
    public void onError(Throwable error) {
        lose(TransferFault.DISCONNECTED, LinkError.describe(error));
    }

    /**
     * The target has hung up without a reason, or has no room: it may have been too busy. Another address could be a
     * slower transport for as long as the link lives, so the same is tried again while its time lasts.
     */
    private boolean restUntilNextDial() {
        long nowNs = loop.nowNs();
        if (lost || closed || nowNs + restNs - deadlineNs > 0) {
            return false;
        }
        hangUp();
        resting = true;
        restEndNs = nowNs + restNs;
        restNs = Math.min(2 * restNs, REST_MAX_NS);
        return true;
    }

    /** Tries the next address if the peer has not accepted yet; else reports the loss. */
    private void lose(TransferFault why, String detail) {
        if (lost || closed) {
            return;
        }
        if (!accepted && way != null && way.at != null) {
            refusals.add(detail);
        }
        if (!accepted && !ways.isEmpty()) {
            hangUp();
            dial(ways.removeFirst(), loop.nowNs());
            return;
        }
        lost = true;
        String prefix = accepted || way == null ? "" : way.transport + ": ";
        boolean byName = !accepted && way != null && way.at != null;
        events.onLost(why, prefix + (byName ? String.join("; ", refusals) : detail));
    }

    @Override
    public int doWork(long nowNs) {
        if (lost || closed) {
            return 0;
        }
        if (awaitsName() && names.get(way.location).isDone()) {
            onLookedUp(names.get(way.location), nowNs);
            return 1;
        }
        if (resting && nowNs - restEndNs >= 0) {
            dialAgain();
        }
        if (dialer != null) {
            dialer.doWork();
        }
        if (fault != null) {
            lose(TransferFault.UNREACHABLE, fault);
            return 1;
        }
        if (!accepted && nowNs - deadlineNs > 0) {
            lose(TransferFault.UNREACHABLE, "no answer from " + way.given() + " in time");
        } else if (accepted && heartbeats.exchange(control, nowNs)) {
            lose(TransferFault.PEER_CLOSED, heartbeats.silence());
        }
        return sendDetachments();
    }

    private int sendDetachments() {
        return control == null || !numbers.owes()
                ? 0
                : numbers.sendOwed(type -> control.offer(type, MemorySegment.NULL));
    }

    @Override
    public int send(MessageQueue messages) {
        return control.sendAll(ControlRecord.MESSAGE, messages);
    }

    @Override
    public int sendAnswers(MessageQueue answers) {
        return control.sendAll(ControlRecord.READ_ENDED, answers);
    }

    @Override
    public OutboundChannel channel(Domain domain) {
        return new Channel(domain.name());
    }

    @Override
    public void detach(PeerChannel paths) {
        Channel channel = (Channel) paths;
        if (channel.reader != null && channels[channel.number] == channel) {
            channels[channel.number] = null;
            numbers.detach(channel.number);
            sendDetachments();
        }
    }

    @Override
    public void close() {
        if (!closed) {
            closed = true;
            hangUp();
        }
    }

    private void hangUp() {
        if (dialer != null) {
            dialer.close();
            dialer = null;
        }
        if (control != null) {
            control.close();
            control = null;
        }
    }

    /** The link's end of the paths of one domain. */
    private final class Channel implements OutboundChannel {
        private final String transport;
        private int number;
        /** Of this use of the number. */
        private int name;

        private Reader reader;

        Channel(String transport) {
            this.transport = transport;
        }

        @Override
        public boolean open(MemorySegment wish, Reader toHear) {
            MemorySegment record = new Attach(transport, wish).encode();
            int next = numbers.next();
            if (next == WriterNumbers.NONE || !control.offer(ControlRecord.type(ControlRecord.ATTACH, next), record)) {
                return false;
            }
            reader = toHear;
            number = numbers.take();
            name = Attach.name(number, numbers.earlierUses(number));
            channels[number] = this;
            return true;
        }

        @Override
        public int number() {
            return name;
        }

        @Override
        public byte[] admissionKey() {
            return admissionKey;
        }

        @Override
        public InetAddress addressOf(String location) {
            if (way.at != null && way.location.equals(location)) {
                return way.at;
            }
            NameLookup name = names.get(location);
            return name == null || name.addresses().isEmpty()
                    ? null
                    : name.addresses().getFirst();
        }

        @Override
        public boolean carriesDescriptors() {
            return way.local;
        }

        @Override
        public boolean report(int kind, MemorySegment payload) {
            return channels[number] == this && control.offer(ControlRecord.type(kind, number), payload);
        }

        @Override
        public boolean report(int kind, MemorySegment payload, int... descriptors) {
            return channels[number] == this
                    && control.offerDescriptors(ControlRecord.type(kind, number), payload, descriptors);
        }

        @Override
        public int takeDescriptor() {
            return control.takeDescriptor();
        }

        @Override
        public void drain(long nowNs) {
            control.drain(nowNs);
        }

        @Override
        public long unacknowledgedBytes() {
            return control.unacknowledgedBytes();
        }
    }
}
