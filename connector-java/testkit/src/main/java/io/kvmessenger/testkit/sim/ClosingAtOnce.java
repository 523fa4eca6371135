package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.TransferEngine;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Mutant: an admission is reported as closed as soon as it is revoked, while its peer can still write. */
final class ClosingAtOnce extends PassingTransferEngine {
    private final Map<Integer, Admission> revoked = new LinkedHashMap<>();
    private final Set<Integer> reported = new HashSet<>();

    ClosingAtOnce(TransferEngine engine) {
        super(engine);
    }

    @Override
    public void revoke(Admission admission) {
        super.revoke(admission);
        if (!reported.contains(admission.id())) {
            revoked.put(admission.id(), admission);
        }
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        List<Admission> early = List.copyOf(revoked.values());
        revoked.clear();
        for (Admission admission : early) {
            reported.add(admission.id());
            handler.onAdmissionClosed(admission, "revoked");
        }
        return early.size()
                + super.poll(
                        new PassingHandler(handler) {
                            @Override
                            public void onAdmissionClosed(Admission admission, String detail) {
                                revoked.remove(admission.id());
                                if (reported.add(admission.id())) {
                                    super.onAdmissionClosed(admission, detail);
                                }
                            }
                        },
                        limit);
    }
}
