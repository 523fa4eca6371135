package io.kvmessenger.benchmarks;

import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.transfer.TransferOptions;
import java.util.Locale;
import org.openjdk.jmh.profile.GCProfiler;
import org.openjdk.jmh.results.RunResult;
import org.openjdk.jmh.runner.Runner;
import org.openjdk.jmh.runner.RunnerException;
import org.openjdk.jmh.runner.options.OptionsBuilder;

/** Runs {@link WriteBenchmark} with JMH's allocation profiler, and prints one JSON line for each transport. */
public final class WriteCost {
    private WriteCost() {}

    private static String[] transports() {
        try {
            new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
            return new String[] {TransferOptions.SHM, TransferOptions.TCP, TransferOptions.LIBFABRIC};
        } catch (UnsatisfiedLinkError e) {
            System.err.println("not measured over libfabric, which is not installed: " + e.getMessage());
            return new String[] {TransferOptions.SHM, TransferOptions.TCP};
        }
    }

    public static void main(String[] arguments) throws RunnerException {
        OptionsBuilder options = new OptionsBuilder();
        options.include(WriteBenchmark.class.getName()).addProfiler(GCProfiler.class);
        options.jvmArgsAppend("--enable-native-access=ALL-UNNAMED").param("transport", transports());
        for (RunResult result : new Runner(options.build()).run()) {
            System.out.println(String.format(
                    Locale.ROOT,
                    "{\"transport\": \"%s\", \"pagesPerWrite\": %d, \"nsPerWrite\": %.0f,"
                            + " \"allocatedBytesPerWrite\": %.3f}",
                    result.getParams().getParam("transport"),
                    WritePair.PAGES,
                    result.getPrimaryResult().getScore(),
                    Profiled.allocatedBytes(result)));
        }
    }
}
