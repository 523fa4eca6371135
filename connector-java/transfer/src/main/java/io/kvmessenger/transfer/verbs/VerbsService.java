package io.kvmessenger.transfer.verbs;

import io.kvmessenger.transfer.TransferOption;
import io.kvmessenger.transfer.TransferOptions;
import java.util.List;

/**
 * How a fabric treats the traffic of all queue pairs. A value.
 *
 * @param trafficClass of RoCE's packets: DSCP and congestion bits, as in the header of IP
 * @param level service level: InfiniBand's virtual lane, Ethernet's priority
 * @param partitionIndex index of the partition's key in the port's table
 */
record VerbsService(int trafficClass, int level, int partitionIndex) {
    static final TransferOption<Integer> TRAFFIC_CLASS = TransferOption.integer("verbs_traffic_class", 0, 0, 255);
    static final TransferOption<Integer> LEVEL = TransferOption.integer("verbs_service_level", 0, 0, 15);
    static final TransferOption<Integer> PARTITION = TransferOption.integer("verbs_pkey_index", 0, 0, 65_535);
    static final List<TransferOption<?>> OPTIONS = List.of(TRAFFIC_CLASS, LEVEL, PARTITION);

    static VerbsService of(TransferOptions options) {
        return new VerbsService(options.get(TRAFFIC_CLASS), options.get(LEVEL), options.get(PARTITION));
    }
}
