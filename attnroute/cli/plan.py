"""`attnroute plan`: kernels, pages and blocks for a whole model."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from attnroute.cli import common
from attnroute.cli.plan_vllm import apply_arguments, engine_options, operator_options, section, stated_flags, text_only
from attnroute.errors import UsageError
from attnroute.registry.dims import LAYOUTS

if TYPE_CHECKING:
    from attnroute.engines.vllm_args import Arguments
    from attnroute.models.model import Model
    from attnroute.planning.plan import Plan, Workload
    from attnroute.registry.registry import Registry

_UNITS = {"": 1, "b": 1, "k": 1024, "kib": 1024, "kb": 1000, "m": 1024**2, "mib": 1024**2, "mb": 1000**2,
          "g": 1024**3, "gib": 1024**3, "gb": 1000**3, "tib": 1024**4, "tb": 1000**4}  # fmt: skip


def memory(text: str) -> int:
    """Bytes of `105GiB`, `80GB`, `512MiB` or a plain number, for argparse."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].lower() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 105GiB, 80GB or a number of bytes")
    size = int(float(found[1]) * _UNITS[found[2].lower()])
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be 1 byte or more")
    return size


def whole(text: str) -> int:
    """A whole number of 0 or more, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `plan`."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a config.json, or the folder that holds it")
    parser.add_argument("--draft", metavar="MODEL", help="config.json or folder of the drafter")
    parser.add_argument("--num-speculative-tokens", type=whole, metavar="K", help="draft tokens a step")
    parser.add_argument("--arch", help="architecture (sm90, ...); default: this machine's GPU")
    parser.add_argument("--prefill-arch", help="architecture that runs prompts, if another one decodes")
    parser.add_argument("--decode-arch", help="architecture that decodes, if another one runs prompts")
    parser.add_argument("--engine", help="generic (attnroute's own policy, the default) or vllm")
    parser.add_argument(
        "--compare", choices=("model-wide",),
        help="beside it: vLLM as shipped, which asks some questions of the model-wide head size",
    )  # fmt: skip
    parser.add_argument("--from-vllm-args", metavar="COMMAND", help="an operator's 'vllm serve ...' as the question")
    parser.add_argument("--block-size", type=common.positive, help="tokens a block; default: the least wasteful")
    parser.add_argument("--kv-memory", type=memory, metavar="SIZE", help="KV cache memory of one GPU, such as 105GiB")
    parser.add_argument("--max-model-len", type=common.positive, help="longest context in tokens; default: the model's")
    parser.add_argument("--max-num-batched-tokens", type=common.positive, help="most tokens a step; default 2048")
    parser.add_argument("--kv-dtype", default="auto", help="dtype of the KV cache; auto honours the checkpoint")
    parser.add_argument("--dtype", type=common.dtype, help="the model's dtype; default: the checkpoint's")
    parser.add_argument("--state-dtype", default="auto", help="dtype of the recurrent state; default: the model's")
    parser.add_argument("--tp", type=common.positive, default=1, help="tensor-parallel size")
    parser.add_argument("--dcp", type=common.positive, default=1, help="decode-context-parallel size")
    parser.add_argument("--no-prefix-caching", action="store_true", help="nothing is kept between requests")
    parser.add_argument("--layout", choices=LAYOUTS, help="KV layout inside a page; default: one that all kernels read")
    parser.add_argument("--one-kernel", action="store_true", help="a group decodes and verifies with the same kernel")
    parser.add_argument("--batch-size", type=common.positive, action="append", help="requests a step; repeatable")
    parser.add_argument("--context-len", type=common.positive, action="append", help="tokens a request; repeatable")
    common.add_strictness(parser)
    which = "[GROUP:][PHASE=]KERNEL"
    for flag, words in (("--force", "this kernel or none"), ("--prefer", "this kernel if it can serve")):
        parser.add_argument(flag, action="append", default=[], metavar=which, help=f"{words}; repeatable")
    parser.add_argument("--explain", action="store_true", help="every refusal, and what the choice cost")
    common.add_packages(parser)
    common.add_registry(parser)
    common.add_format(parser)


def run(args: argparse.Namespace) -> int:
    """Exit 0 if every group can decode and run prompts, 1 if something serves nothing or the memory is too small."""
    from attnroute.registry.registry import load_registry

    registry = load_registry(args.overlay)
    stated = apply_arguments(args)
    args.engine = args.engine or "generic"
    if args.model is None:
        raise UsageError("MODEL is missing: a config.json or the folder that holds it", code="no-model")
    target, draft = _models(args, stated)
    extra = engine_options(args, target, stated)
    plan = _plan(args, registry, target, draft, extra)
    groups = (*target.groups, *(draft.groups if draft is not None else ()))
    typed = None
    if "vllm" in registry.engines and plan.prefill_arch is None:
        from attnroute.planning.in_engine import in_engine

        typed = in_engine(registry, plan, groups, target.state, operator_options(args, plan, extra))
        typed["flags"] += stated_flags(args, stated)
    if args.format == "json":
        common.print_json(plan.to_json() | {"in_vllm": typed})
        return 0 if plan.served else 1
    from attnroute.cli.plan_text import render

    lines = render(registry, plan, target, draft, explain=args.explain)
    if typed is not None:
        lines += section(typed, plan, stated)
    print("\n".join(lines))
    return 0 if plan.served else 1


def _models(args: argparse.Namespace, stated: Arguments | None) -> tuple[Model, Model | None]:
    """The target and the drafter as one rank sees them."""
    from attnroute.models import read_model

    tokens = args.num_speculative_tokens or 0
    skip = stated.options.skip_layers if stated is not None else ()
    target = read_model(
        args.model, tp=args.tp, kv_dtype=args.kv_dtype, dtype=args.dtype, num_speculative_tokens=tokens,
        skip_layers=skip, state_dtype=args.state_dtype,
    )  # fmt: skip
    target = text_only(target, stated)
    if args.draft is None:
        return target, None
    if args.num_speculative_tokens is None:
        raise UsageError("--draft needs --num-speculative-tokens: how many tokens it drafts", code="bad-field")
    kv = "auto" if args.kv_dtype == "auto" else args.kv_dtype
    return target, read_model(
        args.draft, tp=args.tp, kv_dtype=kv, dtype=args.dtype, role="draft", skip_layers=skip,
        first_layer=len(target.layers),
    )  # fmt: skip


def workload_of(args: argparse.Namespace) -> Workload | None:
    """The stated workload, or None for the default one."""
    from attnroute.planning.workload import Workload

    stated: dict[str, Any] = {}
    if args.batch_size:
        stated["batch_sizes"] = tuple(args.batch_size)
    if args.context_len:
        stated["context_lens"] = tuple(args.context_len)
    return Workload(**stated) if stated else None


def _plan(
    args: argparse.Namespace, registry: Registry, target: Model, draft: Model | None, extra: dict[str, Any]
) -> Plan:
    from attnroute.planning.plan import plan
    from attnroute.registry.detect import detect_arch

    arch = args.arch or args.decode_arch or args.prefill_arch or detect_arch()
    limits = {} if args.max_num_batched_tokens is None else {"max_num_batched_tokens": args.max_num_batched_tokens}
    return plan(
        target.groups,
        arch,
        common.parse_packages(args.package) or None,
        engine=args.engine,
        workload=workload_of(args),
        block_size=args.block_size,
        state=target.state,
        draft=draft.groups if draft is not None else (),
        num_speculative_tokens=args.num_speculative_tokens or 0,
        max_model_len=args.max_model_len or target.max_model_len,
        max_source_len=target.max_source_len,
        kv_memory=args.kv_memory,
        prefix_caching=not args.no_prefix_caching,
        dcp=args.dcp,
        tp=args.tp,
        layout=args.layout,
        one_kernel=args.one_kernel,
        prefill_arch=args.prefill_arch,
        decode_arch=args.decode_arch,
        min_evidence=args.min_evidence,
        allow_unknown=args.allow_unknown,
        strict_versions=args.strict_versions,
        environment=common.parse_environment(args.env),
        force=args.force,
        prefer=args.prefer,
        compare=args.compare,
        engine_options=extra if args.engine != "generic" else None,
        registry=registry,
        **limits,
    )
