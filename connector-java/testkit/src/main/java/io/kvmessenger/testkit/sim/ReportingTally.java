package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.testkit.sim.check.WorldListener;

/** Reports the counts that checkers judge: compared pages, and faults that a messenger has confined to one transfer. */
final class ReportingTally extends SilentTally {
    private final String process;
    private final WorldListener listener;

    ReportingTally(String process, WorldListener listener) {
        this.process = process;
        this.listener = listener;
    }

    @Override
    public void add(MessengerMetric metric, long count) {
        if (metric == MessengerMetric.PAGES_COMPARED) {
            listener.pagesCompared(process, count);
        } else if (metric == MessengerMetric.FAULTS_CONTAINED) {
            listener.faultContained(process);
        }
    }
}
