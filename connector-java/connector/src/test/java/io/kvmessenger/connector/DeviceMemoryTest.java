package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.abort;

import io.kvmessenger.connector.boot.RefusedException;
import io.kvmessenger.testkit.device.DeviceAllocation;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.DeviceCopyStream;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.NoDeviceException;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Two whole messengers whose KV caches are in memory of a device; the driver is whatever the loader finds, in test runs a stand-in. */
@Timeout(900)
final class DeviceMemoryTest {
    private static final int PROMPT_TOKENS = 40;
    private static final List<Integer> SOURCE_PAGES = List.of(9, 4, 17);
    private static final List<Integer> TARGET_PAGES = List.of(3, 30, 12);
    private static final long KV_BYTES =
            (long) EngineDouble.LAYER_COUNT * EngineDouble.PAGE_COUNT * EngineDouble.PAGE_BYTES;

    private DeviceDriver driver;

    @BeforeEach
    void findDriver() {
        try {
            driver = DeviceDriver.open(DeviceDriver.LIBRARY);
        } catch (NoDeviceException e) {
            abort(e.getMessage()
                    + ": examples/setup/find-cuda-stand-in names a folder for -Dkvmessenger.cuda-stand-in");
        }
    }

    @AfterEach
    void close() {
        if (driver != null) {
            driver.close();
        }
    }

    private DeviceAllocation allocate() {
        return DeviceAllocation.ofHandles(driver, 0, 1, DeviceAllocation.GRANULE_BYTES);
    }

    private EngineDouble engine(String role, DeviceAllocation memory, Map<String, Object> options) {
        Map<String, Object> kv = Map.of(
                "kind",
                "cuda",
                "device",
                0,
                "address",
                memory.address(),
                "lengthBytes",
                KV_BYTES,
                "handleKind",
                "posixFd");
        List<Map<String, Object>> layers = EngineDouble.layers(
                EngineDouble.LAYER_COUNT, KV_BYTES / EngineDouble.LAYER_COUNT, EngineDouble.PAGE_BYTES);
        Map<String, Object> rank = Map.of("tpRank", 0, "ppRank", 0, "memories", List.of(kv), "layers", layers);
        return new EngineDouble(role, options, Map.of("ranks", List.of(rank)));
    }

    /** What the double has in host memory goes to the device, or comes from there. */
    private void copy(DeviceAllocation memory, MemorySegment host, boolean toHost) {
        Memory.Device device = memory.memory(KV_BYTES);
        try (DeviceCopyStream stream = DeviceCopyStream.open(driver, device.ordinal())) {
            if (toHost) {
                stream.toHost(host.address(), device.address(), KV_BYTES);
            } else {
                stream.fromHost(device.address(), host.address(), KV_BYTES);
            }
            stream.mark();
        }
    }

    /** By copies of the devices, and staged. */
    @ParameterizedTest
    @ValueSource(strings = {"cuda", "tcp"})
    void shouldMovePagesFromDeviceToDevice(String transport) {
        Map<String, Object> options = Map.of(
                "transports", List.of(transport, "tcp").stream().distinct().toList());
        try (DeviceAllocation source = allocate();
                DeviceAllocation target = allocate();
                EngineDouble p = engine("prefiller", source, options);
                EngineDouble d = engine("decoder", target, options)) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.beginStep(1, "p1", "t1", PROMPT_TOKENS, 0, PROMPT_TOKENS, SOURCE_PAGES);
            p.fillPages("t1", SOURCE_PAGES);
            copy(source, p.memory, false);
            for (int layer = 0; layer < EngineDouble.LAYER_COUNT; layer++) {
                p.bump();
            }
            p.endStep(1);
            d.await("arrived", "d1");
            copy(target, d.memory, true);
            for (int layer = 0; layer < EngineDouble.LAYER_COUNT; layer++) {
                for (int k = 0; k < TARGET_PAGES.size(); k++) {
                    assertThat(d.holds(layer, TARGET_PAGES.get(k), EngineDouble.content("t1", layer, k)))
                            .as("layer %d, page %d", layer, k)
                            .isTrue();
                }
            }
            p.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "finished"));
            p.await("released", "p1");
            assertThat(p.clean() && d.clean()).isTrue();
        }
    }

    @Test
    void shouldSayWhichTransportsDoNotReachADevice() {
        try (DeviceAllocation memory = allocate()) {
            assertThatThrownBy(() -> engine("decoder", memory, Map.of("transports", List.of("shm"))))
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContainingAll(
                            "memory of device 0 is reached by none of the transports [shm]", "name cuda among them");
        }
    }

    @Test
    void shouldRefuseToCompareWhatTheProcessorCannotRead() {
        try (DeviceAllocation memory = allocate()) {
            Map<String, Object> options = Map.of("transports", List.of("cuda"), "pageChecksum", "full");
            assertThatThrownBy(() -> engine("decoder", memory, options))
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContaining("option page_checksum is full, expected off");
        }
    }
}
