package io.kvmessenger.testkit.transfer;

import static org.junit.platform.engine.discovery.ClassNameFilter.includeClassNamePatterns;
import static org.junit.platform.engine.discovery.DiscoverySelectors.selectPackage;

import java.util.List;
import org.junit.platform.engine.DiscoverySelector;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;
import org.junit.platform.launcher.listeners.SummaryGeneratingListener;
import org.junit.platform.launcher.listeners.TestExecutionSummary;

/**
 * Runs the tests that need RDMA devices, all in this process: {@code make test-rdma} starts it where there are some.
 *
 * <p>A skipped test counts as failed, as the devices are the purpose of the run.
 */
public final class RdmaSuite {
    private static final String CLASSES = ".*\\.Verbs\\w*Test";

    private static final List<DiscoverySelector> PACKAGES =
            List.of(selectPackage(RdmaSuite.class.getPackageName()), selectPackage("io.kvmessenger.testkit.staging"));

    private RdmaSuite() {}

    /** @param arguments a regular expression of class names, or tests: {@code package.Class#method} */
    public static void main(String[] arguments) {
        List<String> chosen = arguments.length > 0 ? List.of(arguments) : List.of(CLASSES);
        boolean byMethod = chosen.getFirst().contains("#");
        LauncherDiscoveryRequest request = LauncherDiscoveryRequestBuilder.request()
                .configurationParameter("junit.jupiter.execution.timeout.default", "300 s")
                .selectors(byMethod ? methods(chosen) : PACKAGES)
                .filters(includeClassNamePatterns(byMethod ? ".*" : chosen.getFirst()))
                .build();
        SummaryGeneratingListener summary = new SummaryGeneratingListener();
        LauncherFactory.create().execute(request, summary, new Progress());
        summary.getSummary().getFailures().forEach(RdmaSuite::print);
        long passed = summary.getSummary().getTestsSucceededCount();
        long others = summary.getSummary().getTestsFoundCount() - passed;
        System.out.println("test-rdma: " + passed + " passed, " + others + " failed or skipped");
        System.exit(passed > 0 && others == 0 ? 0 : 1);
    }

    private static List<DiscoverySelector> methods(List<String> chosen) {
        return chosen.stream()
                .<DiscoverySelector>map(DiscoverySelectors::selectMethod)
                .toList();
    }

    private static void print(TestExecutionSummary.Failure failure) {
        System.out.println("FAILED " + Progress.nameOf(failure.getTestIdentifier()));
        failure.getException().printStackTrace(System.out);
    }

    /** A line for each test. */
    private static final class Progress implements TestExecutionListener {
        @Override
        public void executionFinished(TestIdentifier test, TestExecutionResult result) {
            if (test.isTest() || result.getStatus() != TestExecutionResult.Status.SUCCESSFUL) {
                System.out.println(result.getStatus() + " " + nameOf(test));
                // Printed at once: a run that is killed at its time limit prints no summary.
                result.getThrowable().ifPresent(thrown -> System.out.println(thrown.getMessage()));
            }
        }

        @Override
        public void executionSkipped(TestIdentifier test, String reason) {
            System.out.println("SKIPPED " + nameOf(test) + ": " + reason);
        }

        private static String nameOf(TestIdentifier test) {
            String id = test.getUniqueId();
            return id.substring(id.lastIndexOf("class:") + "class:".length());
        }
    }
}
