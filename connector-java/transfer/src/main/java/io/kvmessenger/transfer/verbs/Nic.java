package io.kvmessenger.transfer.verbs;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;

import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.transfer.spi.Endpoint;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executor;

/** One port of an RDMA device, and the memory that is registered with it. */
record Nic(OpenVerbs verbs, VerbsRegions regions) {
    static Nic of(OpenVerbs verbs) {
        return new Nic(verbs, new VerbsRegions(verbs));
    }

    /**
     * Takes over all ports.
     *
     * @param service of all of them
     * @param connecting runs calls that may wait for an answer from the network
     * @throws IllegalStateException naming what failed; all ports are closed
     */
    static List<Nic> openAll(LibVerbs library, List<VerbsPort> ports, VerbsService service, Executor connecting) {
        List<Nic> open = new ArrayList<>();
        try {
            for (VerbsPort port : ports) {
                open.add(of(new OpenVerbs(library, port, service, connecting)));
            }
            return List.copyOf(open);
        } catch (IllegalStateException e) {
            open.forEach(nic -> nic.verbs.close());
            // The port that failed has been closed by itself.
            ports.stream().skip(open.size() + 1L).forEach(port -> library.ibv_close_device(port.context()));
            throw e;
        }
    }

    String device() {
        return verbs.port().device();
    }

    /** The device for a network's paths: the one with the same index, wrapping around if there are fewer devices. */
    static Nic ofNetwork(List<Nic> nics, int network) {
        return nics.get(network % nics.size());
    }

    /** Number of networks between two engines: each device of either side takes part in at least one. */
    static int networkCount(int own, int peers) {
        return Math.min(Endpoint.NETWORKS_MAX, Math.max(own, peers));
    }

    /** Encodes the number of this engine's devices, for its peers. */
    static MemorySegment encodeCount(List<Nic> nics) {
        MemorySegment out = MemorySegment.ofArray(new byte[Integer.BYTES]);
        out.set(INT, 0, nics.size());
        return out;
    }

    /**
     * Decodes the number of a peer's devices.
     *
     * @throws IllegalArgumentException when it is malformed
     */
    static int parseCount(MemorySegment given) {
        int count = given.byteSize() == Integer.BYTES ? given.get(INT, 0) : 0;
        if (count < 1) {
            throw new IllegalArgumentException("a peer names no number of RDMA devices");
        }
        return count;
    }

    void close() {
        regions.close();
        verbs.close();
    }
}
