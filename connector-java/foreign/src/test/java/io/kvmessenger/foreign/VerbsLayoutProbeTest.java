package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Holds every offset, size and constant of libibverbs' to what the C compiler says of its header. */
final class VerbsLayoutProbeTest {
    private static final String HOME = System.getProperty("kvmessenger.libfabric", "");

    private static final String INCLUDES = """
            #include <stddef.h>
            #include <stdio.h>
            #include <infiniband/verbs.h>
            _Static_assert(__builtin_types_compatible_p(__typeof__(ibv_reg_dmabuf_mr),
                struct ibv_mr *(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int)), "as it is called");
            """;

    /** By the beginning of the names of what lies in it, the longest first: the struct, and the field that all lie in. */
    private static final Map<String, String> STRUCTS = new LinkedHashMap<>();

    static {
        STRUCTS.put("DEVICE_ATTR_", "struct ibv_device_attr, ");
        STRUCTS.put("PORT_ATTR_", "struct ibv_port_attr, ");
        STRUCTS.put("GID_ENTRY_", "struct ibv_gid_entry, ");
        STRUCTS.put("GID_", "union ibv_gid, ");
        STRUCTS.put("QP_INIT_ATTR_CAP_", "struct ibv_qp_init_attr, cap.");
        STRUCTS.put("QP_INIT_ATTR_", "struct ibv_qp_init_attr, ");
        STRUCTS.put("QP_ATTR_AH_", "struct ibv_qp_attr, ah_attr.");
        STRUCTS.put("QP_ATTR_", "struct ibv_qp_attr, ");
        STRUCTS.put("QP_", "struct ibv_qp, ");
        STRUCTS.put("SEND_WR_", "struct ibv_send_wr, ");
        STRUCTS.put("RECV_WR_", "struct ibv_recv_wr, ");
        STRUCTS.put("SGE_", "struct ibv_sge, ");
        STRUCTS.put("WC_", "struct ibv_wc, ");
        STRUCTS.put("CONTEXT_OPS_", "struct ibv_context, ops.");
        STRUCTS.put("CQ_", "struct ibv_cq, ");
        STRUCTS.put("MR_", "struct ibv_mr, ");
    }

    /** Fields that lie deeper in their struct than their names say. */
    private static final Map<String, String> NAMES = Map.of(
            "QP_ATTR_AH_DGID", "grh.dgid",
            "QP_ATTR_AH_SGID_INDEX", "grh.sgid_index",
            "QP_ATTR_AH_HOP_LIMIT", "grh.hop_limit",
            "QP_ATTR_AH_TRAFFIC_CLASS", "grh.traffic_class",
            "SEND_WR_REMOTE_ADDR", "wr.rdma.remote_addr",
            "SEND_WR_RKEY", "wr.rdma.rkey");

    @TempDir
    private Path folder;

    /** The C term that a constant of {@link VerbsLayout} is the value of. */
    private static String term(String constant) {
        String prefix = STRUCTS.keySet().stream()
                .filter(constant::startsWith)
                .findFirst()
                .orElseThrow(() -> new AssertionError("no struct has " + constant));
        String struct = STRUCTS.get(prefix);
        String rest = constant.substring(prefix.length());
        return rest.equals("SIZE_BYTES")
                ? "sizeof(" + struct.substring(0, struct.indexOf(',')) + ")"
                : "offsetof(" + struct + NAMES.getOrDefault(constant, rest.toLowerCase(Locale.ROOT)) + ")";
    }

    @Test
    void shouldAgreeWithTheCompiler() throws IOException, InterruptedException, IllegalAccessException {
        assumeTrue(
                !HOME.isEmpty(),
                "no headers: -Dkvmessenger.libfabric names no folder of them, examples/setup/find-libfabric does");
        Map<String, Long> expected = new LinkedHashMap<>();
        for (Field field : VerbsLayout.class.getDeclaredFields()) {
            expected.put(term(field.getName()), field.getLong(null));
        }
        for (Field field : VerbsApi.class.getDeclaredFields()) {
            expected.put(field.getName(), field.getLong(null));
        }
        CompilerProbe.assertAgrees(folder, HOME + "/include", INCLUDES, expected);
        assertThat(expected).hasSizeGreaterThan(100);
    }
}
