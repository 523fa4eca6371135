package io.kvmessenger.transfer.socket;

/** The same between ends of which one speaks version 4: its hello has no nonce, so the writer's comes with its records. */
final class SealingLibCOfVersion4Test extends SealingLibCTest {
    @Override
    int version() {
        return 4;
    }

    /** The weakness for which there is version 5. */
    @Override
    long replayed() {
        return 100;
    }
}
