package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.TransferKey;

/**
 * A decoder has queued requests for a transfer: as long as its session lasts, an answer to each is on its way, however
 * long the queue is. It is due when the prompt should have been seen. State only, owned by the messenger's thread.
 */
final class Announcement implements Due {
    final DecoderSession session;
    final TransferKey transfer;
    int answers;

    Announcement(DecoderSession session, TransferKey transfer) {
        this.session = session;
        this.transfer = transfer;
    }
}
