"""The machine and the configuration that vLLM's functions look at, set from flat values.

`start(tree)` loads the wheel's modules; `use(inputs)` makes one input's machine and configuration current. Every key that
`use` reads, and its default, stands in `DEFAULTS`; `tests/vectors/README.md` says what each means.
"""

from __future__ import annotations

import contextlib
import importlib
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

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "u8": "uint8", "int8": "int8", "fp8": "float8_e4m3fn"}

_now: dict[str, Any] = {"inputs": DEFAULTS, "config": None}
_seen: dict[str, bool] = {}


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

    logger = SimpleNamespace(
        **{n: quiet for n in "debug info warning error exception debug_once info_once warning_once error_once".split()}
    )
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
        "tokenspeed_mla": types.ModuleType("tokenspeed_mla"),
    }


def _layers(vllm_config: Any, _cls: Any, names: Any = None) -> dict[str, Any]:
    mamba = _cls.__name__ == "MambaBase"
    layers = {n: layer for n, layer in vllm_config.layers.items() if not mamba or hasattr(layer, "get_prefill_checkpoint_alignment")}
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
    import sys

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


def _model(i: Mapping[str, Any]) -> Any:
    hf = {k: i[v] for k, v in (("qk_nope_head_dim", "mla_nope"), ("qk_rope_head_dim", "mla_rope"), ("v_head_dim", "mla_v"),
                               ("kv_lora_rank", "mla_lora"), ("index_topk", "index_topk"),
                               ("attn_logit_softcapping", "softcap")) if i[v] is not None}  # fmt: skip
    return SimpleNamespace(
        hf_text_config=SimpleNamespace(**hf),
        hf_config=SimpleNamespace(**hf),
        dtype=dtype(i["model_dtype"]),
        is_mm_prefix_lm=i["mm_prefix"],
        rswa_window=i["rswa"],
        is_diffusion=i["diffusion"],
        is_hybrid=i.get("hybrid", False),
        use_mla=i.get("use_mla", False),
        max_model_len=i["max_model_len"],
        original_max_model_len=i["max_model_len"],
        architecture="Model",
        model_class=i.get("model_class"),
        get_head_size=lambda: i["model_head_size"],
        get_num_attention_heads=lambda _pc: i["model_q_heads"],
        get_num_kv_heads=lambda _pc: i["model_kv_heads"],
    )


def make_config(i: Mapping[str, Any]) -> Any:
    """The configuration object of full inputs `i` (see DEFAULTS), with the parts that decisions read."""
    layout = i.get("layout", "LBNHC")
    return SimpleNamespace(
        layers={},
        model_config=_model(i) if i["model"] else None,
        cache_config=SimpleNamespace(
            cache_dtype=i["cache_dtype"],
            block_size=i.get("block_size", 16),
            user_specified_block_size=i.get("user_block_size", False),
            kv_cache_dtype_skip_layers=["0"] if i["skip_layers"] else [],
            skip_page_size_padded=i.get("skip_page_size_padded"),
            mamba_page_size_padded=i.get("mamba_page_size_padded"),
            mamba_block_size=None,
            mamba_cache_mode=i.get("mamba_cache_mode", "none"),
            num_gpu_blocks_override=i.get("num_gpu_blocks_override"),
            enable_prefix_caching=i.get("prefix_caching", False),
            prefix_match_unit=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: get("v1.kv_cache_layout:KVCacheLayout")[layout],
        ),
        attention_config=SimpleNamespace(
            flash_attn_version=i["fa_version"],
            use_trtllm_attention=i["use_trtllm"],
            use_non_causal=i["non_causal"],
            disable_flashinfer_q_quantization=i.get("no_q_quant", False),
            hisparse_config=None,
            backend=None,
            backend_per_kind={},
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=i["dcp"],
            prefill_context_parallel_size=i["pcp"],
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            cp_kv_cache_interleave_size=1,
            dcp_comm_backend="ag_rs",
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=i.get("no_hybrid_manager", False),
            max_num_encoder_input_tokens=i.get("max_encoder_tokens", 0),
            max_num_seqs=4,
            max_num_batched_tokens=1024,
        ),
        speculative_config=None,
        kv_transfer_config=None,
        num_speculative_tokens=i.get("spec_tokens", 0),
        max_in_flight_tokens=i.get("in_flight_tokens", 8192),
    )


def use(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Makes these inputs current and returns them with the defaults filled in."""
    i = {**DEFAULTS, **inputs}
    interface = get("platforms.interface")
    platform = type(get("platforms:current_platform"))
    platform._enum = interface.PlatformEnum[i["platform"].upper()]
    _now["inputs"] = i
    _now["config"] = make_config(i) if i["config"] else None
    get("envs").VLLM_BATCH_INVARIANT = i["batch_invariant"]
    fa = get("vllm_flash_attn.flash_attn_interface")
    for version in (2, 3, 4):
        setattr(fa, f"FA{version}_AVAILABLE", version in i["fa_built"])
        setattr(fa, f"FA{version}_UNAVAILABLE_REASON", None)
    get("utils.flashinfer:supports_trtllm_attention").cache_clear()
    return i
