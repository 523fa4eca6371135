package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Decline;
import io.kvmessenger.messenger.wire.Grant;
import java.util.List;
import org.junit.jupiter.api.Test;

/** A decoder's frame in which a field breaks a rule: its transfer fails, and no other. */
class UnfitFrameTest extends MessengerPair {
    /** Longer than an id that an answer repeats. */
    private static final int UNANSWERABLE = (64 << 10) + 1;

    @Test
    void shouldFailTheTransferAlone() {
        String endless = "t".repeat(KvFrameRules.TRANSFER_ID_LENGTH_MAX + 1);
        receive(ControlFrame.newBuilder()
                .setGrant(Grant.newBuilder().setTransferId(endless).setGrantId(7)));
        receive(ControlFrame.newBuilder()
                .setCancel(Cancel.newBuilder().setTransferId(endless).setGrantId(7)));
        receive(ControlFrame.newBuilder().setDecline(Decline.newBuilder().setTransferId("two\u0085lines")));

        List<ControlFrame> answers = prefiller.wire.take();
        assertThat(answers).hasSize(2);
        assertThat(answers.getFirst().getCannotDeliver().getSentence()).contains("a transfer_id of 513 characters");
        assertThat(answers.getFirst().getCannotDeliver().getTransferId()).isEqualTo(endless);
        assertThat(answers.getLast().getCancelConfirmed().getGrantId()).isEqualTo(7);
        assertThat(prefiller.wire.closed).isFalse();
    }

    @Test
    void shouldEndTheLinkIfNoAnswerCanNameTheTransfer() {
        receive(ControlFrame.newBuilder()
                .setGrant(Grant.newBuilder()
                        .setTransferId("t".repeat(UNANSWERABLE))
                        .setGrantId(1)));

        assertThat(prefiller.wire.closed).isTrue();
        assertThat(prefiller.wire.take().getLast().getGoodbye().getSentence())
                .contains("a transfer_id of 65537 characters");
    }

    private void receive(ControlFrame.Builder frame) {
        prefiller.messenger.onFrame(Wire.DIALLED_LINK, frame.build());
    }
}
