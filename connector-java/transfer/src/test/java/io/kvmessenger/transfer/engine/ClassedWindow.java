package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;

/** A window of a class, for tests that write to no other. */
record ClassedWindow(TrafficClass trafficClass) implements RemoteWindow {
    @Override
    public int imm() {
        return Imm.of(1, 0);
    }
}
