/* The kernel that copies the runs of a table, as a stream runs it. */
#include "stand_in.h"

#include <stdlib.h>
#include <string.h>

static long runs_copied, tails_dropped_from = -1;

typedef struct {
    uint64_t target, source, length_bytes;
} Run;

/* For tests of tests: the kernel of runs leaves out the last byte of each that is at least so long; 0 = of none. */
EXPORTED void standInDropTails(long from_bytes) {
    __atomic_store_n(&tails_dropped_from, from_bytes, __ATOMIC_RELAXED);
}

static size_t copied_bytes(size_t length_bytes) {
    const char *variable = getenv("STAND_IN_DROP_TAILS");
    long chosen = __atomic_load_n(&tails_dropped_from, __ATOMIC_RELAXED);
    long from = chosen >= 0 ? chosen : variable == NULL ? 0 : atol(variable);
    return from > 0 && length_bytes >= (size_t)from ? length_bytes - 1 : length_bytes;
}

/* As a kernel does: the table is read when it runs, no run has its turn before another, and pageable memory is out of reach. */
void copy_runs(uint64_t at, uint64_t count, int device) {
    const Run *table = bytes_at(at, count * sizeof *table, device);
    if (table == NULL || at % 8 != 0) {
        end_all(RUNS_KERNEL, "a table that is mapped for the stream's device");
        return;
    }
    for (size_t i = count; i-- > 0;) {
        void *target = bytes_at(table[i].target, table[i].length_bytes, device);
        const void *source = bytes_at(table[i].source, table[i].length_bytes, device);
        if (target == NULL || source == NULL) {
            end_all(RUNS_KERNEL, "both ranges of a run mapped, with access for the stream's device");
            return;
        }
        memcpy(target, source, copied_bytes(table[i].length_bytes));
        __atomic_add_fetch(&runs_copied, 1, __ATOMIC_RELAXED);
    }
}

/* For tests: how many runs the kernel has copied. */
EXPORTED long standInRunsCopied(void) {
    return __atomic_load_n(&runs_copied, __ATOMIC_RELAXED);
}
