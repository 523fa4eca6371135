package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferOptions;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;

/**
 * How the traffic classes of an engine share its links. A value.
 *
 * @param engine where its workers see what each has for a link that no other process takes
 * @param machine where other engines see that too, for the links of this machine; null if they cannot
 * @param share of a link's rate that a class keeps beside a more urgent one
 * @param notes for the operator
 */
public record LinkSharing(LinkBoard engine, LinkBoard machine, double share, List<String> notes) {
    private static final Path MEMORY = Path.of("/dev/shm");

    /** For an engine that sees the traffic of this user's other processes, where it can. */
    static LinkSharing of(TransferOptions options) {
        double share = options.get(TransferOptions.BULK_SHARE);
        if (!options.get(TransferOptions.SHARE_LINKS)) {
            return new LinkSharing(LinkBoard.ofEngine(), null, share, List.of());
        }
        try {
            return new LinkSharing(LinkBoard.ofEngine(), LinkFile.open(LinkFile.in(MEMORY)), share, List.of());
        } catch (IOException | RuntimeException e) {
            return new LinkSharing(
                    LinkBoard.ofEngine(),
                    null,
                    share,
                    List.of("bulk traffic of other processes is not seen, and may delay urgent traffic of this one: "
                            + e));
        }
    }

    /** For an engine that sees no other's traffic. */
    static LinkSharing ofEngine() {
        return new LinkSharing(LinkBoard.ofEngine(), null, TransferOptions.BULK_SHARE.byDefault(), List.of());
    }

    /** For one worker. */
    LinkLoads loads() {
        return new LinkLoads(engine, machine == null ? engine : machine, share);
    }

    /** No worker reports any more. */
    void close() {
        if (machine != null) {
            machine.close();
        }
    }
}
