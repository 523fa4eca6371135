package io.kvmessenger.connector;

import io.kvmessenger.foreign.FfmLibC;
import java.io.FileInputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * A process that listens, and uses up its descriptors when a line comes from its parent; another line frees them.
 *
 * <p>It prints its port, `none left`, and then a line for each input of its messenger.
 */
final class WithoutDescriptors {
    private static final String OPENED = "/dev/null";

    private WithoutDescriptors() {}

    static void main(String... words) throws IOException {
        if (List.of(words).contains("prepared")) {
            FirstLogLine.format();
        }
        Inbox inbox = new Inbox(System::nanoTime, () -> System.out.println("input"));
        NettyControlNetwork network = new NettyControlNetwork(
                inbox, 1000, NettyControlNetwork.LINKS_MAX, new CloseOnExec(new FfmLibC()), null);
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
