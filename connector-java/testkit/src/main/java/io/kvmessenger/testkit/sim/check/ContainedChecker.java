package io.kvmessenger.testkit.sim.check;

/** No messenger meets an exception that it has to confine to one transfer, unless its ports throw in this run. */
final class ContainedChecker implements WorldListener {
    private final boolean portsThrow;

    ContainedChecker(boolean portsThrow) {
        this.portsThrow = portsThrow;
    }

    @Override
    public void faultContained(String process) {
        if (!portsThrow) {
            throw new Violation("Contained", process + " has met an exception, and ended one transfer for it");
        }
    }
}
