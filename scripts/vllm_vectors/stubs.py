"""Imports the wheel's own modules while everything they do not need for a decision is replaced by a stand-in.

Only the modules named in `REAL` run vLLM's code. Any other `vllm.*` module, and any package of `ABSENT` (kernels, web
clients, tokenizers), becomes a module whose attributes are made up on access: a class that can be subclassed, called,
subscripted and used as a decorator. A decision that would depend on such a stand-in fails loudly, because a stand-in
has no truth value, no order and no number in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

REAL = (
    "vllm.config.cache",
    "vllm.config.utils",
    "vllm.distributed.utils",
    "vllm.envs",
    "vllm.model_executor.layers.attention.attention",
    "vllm.model_executor.layers.attention.chunked_local_attention",
    "vllm.model_executor.layers.attention.mla_attention",
    "vllm.model_executor.layers.attention.sparse_mla_attention",
    "vllm.model_executor.layers.attention_layer_base",
    "vllm.model_executor.layers.mamba.abstract",
    "vllm.model_executor.layers.mamba.mamba_utils",
    "vllm.model_executor.layers.quantization.turboquant.config",
    "vllm.platforms.cuda",
    "vllm.platforms.interface",
    "vllm.utils.flashinfer",
    "vllm.utils.import_utils",
    "vllm.utils.math_utils",
    "vllm.utils.mem_constants",
    "vllm.utils.mem_utils",
    "vllm.utils.torch_utils",
    "vllm.utils.torch_version",
    "vllm.v1.attention.backend",
    "vllm.v1.attention.backends.",
    "vllm.v1.attention.ops.flashmla",
    "vllm.v1.attention.ops.ultraquant.format",
    "vllm.v1.attention.selector",
    "vllm.v1.core.kv_cache_config_builder",
    "vllm.v1.core.kv_cache_planning",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.core.default_kv_cache_config_builder",
    "vllm.v1.hisparse.layout",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.worker.utils",
    "vllm.vllm_flash_attn.flash_attn_interface",
)
ABSENT = (
    "aiter cachetools cbor2 cloudpickle cuda cutlass einops fastapi fastsafetensors flash_attn flashinfer "
    "huggingface_hub librosa mistral_common msgspec openai PIL prometheus_client psutil pybase64 pynvml regex requests "
    "safetensors tokenizers tokenspeed_mla tqdm transformers triton xxhash zmq blake3 tilelang quack"
).split()


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Meta(name, (Standin,), {})
        setattr(cls, name, made)
        return made

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __or__(cls, _other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __bool__(cls) -> bool:
        raise TypeError(f"a decision rests on the stand-in {cls.__name__}")


class Standin(metaclass=_Meta):
    """Whatever is asked of it, except a truth value."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Standin()

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        # As a decorator a stand-in hands back what it decorates.
        return args[0] if len(args) == 1 and isinstance(args[0], type | types.FunctionType) else Standin()

    def __getitem__(self, _item: Any) -> Any:
        return Standin()

    def __bool__(self) -> bool:
        raise TypeError("a decision rests on a stand-in")


class StandinModule(types.ModuleType):
    """A module that makes up what it is asked for, and imports submodules that exist or are hand-written."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if FINDER is not None and (full in FINDER.written or FINDER.file_of(full) is not None):
            return importlib.import_module(full)
        made = _Meta(name, (Standin,), {})
        setattr(self, name, made)
        return made


class _Loader(Loader):
    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Finder(MetaPathFinder):
    """First on sys.meta_path: real modules from `tree`, hand-written ones from `written`, stand-ins for the rest."""

    def __init__(self, tree: Path, written: dict[str, types.ModuleType]) -> None:
        self.tree = tree
        self.written = written

    def file_of(self, name: str) -> Path | None:
        """The wheel's file or folder of that module, or None."""
        base = self.tree.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base):
            if path.exists():
                return path
        return None

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        root = name.partition(".")[0]
        if name in self.written:
            module = self.written[name]
        elif root == "vllm":
            if any(name == real or (real.endswith(".") and name.startswith(real)) for real in REAL):
                return PathFinder.find_spec(name, path)
            module = StandinModule(name)
        elif root in ABSENT:
            module = StandinModule(name)
        else:
            return None
        module.__path__ = [str(self.tree.joinpath(*name.split(".")))]
        return ModuleSpec(name, _Loader(module), is_package=True)


FINDER: Finder | None = None


def install(tree: Path, written: dict[str, types.ModuleType]) -> None:
    """Puts the finder first on sys.meta_path; `tree` holds the unpacked `vllm/` folder."""
    global FINDER
    FINDER = Finder(tree, written)
    sys.meta_path.insert(0, FINDER)
