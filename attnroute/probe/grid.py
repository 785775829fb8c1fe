"""The timed shapes: attention layers of real models at serving batches and contexts, which of them are held out, and a
sweep of other geometries that fills the space between for the fit alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from attnroute.probe.case import Ask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention layers of a model as one rank sees them: heads, head dim in elements, window in tokens."""

    model: str
    q_heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    sinks: bool = False


LAYERS = (
    Layer("llama-3-8b", 32, 8, 128),
    Layer("llama-3-70b-tp4", 16, 2, 128),
    Layer("llama-3-70b-tp8", 8, 1, 128),
    Layer("qwen3-32b", 64, 8, 128),
    Layer("gemma-3-27b-window", 32, 16, 128, window=1024),
    Layer("qwen3.5-27b", 24, 4, 256),
    Layer("qwen3.8-27b-tp2", 12, 2, 256),
    Layer("gpt-oss-120b", 64, 8, 64, sinks=True),
    Layer("gpt-oss-120b-window", 64, 8, 64, window=128, sinks=True),
    Layer("gemma-4-26b-sliding", 16, 8, 256, window=1024),
    Layer("gemma-4-26b-global", 16, 2, 512),
    Layer("gemma-4-31b-sliding", 32, 16, 256, window=1024),
    Layer("gemma-4-31b-global", 32, 4, 512),
    Layer("llama-2-7b", 32, 32, 128),
    Layer("llama-3.2-1b", 32, 8, 64),
)
#: (batch, context): requests in a step, tokens in each one's cache.
STEPS = (
    (1, 512),
    (1, 8192),
    (1, 65536),
    (4, 2048),
    (8, 16384),
    (16, 4096),
    (32, 1024),
    (32, 6144),
    (64, 8192),
    (128, 2048),
    (256, 512),
)
LARGEST = 12 << 30  # bytes of one set of keys and values; more would measure nothing else
SALT = "attnroute-held-out-1"
SWEPT, DRAWN = "sweep-", "drawn-"


@dataclass(frozen=True, slots=True)
class Family:
    """Layers of one head dim and group ratio that differ in KV heads (ranks of a model, or models alike)."""

    head_dim: int
    ratio: int
    kv_heads: tuple[int, ...]
    window: int | None = None
    sinks: bool = False


#: The KV heads leave out the geometry of every held-out layer.
SWEEP = (
    Family(64, 8, (1, 2, 4, 16), sinks=True),
    Family(64, 8, (1, 2, 4, 16), window=128, sinks=True),
    Family(64, 4, (2, 4, 8)),
    Family(128, 1, (8, 16, 32)),
    Family(128, 2, (4, 8, 32), window=1024),
    Family(128, 4, (1, 2, 4, 8)),
    Family(128, 8, (1, 2, 4, 8)),
    Family(256, 2, (4, 8, 16), window=1024),
    Family(256, 6, (1, 2, 4)),
    Family(512, 8, (1, 4, 8)),
)
#: Requests times KV heads: what a kernel can spread over a GPU before it splits the context.
SWEEP_STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
SWEEP_CONTEXTS = (128, 256, 512, 896, 1280, 2048, 4096, 5120, 7168, 8192, 16384, 32768, 65536)
#: Between those: where a last wave of blocks is nearly full or nearly empty, and long contexts.
BETWEEN_STREAMS = (3, 6, 12, 24, 48, 96, 192, 384, 768, 1536)
BETWEEN_CONTEXTS = (192, 384, 768, 2432, 4608, 6656, 8704, 11264, 14336, 18944, 24576, 40960)
SWEEP_LARGEST = 3 << 30  # bytes
SWEEP_PART = 0.4  # of the points that fit; by hash


@dataclass(frozen=True, slots=True)
class Shape:
    """One timed shape; `request` is what a kernel is asked, `batch` requests of `context` tokens."""

    layer: Layer
    batch: int
    context: int
    page_size: int
    kv_dtype: str

    @property
    def id(self) -> str:
        """Stable name."""
        return f"{self.layer.model}/b{self.batch}/c{self.context}/p{self.page_size}/{self.kv_dtype}"

    @property
    def swept(self) -> bool:
        """Whether it is of the sweep: no model's layer, and only there to be fitted."""
        return is_swept(self.layer.model)

    def ask(self, sinks: str | None = None, q_dtype: str = "bf16") -> Ask:
        """The request; `sinks` is the dtype in which the kernel wants them, if the layer has sinks."""
        one = self.layer
        return Ask("decode", 1, "bf16", q_dtype, self.kv_dtype, one.head_dim, one.head_dim, self.page_size, one.q_heads,
                   one.kv_heads, (self.context,) * self.batch, window=one.window,
                   sinks=sinks if one.sinks else None)  # fmt: skip

    def kv_bytes(self) -> int:
        """Bytes of keys and values that a step must read: of the window where there is one."""
        seen = self.context if self.layer.window is None else min(self.context, self.layer.window)
        size = 1 if self.kv_dtype.startswith("fp8") else 2
        return self.batch * seen * self.layer.kv_heads * self.layer.head_dim * 2 * size

    def cache_bytes(self) -> int:
        """Bytes of the whole cache of the batch."""
        size = 1 if self.kv_dtype.startswith("fp8") else 2
        return self.batch * self.context * self.layer.kv_heads * self.layer.head_dim * 2 * size

    def to_json(self) -> dict[str, Any]:
        """As a timing's request in a capture."""
        one = self.layer
        return {"model": one.model, "phase": "decode", "q_len": 1, "dtype": "bf16", "kv_dtype": self.kv_dtype,
                "head_dim": one.head_dim, "q_heads": one.q_heads, "kv_heads": one.kv_heads, "page_size": self.page_size,
                "window": one.window, "sinks": one.sinks, "layout": "NHD"}  # fmt: skip


#: A second set that is held out whole: other layers, batches and contexts, timed once the bands were in the table.
LATER = (
    Layer("llama-3.2-3b", 24, 8, 128),
    Layer("qwen3-30b-a3b", 32, 4, 128),
    Layer("llama-3.1-405b-tp8", 16, 1, 128),
    Layer("llama-2-13b", 40, 40, 128),
    Layer("gemma-3-27b-window-tp2", 16, 8, 128, window=1024),
    Layer("gpt-oss-20b-tp2", 32, 4, 64, sinks=True),
    Layer("gpt-oss-20b-tp2-window", 32, 4, 64, window=128, sinks=True),
    Layer("gemma-3-12b-window", 16, 8, 256, window=1024),
    Layer("qwen3.5-27b-tp4", 6, 1, 256),
    Layer("gemma-4-31b-global-tp2", 16, 2, 512),
)
LATER_MODELS = frozenset(layer.model for layer in LATER)
LATER_STEPS = ((1, 2560), (2, 20480), (6, 12288), (12, 3072), (24, 1536), (48, 10240), (96, 640), (192, 1536))


def later() -> list[Shape]:
    """The second set; the page is 16 or 64 tokens, by hash."""
    found = [
        Shape(layer, batch, context, _page(f"{layer.model}/{batch}"), kv_dtype)
        for layer in LATER
        for batch, context in LATER_STEPS
        for kv_dtype in ("bf16", "fp8_e4m3")
    ]
    return _spread(s for s in found if s.cache_bytes() <= LARGEST)


DRAWS = 3  # of a batch and a context, for each layer
DRAWN_BATCH, DRAWN_CONTEXT = (1, 256), (128, 65536)


def drawn() -> list[Shape]:
    """A third set, held out whole: for each layer, batches and contexts drawn log-uniformly, by hash.

    What a server meets is neither a power of two nor chosen by anybody: this is the estimate for that.
    """
    found = []
    for layer in (*LAYERS, *LATER):
        mine = replace(layer, model=DRAWN + layer.model)
        for kv_dtype in ("bf16", "fp8_e4m3"):
            points = (_draw(mine, kv_dtype, number) for number in range(100))
            found += [s for s in points if s.cache_bytes() <= LARGEST][:DRAWS]
    return _spread(found)


def _draw(layer: Layer, kv_dtype: str, number: int) -> Shape:
    def between(name: str, low: int, high: int) -> int:
        part = hash_of(f"{name}:{layer.model}/{kv_dtype}/{number}") / 2**32
        return int(low * float((high / low) ** part) + 0.5)

    page = _page(f"{layer.model}/{kv_dtype}/{number}")
    return Shape(layer, between("batch", *DRAWN_BATCH), between("context", *DRAWN_CONTEXT), page, kv_dtype)


def _page(name: str) -> int:
    return 64 if hash_of(f"page:{name}") % 2 else 16


def shapes() -> list[Shape]:
    """The grid of real models, in an order that spreads any prefix over models and sizes."""
    return _spread(_shapes())


def sweep() -> list[Shape]:
    """Shapes for the fit alone, spread likewise: none has a held-out layer's geometry or a held-out context."""
    return _spread(_swept(SWEEP_STREAMS, SWEEP_CONTEXTS))


def between() -> list[Shape]:
    """A second sweep, of streams and contexts between those of the first."""
    return _spread(_swept(BETWEEN_STREAMS, BETWEEN_CONTEXTS))


#: By the names that a person calls them.
SETS: Mapping[str, Callable[[], list[Shape]]] = {
    "grid": shapes,
    "sweep": sweep,
    "between": between,
    "later": later,
    "drawn": drawn,
}


def _spread(found: Iterable[Shape]) -> list[Shape]:
    return sorted(found, key=lambda s: hash_of(s.id))


def _swept(numbers: Iterable[int], contexts: Iterable[int]) -> Iterator[Shape]:
    for family in SWEEP:
        for kv_dtype in ("bf16", "fp8_e4m3"):
            for streams, context in product(numbers, contexts):
                point = f"{family}/{kv_dtype}/{streams}/{context}"
                fits = [n for n in family.kv_heads if streams % n == 0 and streams // n <= 512]
                if hash_of(point) / 2**32 >= SWEEP_PART or not fits:
                    continue
                heads = fits[hash_of("heads:" + point) % len(fits)]
                name = f"{SWEPT}{heads * family.ratio}x{heads}x{family.head_dim}" + ("-window" if family.window else "")
                layer = Layer(name, heads * family.ratio, heads, family.head_dim, family.window, family.sinks)
                page = 64 if hash_of("page:" + point) % 3 == 0 else 16
                shape = Shape(layer, streams // heads, context, page, kv_dtype)
                if shape.cache_bytes() <= SWEEP_LARGEST:
                    yield shape


def _shapes() -> Iterator[Shape]:
    for layer in LAYERS:
        for number, (batch, context) in enumerate(STEPS):
            for kv_dtype in ("bf16", "fp8_e4m3"):
                # the larger page for every fourth step only: it matters little, and device time is short
                for page in (16, 64) if number % 4 == 1 else (16,):
                    shape = Shape(layer, batch, context, page, kv_dtype)
                    if shape.cache_bytes() <= LARGEST:
                        yield shape


def hash_of(text: str) -> int:
    """32 bits that depend on the text alone."""
    return int.from_bytes(hashlib.sha256(f"{SALT}:{text}".encode()).digest()[:4], "big")


def is_swept(model: str) -> bool:
    """Whether a layer is of a sweep and belongs to no model."""
    return model.startswith(SWEPT)


def part_of(model: str) -> str:
    """What a timed layer is there for: `grid`, `sweep`, or the `second` or `third` held-out set."""
    if model.startswith(DRAWN):
        return "third"
    return "second" if model in LATER_MODELS else "sweep" if is_swept(model) else "grid"


def held_out(request: Mapping[str, Any], context: int) -> bool:
    """Whether a timing is kept from fitting: a quarter of the models and of the context lengths, whole, by hash.

    The sweep's layers are no models: they exist to be fitted. The second and the third set are held out whole.
    """
    if part_of(request["model"]) in ("second", "third"):
        return True
    model = not is_swept(request["model"]) and hash_of(f"model:{request['model']}") % 4 == 0
    return model or hash_of(f"context:{context}") % 4 == 0
