"""Options of a phase: the dispatcher's order, measured bands over the workload, rows of one kernel with other pages."""

from __future__ import annotations

from typing import Any

import pytest

from attnroute import KVGroup, load_registry, plan, route
from attnroute.planning.plan import Workload
from attnroute.registry.registry import Registry

PACKAGES = {"flashinfer-python": "0.7.4"}
GROUP = KVGroup("g", 256, 16, 8)


def band(context: str, **times: float) -> dict[str, Any]:
    return {
        "band": f"made-up-{context}",
        "phase": ["decode"],
        "dtypes": {"bf16": ["bf16"]},
        "head_dim": 256,
        "context": context,
        "kernels": [
            {"kernel": kernel, "provider": "flashinfer-python", "versions": "0.7.4..", "time": time}
            for kernel, time in times.items()
        ],
    }


@pytest.fixture
def registry() -> Registry:
    """A registry of its own, so that made-up measurements stay here."""
    return load_registry()


def decode(registry: Registry, *bands: dict[str, Any], **options: Any) -> Any:
    registry.table("sm120").preference = bands
    return plan([GROUP], "sm120", PACKAGES, registry=registry, **options)


def test_the_plan_agrees_with_route_where_nothing_couples() -> None:
    for arch in ("sm90", "sm100", "sm120"):
        for phase in ("decode", "prefill"):
            found = route(GROUP, arch, PACKAGES, phase=phase, storage="paged")
            use = plan([GROUP], arch, PACKAGES).groups[0].phases[phase]
            assert use is not None
            assert (use.kernel, use.provider, use.row, use.q_dtype) == (
                found.kernel, found.provider, found.row, found.q_dtype
            )  # fmt: skip


def test_a_measurement_decides(registry: Registry) -> None:
    made = decode(registry, band("..", native_tc=1.0, xqa=1.2))
    use = made.groups[0].phases["decode"]
    assert (use.kernel, use.measured) == ("native_tc", 1.0)
    assert made.cost["measured"] is True


def test_measured_kernels_come_before_unmeasured_ones(registry: Registry) -> None:
    assert decode(registry, band("..", native_cc=1.0)).groups[0].phases["decode"].kernel == "native_cc"


def test_the_workload_says_which_bands_count(registry: Registry) -> None:
    bands = (band("..8192", xqa=1.0, native_tc=1.5), band("8192..", xqa=1.5, native_tc=1.0))
    short = decode(registry, *bands, workload=Workload(context_lens=(1024,)))
    long = decode(registry, *bands, workload=Workload(context_lens=(65536,)))
    assert short.groups[0].phases["decode"].kernel == "xqa"
    assert long.groups[0].phases["decode"].kernel == "native_tc"


def test_a_kernel_measured_in_part_of_the_workload_is_not_measured(registry: Registry) -> None:
    bands = (band("..8192", xqa=1.0, native_tc=1.5), band("8192..", native_tc=1.0))
    made = decode(registry, *bands, workload=Workload(context_lens=(1024, 65536)))
    assert made.groups[0].phases["decode"].kernel == "native_tc"
    assert made.groups[0].phases["decode"].measured == 1.25


def test_a_measurement_of_another_version_says_nothing(registry: Registry) -> None:
    made = decode(registry, band("..", native_tc=1.0))
    assert made.groups[0].phases["decode"].kernel == "native_tc"
    older = plan([GROUP], "sm120", {"flashinfer-python": "0.6.16.post3"}, registry=registry)
    assert older.groups[0].phases["decode"] is not None
    assert older.groups[0].phases["decode"].kernel == "xqa"


def test_repeated_questions_are_remembered(registry: Registry) -> None:
    first = plan([GROUP], "sm120", PACKAGES, registry=registry)
    size = len(registry.table("sm120").memo)
    second = plan([GROUP], "sm120", PACKAGES, registry=registry)
    assert len(registry.table("sm120").memo) == size
    assert first == second


def test_every_row_of_a_kernel_counts() -> None:
    """FA4 at head 128 and pages: whichever row takes the page that the block allows, the plan finds it."""
    group = KVGroup("g", 128, 16, 8)
    for arch in ("sm90", "sm100"):
        for block in (16, 32, 64, 128, 256):
            made = plan([group], arch, block_size=block, allow_unknown=False)
            use = made.groups[0].phases["decode"]
            assert use is not None
            assert use.page_size is not None
            again = route(group, arch, phase="decode", page_size=use.page_size, force=f"{use.kernel}@{use.provider}")
            assert again.row == use.row
