package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.FabricApi;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.MemorySegment;

/** A view of one {@code struct fi_info}: one configuration of one provider, in memory of the library. */
final class FabricInfo {
    private final MemorySegment info;

    /** @param address of the struct, not 0 */
    FabricInfo(long address) {
        info = ForeignMemory.at(address, FabricLayout.INFO_SIZE_BYTES);
    }

    MemorySegment segment() {
        return info;
    }

    /** The next one in the library's list, or null. */
    FabricInfo next() {
        long address = info.get(JAVA_LONG, FabricLayout.INFO_NEXT);
        return address == 0 ? null : new FabricInfo(address);
    }

    /** With its layers, such as {@code tcp;ofi_rxm}. */
    String provider() {
        return ForeignMemory.stringAt(fabricAttributes().get(JAVA_LONG, FabricLayout.FABRIC_ATTR_PROV_NAME));
    }

    /** The NIC, or the provider's equivalent. */
    String device() {
        return ForeignMemory.stringAt(domainAttributes().get(JAVA_LONG, FabricLayout.DOMAIN_ATTR_NAME));
    }

    /** The wire protocol, which peers must share, as well as the address format. */
    int protocol() {
        return endpointAttributes().get(JAVA_INT, FabricLayout.EP_ATTR_PROTOCOL);
    }

    int addressFormat() {
        return info.get(JAVA_INT, FabricLayout.INFO_ADDR_FORMAT);
    }

    /** Whether an address contains a host. */
    boolean isAddressedByHost() {
        return switch (addressFormat()) {
            case FabricApi.FI_SOCKADDR, FabricApi.FI_SOCKADDR_IN, FabricApi.FI_SOCKADDR_IN6 -> true;
            default -> false;
        };
    }

    boolean hasMrMode(int bit) {
        return (domainAttributes().get(JAVA_INT, FabricLayout.DOMAIN_ATTR_MR_MODE) & bit) != 0;
    }

    int keyBytes() {
        return (int) domainAttributes().get(JAVA_LONG, FabricLayout.DOMAIN_ATTR_MR_KEY_SIZE);
    }

    int immediateBytes() {
        return (int) domainAttributes().get(JAVA_LONG, FabricLayout.DOMAIN_ATTR_CQ_DATA_SIZE);
    }

    long messageMaxBytes() {
        long given = endpointAttributes().get(JAVA_LONG, FabricLayout.EP_ATTR_MAX_MSG_SIZE);
        return given < 0 ? Long.MAX_VALUE : given; // SIZE_MAX
    }

    /** Operations that an endpoint may have in flight. */
    long depth() {
        return attributes(FabricLayout.INFO_TX_ATTR, FabricLayout.TX_ATTR_SIZE_BYTES)
                .get(JAVA_LONG, FabricLayout.TX_ATTR_SIZE);
    }

    MemorySegment endpointAttributes() {
        return attributes(FabricLayout.INFO_EP_ATTR, FabricLayout.EP_ATTR_SIZE_BYTES);
    }

    MemorySegment domainAttributes() {
        return attributes(FabricLayout.INFO_DOMAIN_ATTR, FabricLayout.DOMAIN_ATTR_SIZE_BYTES);
    }

    MemorySegment fabricAttributes() {
        return attributes(FabricLayout.INFO_FABRIC_ATTR, FabricLayout.FABRIC_ATTR_SIZE_BYTES);
    }

    private MemorySegment attributes(long at, long sizeBytes) {
        return ForeignMemory.at(info.get(JAVA_LONG, at), sizeBytes);
    }
}
