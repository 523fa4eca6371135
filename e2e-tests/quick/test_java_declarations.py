"""No declaration of production Java is without a use, and no new class has its states in booleans."""

from __future__ import annotations

import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
from java_declarations import boolean_states, production_of, unused

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCTION: Final = production_of(ROOT)

USED_ELSEWHERE: Final = {
    "CudaLayout.ALLOCATION_PROP_*": "test beds make device memory as torch does",
    "CudaApi.CU_MEM_ALLOCATION_TYPE_PINNED": "the same",
    "LibCuda.cu*": "test beds make device memory and captures",
    "LibFabric.fi_version": "test beds: the interfaces of libfabric's files changed their names",
    "FabricApi.FI_EAVAIL": "test beds return it for a provider that has failed",
    "VerbsApi.IBV_WC_*": "test beds complete requests with them",
    "StreamingCopy.TARGET_ALIGNMENT_BYTES": "tests align by it",
    "PeerChannel.LAST_KIND": "a test asks each kind of record",
    "Sharding.ALONE": "tests of engines of one rank",
    "TransferPlan.piecesOfLayer": "tests compare a plan with the pages that each piece has",
    "TransferPlan.source*": "components of a map's key",
    "TransferPlan.target*": "the same",
    "MessengerState.*": "a page of JSON, written from its components",
    "LastTokenRule.*": "the rule itself, as Python has it: one file of cases is tried with both",
    "KvPerfOptions.G": "a unit, read by its name",
    "WritePair.formGroup": "tests of the benchmark",
    "ChecksumMode.SAMPLED": "an option's value, read by its name",
    "KvEvents.SUMMARY": "the same",
    "KvRequest.PREFILLER": "the same",
    "KvRequest.BOTH": "the same",
    "ComparisonOutcome.*": "a command's field, read by its name",
    "PullOutcome.*": "the same",
    "PlanCase.*": "a parameter of a benchmark, all of whose constants are run",
    "KvOpener.KvOpener": "a ServiceLoader finds it",
    "KvSleepOpener.KvSleepOpener": "a ServiceLoader finds it",
    "WeightsOpener.WeightsOpener": "a ServiceLoader finds it",
    "KvCache.fetchEntryCount": "the simulation's checker of what is held",
    "ReportedChecksums.shapeCount": "a test bounds what is remembered",
}
"""Names that production Java does not use, and who does."""

BOOLEAN_STATES: Final = {
    "RingInboundPaths": 4,
    "AdmittedLink": 4,
    "TcpSendPath": 5,
    "ControlStream": 5,
    "LibFabricOutboundPaths": 3,
    "DialledLink": 4,
    "DeviceLanding": 3,
    "Listener": 3,
    "Dialer": 3,
    "PeerDomain": 3,
    "Fetch": 3,
    "Link": 3,
    "Holder": 3,
}
"""Those from before the rule, with the number that none may exceed: they go when paths have states of their own."""


def test_no_declaration_is_without_a_use() -> None:
    left = [name for name in unused(PRODUCTION) if not any(fnmatch.fnmatch(name, known) for known in USED_ELSEWHERE)]
    assert not left, "production uses none of these: take them out, or name what does"


def test_what_is_used_elsewhere_is_still_declared() -> None:
    found = unused(PRODUCTION)
    assert [known for known in USED_ELSEWHERE if not fnmatch.filter(found, known)] == []


def test_states_are_no_set_of_booleans() -> None:
    found = boolean_states(PRODUCTION)
    assert {name: count for name, count in found.items() if count > BOOLEAN_STATES.get(name, 0)} == {}
    assert [name for name in BOOLEAN_STATES if name not in found] == [], "no exception any more: take it out"


def test_finds_what_only_its_declaration_names() -> None:
    text = """
        class A {
            static final int UNUSED = 1; // UNUSED
            private int used;
            int get() { return used; }
            @Override
            public String toString() { return "it"; }
            record Row(Map<String, List<Integer>> rows, @Name("b") int count) implements Bounded {}
            enum Kind implements Named { ONE, @Deprecated TWO(f(1), "THREE,") { int g() { return 4; } }; }
        }"""
    names = ["A", "Kind", "ONE", "Row", "TWO", "UNUSED", "count", "get", "rows"]
    assert unused({PurePosixPath("A.java"): text}) == [f"A.{name}" for name in names]
    assert unused({PurePosixPath("A.java"): text, PurePosixPath("b.py"): " ".join(names)}) == []


@pytest.mark.parametrize(
    "fields",
    [
        "private boolean a;\n    private volatile boolean b;\n    boolean c = true;",
        "boolean a, b, c;",
        "public boolean a; protected boolean b; private static boolean c;",
        'boolean a = !other; boolean b = reads("x", 1); @Guarded("lock") private boolean c;',
    ],
)
@pytest.mark.parametrize("type_of", ["class A {{ {} }}", "interface B {{ class A {{ void go() {{}} {} }} }}"])
def test_counts_fields_that_are_states(type_of: str, fields: str) -> None:
    assert boolean_states({PurePosixPath("B.java"): type_of.format(fields)}) == {"A": 3}


@pytest.mark.parametrize(
    "members",
    [
        "final boolean a; private static final boolean B = true; boolean c;",
        "boolean a(); boolean b(int count); boolean c() { return true; }",
        "void go() { boolean a = true; boolean b; boolean c = a; }",
        'boolean[] a; List<boolean[]> b; String c = "boolean d;"; // boolean e;',
    ],
)
def test_counts_nothing_else(members: str) -> None:
    assert boolean_states({PurePosixPath("A.java"): f"class A {{ {members} }}"}) == {}
