package io.kvmessenger.connector;

import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.SimpleFormatter;

/**
 * Loads what the JDK opens files for when it formats the first line of its log, such as the rules of time zones.
 *
 * <p>Without a free descriptor that throws an Error at whatever logs first. A listener that cannot accept is what logs
 * then: the Error would end Netty's event loop, and with it all control links.
 */
final class FirstLogLine {
    private FirstLogLine() {}

    static void format() {
        LogRecord line = new LogRecord(Level.WARNING, "");
        line.setThrown(new Throwable("none"));
        var unused = new SimpleFormatter().format(line);
    }
}
