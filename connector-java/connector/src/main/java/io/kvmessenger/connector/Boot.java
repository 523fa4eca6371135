package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.FunctionTable;

/** The one class that a host process calls through JNI, once; everything else goes through the table it returns. */
public final class Boot {
    private Boot() {}

    /** The address of the function table of docs/boundary.md. */
    public static long boot() {
        return FunctionTable.publish(new MessengerHost());
    }
}
