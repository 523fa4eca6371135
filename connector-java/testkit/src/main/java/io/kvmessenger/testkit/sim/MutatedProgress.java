package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.LayerProgress;
import java.util.HashSet;
import java.util.Set;
import java.util.TreeMap;

/** Forwards the layer counter's port, with a bug in subclasses. */
abstract class MutatedProgress implements LayerProgress {
    final LayerProgress progress;

    private MutatedProgress(LayerProgress progress) {
        this.progress = progress;
    }

    @Override
    public void stepBegan(long stepIndex, long counterStart) {
        progress.stepBegan(stepIndex, counterStart);
    }

    @Override
    public void stepEnded(long stepIndex, long counterEnd) {
        progress.stepEnded(stepIndex, counterEnd);
    }

    @Override
    public int readableLayerCount(long stepIndex) {
        return progress.readableLayerCount(stepIndex);
    }

    @Override
    public boolean isOver(long stepIndex) {
        return progress.isOver(stepIndex);
    }

    @Override
    public long ahead(long position) {
        return progress.ahead(position);
    }

    @Override
    public void forget(long stepIndex) {
        progress.forget(stepIndex);
    }

    /** Reports one layer more as readable than there is. */
    static final class ReadingEarly extends MutatedProgress {
        private final int layerCount;

        ReadingEarly(LayerProgress progress, int layerCount) {
            super(progress);
            this.layerCount = layerCount;
        }

        @Override
        public void stepBegan(long stepIndex, long counterStart) {
            progress.stepBegan(stepIndex, counterStart - 1);
        }

        @Override
        public int readableLayerCount(long stepIndex) {
            return Math.min(layerCount, progress.readableLayerCount(stepIndex));
        }
    }

    /** Takes the report that a pass is queued to its end for the end itself. */
    static final class OverWhenReported extends MutatedProgress {
        private final int layerCount;
        private final Set<Long> ended = new HashSet<>();

        OverWhenReported(LayerProgress progress, int layerCount) {
            super(progress);
            this.layerCount = layerCount;
        }

        @Override
        public void stepEnded(long stepIndex, long counterEnd) {
            ended.add(stepIndex);
            progress.stepEnded(stepIndex, counterEnd);
        }

        @Override
        public int readableLayerCount(long stepIndex) {
            return ended.contains(stepIndex) ? layerCount : progress.readableLayerCount(stepIndex);
        }

        @Override
        public boolean isOver(long stepIndex) {
            return ended.contains(stepIndex);
        }
    }

    /** Counts a step from the start of the oldest step in flight. */
    static final class ForgettingBases extends MutatedProgress {
        private final TreeMap<Long, Long> bases = new TreeMap<>();

        ForgettingBases(LayerProgress progress) {
            super(progress);
        }

        @Override
        public void stepBegan(long stepIndex, long counterStart) {
            bases.put(stepIndex, counterStart);
            progress.stepBegan(stepIndex, bases.firstEntry().getValue());
        }

        @Override
        public void forget(long stepIndex) {
            bases.remove(stepIndex);
            progress.forget(stepIndex);
        }
    }
}
