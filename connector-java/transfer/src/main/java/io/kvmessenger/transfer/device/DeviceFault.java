package io.kvmessenger.transfer.device;

/** A driver call failed, or work that it had queued did. */
public final class DeviceFault extends IllegalStateException {
    private static final long serialVersionUID = 1L;

    /** @param result the driver's name for the error */
    public DeviceFault(String call, String result) {
        super(call + " failed with " + result);
    }
}
