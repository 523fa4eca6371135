package io.kvmessenger.transfer.verbs;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.foreign.VerbsApi;
import io.kvmessenger.foreign.VerbsLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Finds the ports to use: of the devices that were named, else of the one with the address that peers are told, else
 * the first active one.
 *
 * <p>Used once, by one thread.
 */
final class VerbsSearch {
    private static final long POINTER_BYTES = 8;
    private static final int GID_OFFSET_OF_INET = 12;

    private final LibVerbs library;
    private final byte[] wantedGid;
    private final List<String> seen = new ArrayList<>();

    /** @param host the address that peers are told */
    VerbsSearch(LibVerbs library, InetAddress host) {
        this.library = library;
        wantedGid = gidOf(host);
    }

    /** The GID of an address; for IPv4 the mapped one. */
    static byte[] gidOf(InetAddress host) {
        byte[] address = host.getAddress();
        if (address.length == PairName.GID_BYTES) {
            return address;
        }
        byte[] gid = new byte[PairName.GID_BYTES];
        gid[GID_OFFSET_OF_INET - 2] = (byte) 0xff;
        gid[GID_OFFSET_OF_INET - 1] = (byte) 0xff;
        System.arraycopy(address, 0, gid, GID_OFFSET_OF_INET, address.length);
        return gid;
    }

    private static boolean isOfInet(byte[] gid) {
        return Arrays.equals(
                gid, 0, GID_OFFSET_OF_INET, gidOf(InetAddress.getLoopbackAddress()), 0, GID_OFFSET_OF_INET);
    }

    /**
     * Opens the devices of the returned ports, in the order in which they are named; no other device stays open.
     *
     * @param devices names; empty for any device
     * @throws IllegalStateException saying in one line why there is none, or which name is unknown
     */
    List<VerbsPort> find(List<String> devices) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment count = arena.allocate(JAVA_INT);
            long list = library.ibv_get_device_list(count);
            try {
                int found = list <= 0 ? 0 : count.get(JAVA_INT, 0);
                return devices.isEmpty() ? List.of(any(list, found, arena)) : named(list, found, devices, arena);
            } finally {
                if (list > 0) {
                    library.ibv_free_device_list(list);
                }
            }
        }
    }

    /** Why some named devices are not among those found; empty when all are. */
    List<String> leftOut() {
        return List.copyOf(seen);
    }

    private VerbsPort any(long list, int found, Arena arena) {
        VerbsPort best = null;
        for (int i = 0; i < found && !hasWantedGid(best); i++) {
            best = better(best, addressAt(list, i), arena);
        }
        if (best == null) {
            throw new IllegalStateException("finds no RDMA device with an active port, but " + allSeen());
        }
        return best;
    }

    private List<VerbsPort> named(long list, int found, List<String> devices, Arena arena) {
        List<VerbsPort> ports = new ArrayList<>();
        try {
            for (String name : devices) {
                VerbsPort port = open(addressOf(name, list, found), arena);
                if (port != null) {
                    ports.add(port);
                }
            }
        } catch (IllegalStateException e) {
            ports.forEach(port -> library.ibv_close_device(port.context()));
            throw e;
        }
        if (ports.isEmpty()) {
            throw new IllegalStateException("finds no active port of verbs_devices " + String.join(", ", devices)
                    + ", but " + allSeen() + ": name devices that ibv_devices lists, or none");
        }
        return ports;
    }

    private long addressOf(String name, long list, int found) {
        List<String> others = new ArrayList<>();
        for (int i = 0; i < found; i++) {
            long device = addressAt(list, i);
            String other = library.ibv_get_device_name(device);
            if (other.equals(name)) {
                return device;
            }
            others.add(other);
        }
        throw new IllegalStateException("finds no device " + name + ", which verbs_devices names, but "
                + (others.isEmpty() ? "none at all" : "only " + String.join(", ", others))
                + ": name devices that ibv_devices lists, or none");
    }

    private static long addressAt(long list, int i) {
        return ForeignMemory.at(list + i * POINTER_BYTES, POINTER_BYTES).get(JAVA_LONG, 0);
    }

    private boolean hasWantedGid(VerbsPort port) {
        return port != null && Arrays.equals(port.gid(), wantedGid);
    }

    private VerbsPort better(VerbsPort best, long device, Arena arena) {
        VerbsPort port = open(device, arena);
        if (port == null) {
            return best;
        }
        if (best != null && !hasWantedGid(port)) {
            library.ibv_close_device(port.context());
            return best;
        }
        if (best != null) {
            library.ibv_close_device(best.context());
        }
        return port;
    }

    /** Opens the device and returns a usable port; null if there is none, and then the reason is noted. */
    private VerbsPort open(long device, Arena arena) {
        String name = library.ibv_get_device_name(device);
        long context = library.ibv_open_device(device);
        if (context <= 0) {
            seen.add(name + ", which cannot be opened");
            return null;
        }
        VerbsPort port = portOf(name, context, arena);
        if (port == null) {
            library.ibv_close_device(context);
        }
        return port;
    }

    private VerbsPort portOf(String name, long context, Arena arena) {
        MemorySegment limits = arena.allocate(VerbsLayout.DEVICE_ATTR_SIZE_BYTES, 8);
        if (library.ibv_query_device(context, limits) < 0) {
            seen.add(name + ", which does not answer");
            return null;
        }
        VerbsPort best = null;
        int ports = Byte.toUnsignedInt(limits.get(JAVA_BYTE, VerbsLayout.DEVICE_ATTR_PHYS_PORT_CNT));
        for (int number = 1; number <= ports && !hasWantedGid(best); number++) {
            VerbsPort port = portOf(name, context, number, limits, arena);
            best = best == null || hasWantedGid(port) ? port : best;
        }
        return best;
    }

    private VerbsPort portOf(String name, long context, int number, MemorySegment limits, Arena arena) {
        MemorySegment attributes = arena.allocate(VerbsLayout.PORT_ATTR_SIZE_BYTES, 8);
        if (library.ibv_query_port(context, number, attributes) < 0
                || attributes.get(JAVA_INT, VerbsLayout.PORT_ATTR_STATE) != VerbsApi.IBV_PORT_ACTIVE) {
            seen.add(name + ", whose port " + number + " is not active");
            return null;
        }
        boolean ethernet =
                attributes.get(JAVA_BYTE, VerbsLayout.PORT_ATTR_LINK_LAYER) == VerbsApi.IBV_LINK_LAYER_ETHERNET;
        MemorySegment entry = arena.allocate(VerbsLayout.GID_ENTRY_SIZE_BYTES, 8);
        int gids = attributes.get(JAVA_INT, VerbsLayout.PORT_ATTR_GID_TBL_LEN);
        int index = gidIndex(context, number, gids, ethernet, entry);
        if (index < 0 || library.ibv_query_gid_ex(context, number, index, entry) < 0) {
            seen.add(name + ", whose port " + number + " has no address for RoCE v2");
            return null;
        }
        return new VerbsPort(
                name,
                context,
                number,
                ethernet,
                Short.toUnsignedInt(attributes.get(JAVA_SHORT, VerbsLayout.PORT_ATTR_LID)),
                index,
                gidIn(entry),
                attributes.get(JAVA_INT, VerbsLayout.PORT_ATTR_ACTIVE_MTU),
                Integer.toUnsignedLong(attributes.get(JAVA_INT, VerbsLayout.PORT_ATTR_MAX_MSG_SZ)),
                limits.get(JAVA_INT, VerbsLayout.DEVICE_ATTR_MAX_QP_WR),
                limits.get(JAVA_INT, VerbsLayout.DEVICE_ATTR_MAX_CQE));
    }

    /** Index of the wanted address, else of an IPv4 one, else of any of the port's kind; -1 when there is none. */
    private int gidIndex(long context, int port, int count, boolean ethernet, MemorySegment entry) {
        int type = ethernet ? VerbsApi.IBV_GID_TYPE_ROCE_V2 : VerbsApi.IBV_GID_TYPE_IB;
        int any = -1;
        int inet = -1;
        for (int i = 0; i < count; i++) {
            // An unused entry is an error.
            if (library.ibv_query_gid_ex(context, port, i, entry) < 0
                    || entry.get(JAVA_INT, VerbsLayout.GID_ENTRY_GID_TYPE) != type) {
                continue;
            }
            byte[] gid = gidIn(entry);
            if (Arrays.equals(gid, wantedGid)) {
                return i;
            }
            inet = inet < 0 && isOfInet(gid) ? i : inet;
            any = any < 0 ? i : any;
        }
        return inet < 0 ? any : inet;
    }

    private static byte[] gidIn(MemorySegment entry) {
        return entry.asSlice(VerbsLayout.GID_ENTRY_GID, PairName.GID_BYTES).toArray(JAVA_BYTE);
    }

    private String allSeen() {
        return seen.isEmpty() ? "no device" : "only " + String.join("; ", seen);
    }
}
