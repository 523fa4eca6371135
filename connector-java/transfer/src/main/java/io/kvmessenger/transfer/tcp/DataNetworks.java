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
 * The addresses by which an engine's data travels, one for each network. A value.
 *
 * @param hosts that are dialled from
 * @param addresses that peers are told to dial; none where the one in the engine's address is all there is
 */
record DataNetworks(List<InetAddress> hosts, List<InetSocketAddress> addresses) {
    private static final String BETWEEN = " ";

    DataNetworks {
        hosts = List.copyOf(hosts);
        addresses = List.copyOf(addresses);
    }

    /** What a peer is told; empty where it is told nothing. */
    MemorySegment encode() {
        String words = addresses.stream()
                .map(address -> SocketLocation.format(address.getAddress(), address.getPort(), false))
                .collect(Collectors.joining(BETWEEN));
        return MemorySegment.ofArray(words.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * What a peer has told.
     *
     * @param otherwise what is dialled when it has told nothing
     * @throws IllegalArgumentException naming what is wrong with it
     */
    static List<InetSocketAddress> parse(MemorySegment told, InetSocketAddress otherwise) {
        if (told.byteSize() == 0) {
            return List.of(otherwise);
        }
        String words = new String(told.toArray(ValueLayout.JAVA_BYTE), StandardCharsets.UTF_8);
        List<InetSocketAddress> addresses = new ArrayList<>();
        for (String location : words.split(BETWEEN, -1)) {
            addresses.add(SocketLocation.parse(location, false));
        }
        if (addresses.size() > TransferOptions.DATA_HOSTS_MAX) {
            throw new IllegalArgumentException(
                    addresses.size() + " data addresses, at most " + TransferOptions.DATA_HOSTS_MAX);
        }
        return addresses;
    }

    /** How many data sockets a peer has that was to have so many: as many in each network, at least one. */
    static int laneCount(int wished, int networkCount) {
        return networkCount < 2 ? wished : networkCount * Math.ceilDiv(wished, networkCount);
    }

    /** Which network a data socket takes. */
    static int networkOf(int lane, int networkCount) {
        return (lane - 1) % networkCount;
    }

    /** The address to dial a peer's network from: of the same number where there are as many, else null, and routing chooses. */
    InetAddress sourceTowards(List<InetSocketAddress> targets, int network) {
        if (hosts.size() < targets.size()) {
            return null;
        }
        InetAddress own = hosts.get(network);
        return own.getClass() == targets.get(network).getAddress().getClass() ? own : null;
    }
}
