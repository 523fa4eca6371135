package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.wire.CannotDeliver.Reason;

/**
 * Why nothing more of a prefill, or of one delivery of it, will be sent. A value.
 *
 * @param reason for the decoder; unspecified where the decoder itself has cancelled
 */
record Stop(Reason reason, String sentence) {
    static final Stop NONE = new Stop(Reason.REASON_UNSPECIFIED, "");
}
