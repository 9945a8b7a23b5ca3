"""Fields of config.json and generation_config.json: honoured, refused, or without effect.

No field is silently ignored: a value that is known to change the output is refused by name
(`NEUTRAL`), and a field in no list is told of once, as later versions of transformers write new
fields, most of which change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec_plugins.errors import require
from specdec_plugins.formats.pretrained.families import Family

# Generation fields that are honoured, and those that must have a value without effect.
HONOURED = (
    *("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "no_repeat_ngram_size"),
    *("min_length", "max_length", "min_new_tokens", "max_new_tokens"),
    *("suppress_tokens", "begin_suppress_tokens", "repetition_penalty"),
    *("length_penalty", "early_stopping", "renormalize_logits"),  # of a beam search
)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), (None, 1)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "penalty_alpha"), (None, 0)),
    "token_healing": (None, False),
    **dict.fromkeys(("sequence_bias", "watermarking_config"), (None,)),
    **dict.fromkeys(
        ("exponential_decay_length_penalty", "stop_strings", "max_time", "force_words_ids"), (None,)
    ),
    **dict.fromkeys(("constraints", "dola_layers"), (None,)),
    # of config.json
    **dict.fromkeys(("is_decoder", "add_cross_attention", "tie_encoder_decoder"), (None, False)),
    "is_encoder_decoder": (None, True),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    # of config.json: other networks, whose weights may have the same names and shapes
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters", "sliding_window"), (None,)),
    **dict.fromkeys(("attention_type", "attention_window", "attention_multiplier"), (None,)),
    **dict.fromkeys(("final_logit_softcapping", "attn_logit_softcapping"), (None,)),
    **dict.fromkeys(("logit_scale", "logits_scaling", "residual_multiplier"), (None, 1)),
    "position_embedding_type": (None, "absolute"),
    "layer_norm_eps": (None, 1e-5),
    **dict.fromkeys(("norm_eps", "rms_norm_eps", "layer_norm_epsilon", "norm_type"), (None,)),
    **dict.fromkeys(("partial_rotary_factor", "rotary_dim", "rotary_pct"), (None,)),
    **dict.fromkeys(("head_dim", "num_key_value_heads", "query_pre_attn_scalar"), (None,)),
    **dict.fromkeys(("embedding_multiplier", "lm_head_multiplier"), (None, 1)),
    **dict.fromkeys(("num_experts", "num_local_experts", "layer_scale_init_value"), (None,)),
    **dict.fromkeys(("alibi", "use_alibi", "use_qk_norm", "qk_layernorm"), (None, False)),
    **dict.fromkeys(("use_parallel_residual", "parallel_attn"), (None, False)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias"), (None, True)),
}
# Other search methods, replaced by greedy decoding or a rule that samples.
_SEARCH = ("num_beams", "do_sample")

HARMLESS = {
    *_SEARCH,
    *("num_beam_groups", "diversity_penalty", "low_memory"),
    *("num_return_sequences", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff", "remove_invalid_values"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "use_mtp"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict", "return_dict_in_generate", "return_legacy_cache", "output_past"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
    *("target_lookbehind", "assistant_ensemble_weight", "speculation_type"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "prefill_chunk_size"),
    *("compile_config", "disable_compile", "continuous_batching_config"),
    *("model_type", "architectures", "transformers_version", "tokenizer_class", "dtype"),
    *("torch_dtype", "name_or_path", "auto_map", "attn_implementation", "init_std"),
    *("dropout", "attention_dropout", "activation_dropout", "classifier_dropout"),
    *("classif_dropout", "encoder_layerdrop", "decoder_layerdrop", "gradient_checkpointing"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("task_specific_params", "prefix", "torchscript", "use_bfloat16", "tf_legacy_loss"),
    *("chunk_size_feed_forward", "xla_device", "model_max_length"),
    *("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id"),
    *("dropout_rate", "initializer_factor", "n_positions", "is_gated_act", "dense_act_fn"),
    *("do_blenderbot_90_layernorm", "force_bos_token_to_be_generated", "eos_token_ids"),
    *("student_encoder_layers", "student_decoder_layers", "replacing_rate"),
    # Determined by the architecture; transformers reads none of them either.
    *("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"),
    *("static_position_embeddings", "extra_pos_embeddings", "save_step"),
}


def check_known(path: Path, given: Mapping[str, Any], family: Family) -> tuple[str, ...]:
    """A notice of the fields in no list. Raises UserError for a value that is not supported."""
    own = {*family.fields, *family.aliases}
    neutral = {name: values for name, values in NEUTRAL.items() if name not in own}
    for name, value in given.items():
        require(
            name not in neutral or value in neutral[name],
            f"{path}: {name} is {value!r}, which is not supported; delete it from the file to "
            "decode without it.",
        )
    known = {*own, *HONOURED, *neutral, *HARMLESS}
    unknown = [name for name in given if name not in known and not name.startswith("_")]
    if not unknown:
        return ()
    return (
        f"{path}: ignoring {', '.join(unknown)}, unknown here; if transformers gives other text, "
        "the reason may be there.",
    )
