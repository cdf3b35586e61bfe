# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments that vLLM once had: what takes their place. Asked only where the installed version does not know them."""

from __future__ import annotations

# In underscore form. Sources: the deprecations of vLLM 0.9 to 0.33 and the errors of their parsers.
REMOVED = {
    "chat_template_text_format": "Use chat_template_content_format",
    "collect_detailed_traces_modules": "Use collect_detailed_traces",
    "disable_async_output_proc": "Leave it out: output is always processed apart",
    "disable_frontend_multiprocessing": "Leave it out: the server and the engine are always apart",
    "disable_log_requests": "Leave it out: requests are not logged unless enable_log_requests is set",
    "enable_prompt_adapter": "Leave it out: prompt adapters are gone",
    "enable_reasoning": "Set reasoning_parser alone",
    "guided_decoding_backend": "Use structured_outputs_config: {backend: ...}",
    "guided_decoding_disable_additional_properties": "Use structured_outputs_config",
    "guided_decoding_disable_any_whitespace": "Use structured_outputs_config",
    "guided_decoding_disable_fallback": "Use structured_outputs_config",
    "max_prompt_adapter_token": "Leave it out: prompt adapters are gone",
    "max_prompt_adapters": "Leave it out: prompt adapters are gone",
    "max_seq_len_to_capture": "Use max_cudagraph_capture_size, or leave it out",
    "multi_step_stream_outputs": "Leave it out: multi-step scheduling is gone",
    "ngram_prompt_lookup_max": "Use speculative_config",
    "ngram_prompt_lookup_min": "Use speculative_config",
    "num_lookahead_slots": "Use speculative_config",
    "num_scheduler_steps": "Leave it out: multi-step scheduling is gone, scheduling is asynchronous instead",
    "num_speculative_tokens": "Use speculative_config: {num_speculative_tokens: ...}",
    "override_neuron_config": "Leave it out",
    "override_pooler_config": "Use pooler_config",
    "preemption_mode": "Leave it out",
    "qlora_adapter_name_or_path": "Leave it out",
    "rope_scaling": "Use hf_overrides: {rope_scaling: ...}",
    "rope_theta": "Use hf_overrides: {rope_theta: ...}",
    "scheduler_delay_factor": "Leave it out",
    "speculative_model": "Use speculative_config: {model: ...}",
    "swap_space": "Leave it out: the engine keeps no swap space; kv_offloading_size is the nearest",
    "task": "Use runner (generate or pooling), and convert for embed, classify or reward",
    "tokenizer_pool_extra_config": "Leave it out",
    "tokenizer_pool_size": "Leave it out",
    "tokenizer_pool_type": "Leave it out",
    "use_v2_block_manager": "Leave it out",
    "worker_use_ray": "Use distributed_executor_backend: ray",
}
