package io.kvmessenger.connector;

import org.junit.jupiter.api.Test;

/** The other half of the seeds, in a process of its own where the build has two. */
class PythonOddSeedsTest extends PythonSimulation {
    @Test
    void shouldKeepEveryPromiseForEveryOddSeed() {
        keepEveryPromise(1);
    }
}
