package io.kvmessenger.connector;

import io.kvmessenger.foreign.FfmLibC;
import java.io.FileInputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/**
 * A process that listens, and uses up its descriptors when a line comes from its parent; another line frees them.
 *
 * <p>It prints its port, `none left`, `logged` for each line that Netty logs, and `input` for each of its messenger.
 */
final class WithoutDescriptors {
    private static final String OPENED = "/dev/null";
    /** Kept, since the JDK forgets a logger that is not. */
    private static final Logger NETTY = Logger.getLogger("io.netty");

    private WithoutDescriptors() {}

    static void main(String... words) throws IOException {
        if (List.of(words).contains("prepared")) {
            FirstLogLine.format();
        }
        Inbox inbox = new Inbox(System::nanoTime, () -> System.out.println("input"));
        NettyControlNetwork network = new NettyControlNetwork(
                inbox, 1000, NettyControlNetwork.LINKS_MAX, new CloseOnExec(new FfmLibC()), null);
        NETTY.addHandler(new Handler() {
            @Override
            public void publish(LogRecord line) {
                System.out.println("logged"); // before the handler that formats it
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        });
        System.out.println(network.listen("127.0.0.1", 0));
        System.in.read();
        List<FileInputStream> held = new ArrayList<>();
        try {
            while (true) {
                held.add(new FileInputStream(OPENED));
            }
        } catch (IOException full) {
            System.out.println("none left");
        }
        System.in.read();
        for (FileInputStream one : held) {
            one.close();
        }
        System.in.read();
    }
}
