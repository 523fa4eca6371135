package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.testkit.sim.check.WorldListener;

/** Reports the counts that checkers judge: compared pages, and faults that a messenger has confined to one transfer. */
record ReportingTally(String process, WorldListener listener) implements Tally {
    @Override
    public void add(MessengerMetric metric, long count) {
        if (metric == MessengerMetric.PAGES_COMPARED) {
            listener.pagesCompared(process, count);
        } else if (metric == MessengerMetric.FAULTS_CONTAINED) {
            listener.faultContained(process);
        }
    }

    @Override
    public void add(MessengerMetric metric, CountedReason reason) {}

    @Override
    public void set(MessengerMetric metric, long value) {}

    @Override
    public void observe(MessengerMetric metric, double value) {}
}
