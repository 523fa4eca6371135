"""What must hold between options: rules that name two of them, or a list of names. Pure; the table is in options.py."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kv_connector.configuration import shared_secret as secrets
from kv_connector.configuration.host_addresses import PORT_MAX, is_any_address, is_loopback, says_loopback
from kv_connector.configuration.option_values import shown
from kv_connector.exceptions import OptionError

if TYPE_CHECKING:
    from kv_connector.configuration.options import Options

HOSTS_MAX = 8
"""Of data_hosts and of verbs_devices."""


def check_together(options: Options, *, place: str) -> None:
    """Raises :class:`OptionError` for the first rule that is broken; ``place`` is where options are set."""
    if not is_loopback(options.listen_host):
        if not options.shared_secret:
            raise OptionError(
                f"option 'listen_host' is {options.listen_host!r}, which is reachable from other machines, and no"
                " shared secret is set: set the same shared_secret_file on all engines, or listen on 127.0.0.1"
            )
        secrets.check_length(options.shared_secret, options.listen_host)
    if not options.advertise_host and is_any_address(options.listen_host):
        raise OptionError(
            f"option 'listen_host' is {options.listen_host!r}, which peers cannot dial, and 'advertise_host' is not"
            " set: set advertise_host to an address of this machine"
        )
    if options.advertise_host and says_loopback(options.advertise_host) and not is_loopback(options.listen_host):
        raise OptionError(
            f"option 'advertise_host' is {options.advertise_host!r}, which on another machine is that machine itself,"
            f" and 'listen_host' is {options.listen_host!r}: set advertise_host to an address that peers can dial, or"
            " listen on 127.0.0.1"
        )
    _check_data_hosts(options, place)
    _check_advertised_ports(options)
    _check_ports(options)
    _check_verbs_devices(options, place)
    if options.engine_api_url and not options.engine_api_url.startswith(("http://", "https://")):
        raise OptionError(
            f"option 'engine_api_url' is {options.engine_api_url!r}, expected a URL like 'http://127.0.0.1:8000':"
            f" fix it in {place}"
        )
    if options.silence_limit_seconds < 2 * options.heartbeat_seconds:
        raise OptionError(
            f"option 'silence_limit_seconds' is {options.silence_limit_seconds:g}, expected at least twice"
            f" 'heartbeat_seconds' ({options.heartbeat_seconds:g}): one late heartbeat must not lose a peer"
        )


def _check_data_hosts(options: Options, place: str) -> None:
    hosts = options.data_hosts
    if len(hosts) > HOSTS_MAX or len(set(hosts)) < len(hosts):
        raise OptionError(
            f"option 'data_hosts' is {shown(list(hosts))}, expected at most {HOSTS_MAX} addresses, each once: fix it"
            f" in {place}"
        )
    for host in hosts:
        if is_any_address(host):
            raise OptionError(
                f"option 'data_hosts' names {host!r}, which peers cannot dial, expected addresses of this machine: name"
                " the address of each network"
            )
        if is_loopback(host) != is_loopback(options.listen_host):
            raise OptionError(
                f"option 'data_hosts' names {host!r}, and 'listen_host' is {options.listen_host!r}: expected both to be"
                " reachable from other machines, or both on loopback"
            )


def _check_advertised_ports(options: Options) -> None:
    """A relay forwards to a port that it was set up with, so the port that is listened on must be fixed."""
    if options.advertise_port and options.role != "decoder" and not options.listen_port:
        raise OptionError(
            f"option 'advertise_port' is {options.advertise_port}, and 'listen_port' is 0, any free port: set"
            " listen_port to the port that is forwarded to"
        )
    ports = options.advertise_data_ports
    if ports and not options.data_port:
        raise OptionError(
            f"option 'advertise_data_ports' is {shown(list(ports))}, and 'data_port' is 0, any free port: set"
            " data_port to the port that is forwarded to"
        )
    if len(ports) > 1 and len(ports) != len(options.data_hosts):
        raise OptionError(
            f"option 'advertise_data_ports' is {shown(list(ports))}, and 'data_hosts' names {len(options.data_hosts)}"
            " addresses, expected one port, or one for each address: name as many"
        )


def _check_ports(options: Options) -> None:
    """A port that two options name would be said to be in use, and nothing else has it."""
    hosts = {"metrics_port": options.metrics_host}
    if {"tcp", "libfabric", "verbs"} & set(options.transports):
        hosts = {"data_port": options.listen_host, **hosts}
    if options.role != "decoder":
        hosts = {"listen_port": options.listen_host, **hosts}
    for one, other in itertools.combinations(hosts, 2):
        port = getattr(options, one)
        meet = hosts[one] == hosts[other] or any(is_any_address(host) for host in (hosts[one], hosts[other]))
        if port > 0 and port == getattr(options, other) and meet:
            raise OptionError(f"options '{one}' and '{other}' are both {port}, expected a port for each: change one")


def ports_of_rank(options: Options, rank_index: int) -> dict[str, Any]:
    """The ports of one of an engine's ranks: fixed ones, increased by its index. Raises OptionError if one is none."""
    check_rank_ports(options, rank_index)
    return {
        "listen_port": options.listen_port + rank_index if options.listen_port > 0 else options.listen_port,
        "data_port": options.data_port + rank_index if options.data_port > 0 else options.data_port,
        "metrics_port": options.metrics_port + rank_index if options.metrics_port > 0 else options.metrics_port,
        "advertise_port": options.advertise_port + rank_index if options.advertise_port > 0 else 0,
        "advertise_data_ports": tuple(port + rank_index for port in options.advertise_data_ports),
    }


def check_rank_ports(options: Options, rank_index: int) -> None:
    """Raises :class:`OptionError` if a rank's port, which follows from the first rank's, is none."""
    for name in ("listen_port", "data_port", "metrics_port", "advertise_port", "advertise_data_ports"):
        value = getattr(options, name)
        for port in value if isinstance(value, tuple) else (value,):
            if port > PORT_MAX - rank_index:
                most = PORT_MAX - rank_index
                raise OptionError(
                    f"option {name!r} is {port}, and the engine's messenger number {rank_index} would have"
                    f" {port + rank_index}, expected at most {PORT_MAX}: choose a port of {most} or less"
                )


def _check_verbs_devices(options: Options, place: str) -> None:
    devices = options.verbs_devices
    if len(devices) > HOSTS_MAX or len(set(devices)) < len(devices) or "" in devices:
        raise OptionError(
            f"option 'verbs_devices' is {shown(list(devices))}, expected at most {HOSTS_MAX} names, each once: fix it"
            f" in {place}"
        )


def merge_verbs_devices(values: dict[str, Any]) -> None:
    """Reads the older spelling of ``verbs_devices``."""
    device = values.get("verbs_device", "")
    devices = values.get("verbs_devices", ())
    if device and devices and devices != (device,):
        raise OptionError(
            f"option 'verbs_device' is {device!r}, and 'verbs_devices' is {list(devices)!r}: name all devices in"
            " verbs_devices alone"
        )
    if device:
        values["verbs_devices"] = (device,)
