package io.kvmessenger.connector;

import io.kvmessenger.connector.boot.FunctionTable;

/** The only class that a host process calls through JNI, once; all else goes through the table that it returns. */
public final class Boot {
    private Boot() {}

    /** Returns the address of the function table of docs/boundary.md. */
    public static long boot() {
        return FunctionTable.publish(new MessengerHost());
    }
}
