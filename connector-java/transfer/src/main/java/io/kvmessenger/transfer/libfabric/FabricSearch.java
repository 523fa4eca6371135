package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetAddress;
import java.util.Map;
import java.util.Set;

/** Finds a configuration among libfabric's offers that supports writes with an immediate of 32 bits. */
final class FabricSearch {
    /** Slow, deprecated, or for one host only: used only if named. */
    private static final Set<String> ONLY_IF_NAMED = Set.of("sockets", "udp;ofi_rxd", "sm2");

    /** Never used; the value says what is wrong with each, as observed with libfabric 1.17.0. */
    private static final Map<String, String> REFUSED = Map.of(
            "tcp;ofi_rxm",
                    "ends the process where an endpoint is closed that receives a write: say net, or tcp from 1.18 on",
            "verbs;ofi_rxm", "ends the process where an endpoint is closed: say verbs among the transports",
            "shm", "stands still for good where a peer is killed: say shm among the transports");

    private static final int MR_MODES =
            FabricApi.FI_MR_LOCAL | FabricApi.FI_MR_VIRT_ADDR | FabricApi.FI_MR_ALLOCATED | FabricApi.FI_MR_PROV_KEY;

    private final LibFabric library;
    private final InetAddress host;

    /** @param host for addresses that contain a host */
    FabricSearch(LibFabric library, InetAddress host) {
        this.library = library;
        this.host = host;
    }

    /**
     * The library's first suitable offer.
     *
     * @param provider empty for any
     * @return to be freed with {@link LibFabric#fi_freeinfo}
     * @throws IllegalStateException saying why there is none
     */
    FabricInfo find(String provider) {
        FabricInfo found = first(provider, null, 0);
        if (found == null) {
            throw new IllegalStateException(absence(provider));
        }
        if (!found.isAddressedByHost()) {
            return found;
        }
        String name = found.provider();
        library.fi_freeinfo(found.segment());
        FabricInfo bound = first(name, host.getHostAddress(), FabricApi.FI_SOURCE | FabricApi.FI_NUMERICHOST);
        if (bound == null) {
            throw new IllegalStateException("has no provider " + name + " at address " + host.getHostAddress());
        }
        return bound;
    }

    /** Why a provider is not available; it may be named by its core or with its layers. */
    private static String absence(String provider) {
        for (Map.Entry<String, String> refused : REFUSED.entrySet()) {
            if (refused.getKey().equals(provider)
                    || (!provider.isEmpty() && refused.getKey().startsWith(provider + ";"))) {
                return "is not used by its provider " + refused.getKey() + ", which " + refused.getValue();
            }
        }
        return "offers no provider" + (provider.isEmpty() ? "" : " " + provider)
                + " that writes remote memory with 4 bytes of completion data";
    }

    /** A copy of the first suitable offer; null when there is none. */
    private FabricInfo first(String provider, String node, long flags) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment list = arena.allocate(JAVA_LONG);
            MemorySegment source = node == null ? MemorySegment.NULL : arena.allocateFrom(node);
            FabricInfo hints = hints();
            setProvider(hints, provider.isEmpty() ? MemorySegment.NULL : arena.allocateFrom(provider));
            int result = library.fi_getinfo(FabricApi.VERSION, source, flags, hints.segment(), list);
            setProvider(hints, MemorySegment.NULL); // owned by the arena, so the library must not free it
            library.fi_freeinfo(hints.segment());
            return result < 0 ? null : choose(list.get(JAVA_LONG, 0), provider.isEmpty());
        }
    }

    private FabricInfo choose(long list, boolean any) {
        FabricInfo first = new FabricInfo(list);
        FabricInfo chosen = first;
        while (chosen != null && !does(chosen, any)) {
            chosen = chosen.next();
        }
        FabricInfo copy = chosen == null
                ? null
                : new FabricInfo(library.fi_dupinfo(chosen.segment()).address());
        library.fi_freeinfo(first.segment());
        return copy;
    }

    private static boolean does(FabricInfo offered, boolean any) {
        String provider = offered.provider();
        return offered.immediateBytes() >= Integer.BYTES
                && !REFUSED.containsKey(provider)
                && !(any && ONLY_IF_NAMED.contains(provider));
    }

    private FabricInfo hints() {
        FabricInfo hints = new FabricInfo(library.fi_dupinfo(MemorySegment.NULL).address());
        MemorySegment info = hints.segment();
        info.set(JAVA_LONG, FabricLayout.INFO_CAPS, FabricApi.FI_RMA | FabricApi.FI_WRITE | FabricApi.FI_REMOTE_WRITE);
        info.set(JAVA_LONG, FabricLayout.INFO_MODE, FabricApi.FI_CONTEXT | FabricApi.FI_CONTEXT2);
        hints.endpointAttributes().set(JAVA_INT, FabricLayout.EP_ATTR_TYPE, FabricApi.FI_EP_RDM);
        MemorySegment domain = hints.domainAttributes();
        domain.set(JAVA_INT, FabricLayout.DOMAIN_ATTR_THREADING, FabricApi.FI_THREAD_SAFE);
        domain.set(JAVA_INT, FabricLayout.DOMAIN_ATTR_AV_TYPE, FabricApi.FI_AV_TABLE);
        domain.set(JAVA_INT, FabricLayout.DOMAIN_ATTR_MR_MODE, MR_MODES);
        domain.set(JAVA_LONG, FabricLayout.DOMAIN_ATTR_CQ_DATA_SIZE, Integer.BYTES);
        return hints;
    }

    private static void setProvider(FabricInfo hints, MemorySegment name) {
        hints.fabricAttributes().set(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME, name.address());
    }
}
