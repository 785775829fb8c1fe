"""`--from-vllm-args`: an operator's command line as the question; and the section that says what to type."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnroute.cli.text import label_block, paint, wrap
from attnroute.errors import UsageError

if TYPE_CHECKING:
    from attnroute.engines.result import EngineOptions
    from attnroute.engines.vllm_args import Arguments
    from attnroute.models.model import Model
    from attnroute.planning.plan import Plan

_LABEL = 13
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
#: Options that the flags of `plan` itself state.
_OWN = ("block_size", "max_model_len", "kv_memory", "prefix_caching", "num_speculative_tokens", "tp", "dcp")


def apply_arguments(args: argparse.Namespace) -> Arguments | None:
    """The command line given with --from-vllm-args, its values put where `plan`'s own flags are not given.

    Raises UsageError for a command that is no `vllm serve`, and for a Hub name where a config.json is needed.
    """
    if args.from_vllm_args is None:
        return None
    from attnroute.engines.vllm_args import parse

    found = parse(args.from_vllm_args)
    options = found.options
    args.engine = args.engine or "vllm"
    args.model = args.model or _local(found.model, "MODEL")
    if found.draft_model is not None and args.draft is None:
        args.draft = _local(found.draft_model, "--draft MODEL")
    stated: dict[str, Any] = {
        "block_size": options.block_size,
        "max_model_len": options.max_model_len,
        "kv_memory": options.kv_memory,
        "num_speculative_tokens": options.num_speculative_tokens or None,
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "dtype": None if found.dtype in (None, "auto") else found.dtype,
    }
    for name, value in stated.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.tp = options.tp if args.tp == 1 else args.tp
    args.dcp = options.dcp if args.dcp == 1 else args.dcp
    args.kv_dtype = options.kv_cache_dtype if args.kv_dtype == "auto" else args.kv_dtype
    args.state_dtype = found.state_dtype or args.state_dtype
    args.no_prefix_caching = args.no_prefix_caching or not options.prefix_caching
    return found


def _local(name: str | None, what: str) -> str | None:
    """The path that a command line names; an error for a Hub name, which cannot be read here."""
    if name is None or Path(name).exists():
        return name
    raise UsageError(
        f"{name} is no file or folder here: pass its config.json as {what} beside --from-vllm-args", code="no-file"
    )


def engine_options(args: argparse.Namespace, target: Model, stated: Arguments | None) -> dict[str, Any]:
    """Options of the engine that `plan`'s own arguments do not carry."""
    found: dict[str, Any] = {"model_type": target.model_type}
    if args.kv_dtype not in ("auto", "bf16", "fp16", "fp32"):
        found["kv_cache_dtype"] = "int8_per_token_head" if args.kv_dtype == "int8" else args.kv_dtype
    if stated is None:
        return found
    plain = type(stated.options)()
    for field in fields(plain):
        value = getattr(stated.options, field.name)
        if field.name not in _OWN and value != getattr(plain, field.name):
            found[field.name] = value
    return found


def text_only(model: Model, stated: Arguments | None) -> Model:
    """The model without its images, if the command line says that only text is served."""
    if stated is None or not stated.text_only:
        return model
    groups = tuple(replace(g, traits=tuple(t for t in g.traits if t != "mm_prefix")) for g in model.groups)
    return replace(model, groups=groups)


def operator_options(args: argparse.Namespace, plan: Plan, extra: dict[str, Any]) -> EngineOptions:
    """What the operator states, as the engine's options."""
    from attnroute.engines.result import EngineOptions
    from attnroute.planning.plan import STEPS_IN_FLIGHT

    own = {name: plan.options[name] for name in _OWN} | {"max_model_len": args.max_model_len}
    tokens = args.max_num_batched_tokens
    batched = {} if tokens is None else {"max_in_flight_tokens": STEPS_IN_FLIGHT * tokens}
    return EngineOptions(**{**own, **batched, **extra})


def stated_flags(args: argparse.Namespace, stated: Arguments | None) -> list[str]:
    """Flags for what was asked of the plan and decides no backend: dtypes, drafts, tokens of a step."""
    flags: list[str] = []
    if args.dtype is not None:
        flags.append(f"--dtype {_DTYPES.get(args.dtype, args.dtype)}")
    if args.state_dtype != "auto":
        flags.append(f"--mamba-ssm-cache-dtype {_DTYPES.get(args.state_dtype, args.state_dtype)}")
    if args.max_num_batched_tokens is not None:
        flags.append(f"--max-num-batched-tokens {args.max_num_batched_tokens}")
    if args.num_speculative_tokens:
        method = stated.method if stated is not None else None
        drafter = stated.draft_model if stated is not None and stated.draft_model is not None else args.draft
        drafts: dict[str, Any] = {"method": method or (None if drafter else "METHOD"), "model": drafter}
        drafts["num_speculative_tokens"] = args.num_speculative_tokens
        words = json.dumps({name: value for name, value in drafts.items() if value is not None})
        flags.append(f"--speculative-config {shlex.quote(words)}")
    return flags


def section(found: dict[str, Any], plan: Plan, stated: Arguments | None) -> list[str]:
    """The lines `IN vLLM`: by default, with this plan's flags, and what no flag brings about."""
    pins = ", ".join(f"{name} {version}, not {plan.packages[name]}" for name, version in found["pins"].items())
    title = f"IN vLLM {found['version']}" + (f" (pins {pins})" if pins else "")
    lines = ["", *(paint(line, "bold") for line in wrap(title, 2, 0))]
    label = "  by default" if stated is None else "  as given"
    for n, text in enumerate(found["default"]):
        lines += label_block("" if n else label, text, _LABEL + 2)
    typed = " ".join([*found["environment"], *found["flags"]])
    if stated is not None and stated.text_only and "--language-model-only" not in typed:
        typed = f"{typed} --language-model-only".strip()
    lines += label_block("  this plan", typed or "no flags needed", _LABEL + 2)
    for n, text in enumerate(t for t in found["differs"] if t):
        lines += label_block("" if n else "  but", text, _LABEL + 2)
    if stated is not None and stated.ignored:
        lines += label_block("  not read", ", ".join(stated.ignored), _LABEL + 2)
    return lines
