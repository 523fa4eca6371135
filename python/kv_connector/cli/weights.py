"""``kv-messenger weights``: sends a checkpoint's folder into running servers, and shows what servers serve."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kv_connector.cli.argument_types import number
from kv_connector.configuration.engine_keys import keys_in
from kv_connector.configuration.option_values import shown
from kv_connector.exceptions import KvConnectorError, OptionError
from kv_connector.weights.checkpoint import Checkpoint
from kv_connector.weights.routes import CONTINUE, FINISH, SGLANG_LOADER
from kv_connector.weights.sender import WeightSender
from kv_connector.weights.sender_options import sender_options
from kv_connector.weights.servers import Server, checked_urls
from kv_connector.weights.versions import VERSION_MAX, version_of_now

Say = Callable[[str], object]
STATUS_SECONDS = 60.0
"""For each answer. vLLM collects what is installed on the machine for its first one, which takes long on a busy one."""


def run(parsed: argparse.Namespace, say: Say, complain: Say) -> int:
    """Runs ``weights send`` or ``weights status``; returns the exit code."""
    if parsed.weights_command == "status":
        return status(parsed.servers, say, complain)
    try:
        return send(parsed, say, complain)
    except OptionError as wrong:
        complain(f"{wrong}\n")
        return 2
    except (KvConnectorError, OSError) as failure:
        complain(f"{failure}\n")
        return 1


def status(urls: Sequence[str], say: Say, complain: Say) -> int:
    """Prints what each server serves, and what it knows of updates; 1 if one does not answer, 2 if a key is wrong."""
    try:
        keys = keys_in()
    except OptionError as wrong:
        complain(f"{wrong}\n")
        return 2
    failed = 0
    for url in urls:
        try:
            server = Server(url, STATUS_SECONDS, keys)
            say(f"{url}: version {server.version()}\n")
            say("".join(f"  {line}\n" for line in lines_of(server.status())))
        except KvConnectorError as failure:
            complain(f"{failure}\n")
            failed = 1
    return failed


def lines_of(status: Mapping[str, Any]) -> list[str]:
    """A server's status as lines, without what has another form than a server of this release gives it."""
    ended = status.get("ended")
    counts = ended.items() if isinstance(ended, dict) else ()
    return [
        *(f"{word}: {status[name]}" for name, word in _WORDS.items() if name in status),
        *(
            f"updates {reason.replace('_', ' ')}: {count:g}"
            for reason, count in sorted(counts)
            if isinstance(count, int | float) and count
        ),
    ]


_WORDS = {"landing": "landing", "loaded": "last load", "refused": "last refusal"}


def send(parsed: argparse.Namespace, say: Say, complain: Say) -> int:
    """Sends a folder; 1 if a server does not serve it afterwards. Raises KvConnectorError or OSError."""
    urls = checked_urls(parsed.to)
    options = sender_options(parsed.listen, {}, "--listen")
    checkpoint = Checkpoint(parsed.folder)
    say(f"{len(checkpoint.manifest.places)} tensors, {checkpoint.manifest.length_bytes} bytes\n")
    sender = WeightSender(options, checkpoint.manifest, urls)
    try:
        checkpoint.read_into(sender.staging)
        failed = sender.connect()
        version = parsed.version or version_of_now()
        if any(url not in failed for url in urls):
            began = time.monotonic()
            failed |= sender.send(
                version,
                parsed.limit_seconds,
                lambda: say(f"landed after {time.monotonic() - began:.2f} s\n"),
                under_way=parsed.under_way,
                one_by_one=parsed.one_by_one,
            )
    finally:
        sender.close()
    for url in urls:
        if url in failed:
            complain(f"{url}: {failed[url]}\n")
        else:
            say(f"{url}: version {version}\n")
    return 1 if failed else 0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its two parts."""
    command = commands.add_parser("weights", help="send a checkpoint into running servers, or show what they serve")
    parts = command.add_subparsers(dest="weights_command", required=True)
    sends = parts.add_parser(
        "send",
        help="write a checkpoint's folder into running servers, which go on answering",
        description="Servers of vLLM need VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config"
        f' \'{{"backend":"kv_messenger"}}\', and those of SGLang --custom-weight-loader {SGLANG_LOADER}. The status is'
        " 0 if all serve the new weights, 1 if one does not. Options, and keys of servers with --api-key, are read from"
        " the environment (docs/weights.md).",
    )
    sends.add_argument("folder", metavar="FOLDER", type=Path, help="a folder with a model's .safetensors files")
    sends.add_argument(
        "--to",
        metavar="URL",
        action="append",
        required=True,
        help="a server, such as http://127.0.0.1:8000; repeatable",
    )
    sends.add_argument(
        "--version", metavar="N", type=version_number, default=0, help="newer than what they serve (the time in ms)"
    )
    sends.add_argument(
        "--listen", metavar="HOST[:PORT]", default="", help="where servers dial this command (a port of 127.0.0.1)"
    )
    sends.add_argument(
        "--under-way",
        choices=(CONTINUE, FINISH),
        default="",
        help="answers under way go on by the new weights, or are finished by the old ones while new requests wait"
        f" (vLLM: {CONTINUE}; SGLang: {FINISH}, and nothing else)",
    )
    sends.add_argument(
        "--one-by-one",
        action="store_true",
        help="servers load one after the other, in the order given: what a prefiller and its decoder need",
    )
    sends.add_argument("--limit-seconds", type=number, default=600.0, help="time for the bytes to land (600)")
    shows = parts.add_parser("status", help="print which weights each server serves, and how its updates ended")
    shows.add_argument("servers", metavar="URL", nargs="+", help="a server, such as http://127.0.0.1:8000")


def version_number(text: str) -> int:
    """A version, from 1 on."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) <= VERSION_MAX:
        raise argparse.ArgumentTypeError(f"is {shown(text)}, expected an integer from 1 to {VERSION_MAX}")
    return int(text)
