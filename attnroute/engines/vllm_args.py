"""An operator's `vllm serve ...` read into options, and options written as what to type."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnroute.engines.result import EngineOptions
from attnroute.errors import UsageError, near_miss

GIB = 1 << 30

# flag -> (where the value goes, how it is read)
_FLAGS: dict[str, tuple[str, str]] = {
    "--model": ("model", "text"),
    "--dtype": ("dtype", "text"),
    "--block-size": ("block_size", "int"),
    "--kv-cache-dtype": ("kv_cache_dtype", "text"),
    "--kv-cache-dtype-skip-layers": ("skip_layers", "list"),
    "--attention-backend": ("backend", "text"),
    "--attention-config": ("attention", "json"),
    "--speculative-config": ("speculative", "json"),
    "--spec-method": ("speculative.method", "text"),
    "--spec-model": ("speculative.model", "text"),
    "--spec-tokens": ("speculative.num_speculative_tokens", "int"),
    "--tensor-parallel-size": ("tp", "int"),
    "--decode-context-parallel-size": ("dcp", "int"),
    "--prefill-context-parallel-size": ("pcp", "int"),
    "--max-model-len": ("max_model_len", "human"),
    "--max-num-batched-tokens": ("max_num_batched_tokens", "human"),
    "--gpu-memory-utilization": ("gpu_memory_utilization", "float"),
    "--kv-cache-memory-bytes": ("kv_memory", "human"),
    "--num-gpu-blocks-override": ("num_gpu_blocks", "int"),
    "--enable-prefix-caching": ("prefix_caching", "true"),
    "--no-enable-prefix-caching": ("prefix_caching", "false"),
    "--disable-hybrid-kv-cache-manager": ("hybrid_manager", "false"),
    "--no-disable-hybrid-kv-cache-manager": ("hybrid_manager", "true"),
    "--language-model-only": ("text_only", "true"),
    "--kv-transfer-config": ("kv_transfer", "json"),
    "--mamba-ssm-cache-dtype": ("state_dtype", "text"),
}
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-ac": "--attention-config",
    "-sc": "--speculative-config",
}
_ENVIRONMENT = {
    "VLLM_KV_CACHE_LAYOUT": "layout",
    "VLLM_BATCH_INVARIANT": "batch_invariant",
    "VLLM_HAS_FLASHINFER_CUBIN": "cubins",
}
_UNITS = {"k": 1000, "m": 10**6, "g": 10**9, "t": 10**12, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a command line states. `model` and `draft_model` as written (a path or a Hub name); `ignored` are flags and
    variables that decide nothing here, with a hint where one looks mistyped. `max_num_batched_tokens` counts one batch.
    """

    model: str | None
    options: EngineOptions
    draft_model: str | None = None
    method: str | None = None
    dtype: str | None = None
    state_dtype: str | None = None
    text_only: bool = False
    gpu_memory_utilization: float | None = None
    max_num_batched_tokens: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def parse(command: str) -> Arguments:
    """Read `[VARIABLE=value ...] vllm serve MODEL [flags]`, over several lines with backslashes or not.

    Raises UsageError naming the flag for a value that cannot be read, and for a command that is no `vllm serve`.
    """
    try:
        words = shlex.split(re.sub(r"\\\s*\n", " ", command), comments=True)
    except ValueError as error:
        raise UsageError(f"the command cannot be split into words: {error}", code="vllm-args") from None
    environment: dict[str, str] = {}
    while words and (words[0] in ("env", "export") or re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL)):
        name, equals, value = words.pop(0).partition("=")
        if equals:
            environment[name] = value
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    elif words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]:
        words = words[3:]
    else:
        raise UsageError(f"no `vllm serve`: the command begins {' '.join(words[:3])!r}", code="vllm-args")
    return _Reader(environment).read(words)


class _Reader:
    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.values: dict[str, Any] = {}
        self.ignored: list[str] = [name for name in environment if name not in _ENVIRONMENT]

    def read(self, words: list[str]) -> Arguments:
        queue = list(words)
        while queue:
            word = queue.pop(0)
            if not word.startswith("-"):
                if "model" in self.values:
                    self.ignored.append(word)
                else:
                    self.values["model"] = word
                continue
            flag, equals, given = word.partition("=")
            flag = _SHORT.get(flag, flag)
            if flag.startswith("--"):
                flag = "--" + flag[2:].replace("_", "-") if "." not in flag else flag
            if "." in flag and self._dotted(flag, given if equals else None, queue):
                continue
            if flag not in _FLAGS:
                self._unknown(flag, bool(equals), queue)
                continue
            self._known(flag, given if equals else None, queue)
        return self._arguments()

    def _unknown(self, flag: str, has_value: bool, queue: list[str]) -> None:
        close = near_miss(flag, _FLAGS)
        hint = f" (did you mean {close}?)" if close and _alike(flag, close) else ""
        self.ignored.append(flag + hint)
        if (
            not has_value
            and queue
            and not queue[0].startswith("-")
            and not (len(queue) == 1 and "model" not in self.values)
        ):
            queue.pop(0)

    def _known(self, flag: str, given: str | None, queue: list[str]) -> None:
        where, how = _FLAGS[flag]
        if how in ("true", "false"):
            self.values[where] = how == "true"
            return
        if how == "list":
            items = [given] if given is not None else []
            while given is None and queue and not queue[0].startswith("-"):
                items.append(queue.pop(0))
            self.values[where] = tuple(x for item in items for x in item.split(",") if x)
            return
        if given is None:
            if not queue or (queue[0].startswith("--") and how != "json"):
                raise UsageError(f"{flag} needs a value", code="vllm-args")
            given = queue.pop(0)
        self._set(where, _read(flag, given, how))

    def _set(self, where: str, value: Any) -> None:
        section, dot, key = where.partition(".")
        if dot:
            self.values.setdefault(section, {})[key] = value
        elif isinstance(value, dict):
            self.values.setdefault(where, {}).update(value)
        else:
            self.values[where] = value

    def _dotted(self, flag: str, given: str | None, queue: list[str]) -> bool:
        """`--attention-config.backend FLASHINFER`: one key of a JSON flag."""
        head, _, key = flag.partition(".")
        head = _SHORT.get(head, "--" + head.lstrip("-").replace("_", "-"))
        if head not in _FLAGS or _FLAGS[head][1] != "json":
            return False
        text = given if given is not None else (queue.pop(0) if queue else "")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = {"true": True, "True": True, "false": False, "False": False}.get(text, text)
        self.values.setdefault(_FLAGS[head][0], {})[key.replace("-", "_")] = value
        return True

    def _arguments(self) -> Arguments:
        v = self.values
        attention, speculative = v.get("attention", {}), v.get("speculative", {})
        self.ignored += [f"--attention-config {key}" for key in attention if key not in _ATTENTION]
        per_kind = attention.get("backend_per_kind") or {}
        backend = v.get("backend") or attention.get("backend")
        backend = None if backend is None or str(backend).lower() == "auto" else str(backend).upper()
        layout = self.environment.get("VLLM_KV_CACHE_LAYOUT")
        tokens = speculative.get("num_speculative_tokens", 0)
        if not isinstance(tokens, int):
            raise UsageError(
                f"--speculative-config: num_speculative_tokens is {tokens!r}, a whole number is needed",
                code="vllm-args",
            )
        batched = v.get("max_num_batched_tokens")
        options = EngineOptions(
            block_size=v.get("block_size"),
            kv_cache_dtype=v.get("kv_cache_dtype", "auto"),
            skip_layers=v.get("skip_layers", ()),
            backend=backend,
            backend_per_kind=tuple(sorted((str(k), str(b).upper()) for k, b in per_kind.items())),
            flash_attn_version=attention.get("flash_attn_version"),
            use_trtllm_attention=attention.get("use_trtllm_attention"),
            disable_q_quantization=bool(attention.get("disable_flashinfer_q_quantization", False)),
            max_model_len=None if v.get("max_model_len", -1) < 0 else v["max_model_len"],
            auto_fit=v.get("max_model_len", 0) < 0,
            max_in_flight_tokens=None if batched is None else 2 * batched,
            kv_memory=v.get("kv_memory"),
            num_gpu_blocks=v.get("num_gpu_blocks"),
            prefix_caching=v.get("prefix_caching", True),
            hybrid_manager=v.get("hybrid_manager", True),
            num_speculative_tokens=tokens,
            tp=v.get("tp", 1),
            dcp=v.get("dcp", 1),
            pcp=v.get("pcp", 1),
            layout=layout,
            batch_invariant=self.environment.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"),
            kv_connector="kv_transfer" in v,
        )
        return Arguments(
            v.get("model"),
            options,
            speculative.get("model"),
            speculative.get("method"),
            v.get("dtype"),
            v.get("state_dtype"),
            v.get("text_only", False),
            v.get("gpu_memory_utilization"),
            batched,
            self.environment,
            tuple(self.ignored),
        )


_ATTENTION = (
    "backend",
    "backend_per_kind",
    "flash_attn_version",
    "use_trtllm_attention",
    "disable_flashinfer_q_quantization",
)


def _alike(a: str, b: str) -> bool:
    """Whether two flags differ in hardly more than a letter or a dash."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, a.replace("-", ""), b.replace("-", "")).ratio() > 0.9


def _read(flag: str, text: str, how: str) -> Any:
    try:
        if how == "int":
            return int(text)
        if how == "float":
            return float(text)
        if how == "human":
            return _human(text)
        if how == "json":
            value = json.loads(text)
            if not isinstance(value, dict):
                raise ValueError("a JSON object is needed")
            return value
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r} cannot be read: {error}", code="vllm-args") from None
    return text


def _human(text: str) -> int:
    """`131072`, `128k` (thousands), `128K` (1024s), `auto` and -1 (what fits)."""
    if text in ("auto", "-1"):
        return -1
    if text[-1:] in _UNITS:
        return int(float(text[:-1]) * _UNITS[text[-1]])
    return int(text)
