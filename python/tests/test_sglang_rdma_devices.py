"""SGLang's ``--disaggregation-ib-device`` beside the option ``verbs_devices``; no SGLang."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from kv_connector import OptionError
from kv_connector.configuration.options import Options, parse_options
from kv_connector.sglang.own_rdma_devices import with_own_devices

LOGGER = logging.getLogger("test")


def options(**given: object) -> Options:
    return parse_options({"transports": ["verbs", "tcp"], **given}, role="decoder", engine_id="", environment={})


def devices(text: str | None, gpu: int | None = 0, **given: object) -> tuple[str, ...]:
    return with_own_devices(options(**given), SimpleNamespace(ib_device=text, gpu_id=gpu), LOGGER).verbs_devices


@pytest.mark.parametrize(
    ("text", "gpu", "expected"),
    [
        (None, 0, ()),
        (" ", 0, ()),
        ("mlx5_0", 3, ("mlx5_0",)),
        (" mlx5_0, mlx5_1,mlx5_0,", None, ("mlx5_0", "mlx5_1")),
        ('{"0": "mlx5_0", "1": "mlx5_2, mlx5_3"}', 1, ("mlx5_2", "mlx5_3")),
    ],
)
def test_should_read_devices_as_sglang_does(text: str | None, gpu: int | None, expected: tuple[str, ...]) -> None:
    assert devices(text, gpu) == expected


def test_should_read_devices_from_a_file(tmp_path: Path) -> None:
    place = tmp_path / "devices.json"
    place.write_text(json.dumps({"0": "mlx5_0", "7": "mlx5_7"}), encoding="utf-8")
    assert devices(str(place), 7) == ("mlx5_7",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", r"is '\{', which is not JSON \(.*\), expected an object of GPU numbers and names like"),
        ('{"1": "mlx5_1"}', r"has no names for GPU 0 \(1\), expected an object .*: add an entry for it"),
        ('{"0": ["mlx5_1"]}', r"has no names for GPU 0 \(0\), expected"),
        ("/nowhere/devices.json", r"is the file /nowhere/devices\.json, which cannot be read \(No such file"),
        (",", r"names 0 devices for GPU 0 \(','\), expected 1 to 8"),
        (",".join(f"mlx5_{i}" for i in range(9)), "names 9 devices for GPU 0 .*, expected 1 to 8: name those"),
    ],
)
def test_should_refuse_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(OptionError, match=f"^--disaggregation-ib-device {sentence}"):
        devices(text)


def test_should_prefer_the_option_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert devices("mlx5_0") == ("mlx5_0",)
        assert "RDMA devices mlx5_0 are used, which --disaggregation-ib-device names" in caplog.text
        caplog.clear()
        assert devices("mlx5_0", verbs_devices=["mlx5_0"]) == ("mlx5_0",)
        assert caplog.text == ""
        assert devices("mlx5_0", verbs_devices=["mlx5_4"]) == ("mlx5_4",)
        assert (
            "option verbs_devices names mlx5_4, and --disaggregation-ib-device names mlx5_0: those of verbs_devices"
            in caplog.text
        )


def test_should_say_that_devices_are_for_one_transport(caplog: pytest.LogCaptureFixture) -> None:
    assert devices("mlx5_0", transports=["tcp"]) == ()
    assert "'mlx5_0' and changes nothing: transports are tcp, and devices are named for verbs alone" in caplog.text
