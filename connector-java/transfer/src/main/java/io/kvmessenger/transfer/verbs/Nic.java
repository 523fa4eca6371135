package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.transfer.spi.Endpoint;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executor;

/** One port of a device, and the memory that is registered with it. */
record Nic(OpenVerbs verbs, VerbsRegions regions) {
    static Nic of(OpenVerbs verbs) {
        return new Nic(verbs, new VerbsRegions(verbs));
    }

    /**
     * Takes all ports over.
     *
     * @param connecting runs what may wait for an answer from the network
     * @throws IllegalStateException naming what failed; all ports are closed
     */
    static List<Nic> openAll(LibVerbs library, List<VerbsPort> ports, Executor connecting) {
        List<Nic> open = new ArrayList<>();
        try {
            for (VerbsPort port : ports) {
                open.add(of(new OpenVerbs(library, port, connecting)));
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

    /** The one that a path of a network begins or ends at: of the same number, and again from the first where there are fewer. */
    static Nic ofNetwork(List<Nic> nics, int network) {
        return nics.get(network % nics.size());
    }

    /** How many networks two engines have between them: each device of either takes part in one. */
    static int networkCount(int own, int peers) {
        return Math.min(Endpoint.NETWORKS_MAX, Math.max(own, peers));
    }

    /** How many devices this engine has, for its peers. */
    static MemorySegment encodeCount(List<Nic> nics) {
        MemorySegment out = MemorySegment.ofArray(new byte[Integer.BYTES]);
        out.set(PathName.INT, 0, nics.size());
        return out;
    }

    /**
     * How many devices a peer has.
     *
     * @throws IllegalArgumentException where it says none
     */
    static int parseCount(MemorySegment said) {
        int count = said.byteSize() == Integer.BYTES ? said.get(PathName.INT, 0) : 0;
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
