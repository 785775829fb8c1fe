"""vLLM's configuration, as far as its decisions read it, made from flat values."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from . import world


def _model(i: Mapping[str, Any]) -> Any:
    hf = {
        k: i[v]
        for k, v in (
            ("qk_nope_head_dim", "mla_nope"),
            ("qk_rope_head_dim", "mla_rope"),
            ("v_head_dim", "mla_v"),
            ("kv_lora_rank", "mla_lora"),
            ("index_topk", "index_topk"),
            ("attn_logit_softcapping", "softcap"),
        )
        if i[v] is not None
    }
    return SimpleNamespace(
        hf_text_config=SimpleNamespace(**hf),
        hf_config=SimpleNamespace(**hf),
        dtype=world.dtype(i["model_dtype"]),
        is_mm_prefix_lm=i["mm_prefix"],
        rswa_window=i["rswa"],
        is_diffusion=i["diffusion"],
        is_hybrid=i.get("hybrid", False),
        use_mla=i.get("use_mla", False),
        max_model_len=i["max_model_len"],
        original_max_model_len=-1 if i.get("auto_fit") else i["max_model_len"],
        supports_kv_cache_grouping=False,
        architecture="Model",
        model_class=i.get("model_class"),
        get_head_size=lambda: i["model_head_size"],
        get_num_attention_heads=lambda _pc: i["model_q_heads"],
        get_num_kv_heads=lambda _pc: i["model_kv_heads"],
    )


def make_config(i: Mapping[str, Any]) -> Any:
    """The configuration object of full inputs `i` (see DEFAULTS), with the parts that decisions read."""
    layout = i.get("layout", "LBNHC")
    speculation = None
    if i.get("spec_tokens") or i.get("adaptive") or i.get("eagle"):
        speculation = SimpleNamespace(
            num_speculative_tokens=i.get("spec_tokens", 0),
            enable_adaptive_verification=i.get("adaptive", False),
            use_eagle_block_drop=lambda: i.get("eagle", False),
            method="eagle",
            parallel_drafting=False,
        )
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
            prefix_match_unit=i.get("prefix_match_unit"),
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: world.get("v1.kv_cache_layout:KVCacheLayout")[layout],
        ),
        attention_config=SimpleNamespace(
            flash_attn_version=i["fa_version"],
            use_trtllm_attention=i["use_trtllm"],
            use_non_causal=i["non_causal"],
            disable_flashinfer_q_quantization=i.get("no_q_quant", False),
            hisparse_config=None,
            backend=i.get("request"),
            backend_per_kind=i.get("request_per_kind", {}),
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
        speculative_config=speculation,
        kv_transfer_config=SimpleNamespace(is_kv_transfer_instance=True) if i.get("kv_connector") else None,
        device_config=SimpleNamespace(device_type="cuda"),
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(decode_mode=lambda: None), max_cudagraph_capture_size=None
        ),
        num_prefill_lookahead_tokens=i.get("lookahead_tokens", 0),
        num_speculative_tokens=i.get("spec_tokens", 0),
        max_in_flight_tokens=i.get("in_flight_tokens", 8192),
    )
