"""Whether a machine's GPUs share memory and reach each other's, which a messenger of several ranks needs.

A child process asks the driver, and prints the answer: the calling process may fork workers later, in which CUDA would
not work if it had been initialised before.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

from kv_connector.memory.cuda_driver import CudaDriver, CudaError
from kv_connector.memory.device_memory import lack_of_device


def lack_of_peer_access() -> str:
    """What keeps the devices that this process sees from each other's memory; "" if nothing does. Waits for the driver.

    Every process of an engine has to get the same answer. So there is no limit of time, and a question that fails
    counts as a lack. The child looks for this package wherever this process found it, and nowhere else.
    """
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as fault:
        return f"the driver cannot be asked whether devices reach each other's memory ({fault})"
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines()
        return (
            f"the driver does not say whether devices reach each other's memory ({lines[-1] if lines else 'no word'})"
        )
    return asked.stdout.strip()


def lack_between_devices(driver: CudaDriver) -> str:
    """The first device whose memory another process or device does not reach, in words; "" if all are reached."""
    devices = range(driver.device_count())
    for ordinal in devices:
        if lack := lack_of_device(driver, ordinal):
            return lack
    for ordinal, peer in itertools.permutations(devices, 2):
        if not driver.can_access_peer(ordinal, peer):
            return f"device {ordinal} does not reach the memory of device {peer}"
    return ""


def main() -> int:
    """Writes the lack, or nothing, to the standard output."""
    try:
        driver = CudaDriver()
        driver.initialise()
        sys.stdout.write(lack_between_devices(driver))
    except CudaError as fault:
        sys.stderr.write(str(fault))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
