package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.CountedReason;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.testkit.sim.check.WeightsChecker;

/** Reports the counts that {@link WeightsChecker} judges: contained faults, and how updates end at a server. */
final class WeightsTally extends SilentTally {
    private final String process;
    private final WeightsChecker checker;

    WeightsTally(String process, WeightsChecker checker) {
        this.process = process;
        this.checker = checker;
    }

    @Override
    public void add(MessengerMetric metric, long count) {
        if (metric == MessengerMetric.FAULTS_CONTAINED) {
            checker.faultContained(process);
        }
    }

    @Override
    public void add(MessengerMetric metric, CountedReason reason) {
        if (metric == MessengerMetric.WEIGHT_UPDATES_ENDED) {
            checker.updateEnded(process);
        }
    }
}
