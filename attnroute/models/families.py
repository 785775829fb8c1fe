"""What the fields of each model family mean: data only. `read_model` interprets it and knows no model by name.

Sources: the configuration classes of transformers 5.24.0 (defaults, schedules, field names) and the model code of
vllm 0.33.0 (layer names, state shapes, what a layer asks of attention). A type that is not here is read by its
generic fields: hidden_size, num_attention_heads, num_key_value_heads, head_dim, num_hidden_layers, sliding_window,
layer_types.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from attnroute.models.family import (
    CHUNKED,
    CROSS,
    ENCODER,
    FULL,
    LINEAR,
    SLIDING,
    Blocks,
    Every,
    Family,
    Indices,
    Period,
    PerLayer,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# fmt: off
_GDN = {
    "k_heads": ("linear_num_key_heads",), "v_heads": ("linear_num_value_heads",),
    "k_dim": ("linear_key_head_dim",), "v_dim": ("linear_value_head_dim",), "kernel": ("linear_conv_kernel_dim",),
}
_MAMBA2 = {
    "heads": ("mamba_n_heads",), "head_dim": ("mamba_d_head",), "state": ("mamba_d_state",),
    "groups": ("mamba_n_groups",), "kernel": ("mamba_d_conv",), "inner": ("mamba_d_ssm",), "expand": ("mamba_expand",),
}
_NEMOTRON = {
    "heads": ("mamba_num_heads",), "head_dim": ("mamba_head_dim",), "state": ("ssm_state_size",),
    "groups": ("n_groups",), "kernel": ("conv_kernel",),
}
_KDA = {
    "heads": ("linear_attn_config.num_heads",), "head_dim": ("linear_attn_config.head_dim",),
    "kernel": ("linear_attn_config.short_conv_kernel_size",),
}
_QWEN_HYBRID = Every(("full_attention_interval",), 4, LINEAR)
_GEMMA_PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")
_GEMMA4_GLOBAL = {FULL: {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}}

FAMILIES: tuple[Family, ...] = (
    Family(("llama", "mistral", "ministral", "ministral3", "mixtral", "phi3", "phimoe", "granite", "granitemoe", "olmo",
            "olmo2", "olmoe", "nemotron", "starcoder2", "stablelm", "glm", "glm4", "glm4_moe", "minimax_m2",
            "seed_oss", "smollm3", "internlm3", "gemma", "exaone", "hunyuan_v1_dense", "hunyuan_v1_moe",
            "ernie4_5", "ernie4_5_moe")),
    Family(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text",
            "qwen3_vl", "qwen3_vl_text", "qwen3_vl_moe", "qwen3_vl_moe_text", "mimo"), window_flag=True),
    Family(
        ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        (_QWEN_HYBRID,),
        defaults={"head_dim": 256},
        state=State("gdn", _GDN, ("mamba_ssm_dtype", "")),
    ),
    Family(
        ("qwen3_next",),
        (_QWEN_HYBRID,),
        defaults={"head_dim": 256},
        state=State("gdn", _GDN),
    ),
    Family(
        ("gemma2",),
        (Every((), 2, SLIDING),),
        defaults={"head_dim": 256, "attn_logit_softcapping": 50.0, "sliding_window": 4096},
        full_name="global",
    ),
    Family(
        ("gemma3", "gemma3_text"),
        (Every(_GEMMA_PATTERN, 6, SLIDING),),
        defaults={"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
                  "max_position_embeddings": 131072},
        full_name="global",
        mm_prefix="always",
    ),
    Family(
        ("gemma3n", "gemma3n_text"),
        (Every((), 5, SLIDING),),
        defaults={"head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15},
        full_name="global",
    ),
    Family(
        ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
        (Every((), 6, SLIDING),),
        defaults={"head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
        per_kind=_GEMMA4_GLOBAL,
        per_kind_if="attention_k_eq_v",
        last_full=True,
        full_name="global",
        mm_prefix="vision",
    ),
    Family(
        ("gpt_oss",),
        (Every((), 2, SLIDING),),
        defaults={"head_dim": 64, "sliding_window": 128},
        sinks={FULL: "always", SLIDING: "always"},
        attn="attn.attn",
    ),
    Family(("cohere2", "cohere2_moe"), (Every(_GEMMA_PATTERN, 4, SLIDING),), defaults={"sliding_window": 4096},
           window_plus=1),
    Family(("olmo3",), (Every((), 4, SLIDING),), defaults={"sliding_window": 4096}),
    Family(("exaone4",), (Every((), 4, SLIDING),)),
    Family(
        ("llama4", "llama4_text"),
        (PerLayer("no_rope_layers", 1, CHUNKED), Every(("no_rope_layer_interval",), 4, CHUNKED)),
        defaults={"head_dim": 128, "attention_chunk_size": 8192},
    ),
    Family(
        ("mimo_v2", "mimo_v2_flash"),
        (PerLayer("hybrid_layer_pattern", 1, SLIDING),),
        per_kind={SLIDING: {"head_dim": "swa_head_dim", "v_head_dim": "swa_v_head_dim",
                            "num_attention_heads": "swa_num_attention_heads",
                            "num_key_value_heads": "swa_num_key_value_heads"}},
        sinks={FULL: "add_full_attention_sink_bias", SLIDING: "add_swa_attention_sink_bias"},
    ),
    Family(
        ("step3p5", "step3p7"),
        per_kind={SLIDING: {"num_attention_heads": "attention_other_setting.num_attention_heads",
                            "num_key_value_heads": "attention_other_setting.num_attention_groups"}},
    ),
    Family(("nemotron-nas",), (Blocks("block_configs"),)),
    Family(
        ("nemotron_h",),
        pattern=("layer_types", "layers_block_type", "hybrid_override_pattern"),
        state=State("mamba2", _NEMOTRON, ("mamba_ssm_cache_dtype", "fp32")),
        attn="mixer.attn",
        linear="mixer",
    ),
    Family(("falcon_h1",), always=(FULL, LINEAR), state=State("mamba2", _MAMBA2), attn="attn", linear="mixer"),
    Family(
        ("granitemoehybrid", "bamba"),
        (Indices("attn_layer_indices", FULL, LINEAR),),
        pattern=("layer_types", "layers_block_type"),
        state=State("mamba2", _MAMBA2),
        linear="mixer",
    ),
    Family(
        ("jamba",),
        (Period("attn_layer_period", "attn_layer_offset"),),
        state=State("mamba1", {"state": ("mamba_d_state",), "kernel": ("mamba_d_conv",), "expand": ("mamba_expand",)}),
        attn="attn",
        linear="mixer",
    ),
    Family(
        ("lfm2", "lfm2_moe"),
        (Indices("full_attn_idxs", FULL, LINEAR),),
        state=State("short_conv", {"kernel": ("conv_L_cache",), "inner": ("conv_dim", "hidden_size")}),
        linear="short_conv",
    ),
    Family(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa", "glm4_moe_lite",
            "pangu_ultra_moe", "axk1", "mistral4"), mla=True),
    Family(
        ("kimi_linear", "kimi_k3"),
        (Indices("linear_attn_config.full_attn_layers", FULL, LINEAR, base=1),),
        mla=True,
        state=State("kda", _KDA, ("", "fp32")),
        linear="self_attn",
    ),
    Family(
        ("deepseek_v4", "deepseek_v41", "deepseek_ref"),
        refuse="its compressed sparse attention (several caches a layer, each compressed its own way) is not described"
        " here yet",
    ),
    Family(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"),
           notes=("block-sparse attention is read as full attention; the keys of its index are not counted",)),
    Family(
        ("whisper",),
        always=(FULL, CROSS),
        prefix="model.decoder.layers",
    ),
    Family(("mllama", "mllama_text_model"), (Indices("cross_attention_layers", CROSS, FULL),)),
    Family(("bert", "roberta", "xlm-roberta"), always=(ENCODER,), causal=False, attn_type="encoder_only"),
)

GENERIC = Family(())
"""How a type that is not in the table is read."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
                            "num_attention_groups"),
    "head_dim": ("head_dim", "attention_head_dim", "hidden_size_per_head", "kv_channels"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length",
                                "max_target_positions", "max_sequence_length", "model_max_length"),
}
"""One meaning, several spellings; the first that the file gives a value is read."""
# fmt: on


@cache
def _by_name() -> dict[str, Family]:
    return {name: family for family in FAMILIES for name in family.names}


def family_of(model_type: str) -> Family | None:
    """The family of a `model_type`, None if the table has none."""
    return _by_name().get(model_type)


def known_types() -> tuple[str, ...]:
    """All model types in the table, sorted."""
    return tuple(sorted(_by_name()))
