package io.kvmessenger.weights;

import io.kvmessenger.messenger.session.ProtocolState;
import io.kvmessenger.transfer.RemoteWindow;

/** One update for one host. State only, owned by the messenger's thread; {@link WeightSender} drives it. */
final class Delivery {
    final long updateId;
    private DeliveryState state = DeliveryState.ANNOUNCED;
    /** Where the host lets it land; null before it does, and when nothing is written any more. */
    RemoteWindow window;

    private long postedCount;
    private int inFlightCount;
    /** What to report once no write reads this side's memory any more; null while there is nothing. */
    private Runnable report;

    Delivery(long updateId) {
        this.updateId = updateId;
    }

    DeliveryState state() {
        return state;
    }

    void become(DeliveryState next) {
        state = ProtocolState.change(state, next);
    }

    /** As {@link #become}; what the engine hears of it waits for the writes in flight. */
    void become(DeliveryState next, Runnable reported) {
        become(next);
        report(reported);
    }

    /** Has the engine hear this, in place of what still waits for the writes in flight. */
    void report(Runnable reported) {
        report = reported;
        reportIfQuiet();
    }

    long postedCount() {
        return postedCount;
    }

    int inFlightCount() {
        return inFlightCount;
    }

    void onPosted() {
        postedCount++;
        inFlightCount++;
    }

    void onWriteEnded() {
        inFlightCount--;
        reportIfQuiet();
    }

    private void reportIfQuiet() {
        if (report != null && inFlightCount == 0) {
            Runnable due = report;
            report = null;
            due.run();
        }
    }
}
