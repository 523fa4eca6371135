package io.kvmessenger.transfer.device;

/** This machine has no driver for devices, or no device; the message is a sentence with the reason and the remedy. */
public final class NoDeviceException extends Exception {
    private static final long serialVersionUID = 1L;

    public NoDeviceException(String message, Throwable cause) {
        super(message, cause);
    }
}
