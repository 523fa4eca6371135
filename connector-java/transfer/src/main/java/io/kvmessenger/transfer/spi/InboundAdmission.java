package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Admission;
import java.util.Arrays;

/** The worker's record of one admission: which link uses it. Worker only. */
public final class InboundAdmission {
    private final Admission admission;
    private final byte[] keyName;
    private InboundLink link;

    public InboundAdmission(Admission admission) {
        this.admission = admission;
        keyName = KeyProof.nameOf(admission.key());
    }

    public Admission admission() {
        return admission;
    }

    /** Whether its key has this name. */
    public boolean isNamed(byte[] name) {
        return Arrays.equals(keyName, name);
    }

    /** The link that uses the key, or null. */
    public InboundLink link() {
        return link;
    }

    /** A key serves one link at a time; a link that never became ready gives it back. */
    public void claim(InboundLink user) {
        if (link != null) {
            throw new IllegalStateException("admission " + admission.id() + " is in use");
        }
        link = user;
    }

    public void giveBack() {
        link = null;
    }
}
