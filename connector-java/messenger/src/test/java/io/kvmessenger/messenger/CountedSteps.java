package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.LayerProgress;
import java.util.HashMap;
import java.util.Map;

/** Steps by a count that the test sets, each of one layer a bump. */
final class CountedSteps implements LayerProgress {
    private record Range(long start, long end) {}

    private static final long UNKNOWN = Long.MAX_VALUE;

    private final Map<Long, Range> steps = new HashMap<>();
    private final int layerCount;
    /** Bumps that are seen. */
    long count;

    CountedSteps(int layerCount) {
        this.layerCount = layerCount;
    }

    @Override
    public void stepBegan(long stepIndex, long counterStart) {
        if (steps.put(stepIndex, new Range(counterStart, UNKNOWN)) != null || steps.size() > STEPS_IN_FLIGHT_MAX) {
            throw new AssertionError("step " + stepIndex + " of " + steps.size());
        }
    }

    @Override
    public void stepEnded(long stepIndex, long counterEnd) {
        steps.compute(stepIndex, (index, range) -> new Range(range.start(), counterEnd));
    }

    @Override
    public int readableLayerCount(long stepIndex) {
        return isOver(stepIndex)
                ? layerCount
                : Math.clamp(count - steps.get(stepIndex).start(), 0, layerCount);
    }

    @Override
    public boolean isOver(long stepIndex) {
        return count >= steps.get(stepIndex).end();
    }

    @Override
    public long ahead(long position) {
        return position - count;
    }

    @Override
    public void forget(long stepIndex) {
        steps.remove(stepIndex);
    }

    int inFlightCount() {
        return steps.size();
    }
}
