package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.MessengerState;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A messenger that cannot be opened leaves nothing open, whatever was thrown. */
@Timeout(900)
class OpenMessengerTest {
    /** Throws where its messenger is opened, or behind that, when it is asked what it serves. */
    private static class FailingSubject implements SubjectRequest, EngineSubject {
        final Throwable failure;
        final boolean opens;
        boolean closed;

        FailingSubject(Throwable failure, boolean opens) {
            this.failure = failure;
            this.opens = opens;
        }

        @Override
        public boolean listens() {
            return false;
        }

        @Override
        public EngineSubject open(SubjectPorts ports) {
            if (!opens) {
                fail();
            }
            return this;
        }

        @Override
        public ServedSubject served() {
            fail();
            return null;
        }

        private void fail() {
            if (failure instanceof Error error) {
                throw error;
            }
            throw (RuntimeException) failure;
        }

        @Override
        public List<Runnable> commands(List<Fields> commands) {
            return List.of();
        }

        @Override
        public Map<String, Integer> held() {
            return Map.of();
        }

        @Override
        public MessengerState describe(int rowsMax) {
            throw new AssertionError("a messenger that is not open shows nothing");
        }

        @Override
        public void close() {
            closed = true;
        }
    }

    private static List<Throwable> failures() {
        return List.of(
                new IllegalArgumentException("an option that a user can fix"),
                new AssertionError("a bug"),
                new UnsatisfiedLinkError("a library without a function"),
                new OutOfMemoryError("Java heap space"));
    }

    @ParameterizedTest
    @MethodSource("failures")
    void shouldLeaveNothingOpenWhenTheSubjectCannotBeOpened(Throwable failure) throws IOException {
        FailingSubject subject = new FailingSubject(failure, false);
        assertClosedAfter(subject);
        assertThat(subject.closed).as("it has not been opened").isFalse();
    }

    @ParameterizedTest
    @MethodSource("failures")
    void shouldCloseTheSubjectWhenWhatFollowsCannotBeOpened(Throwable failure) throws IOException {
        FailingSubject subject = new FailingSubject(failure, true);
        assertClosedAfter(subject);
        assertThat(subject.closed).isTrue();
    }

    /** As the JVM does: it has few errors for a heap that is full. */
    @Test
    void shouldCloseTheRestWhenClosingThrowsTheSameErrorAgain() throws IOException {
        OutOfMemoryError full = new OutOfMemoryError("Java heap space");
        assertClosedAfter(new FailingSubject(full, true) {
            @Override
            public void close() {
                throw full;
            }
        });
        assertThat(full.getSuppressed()).isEmpty();
    }

    private static void assertClosedAfter(FailingSubject subject) throws IOException {
        Map<String, Object> options = EngineDouble.options("both");
        try (ReservedPort pages = new ReservedPort();
                ReservedPort data = new ReservedPort()) {
            options.put("metricsPort", pages.number());
            options.put("dataPort", data.number());
            OpenRequest request = new OpenRequest(RuntimeOptions.read(Fields.of("options", options)), subject);
            assertThatThrownBy(() -> OpenMessenger.open(request)).isSameAs(subject.failure);
            assertFree(pages.number());
            assertFree(data.number());
        }
    }

    /** Fails if the socket that listened there is still open. */
    private static void assertFree(int port) throws IOException {
        new ServerSocket(port, 1, InetAddress.getLoopbackAddress()).close();
    }
}
