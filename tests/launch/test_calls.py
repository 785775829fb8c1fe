"""Every obligation of the tables has a handler, and none is handled that does not exist."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from attnroute.launch.calls import HANDLERS, Settings, settings_for
from attnroute.launch.errors import LaunchError

CALLS = yaml.safe_load((Path(__file__).parents[2] / "capabilities/calls.yaml").read_text(encoding="utf-8"))["calls"]


#: Of caches that no launcher takes: binding says so.
REFUSED = {"kv-block-scales", "kv-scales-per-token-head"}


@pytest.mark.parametrize("call", sorted(CALLS))
def test_each_obligation_has_a_handler_that_says_something(call):
    if call in REFUSED:
        with pytest.raises(LaunchError, match="no argument for"):
            settings_for([call])
    else:
        assert settings_for([call]) != Settings()


def test_no_handler_is_left_over():
    assert set(HANDLERS) == set(CALLS)


def test_every_setting_is_read_by_a_launcher():
    folder = Path(__file__).parents[2] / "attnroute/launch"
    text = "".join(p.read_text(encoding="utf-8") for p in folder.glob("*.py") if p.name != "calls.py")
    read = set(re.findall(r"settings(?:_for\([^)]*\))?\.(\w+)", text))
    assert {f.name for f in fields(Settings)} - {"notes"} <= read


def test_obligations_add_up():
    settings = settings_for(["zeroed-workspace", "equal-kv-strides", "no-split-kv", "warm-up"])
    assert (settings.equal_kv_strides, settings.num_splits) == (True, 1)
    assert len(settings.notes) == 2


def test_an_unknown_obligation_is_an_error_with_a_near_miss():
    with pytest.raises(LaunchError, match="did you mean 'cast-q'"):
        settings_for(["cast_q"])


def test_launchers_named_in_the_catalogue_exist():
    kernels = yaml.safe_load((Path(__file__).parents[2] / "capabilities/kernels.yaml").read_text(encoding="utf-8"))[
        "kernels"
    ]
    folder = Path(__file__).parents[2] / "attnroute/launch"
    named = {p.get("launcher") for k in kernels.values() for p in k["providers"].values() if p.get("launcher")}
    missing = {name for name in named if not (folder / f"{name}.py").exists()}
    assert not missing
