"""``kv-messenger``: checks, measurements and draining of an installed KV Messenger; no command starts an engine."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from kv_connector._version import __version__
from kv_connector.cli import bench, compare, doctor, given_options, ping, streams, timeline, weights
from kv_connector.cli.argument_types import NUMBER_MAX, number, numbers
from kv_connector.cli.idle import HAND_OVER_SECONDS, drain, undrain, wait_idle
from kv_connector.cli.protected_pages import show_key, show_state
from kv_connector.configuration.host_addresses import port_of
from kv_connector.configuration.option_values import shown
from kv_connector.configuration.options import SGLANG_OPTIONS_VARIABLE, Options
from kv_connector.exceptions import OptionError, PreflightError
from kv_connector.runtime import preflight

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
INTERRUPTED = 128 + signal.SIGINT
"""A shell's exit code of a command that Ctrl-C has ended."""
KEY_NEEDED = (
    "It needs the shared secret in the environment as the engine has it (KV_MESSENGER_SECRET_FILE), or runs as the"
    " engine's user on its host."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 for a problem of the machine or a peer, 2 for an error in the command.

    130 after an interrupt; 1 also if nothing can be printed any more.
    """
    streams.prepare()
    try:
        status = run(arguments)
        streams.flush()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except streams.UnprintedError as unprinted:
        return streams.give_up(unprinted)
    return status


def run(arguments: Sequence[str] | None) -> int:
    """Runs the command that the arguments name."""
    takes = parser()
    parsed, others = takes.parse_known_args(arguments)
    if parsed.command == "bench":
        return bench.run(others, sys.stderr.write)
    if others:
        takes.error(f"unrecognized arguments: {' '.join(others)}")
    if parsed.command == "version":
        return version()
    if parsed.command == "wait-idle":
        return wait_idle(parsed.metrics, parsed.limit_seconds, sys.stderr.write)
    if parsed.command == "drain":
        return drain(parsed.metrics, parsed.limit_seconds, sys.stderr.write, parsed.hand_over)
    if parsed.command == "undrain":
        return undrain(parsed.metrics, sys.stderr.write)
    if parsed.command == "state":
        return show_state(parsed.metrics, streams.say, sys.stderr.write)
    if parsed.command == "page-key":
        return show_key(parsed.metrics, streams.say, sys.stderr.write)
    if parsed.command == "timeline":
        wanted = timeline.Wanted(parsed.svg, parsed.transfer, parsed.perfetto)
        return timeline.report(parsed.logs, wanted, streams.say, sys.stderr.write)
    if parsed.command == "ping":
        return ping_of(parsed)
    if parsed.command == "weights":
        return weights.run(parsed, say_at_once, sys.stderr.write)
    if parsed.command == "compare":
        return compare.run(comparison(parsed), say_at_once)
    return doctor.report(options_reader(parsed), streams.say)


def parser() -> argparse.ArgumentParser:
    """The parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="kv-messenger", description="Checks, measures and drains KV Messenger; no command starts an engine."
    )
    made.add_argument("--version", action="version", version=f"KV Messenger {__version__}")
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="the versions of package, jar and Java runtime")
    add_pages(
        commands.add_parser(
            "wait-idle",
            help="wait until messengers hold nothing for unfinished requests",
            description="Use it before you end an engine, when no new requests come. The status is 0 when all"
            " messengers are idle, 1 when the limit is over or a page cannot be read.",
        )
    )
    add_drain(commands)
    add_page_commands(commands)
    times = commands.add_parser(
        "timeline",
        help="show from engines' logs where the time of each transfer went",
        description="Prints a table with a line for each side of each transfer. A picture needs the logs of both sides,"
        ' of one machine because its clock stamps them, and the option timelines "full".',
    )
    times.add_argument("logs", metavar="LOG", type=Path, nargs="+", help="an engine's log")
    times.add_argument("--svg", metavar="FILE", type=Path, help="also draw one transfer")
    times.add_argument("--transfer", metavar="NAME", default="", help="the transfer to draw (the longest prompt)")
    times.add_argument("--perfetto", metavar="FILE", type=Path, help="also write a trace for ui.perfetto.dev")
    looks = commands.add_parser(
        "doctor",
        help="check whether an engine would start here and could move KV",
        description="Prints one line for each check: ok, warn or fail, its name, what was seen, what to do. The"
        " status is 1 if a line says fail. It opens and closes a messenger, so run it before the engine starts.",
    )
    add_engine(looks)
    pings = commands.add_parser(
        "ping",
        help="test whether a prefiller's and a decoder's hosts reach each other, and how fast",
        description="Moves pages between two hosts with the engines' options and without engines. Begin with --answer"
        " on the prefiller's host; it prints the command for the decoder's. Every byte is compared. If no page comes,"
        " the status is 1, and it prints the error that an engine's log would have.",
    )
    side = pings.add_mutually_exclusive_group(required=True)
    side.add_argument("--answer", action="store_true", help="answer as a prefiller would, until interrupted")
    side.add_argument("prefiller", metavar="HOST:PORT", nargs="?", help="where the other side answers")
    add_engine(pings)
    add_comparison(commands)
    weights.add(commands)
    commands.add_parser("bench", add_help=False, help="measure how fast pages move: kvperf, see bench --help")
    return made


def add_drain(commands: Commands) -> None:
    """Adds ``drain``."""
    drains = commands.add_parser(
        "drain",
        help="make /ready answer 503, so that no new requests come, then wait as wait-idle does",
        description="From then on /ready answers 503, and /health as before. Transfers in progress are completed,"
        f" and requests that still come are served. undrain undoes it. {KEY_NEEDED}",
    )
    add_pages(drains)
    drains.add_argument(
        "--hand-over",
        metavar="SECONDS",
        type=number,
        nargs="?",
        const=HAND_OVER_SECONDS,
        default=0.0,
        help="then let other engines pull what its prefix cache holds, until it has offered them nothing for this time"
        f" ({HAND_OVER_SECONDS:g}) or the limit is over",
    )


def add_page_commands(commands: Commands) -> None:
    """Adds the commands that open one page with its key."""
    undoes = commands.add_parser(
        "undrain", help="make /ready answer 200 again after drain", description=f"It undoes drain. {KEY_NEEDED}"
    )
    undoes.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        type=page,
        action="append",
        required=True,
        help="a metrics page; may be repeated",
    )
    states = commands.add_parser(
        "state",
        help="print what a messenger holds and waits for, as JSON",
        description=f"Prints the page /state. {KEY_NEEDED}",
    )
    states.add_argument("--metrics", metavar="HOST:PORT", type=page, required=True, help="the messenger's metrics page")
    prints = commands.add_parser(
        "page-key",
        help="print the key that opens a messenger's pages in a browser",
        description="Prints the password for a browser or for curl -u :KEY, with any user name. It is found like that"
        " of the other commands: from the shared secret in the environment, or, as the engine's user, on its host.",
    )
    prints.add_argument("--metrics", metavar="HOST:PORT", type=page, required=True, help="the messenger's metrics page")


def add_pages(command: argparse.ArgumentParser) -> None:
    """Adds the arguments for messengers and a time limit."""
    command.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        type=page,
        action="append",
        required=True,
        help="a messenger's metrics page; may be repeated",
    )
    command.add_argument("--limit-seconds", type=number, default=120.0, help="stop waiting after this time (120)")


def add_comparison(commands: Commands) -> None:
    """Adds ``compare``."""
    command = commands.add_parser(
        "compare",
        help="compare a pair's answers with those of its decoder alone",
        description="Sends prompts of several lengths through the router to the pair, then to the decoder alone,"
        " and compares tokens and log-probabilities. The status is 0 if all are the same, 1 if a length differs,"
        " 2 if a server cannot be asked. Use it after a change of options, and before a pair gets requests."
        " Servers with --api-key get the key of the environment's KV_MESSENGER_ENGINE_API_KEY_FILE.",
    )
    command.add_argument("router", metavar="ROUTER", help="the router's address, such as http://127.0.0.1:8000")
    command.add_argument("decoder", metavar="DECODER", help="the address of the decoder's own API server")
    command.add_argument("--model", default="", help="the model's name (the first that the decoder serves)")
    command.add_argument(
        "--lengths",
        metavar="N,N,...",
        type=numbers,
        default=(),
        help="prompt lengths in tokens (around the borders of pages and forward passes)",
    )
    command.add_argument("--answer-tokens", type=count, default=8, help="tokens of each answer (8)")
    command.add_argument(
        "--tolerance",
        type=number,
        default=0.25,
        help="how far log-probabilities may differ, for unequal kernels (0.25)",
    )
    command.add_argument("--limit-seconds", type=number, default=300.0, help="time for one answer (300)")


def page(text: str) -> str:
    """HOST:PORT, also out of the URL that a browser shows."""
    address = text.removeprefix("http://").rstrip("/")
    host, _, port = address.rpartition(":")
    if not host or not port_of(port) or not host.isprintable() or set(host) & set("/?#@ \\"):
        raise argparse.ArgumentTypeError(f"is {shown(text)}, expected HOST:PORT, such as 127.0.0.1:14800")
    return address


def count(text: str) -> int:
    """An integer from 1 to NUMBER_MAX."""
    if (
        not text.isascii()
        or not text.isdecimal()
        or len(text) > len(str(NUMBER_MAX))
        or not 0 < int(text) <= NUMBER_MAX
    ):
        raise argparse.ArgumentTypeError(f"is {shown(text)}, expected an integer from 1 to {NUMBER_MAX}")
    return int(text)


def comparison(parsed: argparse.Namespace) -> compare.Comparison:
    """What ``compare`` is asked."""
    return compare.Comparison(
        parsed.router,
        parsed.decoder,
        parsed.model,
        parsed.lengths,
        parsed.answer_tokens,
        parsed.tolerance,
        limit_seconds=parsed.limit_seconds,
    )


def add_engine(command: argparse.ArgumentParser) -> None:
    """Adds the arguments for options of vLLM or SGLang."""
    engine = command.add_mutually_exclusive_group()
    engine.add_argument(
        given_options.ARGUMENT, metavar="JSON", help="as for vllm serve, or the name of a file that holds it"
    )
    engine.add_argument(
        "--sglang",
        choices=("prefill", "decode"),
        help=f"SGLang's disaggregation mode; its options are in the environment's {SGLANG_OPTIONS_VARIABLE}",
    )


def version() -> int:
    """Prints the versions; missing parts are named on standard error."""
    streams.say(f"KV Messenger {__version__}\n")
    try:
        streams.say(f"jar build {preflight.check_jar().build_id}\n")
        java = preflight.find_java("")
        streams.say(f"Java {java.version} at {java.home}\n")
    except PreflightError as missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    return 0


def options_reader(parsed: argparse.Namespace) -> Callable[[], Options]:
    """A function that reads the user's options; it raises OptionError."""
    if parsed.kv_transfer_config is not None:
        return lambda: given_options.of_vllm(parsed.kv_transfer_config)
    if parsed.sglang is not None:
        return lambda: given_options.of_sglang(parsed.sglang)
    return given_options.none_given


def ping_of(parsed: argparse.Namespace) -> int:
    """Runs one side of a ping; 2 for an error in the command or an option."""
    try:
        options = ping.fitting(options_reader(parsed)(), answers=parsed.answer)
        if parsed.answer:
            return ping.answer(options, say_at_once)
        host, port = ping.address(parsed.prefiller)
    except OptionError as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2
    return ping.ask(options, host, port, say_at_once)


def say_at_once(text: str) -> None:
    """Prints and flushes, because what follows may take long and standard output may be a pipe."""
    streams.say(text)
    streams.flush()


if __name__ == "__main__":
    sys.exit(main())
