package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.foreign.VerbsLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.concurrent.ThreadLocalRandom;

/**
 * A reliable connection with one peer in one direction, with a completion queue of its own.
 *
 * <p>Worker only. Once it is closed nothing of the peer lands through it any more, and no source is read. Posting and
 * the meaning of completions are up to the {@link SendQueue} or {@link ReceiveQueue} above it.
 */
final class QueuePair {
    /** Completions polled together. */
    static final int ENTRIES = 64;

    /** Byte order of an immediate on the wire, and so in requests and completions. */
    static final ValueLayout.OfInt NETWORK_INT = JAVA_INT.withOrder(ByteOrder.BIG_ENDIAN);

    /** 4.096 us times two to this power: 67 ms, after which an unacknowledged packet is sent again. */
    private static final int TIMEOUT = 14;
    /** One less than the maximum, which some devices interpret as infinite. */
    private static final int RETRIES = 6;
    /** Infinite: a target without a posted receive is slow, not gone; heartbeats tell the difference. */
    private static final int RETRIES_FOR_RECEIVE = 7;
    /** Encodes 0.64 ms until the writer retries. */
    private static final int RECEIVE_WAIT = 12;

    private static final int HOPS_MAX = 64;
    private static final int PACKET_NUMBERS = 1 << 24;
    private static final int ACCESS_AS_TARGET = VerbsApi.IBV_ACCESS_LOCAL_WRITE | VerbsApi.IBV_ACCESS_REMOTE_WRITE;
    private static final long NONE = 0;

    private final OpenVerbs verbs;
    private final LibVerbs library;
    private final Arena arena = Arena.ofConfined();
    private final MemorySegment completions = arena.allocate(ENTRIES * VerbsLayout.WC_SIZE_BYTES, 8);
    private final int firstPacket = ThreadLocalRandom.current().nextInt(PACKET_NUMBERS);
    private final boolean asWriter;
    private long queue;
    /** {@link #NONE} once it is closed. */
    private volatile long pair;

    private PairConnection connection;
    /** Left to the connection's thread. */
    private boolean closesLater;
    /** The device has put an end to all traffic. */
    private volatile boolean stopped;

    /**
     * @param asWriter whether this side writes; otherwise the peer does
     * @param depth number of requests that may be in flight
     * @throws IllegalStateException when the device refuses
     */
    QueuePair(OpenVerbs verbs, boolean asWriter, int depth) {
        this.verbs = verbs;
        this.asWriter = asWriter;
        library = verbs.library();
        try {
            queue = verbs.require(
                    "ibv_create_cq", library.ibv_create_cq(verbs.port().context(), depth));
            pair = verbs.require("ibv_create_qp", library.ibv_create_qp(verbs.domain(), initial(depth)));
            initialise();
        } catch (IllegalStateException e) {
            close();
            throw e;
        }
    }

    private MemorySegment initial(int depth) {
        MemorySegment attributes = arena.allocate(VerbsLayout.QP_INIT_ATTR_SIZE_BYTES, 8);
        attributes.set(JAVA_LONG, VerbsLayout.QP_INIT_ATTR_SEND_CQ, queue);
        attributes.set(JAVA_LONG, VerbsLayout.QP_INIT_ATTR_RECV_CQ, queue);
        attributes.set(JAVA_INT, VerbsLayout.QP_INIT_ATTR_CAP_MAX_SEND_WR, asWriter ? depth : 1);
        attributes.set(JAVA_INT, VerbsLayout.QP_INIT_ATTR_CAP_MAX_RECV_WR, asWriter ? 1 : depth);
        attributes.set(JAVA_INT, VerbsLayout.QP_INIT_ATTR_CAP_MAX_SEND_SGE, 1);
        attributes.set(JAVA_INT, VerbsLayout.QP_INIT_ATTR_CAP_MAX_RECV_SGE, 1);
        attributes.set(JAVA_INT, VerbsLayout.QP_INIT_ATTR_QP_TYPE, VerbsApi.IBV_QPT_RC);
        return attributes;
    }

    /** Usable from any thread, since connections are made outside the worker. */
    private static MemorySegment state(int state) {
        MemorySegment attributes = Arena.ofAuto().allocate(VerbsLayout.QP_ATTR_SIZE_BYTES, 8);
        attributes.set(JAVA_INT, VerbsLayout.QP_ATTR_QP_STATE, state);
        return attributes;
    }

    private void modify(MemorySegment attributes, int mask) {
        verbs.require("ibv_modify_qp", library.ibv_modify_qp(pair, attributes, mask));
    }

    private void initialise() {
        MemorySegment attributes = state(VerbsApi.IBV_QPS_INIT);
        attributes.set(
                JAVA_BYTE, VerbsLayout.QP_ATTR_PORT_NUM, (byte) verbs.port().number());
        attributes.set(JAVA_SHORT, VerbsLayout.QP_ATTR_PKEY_INDEX, (short)
                verbs.service().partitionIndex());
        attributes.set(JAVA_INT, VerbsLayout.QP_ATTR_QP_ACCESS_FLAGS, asWriter ? 0 : ACCESS_AS_TARGET);
        modify(
                attributes,
                VerbsApi.IBV_QP_STATE
                        | VerbsApi.IBV_QP_PKEY_INDEX
                        | VerbsApi.IBV_QP_PORT
                        | VerbsApi.IBV_QP_ACCESS_FLAGS);
    }

    PairName name() {
        VerbsPort port = verbs.port();
        return new PairName(library.qp_num(pair), firstPacket, port.mtu(), port.lid(), port.ethernet(), port.gid());
    }

    /**
     * Begins to connect with the peer's queue pair; {@link #isConnected} reports the result.
     *
     * @throws IllegalArgumentException when the peer is on another kind of network
     */
    void connect(PairName peer) {
        if (peer.ethernet() != verbs.port().ethernet()) {
            throw new IllegalArgumentException("one side's RDMA port is Ethernet's and the other's InfiniBand's");
        }
        connection = new PairConnection(() -> {
            receive(peer);
            if (asWriter) {
                send();
            }
        });
        verbs.connecting().execute(connection);
    }

    /**
     * Whether it is connected, in its direction.
     *
     * @throws IllegalStateException when the device refuses
     */
    boolean isConnected() {
        return connection != null && connection.isMade();
    }

    private void receive(PairName peer) {
        VerbsPort port = verbs.port();
        MemorySegment attributes = state(VerbsApi.IBV_QPS_RTR);
        attributes.set(JAVA_INT, VerbsLayout.QP_ATTR_PATH_MTU, Math.min(port.mtu(), peer.mtu()));
        attributes.set(JAVA_INT, VerbsLayout.QP_ATTR_DEST_QP_NUM, peer.number());
        attributes.set(JAVA_INT, VerbsLayout.QP_ATTR_RQ_PSN, peer.firstPacket());
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_MAX_DEST_RD_ATOMIC, (byte) 1);
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_MIN_RNR_TIMER, (byte) RECEIVE_WAIT);
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_PORT_NUM, (byte) port.number());
        attributes.set(
                JAVA_BYTE, VerbsLayout.QP_ATTR_AH_SL, (byte) verbs.service().level());
        if (port.ethernet()) {
            attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_TRAFFIC_CLASS, (byte)
                    verbs.service().trafficClass());
            attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_IS_GLOBAL, (byte) 1);
            attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_SGID_INDEX, (byte) port.gidIndex());
            attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_HOP_LIMIT, (byte) HOPS_MAX);
            MemorySegment.copy(peer.gid(), 0, attributes, JAVA_BYTE, VerbsLayout.QP_ATTR_AH_DGID, PairName.GID_BYTES);
        } else {
            attributes.set(JAVA_SHORT, VerbsLayout.QP_ATTR_AH_DLID, (short) peer.lid());
        }
        modify(
                attributes,
                VerbsApi.IBV_QP_STATE
                        | VerbsApi.IBV_QP_AV
                        | VerbsApi.IBV_QP_PATH_MTU
                        | VerbsApi.IBV_QP_DEST_QPN
                        | VerbsApi.IBV_QP_RQ_PSN
                        | VerbsApi.IBV_QP_MAX_DEST_RD_ATOMIC
                        | VerbsApi.IBV_QP_MIN_RNR_TIMER);
    }

    private void send() {
        MemorySegment attributes = state(VerbsApi.IBV_QPS_RTS);
        attributes.set(JAVA_INT, VerbsLayout.QP_ATTR_SQ_PSN, firstPacket);
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_MAX_RD_ATOMIC, (byte) 1);
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_TIMEOUT, (byte) TIMEOUT);
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_RETRY_CNT, (byte) RETRIES);
        attributes.set(JAVA_BYTE, VerbsLayout.QP_ATTR_RNR_RETRY, (byte) RETRIES_FOR_RECEIVE);
        modify(
                attributes,
                VerbsApi.IBV_QP_STATE
                        | VerbsApi.IBV_QP_SQ_PSN
                        | VerbsApi.IBV_QP_MAX_QP_RD_ATOMIC
                        | VerbsApi.IBV_QP_TIMEOUT
                        | VerbsApi.IBV_QP_RETRY_CNT
                        | VerbsApi.IBV_QP_RNR_RETRY);
    }

    /**
     * Stops all traffic; outstanding requests complete, as failed unless they had been executed before.
     *
     * @throws IllegalStateException when the device refuses
     */
    void stop() {
        modify(state(VerbsApi.IBV_QPS_ERR), VerbsApi.IBV_QP_STATE);
        stopped = true;
    }

    int postSend(long request, MemorySegment refused) {
        return library.ibv_post_send(pair, request, refused);
    }

    int postReceive(long request, MemorySegment refused) {
        return library.ibv_post_recv(pair, request, refused);
    }

    /** Polls completions; returns their number, or {@code -errno}. */
    int poll() {
        return library.ibv_poll_cq(queue, ENTRIES, completions);
    }

    /** Id of one of the completions last polled. */
    long id(int i) {
        return completions.get(JAVA_LONG, i * VerbsLayout.WC_SIZE_BYTES + VerbsLayout.WC_WR_ID);
    }

    int status(int i) {
        return completions.get(JAVA_INT, i * VerbsLayout.WC_SIZE_BYTES + VerbsLayout.WC_STATUS);
    }

    int opcode(int i) {
        return completions.get(JAVA_INT, i * VerbsLayout.WC_SIZE_BYTES + VerbsLayout.WC_OPCODE);
    }

    int immediate(int i) {
        return completions.get(NETWORK_INT, i * VerbsLayout.WC_SIZE_BYTES + VerbsLayout.WC_IMM_DATA);
    }

    /** Describes a failed completion. */
    String describe(int i) {
        int status = status(i);
        int vendor = completions.get(JAVA_INT, i * VerbsLayout.WC_SIZE_BYTES + VerbsLayout.WC_VENDOR_ERR);
        return library.ibv_wc_status_str(status) + " (status " + status + ", the device's code " + vendor + ")";
    }

    String device() {
        return verbs.port().device();
    }

    boolean isOpen() {
        return pair != NONE;
    }

    /** Whether the device has neither destroyed nor stopped it, so that it may still read what was posted. */
    boolean mayRead() {
        return isOpen() && !stopped;
    }

    /**
     * Closes it, except while the driver is still connecting it: then {@link #isOpen} stays true until the driver has
     * returned and it has been closed there.
     *
     * @throws IllegalStateException when the device refuses: then the peer may still write
     */
    void close() {
        if (closesLater) {
            return;
        }
        closesLater = connection != null && !connection.abandon(this::destroy);
        if (!closesLater) {
            destroy();
        }
        if (arena.scope().isAlive()) {
            arena.close();
        }
    }

    private void destroy() {
        if (pair != NONE) {
            int result = library.ibv_destroy_qp(pair);
            if (result < 0 && !stopped) {
                // Stopped, it reads nothing either. That is no proof that nothing of the peer lands any more.
                stopped = library.ibv_modify_qp(pair, state(VerbsApi.IBV_QPS_ERR), VerbsApi.IBV_QP_STATE) >= 0;
            }
            verbs.require("ibv_destroy_qp", result);
        }
        if (queue != NONE) {
            library.ibv_destroy_cq(queue);
            queue = NONE;
        }
        pair = NONE; // at last, since the worker may go on from here
    }
}
