package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.fault.PassingTransferEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.WindowArea;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;

/** Mutant: when one source of a fetch has sent everything, the others count as if they had. */
final class OneSourceSuffices extends PassingTransferEngine {
    /** The sources of one fetch write into the same area. */
    private final IdentityHashMap<WindowArea, List<Long>> cookiesByArea = new IdentityHashMap<>();

    OneSourceSuffices(TransferEngine engine) {
        super(engine);
    }

    @Override
    public ImmWindow openWindow(Admission from, WindowArea area, long expectedWeight, long cookie) {
        cookiesByArea.computeIfAbsent(area, a -> new ArrayList<>()).add(cookie);
        return super.openWindow(from, area, expectedWeight, cookie);
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        return super.poll(
                new PassingHandler(handler) {
                    @Override
                    public void onWindowFilled(long cookie) {
                        List<Long> sources = cookiesByArea.values().stream()
                                .filter(cookies -> cookies.contains(cookie))
                                .findFirst()
                                .orElse(List.of(cookie));
                        List.copyOf(sources).forEach(super::onWindowFilled);
                    }
                },
                limit);
    }
}
