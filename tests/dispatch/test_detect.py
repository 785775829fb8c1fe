"""Which architecture is meant if none is named: argument, ATTNROUTE_ARCH, NVML, torch, else a clear error."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnroute.cli.main import main
from attnroute.errors import UsageError
from attnroute.registry import detect
from attnroute.registry.detect import Device, NoArchError, detect_arch, devices, local_archs, visible

H100, H100_NEXT = ("H100", (9, 0), "GPU-aaaa-1"), ("H100", (9, 0), "GPU-aaab-2")
B200, RTX = ("B200", (10, 0), "GPU-bbbb-3"), ("RTX PRO 6000", (12, 0), "GPU-cccc-4")
GPU = tuple[str, tuple[int, int], str]


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU, no torch, nothing said in the environment."""
    for name in ("ATTNROUTE_ARCH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name in ("torch", "cuda.bindings.nvml"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(detect, "_has_nvml", lambda: False)


def with_nvml(monkeypatch: pytest.MonkeyPatch, gpus: list[GPU], **broken: Exception) -> list[str]:
    """A stand-in for cuda.bindings.nvml; `broken` names functions that raise. Returns the names of the calls made."""
    calls: list[str] = []

    def function(name: str, give: Any) -> Any:
        def called(*arguments: Any) -> Any:
            calls.append(name)
            if name in broken:
                raise broken[name]
            return give(*arguments)

        return called

    functions = {
        "init_v2": lambda: None,
        "shutdown": lambda: None,
        "device_get_count_v2": lambda: len(gpus),
        "device_get_handle_by_index_v2": lambda index: index,
        "device_get_name": lambda handle: gpus[handle][0],
        "device_get_cuda_compute_capability": lambda handle: gpus[handle][1],
        "device_get_uuid": lambda handle: gpus[handle][2],
    }
    nvml, bindings, cuda = ModuleType("cuda.bindings.nvml"), ModuleType("cuda.bindings"), ModuleType("cuda")
    for name, give in functions.items():
        setattr(nvml, name, function(name, give))
    bindings.nvml, cuda.bindings = nvml, bindings  # type: ignore[attr-defined]
    for module in (nvml, bindings, cuda):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def with_torch(monkeypatch: pytest.MonkeyPatch, gpus: list[GPU], running: bool = True) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: running,
        device_count=lambda: len(gpus),
        get_device_capability=lambda index: gpus[index][1],
        get_device_name=lambda index: gpus[index][0],
    )
    torch = ModuleType("torch")
    torch.cuda = cuda  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_the_argument_wins_over_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNROUTE_ARCH", "sm100")
    calls = with_nvml(monkeypatch, [RTX])
    assert detect_arch("sm90") == "sm90"
    assert not calls


def test_then_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNROUTE_ARCH", "SM100")
    calls = with_nvml(monkeypatch, [RTX])
    assert detect_arch() == "sm100"
    assert not calls


def test_then_nvml_which_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = with_nvml(monkeypatch, [H100, H100_NEXT])
    with_torch(monkeypatch, [RTX])
    assert detect_arch() == "sm90"
    assert (calls[0], calls[-1]) == ("init_v2", "shutdown")
    assert devices()[0] == Device(0, "H100", (9, 0), "GPU-aaaa-1", "nvml")


def test_then_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, [RTX])
    assert detect_arch() == "sm120"
    assert devices()[0].source == "torch"


def test_torch_is_not_made_to_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, [RTX], running=False)
    assert devices() == []


@pytest.mark.parametrize("function", ["init_v2", "device_get_count_v2", "device_get_uuid"])
def test_a_driver_that_fails_is_no_gpu(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, [H100], **{function: RuntimeError("driver/library version mismatch")})
    assert devices() == []
    with_torch(monkeypatch, [RTX])
    assert detect_arch() == "sm120"


def test_no_gpu_and_no_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoArchError) as caught:
        detect_arch()
    for way in ("no GPU", "--arch sm90", "ATTNROUTE_ARCH=sm90"):
        assert way in str(caught.value)
    assert local_archs() == ()
    assert main(["explain", "--head-dim", "128"]) == 2
    assert "ATTNROUTE_ARCH=sm90" in capsys.readouterr().err
    assert main(["arch"]) == 1


def test_an_unknown_name_gets_a_near_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNROUTE_ARCH", "sm91")
    with pytest.raises(UsageError, match="did you mean 'sm90'"):
        detect_arch()


def test_different_gpus_are_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, [H100, B200, RTX])
    with pytest.raises(NoArchError) as caught:
        detect_arch()
    for gpu in ("GPU 0 H100 sm90", "GPU 1 B200 sm100", "GPU 2 RTX PRO 6000 sm120", "--arch"):
        assert gpu in str(caught.value)
    assert local_archs() == ("sm90", "sm100", "sm120")


def test_the_command_lists_them_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with_nvml(monkeypatch, [H100, B200])
    assert main(["arch"]) == 1
    out = capsys.readouterr().out
    assert "H100" in out
    assert "B200" in out


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (None, [0, 1]),
        ("", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 1 ", [1]),
        ("0,7,1", [0]),  # CUDA ignores an index that is none and all after it
        ("-1", []),
        ("1,-1,0", [1]),
        ("--1", []),
        ("GPU-aaab", [1]),
        ("GPU-aaaa-1,GPU-aaab-2", [0, 1]),
        ("GPU-zzzz,0", []),
        ("MIG-1234", [0, 1]),
        ("all", []),
        ("\u00b2", []),
    ],
)
def test_visible_devices_of_one_kind(text: str | None, left: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, [H100, H100_NEXT])
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert [device.index for device in devices()] == left


def test_an_index_among_different_gpus_counts_by_bus_only_if_cuda_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, [RTX, B200])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [device.arch for device in devices()] == ["sm120", "sm100"]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert detect_arch() == "sm120"


def test_a_uuid_is_clear_among_different_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with_nvml(monkeypatch, [RTX, B200])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb-3")
    assert detect_arch() == "sm100"


def test_torch_has_applied_the_environment_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, [RTX])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert detect_arch() == "sm120"


@given(st.text(max_size=12) | st.lists(st.integers().map(str) | st.text(max_size=4)).map(",".join))
def test_no_text_in_the_environment_is_an_error(text: str) -> None:
    known = [Device(n, name, capability, uuid, "nvml") for n, (name, capability, uuid) in enumerate((H100, RTX))]
    for order in ({}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}):
        left = visible(known, {"CUDA_VISIBLE_DEVICES": text, **order})
        assert set(left) <= set(known)
        assert len(set(left)) == len(left)
