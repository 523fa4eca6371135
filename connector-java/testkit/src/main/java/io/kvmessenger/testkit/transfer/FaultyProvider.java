package io.kvmessenger.testkit.transfer;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandles;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * A libfabric provider within this process, called through tables of operations like the library's. It delivers in any
 * order, and injects the faults that it is told to.
 *
 * <p>It makes every demand that a NIC may make: both sides' memory must be registered, targets are named by their
 * address and a key of its own, an immediate has 4 bytes, a write has a maximum length and an endpoint a small limit on
 * operations in flight. Completed does not imply delivered. An engine's violations of these rules are recorded in
 * {@link #violations}. Any thread.
 */
final class FaultyProvider {
    static final String NAME = "faulty";
    /** More than the longest single write of the contract tests, less than an engine's preferred length of a write. */
    static final long WRITE_MAX_BYTES = 512 << 10;

    static final int DEPTH = 16;

    private static final int ENODATA = 61;
    private static final int EBUSY = 16;
    private static final int PROTOCOL = 0x7F01;
    private static final int ADDRESS_FORMAT = 0x7F02;
    private static final int MR_MODE =
            FabricApi.FI_MR_LOCAL | FabricApi.FI_MR_VIRT_ADDR | FabricApi.FI_MR_ALLOCATED | FabricApi.FI_MR_PROV_KEY;
    private static final long OBJECT_BYTES = 128;

    private enum Kind {
        INFO,
        FABRIC,
        DOMAIN,
        QUEUE,
        VECTOR,
        REGION,
        ENDPOINT
    }

    private static final class Refusal {
        private final int errno;
        private int skipped;
        private int count;

        private Refusal(int errno, int skipped, int count) {
            this.errno = errno;
            this.skipped = skipped;
            this.count = count;
        }
    }

    private final Arena arena = Arena.ofShared();
    private final OperationTables tables = new OperationTables(this, MethodHandles.lookup(), this::onThrown, arena);
    private final Map<String, MemorySegment> exports = new HashMap<>();
    private final Map<Kind, Map<Long, MemorySegment>> tablesByKind = new HashMap<>();
    private final MemorySegment name = arena.allocateFrom(NAME);
    private final MemorySegment reason = arena.allocateFrom("as it was told to");
    private final Random random;
    private final Map<Long, Kind> live = new HashMap<>();
    private final Map<Long, List<byte[]>> vectors = new HashMap<>();
    private final Map<String, Refusal> refusals = new HashMap<>();
    private final ProviderWires wires;
    private final List<String> violations = new ArrayList<>();

    FaultyProvider(long seed) {
        random = new Random(seed);
        wires = new ProviderWires(random, this::violate);
        for (String function : List.of("version", "getinfo", "dupinfo", "freeinfo", "fabric", "strerror")) {
            exports.put("fi_" + function, tables.function(function));
        }
        MemorySegment fid = tables.table(Map.of(
                FabricLayout.OPS_CLOSE, "close", FabricLayout.OPS_BIND, "bind", FabricLayout.OPS_CONTROL, "control"));
        for (Kind kind : Kind.values()) {
            tablesByKind.put(kind, new HashMap<>(Map.of(FabricLayout.FID_OPS, fid)));
        }
        give(Kind.FABRIC, FabricLayout.FABRIC_OPS, Map.of(FabricLayout.OPS_FABRIC_DOMAIN, "domain"));
        give(
                Kind.DOMAIN,
                FabricLayout.DOMAIN_OPS,
                Map.of(
                        FabricLayout.OPS_DOMAIN_AV_OPEN, "openVector",
                        FabricLayout.OPS_DOMAIN_CQ_OPEN, "openQueue",
                        FabricLayout.OPS_DOMAIN_ENDPOINT, "openEndpoint"));
        give(Kind.DOMAIN, FabricLayout.DOMAIN_MR, Map.of(FabricLayout.OPS_MR_REG, "register"));
        give(Kind.VECTOR, FabricLayout.AV_OPS, Map.of(FabricLayout.OPS_AV_INSERT, "insert"));
        give(Kind.ENDPOINT, FabricLayout.EP_CM, Map.of(FabricLayout.OPS_CM_GETNAME, "getname"));
        give(Kind.ENDPOINT, FabricLayout.EP_RMA, Map.of(FabricLayout.OPS_RMA_WRITEDATA, "writedata"));
        give(
                Kind.QUEUE,
                FabricLayout.CQ_OPS,
                Map.of(
                        FabricLayout.OPS_CQ_READ, "read",
                        FabricLayout.OPS_CQ_READERR, "readerr",
                        FabricLayout.OPS_CQ_STRERROR, "reason"));
    }

    private void give(Kind kind, long at, Map<Long, String> operations) {
        tablesByKind.get(kind).put(at, tables.table(operations));
    }

    /** Loads it as an engine does, whatever the name. */
    LibFabric library(String ignored) {
        return new FfmLibFabric(exports::get);
    }

    /** Makes {@code count} calls of a function fail, after those that are skipped. */
    synchronized void refuse(String function, int errno, int skipped, int count) {
        refusals.put(function, new Refusal(errno, skipped, count));
    }

    synchronized void stopRefusing(String function) {
        refusals.remove(function);
    }

    /** Whether every requested failure has happened. */
    synchronized boolean hasRefused() {
        return refusals.isEmpty();
    }

    /** Injects a fault into its wires, for a caller that holds no lock. */
    synchronized void make(ProviderWires.Fault fault) {
        wires.make(fault);
    }

    /** Ends a lasting fault. */
    synchronized void stop(ProviderWires.Fault fault) {
        wires.stop(fault);
    }

    synchronized boolean hasDone(ProviderWires.Fault fault) {
        return wires.hasDone(fault);
    }

    /** Rules that were broken; empty unless an engine has a bug. */
    synchronized List<String> violations() {
        return List.copyOf(violations);
    }

    /** Kinds of the objects that are open. */
    synchronized List<String> held() {
        return live.values().stream().map(Kind::name).sorted().toList();
    }

    private void violate(String what) {
        violations.add(what);
    }

    private synchronized void onThrown(Throwable thrown) {
        violations.add("a test's provider failed: " + thrown);
    }

    /** The errno to return now, or 0. */
    private int refused(String function) {
        Refusal refusal = refusals.get(function);
        if (refusal == null) {
            return 0;
        }
        if (refusal.skipped > 0) {
            refusal.skipped--;
            return 0;
        }
        if (--refusal.count == 0) {
            refusals.remove(function);
        }
        return refusal.errno;
    }

    private long make(Kind kind) {
        MemorySegment object = arena.allocate(OBJECT_BYTES, Long.BYTES);
        tablesByKind.get(kind).forEach((at, table) -> object.set(JAVA_LONG, at, table.address()));
        live.put(object.address(), kind);
        return object.address();
    }

    private int open(String function, Kind kind, long owner, Kind ownerKind, long opened) {
        require(live.get(owner) == ownerKind, function + " of a " + live.get(owner));
        int errno = refused(function);
        if (errno == 0) {
            ForeignMemory.at(opened, Long.BYTES).set(JAVA_LONG, 0, make(kind));
        }
        return -errno;
    }

    private void require(boolean holds, String otherwise) {
        if (!holds) {
            violations.add(otherwise);
        }
    }

    private static long longAt(long address) {
        return ForeignMemory.at(address, Long.BYTES).get(JAVA_LONG, 0);
    }

    // exported functions of the library

    int version() {
        return FabricApi.VERSION;
    }

    synchronized int getinfo(int version, long node, long service, long flags, long hints, long list) {
        int errno = refused("getinfo");
        MemorySegment wanted = ForeignMemory.at(hints, FabricLayout.INFO_SIZE_BYTES);
        MemorySegment fabric = ForeignMemory.at(
                wanted.get(JAVA_LONG, FabricLayout.INFO_FABRIC_ATTR), FabricLayout.FABRIC_ATTR_SIZE_BYTES);
        String provider = ForeignMemory.stringAt(fabric.get(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME));
        if (errno == 0 && !provider.isEmpty() && !provider.equals(NAME)) {
            errno = ENODATA;
        }
        if (errno == 0) {
            ForeignMemory.at(list, Long.BYTES).set(JAVA_LONG, 0, info());
        }
        return -errno;
    }

    synchronized long dupinfo(long info) {
        require(info == 0 || live.get(info) == Kind.INFO, "fi_dupinfo of what is no info");
        return info();
    }

    private long info() {
        MemorySegment info = arena.allocate(FabricLayout.INFO_SIZE_BYTES, Long.BYTES);
        MemorySegment transmit = arena.allocate(FabricLayout.TX_ATTR_SIZE_BYTES, Long.BYTES);
        MemorySegment endpoint = arena.allocate(FabricLayout.EP_ATTR_SIZE_BYTES, Long.BYTES);
        MemorySegment domain = arena.allocate(FabricLayout.DOMAIN_ATTR_SIZE_BYTES, Long.BYTES);
        MemorySegment fabric = arena.allocate(FabricLayout.FABRIC_ATTR_SIZE_BYTES, Long.BYTES);
        info.set(JAVA_INT, FabricLayout.INFO_ADDR_FORMAT, ADDRESS_FORMAT);
        info.set(JAVA_LONG, FabricLayout.INFO_TX_ATTR, transmit.address());
        info.set(JAVA_LONG, FabricLayout.INFO_EP_ATTR, endpoint.address());
        info.set(JAVA_LONG, FabricLayout.INFO_DOMAIN_ATTR, domain.address());
        info.set(JAVA_LONG, FabricLayout.INFO_FABRIC_ATTR, fabric.address());
        transmit.set(JAVA_LONG, FabricLayout.TX_ATTR_SIZE, DEPTH);
        endpoint.set(JAVA_INT, FabricLayout.EP_ATTR_PROTOCOL, PROTOCOL);
        endpoint.set(JAVA_LONG, FabricLayout.EP_ATTR_MAX_MSG_SIZE, WRITE_MAX_BYTES);
        domain.set(JAVA_LONG, FabricLayout.DOMAIN_ATTR_NAME, name.address());
        domain.set(JAVA_INT, FabricLayout.DOMAIN_ATTR_MR_MODE, MR_MODE);
        domain.set(JAVA_LONG, FabricLayout.DOMAIN_ATTR_MR_KEY_SIZE, Integer.BYTES);
        domain.set(JAVA_LONG, FabricLayout.DOMAIN_ATTR_CQ_DATA_SIZE, Integer.BYTES);
        fabric.set(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME, name.address());
        live.put(info.address(), Kind.INFO);
        return info.address();
    }

    synchronized void freeinfo(long info) {
        require(live.remove(info) == Kind.INFO, "fi_freeinfo of what is no info");
    }

    synchronized int fabric(long attributes, long opened, long context) {
        int errno = refused("fabric");
        if (errno == 0) {
            ForeignMemory.at(opened, Long.BYTES).set(JAVA_LONG, 0, make(Kind.FABRIC));
        }
        return -errno;
    }

    long strerror(int errno) {
        return reason.address();
    }

    // functions in its objects' tables

    synchronized int close(long object) {
        int errno = refused("close");
        Kind kind = live.get(object);
        require(kind != null && kind != Kind.INFO, "fi_close of what is not open");
        boolean isLast = live.values().stream().noneMatch(other -> other == Kind.ENDPOINT || other == Kind.REGION);
        require(
                kind != Kind.DOMAIN
                        || isLast
                        || live.values().stream().filter(other -> other == kind).count() > 1,
                "a domain is closed before what belongs to it");
        if (errno == 0 && wires.isBound(object)) {
            violations.add("a queue or vector is closed before its endpoint");
            errno = EBUSY;
        }
        if (errno == 0) {
            live.remove(object);
            vectors.remove(object);
            wires.remove(object);
        }
        return -errno;
    }

    synchronized int domain(long fabric, long info, long opened, long context) {
        require(live.get(info) == Kind.INFO, "fi_domain without an info");
        return open("domain", Kind.DOMAIN, fabric, Kind.FABRIC, opened);
    }

    synchronized int openVector(long domain, long attributes, long opened, long context) {
        int result = open("av_open", Kind.VECTOR, domain, Kind.DOMAIN, opened);
        if (result == 0) {
            vectors.put(longAt(opened), new ArrayList<>());
        }
        return result;
    }

    synchronized int openQueue(long domain, long attributes, long opened, long context) {
        int result = open("cq_open", Kind.QUEUE, domain, Kind.DOMAIN, opened);
        if (result == 0) {
            wires.addQueue(longAt(opened), longAt(attributes + FabricLayout.CQ_ATTR_SIZE));
        }
        return result;
    }

    synchronized int openEndpoint(long domain, long info, long opened, long context) {
        int result = open("endpoint", Kind.ENDPOINT, domain, Kind.DOMAIN, opened);
        if (result == 0) {
            wires.addEndpoint(longAt(opened));
        }
        return result;
    }

    synchronized int bind(long endpoint, long object, long flags) {
        int errno = refused("bind");
        if (errno == 0) {
            wires.bind(endpoint, object, live.get(object) == Kind.QUEUE);
        }
        return -errno;
    }

    synchronized int control(long endpoint, int command, long argument) {
        require(command == FabricApi.FI_ENABLE, "fi_control " + command);
        return -refused("enable");
    }

    synchronized int getname(long endpoint, long address, long lengthBytes) {
        int errno = refused("getname");
        if (errno == 0) {
            ForeignMemory.at(address, Long.BYTES).set(JAVA_LONG, 0, endpoint);
            ForeignMemory.at(lengthBytes, Long.BYTES).set(JAVA_LONG, 0, Long.BYTES);
        }
        return -errno;
    }

    synchronized int insert(long vector, long address, long count, long handle, long flags, long context) {
        int errno = refused("av_insert");
        if (errno != 0) {
            return errno < 0 ? 0 : -errno;
        }
        List<byte[]> addresses = vectors.get(vector);
        addresses.add(ForeignMemory.at(address, Long.BYTES).toArray(JAVA_BYTE));
        ForeignMemory.at(handle, Long.BYTES).set(JAVA_LONG, 0, addresses.size() - 1L);
        return 1;
    }

    synchronized int register(
            long domain,
            long address,
            long lengthBytes,
            long access,
            long offset,
            long requestedKey,
            long flags,
            long opened,
            long context) {
        require(requestedKey == 0, "a key is asked for of a provider that has its own");
        int result = open("mr_reg", Kind.REGION, domain, Kind.DOMAIN, opened);
        if (result == 0) {
            long region = longAt(opened);
            MemorySegment object = ForeignMemory.at(region, OBJECT_BYTES);
            object.set(JAVA_LONG, FabricLayout.MR_DESC, region);
            object.set(JAVA_LONG, FabricLayout.MR_KEY, wires.addRegion(region, address, lengthBytes));
        }
        return result;
    }

    synchronized long writedata(
            long endpoint,
            long source,
            long lengthBytes,
            long descriptor,
            long data,
            long handle,
            long target,
            long key,
            long context) {
        int errno = refused("writedata");
        if (errno == 0 && wires.isFull(endpoint, DEPTH)) {
            errno = Errno.EAGAIN;
        }
        if (errno != 0) {
            return -errno;
        }
        require(lengthBytes <= WRITE_MAX_BYTES, "a write of " + lengthBytes + " bytes");
        require(data >>> Integer.SIZE == 0, "an immediate of more than 32 bits");
        require(wires.hasRegion(descriptor, source, lengthBytes), "a source outside of what is registered");
        long to = MemorySegment.ofArray(vectors.get(wires.vectorOf(endpoint)).get((int) handle))
                .get(JAVA_LONG.withByteAlignment(1), 0);
        wires.begin(endpoint, source, lengthBytes, (int) data, to, target, key, context);
        return 0;
    }

    synchronized long read(long queue, long entries, long count) {
        int errno = refused("cq_read");
        return errno != 0 ? -errno : wires.read(queue, entries, count);
    }

    synchronized long readerr(long queue, long entry, long flags) {
        int errno = refused("cq_readerr");
        return errno != 0 ? -errno : wires.readError(queue, entry);
    }

    long reason(long queue, int number, long data, long buffer, long lengthBytes) {
        return reason.address();
    }
}
