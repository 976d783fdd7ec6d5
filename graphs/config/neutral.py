"""Keys of config.json that do not affect the result of any family: no family reads them."""

from __future__ import annotations

# Training, generation and bookkeeping: none of these affects a logit at inference.
NEUTRAL = frozenset(
    """
    _name_or_path architectures model_type transformers_version torch_dtype dtype auto_map id2label label2id
    problem_type task_specific_params tokenizer_class prefix finetuning_task pruned_heads return_dict
    output_attentions output_hidden_states use_cache torchscript use_bfloat16 initializer_range init_std init_method
    attention_dropout attn_pdrop embd_pdrop resid_pdrop hidden_dropout gradient_checkpointing
    embed_dropout attn_dropout_prob emb_dropout_prob attention_probs_dropout_prob hidden_dropout_prob classifier_dropout
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id unk_token_id
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k
    top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    residual_dropout embedding_dropout layerdrop
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    chunk_size_feed_forward is_encoder_decoder is_decoder cross_attention_hidden_size tf_legacy_loss
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    router_aux_loss_coef output_router_logits aux_loss_alpha seq_aux ep_size z_loss_coefficient
    num_logits_to_keep time_step_max time_step_floor time_step_rank mamba_dt_max mamba_dt_init_floor
    rescale_prenorm_residual use_mamba_kernels moe_shared_expert_overlap
    pretraining_tp transformers.js_config attn_implementation _attn_implementation _attn_implementation_autoset
    _flash_attn_2_enabled experts_implementation _experts_implementation num_labels _num_labels output_past
    predict_special_tokens custom_pipelines tokenizer_type neftune_noise_alpha unsloth_version unsloth_fixed
    block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init
    is_llama_config cache_implementation _sliding_window_pattern
    """.split()  # noqa: SIM905  as a list literal it would be 70 lines
)
