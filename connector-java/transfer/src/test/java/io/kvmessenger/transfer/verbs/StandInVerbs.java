package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;
import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.foreign.VerbsLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/**
 * A libibverbs with devices that are only described, whose connected queue pairs move bytes in this process when a test says so, and
 * fail as it says.
 *
 * <p>One thread.
 */
final class StandInVerbs implements LibVerbs {
    /** A device with one port. */
    record Device(String name, int portState, int linkLayer, List<byte[]> gids, int gidType) {}

    /** With what one was registered. */
    record DmaBuf(int fd, long offsetBytes, int access) {}

    private static final int RECEIVED = 128;
    private static final int MTU_4096 = 5;
    private static final int ENTRIES_MAX = 32_767;

    private record Request(
            long id,
            int opcode,
            boolean signalled,
            int imm,
            byte[] payload,
            int localKey,
            long target,
            int remoteKey) {}

    private record Completion(long id, int status, int opcode, int imm) {}

    private static final class Pair {
        final Deque<Request> sends = new ArrayDeque<>();
        final Deque<Completion> queue;
        final long device;
        int receives;
        int state;
        int peer;

        Pair(Deque<Completion> queue, long device) {
            this.queue = queue;
            this.device = device;
        }
    }

    private final Arena arena = Arena.ofConfined();
    private final List<Device> devices;
    private final Map<Long, Deque<Completion>> queues = new HashMap<>();
    private final Map<Long, Pair> pairs = new HashMap<>();
    /** Of each protection domain. */
    private final Map<Long, Long> domainDevices = new HashMap<>();

    private final Map<Integer, Long> regionDevices = new HashMap<>();

    final List<String> openDevices = new ArrayList<>();
    final List<DmaBuf> dmaBufs = new ArrayList<>();
    /** Of each queue pair: the index of its partition, and once it is connected its service level and traffic class. */
    final List<List<Integer>> services = new ArrayList<>();

    private long lastObject = 1 << 20;
    /** What the next post returns, if not zero, after it has taken {@link #takenBefore} requests. */
    int postErrno;

    int takenBefore;
    /** Whether posts that come through are acknowledged. */
    boolean acknowledges = true;
    /** Whether the target is told of immediates, and not of a failure in their place. */
    boolean reports = true;
    /** Whether queues of completions cannot be read. */
    boolean unreadable;
    /** Whether a queue pair that is stopped gives its receives back. */
    boolean givesBack = true;
    /** Run while the driver resolves the address of the peer's port. */
    Runnable inConnect = () -> {};

    /** The call that fails, with ENOMEM, as long as it stands here. */
    String refusedCall = "";
    /** The only device at which it fails; empty for all. */
    String refusingDevice = "";
    /** Completions that one poll gives at most. */
    int pollMax = Integer.MAX_VALUE;
    /** The devices whose wires are cut: nothing comes through. */
    final Set<String> cut = new HashSet<>();
    /** Objects that are there: domains, regions, queues and pairs. */
    private int objects;

    StandInVerbs(Device... devices) {
        this.devices = List.of(devices);
    }

    /** Lets so many posts of all queue pairs come through, in order, as far as there are receives. */
    void deliver(int posts) {
        int left = posts;
        for (Pair pair : pairs.values()) {
            Pair target = pairs.get((long) pair.peer);
            if (target == null || isCut(pair) || isCut(target)) {
                continue;
            }
            while (left > 0 && !pair.sends.isEmpty() && pair.state == VerbsApi.IBV_QPS_RTS) {
                Request request = pair.sends.peek();
                boolean hasImm = request.opcode == VerbsApi.IBV_WR_RDMA_WRITE_WITH_IMM;
                if (hasImm && target.receives == 0) {
                    break;
                }
                pair.sends.poll();
                if (request.payload.length > 0) {
                    requireKeysOf(pair, target, request);
                    ForeignMemory.at(request.target, request.payload.length)
                            .copyFrom(MemorySegment.ofArray(request.payload));
                }
                if (hasImm) {
                    target.receives--;
                    target.queue.add(new Completion(
                            0,
                            reports ? VerbsApi.IBV_WC_SUCCESS : VerbsApi.IBV_WC_WR_FLUSH_ERR,
                            VerbsApi.IBV_WC_RECV_RDMA_WITH_IMM,
                            request.imm));
                    left--;
                }
                if (request.signalled && acknowledges) {
                    pair.queue.add(new Completion(request.id, VerbsApi.IBV_WC_SUCCESS, 1, 0));
                }
            }
        }
    }

    /** A device knows the keys of its own regions only. */
    private void requireKeysOf(Pair pair, Pair target, Request request) {
        if (!Objects.equals(regionDevices.get(request.localKey), pair.device)
                || !Objects.equals(regionDevices.get(request.remoteKey), target.device)) {
            throw new AssertionError("a key of another device");
        }
    }

    private boolean isRefusing(long device) {
        return refusingDevice.equals(devices.get((int) device - 1).name);
    }

    private boolean isCut(Pair pair) {
        return pair != null && cut.contains(devices.get((int) pair.device - 1).name);
    }

    /** The oldest request of each writer was not answered in time; of those that are cut, where some are. */
    void exceedRetries() {
        pairs.values().stream()
                .filter(pair -> pair.state == VerbsApi.IBV_QPS_RTS)
                .filter(pair -> cut.isEmpty() || isCut(pair) || isCut(pairs.get((long) pair.peer)))
                .forEach(pair -> pair.queue.add(new Completion(0, VerbsApi.IBV_WC_RETRY_EXC_ERR, 0, 0)));
    }

    /** Something of the peer's arrives at each target that is no write. */
    void deliverMessage() {
        pairs.values().stream().filter(pair -> pair.receives > 0).forEach(pair -> {
            pair.receives--;
            pair.queue.add(new Completion(0, VerbsApi.IBV_WC_SUCCESS, RECEIVED, 0));
        });
    }

    /** The requests that have not come through, as the device sees them: its immediates are the network's. */
    List<String> underWay() {
        return pairs.values().stream()
                .flatMap(pair -> pair.sends.stream())
                .map(request -> (request.opcode == VerbsApi.IBV_WR_RDMA_WRITE ? "write " : "write with imm ")
                        + request.payload.length
                        + (request.opcode == VerbsApi.IBV_WR_RDMA_WRITE ? "" : " %08x".formatted(request.imm))
                        + (request.signalled ? " signalled" : ""))
                .toList();
    }

    int openPairs() {
        return pairs.size();
    }

    /** How many writers' queue pairs of a device have requests under way. */
    long busyWriters(String device) {
        return pairs.values().stream()
                .filter(pair -> !pair.sends.isEmpty())
                .filter(pair -> devices.get((int) pair.device - 1).name.equals(device))
                .count();
    }

    int objects() {
        return objects;
    }

    void close() {
        arena.close();
    }

    private long make(String call, long device) {
        if (call.equals(refusedCall) && (refusingDevice.isEmpty() || isRefusing(device))) {
            return -Errno.ENOMEM;
        }
        objects++;
        return ++lastObject;
    }

    @Override
    public long ibv_get_device_list(MemorySegment count) {
        count.set(JAVA_INT, 0, devices.size());
        MemorySegment list = arena.allocate(JAVA_LONG, Math.max(1, devices.size()));
        for (int i = 0; i < devices.size(); i++) {
            list.setAtIndex(JAVA_LONG, i, i + 1L);
        }
        return list.address();
    }

    @Override
    public void ibv_free_device_list(long list) {}

    @Override
    public String ibv_get_device_name(long device) {
        return devices.get((int) device - 1).name;
    }

    /** A device's context has its number. */
    @Override
    public long ibv_open_device(long device) {
        openDevices.add(ibv_get_device_name(device));
        return device;
    }

    @Override
    public int ibv_close_device(long context) {
        openDevices.remove(ibv_get_device_name(context));
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
        Device device = devices.get((int) context - 1);
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_STATE, device.portState);
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_ACTIVE_MTU, MTU_4096);
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_GID_TBL_LEN, device.gids.size());
        attributes.set(JAVA_INT, VerbsLayout.PORT_ATTR_MAX_MSG_SZ, 1 << 23);
        attributes.set(JAVA_SHORT, VerbsLayout.PORT_ATTR_LID, (short) 3);
        attributes.set(JAVA_BYTE, VerbsLayout.PORT_ATTR_LINK_LAYER, (byte) device.linkLayer);
        return 0;
    }

    @Override
    public int ibv_query_gid_ex(long context, int port, int index, MemorySegment entry) {
        Device device = devices.get((int) context - 1);
        byte[] gid = device.gids.get(index);
        MemorySegment.copy(gid, 0, entry, JAVA_BYTE, VerbsLayout.GID_ENTRY_GID, gid.length);
        entry.set(JAVA_INT, VerbsLayout.GID_ENTRY_GID_TYPE, device.gidType);
        return 0;
    }

    @Override
    public long ibv_alloc_pd(long context) {
        long domain = make("ibv_alloc_pd", context);
        domainDevices.put(domain, context);
        return domain;
    }

    @Override
    public int ibv_dealloc_pd(long domain) {
        objects--;
        return 0;
    }

    @Override
    public long ibv_reg_mr(long domain, long address, long lengthBytes, int access) {
        long region = make("ibv_reg_mr", domainDevices.get(domain));
        regionDevices.put((int) region, domainDevices.get(domain));
        return region;
    }

    /** The bytes are found at the address, whatever the descriptor names. */
    @Override
    public long ibv_reg_dmabuf_mr(long domain, long offsetBytes, long lengthBytes, long address, int fd, int access) {
        long region = make("ibv_reg_dmabuf_mr", domainDevices.get(domain));
        regionDevices.put((int) region, domainDevices.get(domain));
        dmaBufs.add(new DmaBuf(fd, offsetBytes, access));
        return region;
    }

    @Override
    public int ibv_dereg_mr(long region) {
        objects--;
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
    public long ibv_create_cq(long context, int entries) {
        long queue = make("ibv_create_cq", context);
        queues.put(queue, new ArrayDeque<>());
        return queue;
    }

    @Override
    public int ibv_destroy_cq(long queue) {
        objects--;
        queues.remove(queue);
        return 0;
    }

    @Override
    public long ibv_create_qp(long domain, MemorySegment attributes) {
        long pair = make("ibv_create_qp", domainDevices.get(domain));
        if (pair > 0) {
            Deque<Completion> queue = queues.get(attributes.get(JAVA_LONG, VerbsLayout.QP_INIT_ATTR_RECV_CQ));
            pairs.put(pair, new Pair(queue, domainDevices.get(domain)));
        }
        return pair;
    }

    @Override
    public int ibv_modify_qp(long pair, MemorySegment attributes, int mask) {
        if (refusedCall.equals("ibv_modify_qp")) {
            return -Errno.EIO;
        }
        Pair modified = pairs.get(pair);
        if ((mask & VerbsApi.IBV_QP_PKEY_INDEX) != 0) {
            services.add(List.of((int) attributes.get(JAVA_SHORT, VerbsLayout.QP_ATTR_PKEY_INDEX)));
        }
        if ((mask & VerbsApi.IBV_QP_DEST_QPN) != 0) {
            services.add(List.of((int) attributes.get(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_SL), (int)
                    attributes.get(JAVA_BYTE, VerbsLayout.QP_ATTR_AH_TRAFFIC_CLASS)));
            inConnect.run();
            assertThat(pairs).as("the driver's queue pair").containsKey(pair);
        }
        modified.state = attributes.get(JAVA_INT, VerbsLayout.QP_ATTR_QP_STATE);
        if ((mask & VerbsApi.IBV_QP_DEST_QPN) != 0) {
            modified.peer = attributes.get(JAVA_INT, VerbsLayout.QP_ATTR_DEST_QP_NUM);
        }
        if (modified.state == VerbsApi.IBV_QPS_ERR && givesBack) {
            modified.sends.clear();
            for (; modified.receives > 0; modified.receives--) {
                modified.queue.add(new Completion(0, VerbsApi.IBV_WC_WR_FLUSH_ERR, 0, 0));
            }
        }
        return 0;
    }

    @Override
    public int ibv_destroy_qp(long pair) {
        objects--;
        pairs.remove(pair);
        return 0;
    }

    @Override
    public int qp_num(long pair) {
        return (int) pair;
    }

    @Override
    public int ibv_post_send(long pair, long request, MemorySegment refused) {
        int taken = 0;
        for (long at = request; at != 0; taken++) {
            if (postErrno != 0 && taken == takenBefore) {
                refused.set(JAVA_LONG, 0, at);
                int errno = postErrno;
                postErrno = 0;
                return -errno;
            }
            MemorySegment wr = ForeignMemory.at(at, VerbsLayout.SEND_WR_SIZE_BYTES);
            pairs.get(pair).sends.add(read(wr));
            at = wr.get(JAVA_LONG, VerbsLayout.SEND_WR_NEXT);
        }
        return 0;
    }

    private static Request read(MemorySegment wr) {
        byte[] payload = new byte[0];
        int localKey = 0;
        if (wr.get(JAVA_INT, VerbsLayout.SEND_WR_NUM_SGE) == 1) {
            MemorySegment part =
                    ForeignMemory.at(wr.get(JAVA_LONG, VerbsLayout.SEND_WR_SG_LIST), VerbsLayout.SGE_SIZE_BYTES);
            payload = ForeignMemory.at(
                            part.get(JAVA_LONG, VerbsLayout.SGE_ADDR), part.get(JAVA_INT, VerbsLayout.SGE_LENGTH))
                    .toArray(JAVA_BYTE);
            localKey = part.get(JAVA_INT, VerbsLayout.SGE_LKEY);
        }
        return new Request(
                wr.get(JAVA_LONG, VerbsLayout.SEND_WR_WR_ID),
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_OPCODE),
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_SEND_FLAGS) == VerbsApi.IBV_SEND_SIGNALED,
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_IMM_DATA),
                payload,
                localKey,
                wr.get(JAVA_LONG, VerbsLayout.SEND_WR_REMOTE_ADDR),
                wr.get(JAVA_INT, VerbsLayout.SEND_WR_RKEY));
    }

    @Override
    public int ibv_post_recv(long pair, long request, MemorySegment refused) {
        if (refusedCall.equals("ibv_post_recv")) {
            return -Errno.ENOMEM;
        }
        for (long at = request; at != 0; ) {
            pairs.get(pair).receives++;
            at = ForeignMemory.at(at, VerbsLayout.RECV_WR_SIZE_BYTES).get(JAVA_LONG, VerbsLayout.RECV_WR_NEXT);
        }
        return 0;
    }

    @Override
    public int ibv_poll_cq(long queue, int entries, MemorySegment completions) {
        if (unreadable) {
            return -Errno.EIO;
        }
        int count = 0;
        for (Deque<Completion> waiting = queues.get(queue);
                count < Math.min(entries, pollMax) && !waiting.isEmpty();
                count++) {
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
