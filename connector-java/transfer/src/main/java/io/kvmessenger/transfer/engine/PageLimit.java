package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.util.ArrayList;
import java.util.List;

/**
 * How long a page of a write to one peer may be, whichever of the peer's domains takes it: each path writes a page, and
 * gathers it if it must, as a whole.
 *
 * <p>Messenger's thread. A check that passes allocates nothing. It knows lengths only, neither windows nor regions.
 */
final class PageLimit {
    private final List<Domain> domains = new ArrayList<>(2);
    private final long gatheredMaxBytes;

    /** @param gatheredMaxBytes longest page that is copied into host memory for a domain that does not read it */
    PageLimit(long gatheredMaxBytes) {
        this.gatheredMaxBytes = gatheredMaxBytes;
    }

    /** The peer may be reached by this domain too. */
    void add(Domain domain) {
        domains.add(domain);
    }

    /** Why a page of the request is too long, or null. */
    String refusal(TransferRequest request) {
        Region source = WriteBatch.sourceOf(request);
        long pageBytes = WriteBatch.pageBytesOf(request);
        for (int i = 0; source != null && i < domains.size(); i++) {
            Domain domain = domains.get(i);
            long writeMaxBytes = domain.capabilities().writeMaxBytes();
            if (pageBytes > writeMaxBytes) {
                return "a page of " + pageBytes + " bytes is longer than one write over " + domain.name() + " may be, "
                        + writeMaxBytes + " bytes; write it in parts";
            }
            if (pageBytes > gatheredMaxBytes && isGathered(source.memory(), domain)) {
                return "a page of " + pageBytes + " bytes of " + source.memory()
                        + " is longer than what is gathered of it at once, " + gatheredMaxBytes
                        + " bytes; write it in parts";
            }
        }
        return null;
    }

    private static boolean isGathered(Memory memory, Domain domain) {
        return memory instanceof Memory.Device && !domain.canRead(memory);
    }

    /** @throws AssertionError when a page of the request is too long, which the caller should have refused */
    void require(TransferRequest request) {
        String refusal = refusal(request);
        if (refusal != null) {
            throw new AssertionError("queued without a check: " + refusal);
        }
    }
}
