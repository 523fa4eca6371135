package io.kvmessenger.transfer.device;

/** A call of a device's driver failed, or what it had queued did. */
public final class DeviceFault extends IllegalStateException {
    private static final long serialVersionUID = 1L;

    /** @param result the driver's name for it */
    public DeviceFault(String call, String result) {
        super(call + " failed with " + result);
    }
}
