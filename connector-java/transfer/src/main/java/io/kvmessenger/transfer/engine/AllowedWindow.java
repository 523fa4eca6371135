package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TrafficClass;
import io.kvmessenger.transfer.WindowArea;

/** A peer's window while writes to it are allowed. Created and ended by the messenger's thread, read by the worker. */
final class AllowedWindow implements RemoteWindow {
    private final Allowances of;
    private final WindowArea area;
    private final int imm;
    private final TrafficClass trafficClass;
    private boolean ended;

    AllowedWindow(Allowances of, int imm, WindowArea area, TrafficClass trafficClass) {
        this.of = of;
        this.imm = imm;
        this.area = area;
        this.trafficClass = trafficClass;
    }

    @Override
    public int imm() {
        return imm;
    }

    @Override
    public TrafficClass trafficClass() {
        return trafficClass;
    }

    WindowArea area() {
        return area;
    }

    boolean isAllowedBy(Allowances allowances) {
        return of == allowances && !ended;
    }

    void end() {
        ended = true;
    }
}
