package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.path.WriterPaths;
import io.kvmessenger.transfer.socket.Challenge;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.SocketLocation;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.PathEvents;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;

/**
 * All data sockets to one peer: dialled once the peer has accepted them, ready when it says so.
 *
 * <p>Worker only. A broken socket is dialled again, for as long as these paths are wanted; the engine decides what it
 * means for the peer if none is left.
 */
final class TcpOutboundPaths extends WriterPaths implements TcpLane.Owner {
    /** How soon a dial by one of several networks is given up and retried, since TCP's own retries back off. */
    static final long PROBE_LIMIT_NS = 2_000_000_000L;

    private final EventLoop loop;
    private final String location;
    private final InetSocketAddress target;
    private final DataNetworks networks;
    private final int pathCount;
    private final long connectLimitNs;
    private final long idleLimitNs;
    private final List<TcpLane> lanes = new ArrayList<>();
    private final MemorySegment record = MemorySegment.ofArray(new long[PathRecord.LENGTH_BYTES / Long.BYTES]);
    /** Target addresses of data sockets, by network. */
    private List<InetSocketAddress> targets = List.of();

    /** Why the last dial failed; empty if none has. */
    private String dialFault = "";

    /**
     * @param idleLimitNs how long an idle socket may be without a heartbeat of the peer
     * @throws IllegalArgumentException when the location is invalid
     * @throws IllegalStateException when the peer has been asked too often
     */
    TcpOutboundPaths(
            EventLoop loop,
            String location,
            OutboundChannel channel,
            PathEvents events,
            Figures figures,
            DataNetworks networks,
            int pathCount,
            long connectLimitNs,
            long idleLimitNs,
            long nowNs) {
        super(channel, events, figures, nowNs + connectLimitNs);
        this.loop = loop;
        this.location = location;
        target = resolved(SocketLocation.parse(location, loop.seals().sealing()), location, channel);
        this.networks = networks;
        this.pathCount = pathCount;
        this.connectLimitNs = connectLimitNs;
        this.idleLimitNs = idleLimitNs;
        request(TcpDomain.wish(pathCount));
    }

    private static InetSocketAddress resolved(InetSocketAddress given, String location, OutboundChannel channel) {
        if (!given.isUnresolved()) {
            return given;
        }
        InetAddress address = channel.addressOf(location);
        if (address == null) {
            throw new IllegalArgumentException("the peer's address " + location
                    + " has a name that is not known here: fix the name service, or its advertise_host");
        }
        return new InetSocketAddress(address, given.getPort());
    }

    @Override
    public Hello answer(Challenge asked, int lane, int serial) {
        int role = Hello.role(channel().number(), lane);
        return Hello.answer(
                asked,
                location,
                role,
                serial,
                channel().admissionKey(),
                loop.seals().freshNonce());
    }

    @Override
    public void seal(int fd, Challenge asked, Hello given) {
        loop.seals().onDialled(fd, asked, given, channel().admissionKey());
    }

    @Override
    public EventLoop loop() {
        return loop;
    }

    @Override
    public String location() {
        return location;
    }

    @Override
    public int openSocket(int network) {
        InetSocketAddress to = targets.get(network);
        InetAddress from = networks.sourceTowards(targets, network);
        int fd = loop.sockets().connectInet(from, to.getAddress(), to.getPort());
        if (fd >= 0) {
            loop.sockets().setNoDelay(fd);
            loop.sockets().keepAlive(fd, idleLimitNs);
            if (to.getAddress().isLoopbackAddress()) {
                loop.sockets().chooseReno(fd);
            }
        }
        return fd;
    }

    @Override
    protected void onPeerRecord(int kind, MemorySegment payload, long nowNs) {
        switch (kind) {
            case TcpRecord.ACCEPTED -> onAccepted(payload, nowNs);
            case TcpRecord.READY -> onReady();
            case TcpRecord.PATH_PROGRESS -> onProgress(payload, false);
            case TcpRecord.PATH_ENDED -> onProgress(payload, true);
            default -> throw unexpected(kind);
        }
    }

    private void onAccepted(MemorySegment payload, long nowNs) {
        if (!lanes.isEmpty()) {
            throw new IllegalArgumentException("the peer accepted twice");
        }
        targets = DataNetworks.parse(payload, target);
        if (isSpread() && !channel().report(TcpRecord.READY_BY_ONE, MemorySegment.NULL)) {
            throw new IllegalStateException("no room on the control stream for the first record");
        }
        int laneCount = DataNetworks.laneCount(pathCount, targets.size());
        for (int role = 1; role <= laneCount; role++) {
            TcpLane lane = new TcpLane(this, role, DataNetworks.networkOf(role, targets.size()));
            lanes.add(lane);
            lane.dial(nowNs + connectLimitNs);
        }
    }

    /** Whether there are several networks, of which some may be down. */
    private boolean isSpread() {
        return targets.size() > 1;
    }

    private void onReady() {
        boolean early = lanes.isEmpty() || (!isSpread() && !lanes.stream().allMatch(TcpLane::wasConnected));
        if (isOpen() || early) {
            throw new IllegalArgumentException("the peer is ready too early");
        }
        becomeReady();
        lanes.stream().filter(TcpLane::isConnected).forEach(TcpLane::open);
        if (isSpread()) {
            lanes.forEach(lane -> lane.limitDial(loop.nowNs() + PROBE_LIMIT_NS));
        }
    }

    private void onProgress(MemorySegment payload, boolean ended) {
        boolean sound = ended ? PathRecord.isSound(payload, lanes.size()) : PathRecord.areSound(payload, lanes.size());
        if (!isOpen() || !sound) {
            throw new IllegalArgumentException("the peer reports on a data path that does not exist");
        }
        for (int i = 0; i < PathRecord.count(payload) && !isClosed(); i++) {
            int role = PathRecord.role(payload, i);
            long frames = PathRecord.frames(payload, i);
            if (!lanes.get(role - 1).onProgress(PathRecord.serial(payload, i), frames, ended)) {
                throw new IllegalArgumentException("the peer claims " + frames + " frames of data path " + role);
            }
        }
    }

    @Override
    public boolean report(int type, int role, int serial) {
        return channel().report(type, PathRecord.encode(record, role, serial, 0));
    }

    @Override
    public void onConnected(TcpLane lane) {
        if (isOpen()) {
            lane.open();
        }
    }

    /** A dial that may succeed later is repeated until the time to connect is over. */
    @Override
    public void onDialFailed(TcpLane lane, String detail, boolean again) {
        dialFault = ": " + detail;
        if (!isOpen() && !again && (!isSpread() || lanes.stream().allMatch(TcpLane::isResting))) {
            lose(TransferFault.UNREACHABLE, detail);
        }
    }

    @Override
    public void look(AnswerWait wait, long nowNs) {
        wait.look(channel(), nowNs);
    }

    @Override
    public long idleLimitNs() {
        return idleLimitNs;
    }

    @Override
    public void onOpened(TcpSendPath path) {
        open(path);
    }

    @Override
    public void onBroken(TcpLane lane) {
        // What the peer sent before it closed the path has probably arrived already.
        channel().drain(loop.nowNs());
    }

    @Override
    public void onEnded(TcpSendPath path) {
        lost(path);
    }

    @Override
    public void onSent(long postId) {
        sent(postId);
    }

    @Override
    protected int connect(long nowNs) {
        return serve(nowNs);
    }

    @Override
    protected String overdue() {
        return "no answer from " + location + " in time" + dialFault;
    }

    @Override
    protected int serve(long nowNs) {
        int work = 0;
        boolean open = false;
        long dialLimitNs = isSpread() ? Math.min(connectLimitNs, PROBE_LIMIT_NS) : connectLimitNs;
        for (int i = 0; i < lanes.size() && !isClosed(); i++) {
            TcpLane lane = lanes.get(i);
            work += lane.doWork(nowNs, nowNs + dialLimitNs);
            open |= lane.isOpen();
            if (lane.isOverdue(nowNs)) {
                lose(TransferFault.PEER_CLOSED, "the peer does not say what it has got of a broken data path");
            }
        }
        return isOpen() && !open && work == 0 ? LOOK_SOON : work;
    }

    @Override
    protected void release() {
        lanes.forEach(TcpLane::close);
    }
}
