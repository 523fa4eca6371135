package io.kvmessenger.testkit.device;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.foreign.VerbsLayout;
import io.kvmessenger.testkit.device.LoopbackMemories.Registered;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * A libibverbs whose RDMA devices connect engines of this process: a write that is posted comes through at once, in host memory and
 * in what was registered by a dma-buf of the {@link StandInCuda stand-in's}.
 *
 * <p>Any thread; one call at a time.
 */
final class LoopbackVerbs implements LibVerbs {
    private static final int MTU_4096 = 5;
    private static final int ENTRIES_MAX = 4096;
    private static final int RETRIES_EXCEEDED = 12;
    private static final int EIO = 5;
    static final int MESSAGE_MAX_BYTES = 1 << 23;
    /** What an IPv4 address begins with among GIDs. */
    private static final byte[] LOOPBACK_GID = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, 127, 0, 0, 1};

    private record Request(
            boolean withImm, boolean signalled, long id, int imm, byte[] payload, long to, int remoteKey) {}

    private record Completion(long id, int status, int opcode, int imm) {}

    /** Which end of a connection a queue pair is. */
    enum Side {
        WRITER,
        TARGET
    }

    private static final class Pair {
        final Deque<Request> sends = new ArrayDeque<>();
        final Deque<Completion> queue;
        final long device;
        int receives;
        int state;
        Side side = Side.TARGET;
        long peer;

        Pair(Deque<Completion> queue, long device) {
            this.queue = queue;
            this.device = device;
        }
    }

    private final Arena arena = Arena.ofAuto();
    private final List<String> names;
    private final LoopbackMemories memories;
    private final Map<Long, Long> domainDevices = new HashMap<>();
    private final Map<Long, Deque<Completion>> queues = new HashMap<>();
    private final Map<Long, Pair> pairs = new HashMap<>();
    /** The devices whose driver registers no dma-buf. */
    final Set<String> withoutDmaBuf = new HashSet<>();

    /** The calls that are refused about queue pairs of a side, as by a device that was lost. */
    private final Map<Side, Set<String>> refused = new EnumMap<>(Side.class);

    private int refusals;
    /** Whether devices have read nothing yet of what is posted from now on. */
    private boolean holding;

    private long lastObject = 1 << 20;

    LoopbackVerbs(StandInCuda standIn, String... names) {
        this.names = List.of(names);
        memories = new LoopbackMemories(standIn);
    }

    /** Memory that is registered. */
    synchronized int regionCount() {
        return memories.count();
    }

    /** From now on; without names nothing is refused. */
    synchronized void refuse(Side side, String... calls) {
        refused.put(side, Set.of(calls));
    }

    /** How many calls were refused. */
    synchronized int refusals() {
        return refusals;
    }

    /** From now on writes that are posted wait. */
    synchronized void hold() {
        holding = true;
    }

    /** Whether a device has still to read what was posted. */
    synchronized boolean mayRead() {
        return pairs.values().stream().anyMatch(pair -> !pair.sends.isEmpty());
    }

    private boolean refuses(Pair pair, String call) {
        boolean refuses = refused.getOrDefault(pair.side, Set.of()).contains(call);
        refusals += refuses ? 1 : 0;
        return refuses;
    }

    /** The writers' devices report that the targets' do not answer any more. */
    synchronized void breakPaths() {
        pairs.values().stream()
                .filter(pair -> pair.side == Side.WRITER)
                .forEach(pair -> pair.queue.add(new Completion(0, RETRIES_EXCEEDED, 1, 0)));
    }

    @Override
    public synchronized long ibv_get_device_list(MemorySegment count) {
        count.set(JAVA_INT, 0, names.size());
        MemorySegment list = arena.allocate(JAVA_LONG, names.size());
        for (int i = 0; i < names.size(); i++) {
            list.setAtIndex(JAVA_LONG, i, i + 1L);
        }
        return list.address();
    }

    @Override
    public void ibv_free_device_list(long list) {}

    @Override
    public String ibv_get_device_name(long device) {
        return names.get((int) device - 1);
    }

    /** A device's context has its number. */
    @Override
    public long ibv_open_device(long device) {
        return device;
    }

    @Override
    public int ibv_close_device(long context) {
        return 0;
    }

    @Override
    public int ibv_query_device(long context, MemorySegment attributes) {
        attributes.set(JAVA_BYTE, VerbsLayout.DEVICE_ATTR_PHYS_PORT_CNT, (byte) 1);
        attributes.set(JAVA_INT, VerbsLayout.DEVICE_ATTR_MAX_QP_WR, ENTRIES_MAX);
        attributes.set(JAVA_INT, VerbsLayout.DEVICE_ATTR_MAX_CQE, ENTRIES_MAX);
        return 0;
    }

    @Override
    public int ibv_query_port(long context, int port, MemorySegment attributes) {
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_STATE, VerbsApi.IBV_PORT_ACTIVE);
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_ACTIVE_MTU, MTU_4096);
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_GID_TBL_LEN, 1);
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_MAX_MSG_SZ, MESSAGE_MAX_BYTES);
        attributes.set(JAVA_BYTE, VerbsLayout.PORT_ATTR_LINK_LAYER, (byte) VerbsApi.IBV_LINK_LAYER_ETHERNET);
        return 0;
    }

    @Override
    public int ibv_query_gid_ex(long context, int port, int index, MemorySegment entry) {
        MemorySegment.copy(LOOPBACK_GID, 0, entry, JAVA_BYTE, VerbsLayout.GID_ENTRY_GID, LOOPBACK_GID.length);
        entry.set(JAVA_INT, VerbsLayout.GID_ENTRY_GID_TYPE, VerbsApi.IBV_GID_TYPE_ROCE_V2);
        return 0;
    }

    @Override
    public synchronized long ibv_alloc_pd(long context) {
        domainDevices.put(++lastObject, context);
        return lastObject;
    }

    @Override
    public int ibv_dealloc_pd(long domain) {
        return 0;
    }

    @Override
    public synchronized long ibv_reg_mr(long domain, long address, long lengthBytes, int access) {
        return memories.add(++lastObject, domainDevices.get(domain), address, lengthBytes, access);
    }

    @Override
    public synchronized long ibv_reg_dmabuf_mr(
            long domain, long offsetBytes, long lengthBytes, long address, int fd, int access) {
        long device = domainDevices.get(domain);
        if (withoutDmaBuf.contains(ibv_get_device_name(device))) {
            return -Errno.EOPNOTSUPP;
        }
        return memories.addDmaBuf(++lastObject, device, offsetBytes, lengthBytes, address, fd, access);
    }

    @Override
    public synchronized int ibv_dereg_mr(long region) {
        memories.remove(region);
        return 0;
    }

    @Override
    public int lkey(long region) {
        return (int) region;
    }

    @Override
    public int rkey(long region) {
        return (int) region;
    }

    @Override
    public synchronized long ibv_create_cq(long context, int entries) {
        queues.put(++lastObject, new ArrayDeque<>());
        return lastObject;
    }

    @Override
    public synchronized int ibv_destroy_cq(long queue) {
        queues.remove(queue);
        return 0;
    }

    @Override
    public synchronized long ibv_create_qp(long domain, MemorySegment attributes) {
        Deque<Completion> queue = queues.get(attributes.get(JAVA_LONG, VerbsLayout.QP_INIT_ATTR_RECV_CQ));
        pairs.put(++lastObject, new Pair(queue, domainDevices.get(domain)));
        return lastObject;
    }

    @Override
    public synchronized int ibv_modify_qp(long number, MemorySegment attributes, int mask) {
        Pair pair = pairs.get(number);
        if (refuses(pair, "ibv_modify_qp")) {
            return -EIO;
        }
        pair.state = attributes.get(JAVA_INT, VerbsLayout.QP_ATTR_QP_STATE);
        pair.side = pair.state == VerbsApi.IBV_QPS_RTS ? Side.WRITER : pair.side;
        if ((mask & VerbsApi.IBV_QP_DEST_QPN) != 0) {
            pair.peer = attributes.get(JAVA_INT, VerbsLayout.QP_ATTR_DEST_QP_NUM);
        }
        if (pair.state == VerbsApi.IBV_QPS_ERR) {
            pair.sends.clear();
            for (; pair.receives > 0; pair.receives--) {
                pair.queue.add(new Completion(0, VerbsApi.IBV_WC_WR_FLUSH_ERR, 0, 0));
            }
        }
        return 0;
    }

    @Override
    public synchronized int ibv_destroy_qp(long number) {
        if (refuses(pairs.get(number), "ibv_destroy_qp")) {
            return -EIO;
        }
        pairs.remove(number);
        return 0;
    }

    @Override
    public int qp_num(long number) {
        return (int) number;
    }

    @Override
    public synchronized int ibv_post_send(long number, long request, MemorySegment refused) {
        Pair pair = pairs.get(number);
        for (long at = request; at != 0; ) {
            MemorySegment wr = ForeignMemory.at(at, VerbsLayout.SEND_WR_SIZE_BYTES);
            pair.sends.add(read(pair, wr));
            at = wr.get(JAVA_LONG, VerbsLayout.SEND_WR_NEXT);
        }
        deliver(pair);
        return 0;
    }

    /** A device reads what is posted before it is told of as sent: here at once. */
    private Request read(Pair pair, MemorySegment wr) {
        byte[] payload = {};
        if (wr.get(JAVA_INT, VerbsLayout.SEND_WR_NUM_SGE) == 1) {
            MemorySegment part =
                    ForeignMemory.at(wr.get(JAVA_LONG, VerbsLayout.SEND_WR_SG_LIST), VerbsLayout.SGE_SIZE_BYTES);
            Registered source = memories.of(part.get(JAVA_INT, VerbsLayout.SGE_LKEY), pair.device);
            payload = memories.read(
                    source, part.get(JAVA_LONG, VerbsLayout.SGE_ADDR), part.get(JAVA_INT, VerbsLayout.SGE_LENGTH));
        }
        return new Request(
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_OPCODE) == VerbsApi.IBV_WR_RDMA_WRITE_WITH_IMM,
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_SEND_FLAGS) == VerbsApi.IBV_SEND_SIGNALED,
                wr.get(JAVA_LONG, VerbsLayout.SEND_WR_WR_ID),
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_IMM_DATA),
                payload,
                wr.get(JAVA_LONG, VerbsLayout.SEND_WR_REMOTE_ADDR),
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_RKEY));
    }

    /** What waits for a receive, or for the other side to be there, waits. */
    private void deliver(Pair pair) {
        Pair target = pairs.get(pair.peer);
        boolean connected = !holding
                && target != null
                && pair.state == VerbsApi.IBV_QPS_RTS
                && (target.state == VerbsApi.IBV_QPS_RTR || target.state == VerbsApi.IBV_QPS_RTS);
        while (connected && !pair.sends.isEmpty() && (target.receives > 0 || !pair.sends.peek().withImm)) {
            Request request = pair.sends.poll();
            if (request.payload.length > 0) {
                memories.write(memories.of(request.remoteKey, target.device), request.to, request.payload);
            }
            if (request.withImm) {
                target.receives--;
                target.queue.add(
                        new Completion(0, VerbsApi.IBV_WC_SUCCESS, VerbsApi.IBV_WC_RECV_RDMA_WITH_IMM, request.imm));
            }
            if (request.signalled) {
                pair.queue.add(new Completion(request.id, VerbsApi.IBV_WC_SUCCESS, 1, 0));
            }
        }
    }

    @Override
    public synchronized int ibv_post_recv(long number, long request, MemorySegment refused) {
        for (long at = request; at != 0; ) {
            pairs.get(number).receives++;
            at = ForeignMemory.at(at, VerbsLayout.RECV_WR_SIZE_BYTES).get(JAVA_LONG, VerbsLayout.RECV_WR_NEXT);
        }
        return 0;
    }

    @Override
    public synchronized int ibv_poll_cq(long queue, int entries, MemorySegment completions) {
        pairs.values().forEach(this::deliver);
        Deque<Completion> waiting = queues.get(queue);
        int count = 0;
        for (; count < entries && !waiting.isEmpty(); count++) {
            Completion completion = waiting.poll();
            MemorySegment wc = completions.asSlice(count * VerbsLayout.WC_SIZE_BYTES, VerbsLayout.WC_SIZE_BYTES);
            wc.set(JAVA_LONG, VerbsLayout.WC_WR_ID, completion.id);
            wc.set(JAVA_INT, VerbsLayout.WC_STATUS, completion.status);
            wc.set(JAVA_INT, VerbsLayout.WC_OPCODE, completion.opcode);
            wc.set(JAVA_INT, VerbsLayout.WC_IMM_DATA, completion.imm);
        }
        return count;
    }

    @Override
    public String ibv_wc_status_str(int status) {
        return "status in words";
    }
}
