"""The machine and the configuration that vLLM's functions look at, set from flat values.

`start(tree)` loads the wheel's modules; `use(inputs)` makes one input's machine and configuration current. Every key
that `use` reads, and its default, stands in `DEFAULTS`; `tests/vectors/README.md` says what each means.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import stubs

DEFAULTS: dict[str, Any] = {
    "platform": "cuda",
    "cc": "9.0",
    "fa_built": [2, 3, 4],
    "cubins": True,
    "flashinfer": True,
    "flashinfer_mla_sparse_sm90": True,
    "flashinfer_mla_sparse_sm120": True,
    "tokenspeed": True,
    "fa4_cute": True,
    "flashmla_built": True,
    "batch_invariant": False,
    "config": True,
    "model": True,
    "model_head_size": 128,
    "model_q_heads": 32,
    "model_kv_heads": 8,
    "model_dtype": "bf16",
    "max_model_len": 16384,
    "cache_dtype": "auto",
    "skip_layers": False,
    "fa_version": None,
    "use_trtllm": None,
    "softcap": None,
    "mm_prefix": False,
    "rswa": None,
    "diffusion": False,
    "non_causal": False,
    "dcp": 1,
    "pcp": 1,
    "mla_nope": None,
    "mla_rope": None,
    "mla_v": None,
    "mla_lora": None,
    "index_topk": None,
}

DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "u8": "uint8",
    "int8": "int8",
    "fp8": "float8_e4m3fn",
}

_now: dict[str, Any] = {"inputs": DEFAULTS, "config": None}
warned: list[str] = []  # what vLLM's loggers warned of since the last `use`


_optional = {name: stubs.StandinModule(name) for name in ("tokenspeed_mla", "vllm.vllm_flash_attn.cute.interface")}


def get(path: str) -> Any:
    """`module:attribute` of the wheel, or the module alone."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(f"vllm.{module}" if module else "vllm")
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def dtype(name: str) -> Any:
    """The torch dtype of one of our names."""
    import torch

    return getattr(torch, DTYPES[name])


def config() -> Any:
    """The current configuration object, or None."""
    return _now["config"]


def _modules() -> dict[str, types.ModuleType]:
    def quiet(*_args: Any, **_kwargs: Any) -> None:
        return None

    def warn(text: str, *values: Any, **_kwargs: Any) -> None:
        warned.append(text % values if values else text)

    names = "debug info error exception debug_once info_once error_once".split()
    logger = SimpleNamespace(**dict.fromkeys(names, quiet), warning=warn, warning_once=warn)
    log = types.ModuleType("vllm.logger")
    log.init_logger = lambda _name: logger  # type: ignore[attr-defined]

    cfg = stubs.StandinModule("vllm.config")
    cfg.get_current_vllm_config_or_none = config  # type: ignore[attr-defined]
    cfg.get_current_vllm_config = config  # type: ignore[attr-defined]
    cfg.get_layers_from_vllm_config = _layers  # type: ignore[attr-defined]
    cfg.set_current_vllm_config = _set_current  # type: ignore[attr-defined]
    inner = stubs.StandinModule("vllm.config.vllm")
    inner.__dict__.update({k: v for k, v in cfg.__dict__.items() if k.startswith(("get_", "set_"))})
    models = stubs.StandinModule("vllm.model_executor.models")
    models.ModelRegistry = SimpleNamespace(  # type: ignore[attr-defined]
        resolve_model_cls=lambda _architecture, model_config: (model_config.model_class, "Model")
    )
    quant = stubs.StandinModule("vllm.model_executor.layers.quantization.utils.quant_utils")
    return {
        "vllm.logger": log,
        "vllm.config": cfg,
        "vllm.config.vllm": inner,
        "vllm.model_executor.models": models,
        "vllm.model_executor.layers.quantization.utils.quant_utils": quant,
        "vllm.platforms": stubs.StandinModule("vllm.platforms"),
    }


def _layers(vllm_config: Any, _cls: Any, names: Any = None) -> dict[str, Any]:
    mamba = _cls.__name__ == "MambaBase"
    layers = {
        n: layer
        for n, layer in vllm_config.layers.items()
        if not mamba or hasattr(layer, "get_prefill_checkpoint_alignment")
    }
    return layers if names is None else {n: layers[n] for n in names if n in layers}


@contextlib.contextmanager
def _set_current(vllm_config: Any, **_kwargs: Any) -> Iterator[None]:
    before, _now["config"] = _now["config"], vllm_config
    try:
        yield
    finally:
        _now["config"] = before


def start(tree: Path) -> None:
    """Makes the wheel unpacked at `tree` importable; torch must be real, it gives the dtypes."""
    import torch  # noqa: F401  before the finder, so that its own optional imports see the real world

    written = _modules()
    stubs.install(tree, written)
    platforms = written["vllm.platforms"]
    get("distributed").divide = get("distributed.utils:divide")
    get("utils.torch_utils").direct_register_custom_op = lambda *_a, **_k: None
    interface = get("platforms.interface")
    platforms.Platform, platforms.PlatformEnum = interface.Platform, interface.PlatformEnum  # type: ignore[attr-defined]
    platforms.current_platform = interface.Platform()  # type: ignore[attr-defined]
    base = get("platforms.cuda:CudaPlatformBase")

    class Machine(base):  # type: ignore[misc, valid-type]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            cc = _now["inputs"]["cc"]
            return None if cc is None else interface.DeviceCapability(*map(int, cc.split(".")))

    platforms.current_platform = Machine()  # type: ignore[attr-defined]
    for name in [n for n in stubs.FINDER.written if n != "vllm.platforms"] if stubs.FINDER else []:
        importlib.import_module(name)
    # Modules that were loaded before the machine existed hold the placeholder.
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and "current_platform" in getattr(module, "__dict__", {}):
            module.current_platform = platforms.current_platform  # type: ignore[attr-defined]
    _patch_probes()
    _import_without_gpu()


def _import_without_gpu() -> None:
    """Imports what allocates on the GPU while it is imported, with its tensors on no device at all."""
    import torch

    real = torch.empty
    torch.empty = lambda *a, **k: real(*a, **{**k, "device": "meta"})
    try:
        get("v1.attention.backends.mla.cutlass_mla")
    finally:
        torch.empty = real


def _patch_probes() -> None:
    """Replaces what would look at the network, at files or at installed packages by the input's own words."""
    fi = get("utils.flashinfer")
    for name, key in {
        "has_nvidia_artifactory": "cubins",
        "has_flashinfer": "flashinfer",
        "has_flashinfer_sm90_nope_mla": "flashinfer_mla_sparse_sm90",
        "has_flashinfer_sparse_mla_sm120": "flashinfer_mla_sparse_sm120",
    }.items():
        if not hasattr(fi, name):
            raise SystemExit(f"vllm.utils.flashinfer has no {name}")
        setattr(fi, name, lambda key=key: _now["inputs"][key])


def use(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Makes these inputs current and returns them with the defaults filled in."""
    from .config import make_config as _make

    i = {**DEFAULTS, **inputs}
    interface = get("platforms.interface")
    platform = type(get("platforms:current_platform"))
    platform._enum = interface.PlatformEnum[i["platform"].upper()]
    _now["inputs"] = i
    _now["config"] = _make(i) if i["config"] else None
    get("envs").VLLM_BATCH_INVARIANT = i["batch_invariant"]
    fa = get("vllm_flash_attn.flash_attn_interface")
    for version in (2, 3, 4):
        setattr(fa, f"FA{version}_AVAILABLE", version in i["fa_built"])
        setattr(fa, f"FA{version}_UNAVAILABLE_REASON", None)
    flashmla = get("v1.attention.ops.flashmla")
    flashmla._flashmla_C_AVAILABLE = flashmla._flashmla_extension_C_AVAILABLE = i["flashmla_built"]
    for module, key in (("tokenspeed_mla", "tokenspeed"), ("vllm.vllm_flash_attn.cute.interface", "fa4_cute")):
        sys.modules[module] = _optional[module] if i[key] else None  # type: ignore[assignment]  # None makes an import fail
    get("utils.flashinfer:supports_trtllm_attention").cache_clear()
    get("v1.attention.selector:_cached_get_attn_backend").cache_clear()
    get("compilation.backends").model_tag = "dspark_head" if i.get("drafter_head") else "target"
    warned.clear()
    return i
