package io.kvmessenger.transfer.tcp;

import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.socket.SocketLocation;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/**
 * The addresses of an engine's data sockets, one for each network. A value.
 *
 * @param hosts local addresses to dial from
 * @param addresses that peers are told to dial; empty if the one in the engine's address is the only one
 */
record DataNetworks(List<InetAddress> hosts, List<InetSocketAddress> addresses) {
    private static final String BETWEEN = " ";

    DataNetworks {
        hosts = List.copyOf(hosts);
        addresses = List.copyOf(addresses);
    }

    /** The encoded addresses for a peer; empty if there are none to send. */
    MemorySegment encode() {
        String words = addresses.stream()
                .map(address -> SocketLocation.format(address.getAddress(), address.getPort(), false))
                .collect(Collectors.joining(BETWEEN));
        return MemorySegment.ofArray(words.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * Decodes a peer's addresses.
     *
     * @param otherwise the address to dial if the peer has sent none
     * @throws IllegalArgumentException naming what is wrong with them
     */
    static List<InetSocketAddress> parse(MemorySegment reported, InetSocketAddress otherwise) {
        if (reported.byteSize() == 0) {
            return List.of(otherwise);
        }
        String words = new String(reported.toArray(ValueLayout.JAVA_BYTE), StandardCharsets.UTF_8);
        List<InetSocketAddress> addresses = new ArrayList<>();
        for (String location : words.split(BETWEEN, -1)) {
            InetSocketAddress address = SocketLocation.parse(location, false);
            if (address.isUnresolved()) {
                throw new IllegalArgumentException("data address " + location + " is no literal address");
            }
            addresses.add(address);
        }
        if (addresses.size() > TransferOptions.NETWORKS_MAX) {
            throw new IllegalArgumentException(
                    addresses.size() + " data addresses, at most " + TransferOptions.NETWORKS_MAX);
        }
        return addresses;
    }

    /** Number of data sockets to a peer if {@code wished} are requested: equally many per network, at least one. */
    static int laneCount(int wished, int networkCount) {
        return networkCount < 2 ? wished : networkCount * Math.ceilDiv(wished, networkCount);
    }

    /** The network that a data socket uses. */
    static int networkOf(int lane, int networkCount) {
        return (lane - 1) % networkCount;
    }

    /** The local address towards a peer's network: of the same index if there are as many; else null, for routing. */
    InetAddress sourceTowards(List<InetSocketAddress> targets, int network) {
        if (hosts.size() < targets.size()) {
            return null;
        }
        InetAddress own = hosts.get(network);
        return own.getClass() == targets.get(network).getAddress().getClass() ? own : null;
    }
}
