"""SGLang servers of the test bed that are forked from a process with SGLang's imports done, see warm_launcher.py."""

from __future__ import annotations

from fabric import environment_of_fabric
from sglang_servers import CPU_KERNELS, ENGINE_ENVIRONMENT
from warm_starts import WarmLauncher, WarmServer

PRELOADED = (
    "setproctitle",
    "uvloop",
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "sglang_router.launch_router",
    "sglang_router.mini_lb",
)


def environment_of_sglang() -> dict[str, str]:
    return {
        **ENGINE_ENVIRONMENT,
        **environment_of_fabric(),
        "PYTHONPATH": str(CPU_KERNELS),
        "OPENBLAS_NUM_THREADS": "1",  # NumPy would start its threads when it is imported; what is forked must have one
    }


LAUNCHER = WarmLauncher(PRELOADED, environment_of_sglang)
"""That of this run's SGLang servers."""


class WarmSglang(WarmServer):
    """One that ends at once: SGLang looks every 5 s whether it was told to end. What users start is told so."""

    launcher = LAUNCHER

    def stop(self) -> None:
        if self._process is not None:
            self.kill()
