"""The real messenger through the whole boundary: two of them in one Python process move pages of each other."""

from __future__ import annotations

from conftest import RunPython

PAIR = """
import ctypes, json, os, pathlib, sys, time, urllib.request
from kv_connector.runtime import page_key
from kv_connector.runtime.commands import (
    Announce, Chunk, ChunkPages, Computed, Fetch, FetchPages, PrefillEnded, PrefillerAddress, Step, StepEnded)
from kv_connector.cli.protected_pages import open_page
from kv_connector.runtime.plain_http import ask
from kv_connector import (
    Arrived, Failed, Geometry, Granted, LayerCounter, Messenger, MessengerError, OptionError, Released,
    parse_options)

PAGE_BYTES, PAGE_COUNT, LAYERS = 4096, 8, ["first", "second"]

GROUP = {
    "kind": "full", "windowTokens": 0, "dtype": "float32", "elementBytes": 4, "pageTokens": 16, "layout": "HND",
    "kvHeadCount": 2, "pageCount": PAGE_COUNT}

def geometry(memory, group={}, **changes) -> Geometry:
    layer_bytes = PAGE_BYTES * PAGE_COUNT
    return {
        "model": "m", "tpSize": 1, "ppSize": 1, "groups": [GROUP | group],
        "ranks": [{
            "tpRank": 0, "ppRank": 0,
            "memories": [
                {"kind": "host", "address": ctypes.addressof(memory), "lengthBytes": len(memory), "memfd": -1}],
            "layers": [
                {"name": name, "groupIndex": 0, "memoryIndex": 0, "offsetBytes": i * layer_bytes,
                 "pageStrideBytes": PAGE_BYTES, "pageBytes": PAGE_BYTES}
                for i, name in enumerate(LAYERS)
            ],
        }],
    } | changes

def memory():
    return ctypes.create_string_buffer(PAGE_BYTES * PAGE_COUNT * len(LAYERS))

def open_one(role, kv, changes={}, **said):
    said = {"listen_port": 0, "transports": ["tcp"], "aot_cache": False, "unheard_limit_seconds": 120} | said
    return Messenger.open(parse_options(said, role=role, engine_id=role), geometry(kv, **changes))

def page(kv, layer, index):
    start = (layer * PAGE_COUNT + index) * PAGE_BYTES
    return slice(start, start + PAGE_BYTES)

def fetch(prefiller, **changes):
    opened = prefiller.opened
    return Fetch(**{
        "request": "d", "transfer": "t", "prompt_digest": "",
        "prefillers": [PrefillerAddress(opened.control_host, opened.control_port, opened.engine_id)],
        "prompt_tokens": 20, "first_token": 0, "groups": [FetchPages([6, 3])], "limit_millis": 0} | changes)

def await_event(messenger, *kinds):
    limit = time.monotonic() + 600
    while time.monotonic() < limit:
        for event in messenger.poll():
            if isinstance(event, kinds):
                return event
        time.sleep(0.001)
    raise SystemExit(f"no {kinds} came")
"""


def test_should_move_pages_from_one_messenger_to_the_other(run_python: RunPython) -> None:
    run_python(
        PAIR
        + """
source, target = memory(), memory()
p, d = open_one("prefiller", source), open_one("decoder", target)
counter = LayerCounter(p.opened.layer_counter_address, LAYERS)
d.submit([fetch(p)])
p.submit([Step(1, counter.begin_step(), [Chunk("p", "t", "", 20, 0, 0, 20, [ChunkPages(0, [1, 2])])])])
for layer, name in enumerate(LAYERS):
    for index in (1, 2):
        source[page(source, layer, index)] = bytes([10 * layer + index]) * PAGE_BYTES
    assert counter.layer_complete(name)
p.submit([StepEnded(1, counter.end_step()), PrefillEnded("p", "finished")])

assert await_event(d, Arrived, Failed) == Arrived("d", 2)
assert await_event(p, Released) == Released("p")
for layer in range(len(LAYERS)):
    for sent, received in ((1, 6), (2, 3)):
        assert target[page(target, layer, received)] == bytes([10 * layer + sent]) * PAGE_BYTES, (layer, sent)
assert p.leak_check().clean and d.leak_check().clean
assert p.stats().counters["kv_messenger_pages_sent"] == 4
assert d.stats().counters["kv_messenger_fetches_arrived"] == 1
assert p.fence(["p"], 5) == ["p"]
with urllib.request.urlopen(f"http://127.0.0.1:{d.opened.metrics_port}/metrics", timeout=600) as answer:
    assert b"kv_messenger_fetches_arrived_total 1.0" in answer.read()
page = f"127.0.0.1:{d.opened.metrics_port}"
state = json.loads(open_page("GET", page, "/state"))
assert [peer["role"] for peer in state["peers"]] == ["prefiller"], state
assert (state["fetchCount"], state["failures"]) == (0, []), state
for path, method in (("/state", "GET"), ("/", "GET"), ("/drain", "POST"), ("/undrain", "POST")):
    assert ask(method, f"http://{page}{path}", limit_seconds=60).status == 401, path
key = list(page_key.kept(d.opened.metrics_port))
open_page("POST", page, "/drain")
assert ask("GET", f"http://{page}/ready", limit_seconds=60).status == 503
open_page("POST", page, "/undrain")
assert ask("GET", f"http://{page}/ready", limit_seconds=60).status == 200
p.close()
d.close()
assert len(key) == 1 and key[0] not in page_key.kept(d.opened.metrics_port), "its key is forgotten"
"""
    )


def test_should_speak_tls_where_both_have_certificates_and_refuse_in_clear(run_python: RunPython) -> None:
    run_python(
        PAIR
        + """
import subprocess, tempfile
folder = tempfile.mkdtemp()

def openssl(*arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj")
openssl("req", "-x509", *CURVE, "/CN=ca", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
for name in ("prefiller", "decoder"):
    openssl("req", *CURVE, "/CN=" + name, "-keyout", name + ".key", "-out", name + ".csr")
    openssl("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-out", name + ".pem")

def with_tls(role):
    return {"tls_certificate": f"{folder}/{role}.pem", "tls_key": f"{folder}/{role}.key",
            "tls_ca": folder + "/ca.pem", "transports": ["tcp"]}

p = open_one("prefiller", memory(), **with_tls("prefiller"))
target, bare = memory(), memory()
d, plain = open_one("decoder", target, **with_tls("decoder")), open_one("decoder", bare)
clear = open_one("decoder", memory(), **with_tls("decoder") | {"tcp_in_clear": True})
clear.submit([fetch(p, transfer="third")])
reason = await_event(clear, Failed).reason
assert "set tcp_in_clear alike on both sides" in reason, reason
plain.submit([fetch(p, transfer="other")])
reason = await_event(plain, Failed).reason
assert "control links have TLS here and not at the peer" in reason, reason
d.submit([fetch(p)])
p.submit([
    Announce("p", "t", ""), Computed("p", "t", "", 20, 20, [ChunkPages(0, [1, 2])]), PrefillEnded("p", "finished")])
assert await_event(d, Arrived, Failed) == Arrived("d", 2)
try:
    open_one("decoder", memory(), **with_tls("decoder") | {"tls_key": folder + "/prefiller.key"})
    raise SystemExit("a key that does not fit was not refused")
except MessengerError as refused:
    assert "is not the key of tls_certificate" in str(refused), refused
"""
    )


def test_should_take_rows_from_every_replica_and_pages_from_the_drawn_one(run_python: RunPython) -> None:
    """A prefiller of two ranks with latent KV, a messenger each, fills a decoder of one."""
    run_python(
        PAIR
        + """
ROW_BYTES, SLOTS = 64, 8

def rank(role, kv, rows, tp_rank, tp_size):
    described = geometry(kv, {"layout": "LATENT", "kvHeadCount": 1}, tpSize=tp_size)
    described["ranks"][0]["tpRank"] = tp_rank
    row = {"name": "row", "address": ctypes.addressof(rows), "lengthBytes": len(rows), "memfd": -1,
           "rowStrideBytes": ROW_BYTES, "rowBytes": ROW_BYTES}
    said = {"listen_port": 0, "transports": ["tcp"], "aot_cache": False, "unheard_limit_seconds": 120}
    return Messenger.open(parse_options(said, role=role, engine_id=f"{role}{tp_rank}"), described, [row])

def rows():
    return ctypes.create_string_buffer(ROW_BYTES * SLOTS)

kvs, metadata, target, arrived_rows = [memory(), memory()], [rows(), rows()], memory(), rows()
prefillers = [rank("prefiller", kvs[i], metadata[i], i, 2) for i in range(2)]
d = rank("decoder", target, arrived_rows, 0, 1)
for kv, row in zip(kvs, metadata):
    for layer in range(len(LAYERS)):
        for index in (1, 2):
            kv[page(kv, layer, index)] = bytes([10 * layer + index]) * PAGE_BYTES
    row[2 * ROW_BYTES:3 * ROW_BYTES] = b"r" * ROW_BYTES
named = [PrefillerAddress(p.opened.control_host, p.opened.control_port) for p in prefillers]
for n in range(4):  # the transfer draws who sends
    d.submit([fetch(prefillers[0], transfer=f"t{n}", request=f"d{n}", prefillers=named, context_slot=5)])
    for p in prefillers:
        p.submit([
            Announce(f"p{n}", f"t{n}", ""),
            Computed(f"p{n}", f"t{n}", "", 20, 20, [ChunkPages(0, [1, 2])]),
            PrefillEnded(f"p{n}", "finished", 2)])
    assert await_event(d, Arrived, Failed) == Arrived(f"d{n}", 2)
    for p in prefillers:
        assert await_event(p, Released) == Released(f"p{n}")
for layer in range(len(LAYERS)):
    for sent, received in ((1, 6), (2, 3)):
        assert target[page(target, layer, received)] == bytes([10 * layer + sent]) * PAGE_BYTES, (layer, sent)
assert arrived_rows[5 * ROW_BYTES:6 * ROW_BYTES] == b"r" * ROW_BYTES
assert all(m.leak_check().clean for m in (*prefillers, d))
"""
    )


ROWS = """
KINDS = {"token": ("always", 8), "logits": ("onRequest", 2048), "hidden": ("onRequest", 512)}
SLOTS = 8

def rows():
    return {name: ctypes.create_string_buffer(b"." * length * SLOTS, length * SLOTS)
            for name, (_, length) in KINDS.items()}

def described(memories, **changes):
    return [{"name": name, "address": ctypes.addressof(memories[name]), "lengthBytes": len(memories[name]), "memfd": -1,
             "rowStrideBytes": length, "rowBytes": length, "sending": sending} | changes.get(name, {})
            for name, (sending, length) in KINDS.items()]

def open_with(role, kv, said):
    listens = {"listen_port": 0, "transports": ["tcp"], "aot_cache": False, "unheard_limit_seconds": 120}
    return Messenger.open(parse_options(listens, role=role, engine_id=role), geometry(kv), said)

def row(memories, name, slot):
    length = KINDS[name][1]
    return memories[name][slot * length:(slot + 1) * length]
"""


def test_should_carry_beside_what_always_goes_the_rows_that_a_fetch_asks_for(run_python: RunPython) -> None:
    """What was asked for is in its slot when the request is reported as arrived; of the rest nothing is written."""
    run_python(
        PAIR
        + ROWS
        + """
source, target, left, came = memory(), memory(), rows(), rows()
p, d = open_with("prefiller", source, described(left)), open_with("decoder", target, described(came))
for name, (_, length) in KINDS.items():
    for slot in range(SLOTS):
        left[name][slot * length:(slot + 1) * length] = bytes([65 + slot]) * length

asked = [[], ["logits"], ["hidden"], ["hidden", "logits"], ["token"]]
for n, names in enumerate(asked):
    p.submit([Announce(f"p{n}", f"t{n}", "")])
    d.submit([fetch(p, transfer=f"t{n}", request=f"d{n}", context_slot=n, context_kinds=names)])
    on_request = tuple(name for name in KINDS if name in names and KINDS[name][0] == "onRequest")
    assert await_event(p, Granted) == Granted(f"p{n}", 20, 0, on_request)
    p.submit([
        Computed(f"p{n}", f"t{n}", "", 20, 20, [ChunkPages(0, [1, 2])]), PrefillEnded(f"p{n}", "finished", 7 - n)])
    assert await_event(d, Arrived, Failed) == Arrived(f"d{n}", 2)
    for name, (sending, length) in KINDS.items():
        expected = bytes([65 + 7 - n]) if sending == "always" or name in names else b"."
        assert row(came, name, n) == expected * length, (n, name)
    assert await_event(p, Released) == Released(f"p{n}")
for slot in range(len(asked), SLOTS):
    assert all(row(came, name, slot) == b"." * length for name, (_, length) in KINDS.items())
assert p.leak_check().clean and d.leak_check().clean
"""
    )


def test_should_say_which_rows_cannot_be_asked_for(run_python: RunPython) -> None:
    run_python(
        PAIR
        + ROWS
        + """
p, d = open_with("prefiller", memory(), described(rows())), open_with("decoder", memory(), described(rows()))
d.submit([fetch(p, context_slot=1, context_kinds=["embedding"])])
reason = await_event(d, Failed).reason
assert "context row embedding is asked for, expected one of [token of 8 bytes, logits of 2048" in reason, reason
for wrong, said in (({"sending": "perhaps"}, "sending perhaps, expected always or onRequest"),
                    ({"name": "logits"}, "expected each name once")):
    try:
        open_with("decoder", memory(), described(rows(), hidden=wrong))
        raise SystemExit("not refused: " + str(wrong))
    except MessengerError as refused:
        assert said in str(refused), refused
"""
    )


def test_should_say_in_one_sentence_what_the_user_can_mend(run_python: RunPython) -> None:
    done = run_python(
        PAIR
        + """
p = open_one("prefiller", memory())
port, metrics_port = p.opened.control_port, p.opened.metrics_port
for said in ({"listen_port": port}, {"metrics_port": metrics_port}):
    try:
        open_one("prefiller", memory(), **said)
        raise SystemExit("not refused: " + str(said))
    except MessengerError as refused:
        print(refused)
kv = memory()
for other in ({"kind": "cuda", "device": 0, "handleKind": "posixFd"}, {"kind": "rocm"}):
    wrong = geometry(kv)
    wrong["ranks"][0]["memories"][0].update(other)
    try:
        open_one("decoder", kv, wrong)
        raise SystemExit("not refused: " + str(other))
    except MessengerError as refused:
        print(refused)
d = open_one("decoder", kv, {"model": "another"})
d.submit([fetch(p)])
print(await_event(d, Failed).reason)
print(port, metrics_port)
"""
    )
    port_taken, metrics_taken, device, kind, model, ports = done.stdout.splitlines()
    port, metrics_port = ports.split()
    assert f"listen_port {port}" in port_taken
    assert f"metrics_port is {metrics_port} on 127.0.0.1, expected a free port" in metrics_taken
    assert "memory of device 0 is reached by none of the transports [tcp]: name cuda among them" in device
    assert "a memory is of kind rocm, expected host or cuda" in kind
    assert "another" in model


def test_should_name_transports_and_no_address_where_none_reaches_the_memory_of_both(run_python: RunPython) -> None:
    """Memory without a descriptor, which shm does not reach, as it reaches no decoder's on a GPU."""
    done = run_python(
        PAIR
        + """
offered = (["shm"], ["tcp"], ["shm", "tcp"])
for own, theirs in ((own, theirs) for own in offered for theirs in offered if "tcp" not in own or "tcp" not in theirs):
    p, d = open_one("prefiller", memory(), transports=own), open_one("decoder", memory(), transports=theirs)
    d.submit([fetch(p)])
    print(own, theirs, await_event(d, Failed).reason)
    d.close(), p.close()
"""
    )
    refused = done.stdout.splitlines()
    assert len(refused) == 5
    for line in refused:
        assert "name in transports, on both sides, one that reaches the memory of both, such as tcp" in line, line
        assert "firewall" not in line, line


def test_should_print_what_a_messenger_costs(run_python: RunPython) -> None:
    """Measured and printed, not judged: the machine may be busy."""
    done = run_python(
        PAIR
        + """
resident = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
kv = memory()
before, wall, cpu = resident(), time.perf_counter(), time.process_time()
p = open_one("prefiller", kv)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
grown, idle, begun = resident() - before, time.process_time(), time.perf_counter()
time.sleep(5)
idle = (time.process_time() - idle) / (time.perf_counter() - begun)
print(f"wall {wall * 1e3:.0f} ms, cpu {cpu * 1e3:.0f} ms, RSS +{grown:.0f} MiB, idle {idle:.2%} of a core")
"""
    )
    print(f"\nboot and open, without class cache: {done.stdout.strip()}")
    assert "idle" in done.stdout


def test_should_boot_from_the_class_cache_that_its_own_training_made(run_python: RunPython) -> None:
    script = (
        PAIR
        + """
from kv_connector.runtime import jvm
options = parse_options({"listen_port": 0, "transports": ["tcp"]}, role="prefiller", engine_id="p")
cache = jvm.set_up(options).aot_cache
cached, kv, wall, cpu = cache.usable(), memory(), time.perf_counter(), time.process_time()
p = Messenger.open(options, geometry(kv))
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
print("with" if cached else "without", f"class cache: wall {wall * 1e3:.0f} ms, cpu {cpu * 1e3:.0f} ms")
limit = time.monotonic() + 600
while not cache.usable():
    assert time.monotonic() < limit, sorted(cache.path.parent.glob("*"))
    time.sleep(0.05)
assert p.leak_check().clean
"""
    )
    first, second = run_python(script).stdout, run_python(script).stdout
    assert (first.split()[0], second.split()[0]) == ("without", "with")
    print(f"\nboot and open {first.strip()}; {second.strip()}")
