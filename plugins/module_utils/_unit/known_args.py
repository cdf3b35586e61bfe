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

# Flags: on or off, written without a value.
BOOLEANS = frozenset(
    "headless grpc data_parallel_multi_port_external_lb disable_log_stats aggregate_engine_logging "
    "trust_request_chat_template trust_request_mm_kwargs return_tokens_as_token_ids exclude_tools_when_tool_choice_none "
    "cohere_is_reasoning_model log_error_stack tokens_only allow_credentials trust_remote_code "
    "allow_deprecated_quantization enforce_eager return_sampling_mask use_fp64_gumbel skip_tokenizer_init "
    "sleep_mode_offload_cudagraph use_tqdm_on_load numa_bind dcp_q_replicate data_parallel_hybrid_lb "
    "data_parallel_external_lb ray_workers_use_nsight kv_sharing_fast_prefill swa_bounded_replay use_replayssm "
    "language_model_only mm_encoder_only interleave_mm_strings skip_mm_profiling mm_device_do_normalize "
    "fully_sharded_loras specialize_active_lora kv_cache_metrics cudagraph_metrics jit_monitor_verbose "
    "long_prefill_token_threshold_adaptive scheduler_reserve_full_isl async_scheduling monokernel "
    "fail_on_environ_validation".split()
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
    if name in BOOLEANS:
        return True
    return name.startswith(BOOLEAN_PREFIXES) and name not in NOT_BOOLEAN
