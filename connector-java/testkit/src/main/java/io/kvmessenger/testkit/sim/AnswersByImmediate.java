package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.HashMap;
import java.util.Map;

/** Mutant: an answer to a grant is taken for an answer to the decoder's last grant with the same immediate. */
final class AnswersByImmediate {
    private record Named(String decoder, long number) {}

    private final Map<Named, Integer> immByGrant = new HashMap<>();
    private final Map<Named, Long> lastGrantByImm = new HashMap<>();

    void sent(String from, ControlFrame frame) {
        if (frame.hasGrant()) {
            int imm = frame.getGrant().getImm();
            immByGrant.put(new Named(from, frame.getGrant().getGrantId()), imm);
            lastGrantByImm.put(new Named(from, imm), frame.getGrant().getGrantId());
        }
    }

    /** The frame as the decoder misreads it; a sealed frame cannot be changed. */
    ControlFrame delivered(String to, ControlFrame frame) {
        if (!frame.getSeal().isEmpty()) {
            return frame;
        }
        ControlFrame.Builder taken = frame.toBuilder();
        switch (frame.getBodyCase()) {
            case CANNOT_DELIVER ->
                taken.getCannotDeliverBuilder()
                        .setGrantId(last(to, frame.getCannotDeliver().getGrantId()));
            case CANCEL_CONFIRMED ->
                taken.getCancelConfirmedBuilder()
                        .setGrantId(last(to, frame.getCancelConfirmed().getGrantId()));
            case CHECKSUMS ->
                taken.getChecksumsBuilder()
                        .setGrantId(last(to, frame.getChecksums().getGrantId()));
            default -> {}
        }
        return taken.build();
    }

    private long last(String decoder, long grantId) {
        Integer imm = immByGrant.get(new Named(decoder, grantId));
        return imm == null ? grantId : lastGrantByImm.get(new Named(decoder, imm));
    }
}
