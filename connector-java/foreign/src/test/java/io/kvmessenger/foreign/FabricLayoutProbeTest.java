package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Holds every offset, size and constant of libfabric's to what the C compiler says of its headers. */
final class FabricLayoutProbeTest {
    private static final String HOME = System.getProperty("kvmessenger.libfabric", "");

    private static final String INCLUDES = """
            #include <stddef.h>
            #include <stdio.h>
            #include <rdma/fabric.h>
            #include <rdma/fi_cm.h>
            #include <rdma/fi_domain.h>
            #include <rdma/fi_endpoint.h>
            #include <rdma/fi_eq.h>
            #include <rdma/fi_errno.h>
            #include <rdma/fi_rma.h>
            """;

    /** By the beginning of the names of what lies in it: the struct. */
    private static final Map<String, String> STRUCTS = new LinkedHashMap<>();

    static {
        STRUCTS.put("INFO_", "fi_info");
        STRUCTS.put("TX_ATTR_", "fi_tx_attr");
        STRUCTS.put("EP_ATTR_", "fi_ep_attr");
        STRUCTS.put("DOMAIN_ATTR_", "fi_domain_attr");
        STRUCTS.put("FABRIC_ATTR_", "fi_fabric_attr");
        STRUCTS.put("CQ_ATTR_", "fi_cq_attr");
        STRUCTS.put("AV_ATTR_", "fi_av_attr");
        STRUCTS.put("CQ_ENTRY_", "fi_cq_data_entry");
        STRUCTS.put("CQ_ERROR_", "fi_cq_err_entry");
        STRUCTS.put("CONTEXT_", "fi_context2");
        STRUCTS.put("FID_", "fid");
        STRUCTS.put("FABRIC_", "fid_fabric");
        STRUCTS.put("DOMAIN_", "fid_domain");
        STRUCTS.put("EP_", "fid_ep");
        STRUCTS.put("CQ_", "fid_cq");
        STRUCTS.put("AV_", "fid_av");
        STRUCTS.put("MR_", "fid_mr");
        STRUCTS.put("OPS_FABRIC_", "fi_ops_fabric");
        STRUCTS.put("OPS_DOMAIN_", "fi_ops_domain");
        STRUCTS.put("OPS_MR_", "fi_ops_mr");
        STRUCTS.put("OPS_CM_", "fi_ops_cm");
        STRUCTS.put("OPS_AV_", "fi_ops_av");
        STRUCTS.put("OPS_CQ_", "fi_ops_cq");
        STRUCTS.put("OPS_RMA_", "fi_ops_rma");
        STRUCTS.put("OPS_", "fi_ops");
    }

    /** Fields whose C name is not the rest of the constant's. */
    private static final Map<String, String> NAMES = Map.of("CQ_ENTRY_CONTEXT", "op_context", "MR_DESC", "mem_desc");

    @TempDir
    private Path folder;

    /** The C term that a constant of {@link FabricLayout} is the value of. */
    private static String term(String constant) {
        String prefix = STRUCTS.keySet().stream()
                .filter(constant::startsWith)
                .findFirst()
                .orElseThrow(() -> new AssertionError("no struct has " + constant));
        String struct = "struct " + STRUCTS.get(prefix);
        String rest = constant.substring(prefix.length());
        return rest.equals("SIZE_BYTES")
                ? "sizeof(" + struct + ")"
                : "offsetof(" + struct + ", " + NAMES.getOrDefault(constant, rest.toLowerCase(Locale.ROOT)) + ")";
    }

    private static Map<String, Long> expected() throws IllegalAccessException {
        Map<String, Long> expected = new LinkedHashMap<>();
        for (Field field : FabricLayout.class.getDeclaredFields()) {
            if (!field.getName().equals("SLACK_BYTES")) {
                expected.put(term(field.getName()), field.getLong(null));
            }
        }
        for (Field field : FabricApi.class.getDeclaredFields()) {
            String name = field.getName();
            expected.put(name.equals("VERSION") ? "FI_VERSION(1, 17)" : name, field.getLong(null));
        }
        return expected;
    }

    @Test
    void shouldAgreeWithTheCompiler() throws IOException, InterruptedException, IllegalAccessException {
        assumeTrue(
                !HOME.isEmpty(),
                "no headers: -Dkvmessenger.libfabric names no folder of them, examples/setup/find-libfabric does");
        Map<String, Long> expected = expected();
        CompilerProbe.assertAgrees(folder, HOME + "/include", INCLUDES, expected);
        assertThat(expected).hasSizeGreaterThan(80);
    }

    /** Each prefix that begins another stands after it, or it would take what is the other's. */
    @Test
    void shouldFindTheLongestPrefixFirst() {
        String[] prefixes = STRUCTS.keySet().toArray(String[]::new);
        for (int i = 0; i < prefixes.length; i++) {
            String earlier = prefixes[i];
            assertThat(Stream.of(prefixes).skip(i + 1L)).noneMatch(later -> later.startsWith(earlier));
        }
    }
}
