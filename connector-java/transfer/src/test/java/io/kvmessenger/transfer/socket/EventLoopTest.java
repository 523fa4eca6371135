package io.kvmessenger.transfer.socket;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

final class EventLoopTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final int NO_DESCRIPTOR = -1;

    private final EventLoop loop = new EventLoop(LIB_C, () -> 0);
    private final List<String> seen = new ArrayList<>();
    private final List<Integer> descriptors = new ArrayList<>();

    @AfterEach
    void close() {
        descriptors.forEach(LIB_C::close);
        loop.close();
    }

    /** Ready at once, and for ever. */
    private void watch(Pollable owner) {
        int fd = LIB_C.eventfd(1, MemoryApi.EFD_CLOEXEC | MemoryApi.EFD_NONBLOCK);
        descriptors.add(fd);
        loop.add(fd, Epoll.EPOLLIN, owner);
    }

    private Pollable owner(String name, Error thrown) {
        return new Pollable() {
            @Override
            public void onReady(int mask, long nowNs) {
                seen.add(name);
                if (thrown != null) {
                    throw thrown;
                }
            }

            @Override
            public void onError(Throwable error) {
                seen.add(name + " failed with " + error.getMessage());
            }
        };
    }

    @Test
    void shouldNotifyOnlyTheOwnerThatThrew() {
        watch(owner("first", null));
        watch(owner("second", new InternalError("no memory there")));
        watch(owner("third", null));
        assertThat(loop.poll(0)).isEqualTo(3);
        assertThat(seen).containsExactlyInAnyOrder("first", "second", "second failed with no memory there", "third");
    }

    @Test
    void shouldKeepNoPlaceForADescriptorThatCannotBeWatched() {
        assertThatThrownBy(() -> loop.add(NO_DESCRIPTOR, Epoll.EPOLLIN, owner("none", null)))
                .isInstanceOf(IllegalStateException.class);
        watch(owner("next", null));
        assertThat(loop.poll(0)).isEqualTo(1);
        assertThat(seen).containsExactly("next");
    }

    @Test
    void shouldLeaveNoDescriptorBehindWhenItCannotWatchItsOwn() {
        RefusingLibC refusing = new RefusingLibC().refuse("epoll_ctl", Errno.ENOMEM);
        assertThatThrownBy(() -> new EventLoop(refusing.libC(), () -> 0))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage("epoll_ctl failed with ENOMEM");
        assertThat(refusing.calls()).containsExactly("epoll_create1", "eventfd", "epoll_ctl", "close", "close");
    }
}
