"""The demo's pair under a small load, a Prometheus that scrapes it, and pictures of the dashboards with its data.

    make dashboard            [ARGS="--seconds 120 --keep"], [ARGS=--without-engines] for two messengers alone

Requests of several lengths go to the stock router until the time is over. Then each panel's queries are sent to
Prometheus and their results are drawn; a panel without data ends the run with status 1. No Grafana is started: import
``dashboards/*.json`` into yours. ``--keep`` leaves everything running, for your Grafana, until it is interrupted.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dashboards"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # where no wheel is installed

from browser import Browser, MissingBrowserError
from dashboard import DASHBOARDS, OPERATOR
from demo_console import say, unwind_on_sigterm
from moving_pair import go, metrics_ports, moving
from panel_pictures import Line, height_of, page, width_of
from prometheus_server import MissingPrometheusError, Prometheus, plain, scraping
from server_process import LOOPBACK, Server, complete, free_port, start_all

PROMPT_TOKENS = (20, 128, 300, 700, 1500)
ANSWER_TOKENS = 8
CLIENTS = 2
PEERS = 8
WINDOW_SECONDS = 20
STEP_SECONDS = 2
REST_SCRAPES = 2
ROOT = Path(__file__).resolve().parents[2]

Load = Callable[[float], None]
"""Generates load for the given number of seconds."""


def main() -> int:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="how long the load lasts")
    parser.add_argument("--without-engines", action="store_true", help="two messengers alone, that move pages")
    parser.add_argument("--picture", type=Path, help="where the operator's dashboard is left as a picture")
    parser.add_argument("--keep", action="store_true", help="go on until interrupted")
    parsed = parser.parse_args()
    folder = ROOT / "build" / "dashboard" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        try:
            browser = Browser()
            targets, load = (messengers if parsed.without_engines else engines)(stack, folder)
            prometheus = stack.enter_context(scraping(targets, folder))
        except (MissingPrometheusError, MissingBrowserError) as missing:
            say(str(missing))
            return 1
        prometheus.wait_for_scrapes(len(targets), REST_SCRAPES)
        say(f"Prometheus is at {prometheus.address}; {parsed.seconds:.0f} s of load")
        begun = time.time()
        load(parsed.seconds)
        empty = draw(prometheus, browser, folder, begun, parsed.picture)
        for panel in empty:
            say(f"no data: {panel}")
        if parsed.keep:
            say("everything goes on until you interrupt it")
            threading.Event().wait()
    return 1 if empty else 0


def messengers(stack: ExitStack, folder: Path) -> tuple[list[str], Load]:
    """Starts two messengers; returns the addresses of their metrics and a load that moves pages between them."""
    say(f"starting two messengers, pictures go to {folder}")
    pair = stack.enter_context(moving())
    targets = [f"{LOOPBACK}:{port}" for port in metrics_ports(pair)]

    def load(seconds: float) -> None:
        go(pair)
        time.sleep(seconds)

    return targets, load


def engines(stack: ExitStack, folder: Path) -> tuple[list[str], Load]:
    """Starts the demo's servers; returns the addresses of their messengers' metrics and a load of requests."""
    from make_model import cached_model
    from prompts import cache_home
    from servers import EngineOptions, engine, router

    model = cached_model(cache_home())
    targets, servers = [], []
    for core, (name, role) in enumerate((("prefiller", "kv_producer"), ("decoder", "kv_consumer"))):
        port = free_port()
        targets.append(f"{LOOPBACK}:{port}")
        extra = {"listen_port": free_port(), "metrics_port": port, "metrics_peers": PEERS}
        servers.append(engine(name, EngineOptions(model, kv_role=role, core=core, extra_config=extra), folder))
    front = router("router", servers[:1], servers[1:], folder)
    for server in (*servers, front):
        stack.callback(server.stop)
    say(f"starting a prefiller and a decoder, logs in {folder}")
    start_all(servers, say)
    start_all([front], say)
    return targets, functools.partial(requests, front)


def requests(front: Server, seconds: float) -> None:
    """Sends prompts from several clients, each one after the other; raises the first error of a client."""
    from prompts import random_prompt

    ends = time.monotonic() + seconds
    stopped = threading.Event()

    def ask(seed: int) -> None:
        count = 0
        while not stopped.is_set() and time.monotonic() < ends:
            tokens = PROMPT_TOKENS[count % len(PROMPT_TOKENS)]
            complete(front, random_prompt(tokens, 1000 * seed + count), ANSWER_TOKENS)
            count += 1

    with ThreadPoolExecutor(CLIENTS) as clients:
        try:
            for asked in as_completed([clients.submit(ask, seed) for seed in range(CLIENTS)]):
                asked.result()
        finally:
            stopped.set()


def named(legend: str, labels: Mapping[str, str]) -> str:
    """The legend of a series, in which values of labels replace their names."""
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), legend)


def draw(prometheus: Prometheus, browser: Browser, folder: Path, begun: float, picture: Path | None) -> list[str]:
    """Writes a page and a picture of each dashboard; returns the queries without data."""
    ended = time.time()
    empty: list[str] = []

    def ask(query: str, legend: str) -> list[Line]:
        asked = plain(query, WINDOW_SECONDS)
        series = prometheus.ask_range(asked, begun, ended, STEP_SECONDS)
        if not series:
            empty.append(asked)
        legend = f"{legend} {{{{instance}}}}" if "by (instance)" in query else legend
        return [
            Line(
                named(legend, one["metric"]),
                [(float(at), float(value)) for at, value in one["values"]],
            )
            for one in series
        ]

    for each in DASHBOARDS:
        drawn = folder / f"{each.uid}.html"
        drawn.write_text(page(each, ask), encoding="utf-8")
        to = picture.resolve() if picture is not None and each is OPERATOR else folder / f"{each.uid}.png"
        browser.picture(drawn.as_uri(), width_of(), height_of(each), to)
        say(f"{each.title}: {to}")
    return empty


if __name__ == "__main__":
    sys.exit(main())
