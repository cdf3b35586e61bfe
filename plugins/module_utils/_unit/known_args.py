# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of vLLM's arguments beforehand: just enough to write them in one form.

From the parser of ``vllm serve`` 0.33.0. An argument that stands in no table here is passed on as it is given: what
exists is for the installed version to say.
"""

from __future__ import annotations

# Arguments that the service's own options decide: name -> where the value belongs.
OURS = {
    "api_key": "Put it under secrets as VLLM_API_KEY: on a command line or in a readable file it is no secret",
    "config": "The collection writes vLLM's configuration file itself: put its keys under args",
    "device_ids": "Use gpus",
    "hf_token": "Put it under secrets as HF_TOKEN: on a command line or in a readable file it is no secret",
    "host": "Use host",
    "model": "Use model",
    "model_tag": "Use model",
    "port": "Use port",
    "served_model_name": "Use served_name",
    "uds": "The service listens on host and port, where its readiness can be proven",
}

FLOATS = frozenset(
    "gpu_memory_utilization cpu_offload_gb mm_processor_cache_gb mm_ipc_gpu_memory_gb kv_cache_metrics_sample "
    "watermark mm_encoder_fp8_scale_save_margin video_pruning_rate kv_offloading_size "
    "dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s".split()
)

INTEGERS = frozenset(
    "tensor_parallel_size pipeline_parallel_size data_parallel_size data_parallel_size_local data_parallel_rank "
    "data_parallel_start_rank data_parallel_rpc_port decode_context_parallel_size prefill_context_parallel_size "
    "nnodes node_rank master_port api_server_count seed max_logprobs max_num_seqs max_num_partial_prefills "
    "max_long_partial_prefills long_prefill_token_threshold block_size max_loras max_lora_rank max_cpu_loras "
    "max_cudagraph_capture_size shutdown_timeout stream_interval num_gpu_blocks_override ubatch_size "
    "max_parallel_loading_workers renderer_num_workers mamba_block_size offload_group_size offload_num_in_group "
    "offload_prefetch_step max_log_len spec_tokens distributed_timeout_seconds".split()
)

# Flags, written without a value. Off when nothing is said: false says nothing, and need not be written at all.
OFF_BY_DEFAULT = frozenset(
    "aggregate_engine_logging allow_credentials allow_deprecated_quantization cudagraph_metrics "
    "data_parallel_external_lb data_parallel_hybrid_lb data_parallel_multi_port_external_lb "
    "disable_chunked_mm_input disable_custom_all_reduce disable_fastapi_docs disable_log_stats "
    "disable_sliding_window disable_uvicorn_access_log enable_auto_tool_choice enable_cumem_allocator enable_dbo "
    "enable_elastic_ep enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance "
    "enable_force_include_usage enable_hc_sp enable_layerwise_nvtx_tracing enable_log_outputs enable_log_requests "
    "enable_logging_iteration_details enable_mamba_cache_stochastic_rounding "
    "enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format enable_mm_embeds "
    "enable_moe_shared_loras enable_nccl_comm_suspend enable_offline_docs enable_per_request_metrics "
    "enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers enable_return_routed_experts "
    "enable_scale_out enable_server_load_tracking enable_shm_tensor_arena enable_sleep_mode enable_ssl_refresh "
    "enable_tokenizer_info_endpoint enable_tower_connector_lora enable_trace_replay enforce_eager "
    "exclude_tools_when_tool_choice_none fail_on_environ_validation fully_sharded_loras grpc headless "
    "interleave_mm_strings jit_monitor_verbose kv_cache_metrics kv_sharing_fast_prefill language_model_only "
    "log_error_stack long_prefill_token_threshold_adaptive mm_encoder_only monokernel numa_bind "
    "ray_workers_use_nsight return_sampling_mask return_tokens_as_token_ids skip_mm_profiling skip_tokenizer_init "
    "sleep_mode_offload_cudagraph specialize_active_lora tokens_only trust_remote_code "
    "trust_request_chat_template trust_request_mm_kwargs use_fp64_gumbel use_replayssm".split()
)

# Flags that are on when nothing is said, or that the model decides: false has to be said, as --no-key.
ON_BY_DEFAULT = frozenset(
    "async_scheduling cohere_is_reasoning_model dcp_q_replicate disable_cascade_attn "
    "disable_hybrid_kv_cache_manager disable_nccl_for_dp_synchronization enable_batch_sharded_sampling "
    "enable_chunked_prefill enable_flash_late_interaction enable_flashinfer_autotune enable_log_deltas "
    "enable_lora enable_prefix_caching mm_device_do_normalize scheduler_reserve_full_isl swa_bounded_replay "
    "use_tqdm_on_load".split()
)

# Arguments of these forms are flags in every version seen.
BOOLEAN_PREFIXES = ("enable_", "disable_")
NOT_BOOLEAN = frozenset(["disable_access_log_for_endpoints"])

# One value that is read as JSON: a list given for it must not be spread over several words.
JSON_VALUES = frozenset("allowed_origins allowed_methods allowed_headers".split())

# May stand several times, one value each; the configuration file can't say that, the command line can.
REPEATED = frozenset(["middleware"])


def is_boolean(name: str) -> bool:
    """Whether the argument (in underscore form) is a flag."""
    if name in OFF_BY_DEFAULT or name in ON_BY_DEFAULT:
        return True
    return name.startswith(BOOLEAN_PREFIXES) and name not in NOT_BOOLEAN
