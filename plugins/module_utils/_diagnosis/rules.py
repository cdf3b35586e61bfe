# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table: what a line of a failed server's journal means, and what a person can do about it.

Read from the top: the first rule with a matching line decides, so the exact ones stand before the general ones. A rule
sees no line that the server logged as information or warning, unless ``any_level`` says so: "Address already in use"
is harmless there. None sees where a traceback's frame stands in a file: a path is no statement. Named groups of the
pattern can be used in the texts.

Sources of the texts: vLLM 0.8 to 0.33, PyTorch, transformers and huggingface_hub as they print through it, CPython.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Pattern, Tuple

# The kinds, as the module documents them.
KINDS = (
    "oom_load",
    "oom_warmup",
    "memory_not_free",
    "kv_cache_too_small",
    "bad_argument",
    "tp_heads",
    "quant_block",
    "port_in_use",
    "model_missing",
    "model_gated",
    "driver",
    "host_oom",
    "compile_cache",
    "timeout",
    "crash_loop",
    "unknown",
)


@dataclass(frozen=True)
class Rule:
    """One meaning. ``kind`` is one of KINDS, or ``oom``: out of memory, whose phase the lines before it decide."""

    kind: str
    pattern: Pattern[str]
    summary: str
    advice: str
    any_level: bool = False
    follow: int = 0  # lines after the match that belong to it
    survivable: bool = False  # a server may say so, get over it, and end by another exception


def _rule(
    kind: str, pattern: str, summary: str, advice: str, any_level: bool = False, follow: int = 0, survivable: bool = False
) -> Rule:
    return Rule(kind, re.compile(pattern, re.IGNORECASE), summary, advice, any_level, follow, survivable)


_OTHER_SIZES = "Choose a tensor_parallel_size that divides; the preflight lists the ones that work."
_COMPILE_CACHE = (
    "Remove the service's own compile caches (cache/ below its home directory) and start it again: they are made anew "
    "while it loads."
)
_HOST_MEMORY = "Give the host more memory or swap, lower cpu_offload_gb, or load with fewer processes at once."
_DRIVER = (
    "Look at `nvidia-smi` and `dmesg` on the host; after an update of the driver's packages the host needs a reboot."
)

RULES: Tuple[Rule, ...] = (
    # Memory that isn't there before anything is loaded.
    _rule(
        "memory_not_free",
        r"Free memory on device ?(?P<device>\S*) \((?P<free>[\d.]+)/(?P<total>[\d.]+) ?GiB\) on startup is less than"
        r".*?\((?P<util>[\d.]+), (?P<need>[\d.]+) ?GiB\)",
        "{device} had {free} of {total} GiB free at the start, and gpu_memory_utilization {util} needs {need} GiB",
        "Find who holds the GPU (gpufleet.vllm.gpu_memory_facts lists pid, user and unit) and free it "
        "(gpufleet.vllm.gpu_reclaim), or lower gpu_memory_utilization.",
    ),
    _rule(
        "memory_not_free",
        r"Error in memory profiling\. Initial free memory (?P<before>[\d.]+) GiB, current free memory (?P<after>[\d.]+) GiB",
        "another process gave memory back while the server measured it ({before} GiB free, then {after} GiB)",
        "Start the server when nothing else on these GPUs is starting or stopping.",
    ),
    # The sampler's warm-up, with its own text.
    _rule(
        "oom_warmup",
        r"out of memory occurred when warming up (?P<what>sampler|pooler) with (?P<seqs>\d+) dummy requests",
        "the warm-up of the {what} with {seqs} sequences did not fit beside weights and KV cache",
        "Set max_num_seqs lower than {seqs} (256 is plenty for most uses), or lower gpu_memory_utilization.",
    ),
    _rule(
        "kv_cache_too_small",
        r"max seq len \((?P<length>\d+)\),? \(?(?P<need>[\d.]+) GiB KV cache is needed, which is larger than the "
        r"available KV cache memory \((?P<have>[\d.]+) GiB\)(?:.*?estimated maximum model length is (?P<fits>\d+))?",
        "one request of max_model_len {length} needs {need} GiB of KV cache, and {have} GiB are left for it",
        "Set max_model_len to {fits} or less, raise gpu_memory_utilization, or use more GPUs.",
    ),
    _rule(
        "kv_cache_too_small",
        r"max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\((?P<fits>\d+)\)",
        "max_model_len {length} is longer than the KV cache, which holds {fits} tokens",
        "Set max_model_len to {fits} or less, raise gpu_memory_utilization, or use more GPUs.",
    ),
    _rule(
        "kv_cache_too_small",
        r"No available memory for the cache blocks|larger than the available KV cache memory",
        "the weights leave no memory for the KV cache",
        "Raise gpu_memory_utilization, use more GPUs (tensor_parallel_size), or a model with smaller weights.",
    ),
    _rule(
        "kv_cache_too_small",
        r"max_num_seqs \((?P<seqs>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
        "the cache has {blocks} blocks for states, fewer than max_num_seqs {seqs}",
        "Set max_num_seqs to {blocks} or less, or raise gpu_memory_utilization.",
    ),
    # Sizes that can't be split.
    _rule(
        "tp_heads",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<tp>\d+)\)",
        "{heads} attention heads can't be split over tensor_parallel_size {tp}",
        _OTHER_SIZES,
    ),
    _rule(
        "tp_heads",
        r"heads.{0,80}(must be |not )divisible by.{0,40}tensor.parallel|num_heads % tp_size == 0|num_kv_heads % tp_size == 0"
        r"|tp_size % self\.total_num_kv_heads == 0",
        "the model's heads can't be split over this tensor_parallel_size",
        _OTHER_SIZES,
    ),
    _rule(
        "quant_block",
        r"(?P<what>The output_size of gate's and up's weight|The input_size of down's weight|Weight \w+) = (?P<size>\d+) "
        r"is not divisible by weight quantization block_\w = (?P<block>\d+)",
        "a part of {size} per GPU is not a multiple of the stored quantisation block {block}",
        _OTHER_SIZES + " With experts, enable_expert_parallel: true leaves them whole.",
    ),
    _rule(
        "quant_block",
        r"is not divisible by weight quantization block|not aligned with the quantized weight shape"
        r"|is not divisible\s+by\s+min_thread_[nk]|not divisible by min_thread|is not divisible by group_size",
        "a part of a quantised weight per GPU is not a multiple of its group or block",
        _OTHER_SIZES,
    ),
    # What the command line or the configuration says.
    _rule(
        "bad_argument",
        r"error: (?P<what>unrecognized arguments: .*|argument .*|ambiguous option: .*|the following arguments are .*)",
        "vLLM doesn't accept its arguments: {what}",
        "Correct it in args. What is known depends on the installed version: `vllm serve --help=all`.",
    ),
    _rule(
        "bad_argument",
        r"User-specified max_model_len \((?P<length>\d+)\) is greater than the derived max_model_len "
        r"\((?:\w+=)?(?P<most>\d+)",
        "max_model_len {length} is more than the model's own {most}",
        "Set max_model_len to {most} or less.",
    ),
    _rule(
        "bad_argument",
        r"World size \((?P<size>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)",
        "the parallel sizes need {size} GPUs, and the service sees {gpus}",
        "Give the service {size} GPUs in gpus, or set smaller parallel sizes.",
    ),
    _rule(
        "bad_argument",
        r"Please pass the argument .?trust_remote_code|setting .?trust_remote_code.?=.?True|set the option .?trust_remote_code",
        "the model brings code of its own, and the server may not run it",
        "Read the Python files beside the model; if they may run with the service's rights, set args.trust_remote_code: true.",
    ),
    _rule(
        "bad_argument",
        r"quantization method (?P<what>[\w.-]+) is not supported for the current GPU"
        r"(?:.*?Minimum capability: (?P<least>\d+))?(?:.*?Current capability: (?P<have>\d+))?",
        "this GPU can't compute the quantisation {what}",
        "It needs compute capability {least} (89 means 8.9), and the GPU has {have}. "
        "Take the model in another quantisation or none, or run it on newer GPUs.",
    ),
    _rule(
        "bad_argument",
        r"Bfloat16 is only supported on GPUs with compute capability",
        "this GPU can't compute with bfloat16, which the model or args.dtype asks for",
        "Set args.dtype: half, or run it on GPUs with compute capability 8.0 or more.",
    ),
    _rule(
        "bad_argument",
        r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank (?P<most>\d+)",
        "an adapter has LoRA rank {rank}, and max_lora_rank is {most}",
        "Set args.max_lora_rank to {rank}, or the next value above it that vLLM takes (`vllm serve --help=max-lora-rank`).",
    ),
    # The host.
    _rule(
        "port_in_use",
        r"Errno 98\]|Address already in use|EADDRINUSE|error while attempting to bind on address",
        "another process listens on a port that the server needs",
        "Find it with `ss -ltnp` and stop it, or give the service another port.",
    ),
    _rule(
        "driver",
        r"driver (version )?(on your system )?is (too old|insufficient)|\(found version (?P<found>\d+)\)"
        r"|cudaErrorInsufficientDriver|Error 803",
        "the GPU driver is too old for this build of PyTorch",
        "Update the driver, or install a vLLM built for the CUDA version that the driver supports.",
    ),
    _rule(
        "driver",
        r"Error 802|system not yet initialized",
        "CUDA reports that the system is not initialised: on machines with NVSwitch the fabric manager isn't up",
        "Start nvidia-fabricmanager in the version of the driver: `systemctl status nvidia-fabricmanager`.",
    ),
    _rule(
        "driver",
        r"Driver/library version mismatch|Failed to initialize NVML|No CUDA GPUs are available|no CUDA-capable device"
        r"|GPU is lost|Unable to determine the device handle|uncorrectable ECC|CUDA unknown error|Can't initialize NVML"
        r"|NVMLError_\w+|libcuda\.so\.1: cannot open|Failed to infer device type|\bXid\b",
        "the GPU driver does not answer as it should",
        _DRIVER,
    ),
    _rule(
        "driver",
        r"(?P<what>(?<=CUDA error: )(?:unspecified launch failure|the launch timed out[^,.]*|hardware stack error|unknown error)"
        r"|cudaErrorLaunchFailure|cudaErrorHardwareStackError|cudaErrorLaunchTimeout)",
        "a GPU failed while it computed: {what}",
        "Look for Xid in the kernel's log of that time (`journalctl -k -g Xid`): it says whether the GPU, its driver or a kernel of the "
        "program is at fault. A GPU that does it again needs a reset or a reboot.",
    ),
    _rule(
        "model_missing",
        r"Repository Not Found|RepositoryNotFoundError",
        "there is no such repository, or it is private",
        "Check the repository's name; for a private one give a token that may read it as secrets.HF_TOKEN.",
    ),
    _rule(
        "model_gated",
        r"GatedRepoError|gated repo|Access to model .* is restricted|awaiting a review|403 Client Error"
        r"|401 Client Error",
        "the repository can't be read with this token, or with none",
        "Accept the model's terms on its page and give a token that may read it as secrets.HF_TOKEN.",
    ),
    _rule(
        "model_missing",
        r"is not a local folder and is not a valid model identifier"
        r"|does not appear to have a file named|Invalid repository ID or local directory|HFValidationError"
        r"|Repo id must (be|use)|Can't load the configuration of|Cannot find any model weights|LocalEntryNotFoundError"
        r"|OfflineModeIsEnabled|offline mode is enabled|couldn't connect to .* to load"
        r"|No such file or directory: '?\S*(config\.json|\.safetensors|tokenizer\S*)",
        "the model isn't there, or not all of it",
        "Check the model's path and that the service's user may read it, or fetch the model again.",
    ),
    _rule(
        "model_missing",
        r"SafetensorError|MetadataIncompleteBuffer|incomplete metadata, file not fully covered|HeaderTooLarge"
        r"|PytorchStreamReader failed",
        "a file with weights is damaged or not complete",
        "Fetch the model again and compare its files' sizes.",
    ),
    _rule(
        "model_missing",
        r"Can't load (?P<what>tokenizer|image processor|feature extractor|processor|video processor) for '(?P<path>[^']+)'",
        "there is no {what} that could be loaded in {path}",
        "The model's directory lacks files of its {what}, or they can't be read: fetch the model again, or name a place that has "
        "them (args.tokenizer for a tokenizer).",
    ),
    # Where the server writes, or may not.
    _rule(
        "unknown",
        r"Permission ?(Error|denied).*?'?"
        r"(?P<path>/[^\s'\":]*(?:torch_compile_cache|torch_aot_compile|torchinductor|cache/triton/|\.triton/)[^\s'\":]*)",
        "the service's user may not use {path}, a cache of compiled code",
        "It belongs to another user: remove it or give it to the service's user. If it lies outside the service's home, let the variable "
        "in env that names it point elsewhere.",
        survivable=True,
    ),
    _rule(
        "unknown",
        r"(Read-only file system|Errno 30\]|No usable temporary directory)(?:[^/]*?'?(?P<path>/[^\s'\":]+))?",
        "the server may not write to {path}",
        "The unit lets it write below its home, and where download_dir and the variables of caches point. "
        "Add the directory to unit_options.Service.ReadWritePaths, or have it written elsewhere.",
        survivable=True,
    ),
    _rule(
        "model_missing",
        r"PermissionError: .*(/models?/|\.safetensors|config\.json|tokenizer)",
        "the service's user may not read the model",
        "Give the service's user read access to the model directory and every directory above it.",
    ),
    # vLLM's own checks of its configuration; what they say stands in the lines after it.
    _rule(
        "bad_argument",
        r"\d+ validation errors? for (?P<what>\w+)",
        "vLLM doesn't accept its configuration ({what})",
        "Correct what the evidence names in args.",
        follow=2,
    ),
    _rule(
        "bad_argument",
        r"Unknown quantization method|Quantization method specified in the model config .* does not match"
        r"|Number of experts in the model must be greater than 0|Unable to read the config file"
        r"|Model architectures .* (are not supported|failed to be inspected)|does not recognize this architecture",
        "vLLM doesn't accept its configuration",
        "Correct what the evidence names in args; a model newer than the installed vLLM needs a newer one.",
    ),
    _rule(
        "host_oom",
        r"killed by the OOM killer|Failed with result 'oom-kill'|Out of memory: Killed process",
        "the host ran out of main memory",
        _HOST_MEMORY,
    ),
    _rule(
        "host_oom",
        r"DefaultCPUAllocator: (can't|not enough)|Cannot allocate memory|^MemoryError",
        "the host ran out of main memory",
        _HOST_MEMORY,
        survivable=True,
    ),
    # NCCL names the file before the error, Python after it; Python's own segments are named without their directory.
    _rule(
        "host_oom",
        r"insufficient shared memory|No space left on device.*/dev/shm|/dev/shm/.*No space left on device|Bus error"
        r"|(No space left on device|Errno 28\]).*'/?(psm_|sem\.|mp-|vllm_offload_)",
        "shared memory (/dev/shm) ran out",
        "Enlarge /dev/shm, or remove what crashed servers left there (gpufleet.vllm.gpu_reclaim with clean_shm).",
    ),
    # Out of memory without a phase of its own: last of the exact ones, since the others print it as well.
    _rule(
        "oom",
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation|HIP out of memory",
        "a GPU ran out of memory",
        "",
        survivable=True,
    ),
    # Before the caches: it is there that a full disk is met first.
    _rule(
        "unknown",
        r"No space left on device|Errno 28\]|Disk quota exceeded|Errno 122\]",
        "a file system is full",
        "Find it with `df -h` and `df -i`, and make room: the service writes below its home directory and to /tmp.",
    ),
    # Before the caches as well: whoever can't compile fails inside of the compiler's own exceptions.
    _rule(
        "unknown",
        r"No such file or directory: '?(?:\S*/)?(?P<tool>ninja|nvcc|gcc|cc|c\+\+|g\+\+)(?![\w./-])|(?P<one>Ninja) is required"
        r"|Failed to find C compiler|No working C\+\+ compiler found|InvalidCxxCompiler"
        r"|Could not find nvcc|(?P<two>nvcc): (command )?not found"
        r"|CUDA_HOME environment variable is not set",
        "a tool that compiles kernels at start is missing on the service's PATH",
        "Install ninja into the virtual environment, and a C compiler (gcc, g++) and CUDA's nvcc on the host.",
    ),
    _rule(
        "unknown",
        r"Python\.h: No such file",
        "the headers of Python are missing, with which kernels are compiled at start",
        "Install them for the Python of the virtual environment: the package python3-dev, or python3-devel.",
    ),
    # Only what says of a file that it is damaged: an exception of the compiler, or one that passed through compiled code, does not.
    _rule(
        "compile_cache",
        r"Expected tensors only, but got|file too short|(Error|Exception).*(inductor|aot_?autograd|fx_?graph) cache"
        r"|Failed to (load|deserialize) .*(cache|compiled)"
        r"|(torch_compile_cache|torch_aot_compile|torchinductor|cache/triton/|\.triton/).{0,160}"
        r"(too short|truncated|corrupt|invalid ELF header|No such file)"
        r"|(too short|truncated|corrupt|invalid ELF header|No such file).{0,160}"
        r"(torch_compile_cache|torch_aot_compile|torchinductor|cache/triton/|\.triton/)",
        "a compiled kernel or graph could not be used",
        _COMPILE_CACHE,
        survivable=True,
    ),
)

# Not the contract's kinds, but worth saying: the summary is exact, the kind is "unknown".
SIDE_RULES: Tuple[Rule, ...] = (
    _rule(
        "unknown",
        r"getpwuid\(\): uid not found|Failed to determine user credentials|status=217/USER|status=216/GROUP",
        "the service's user or group doesn't exist on this host",
        "Create the user (the vllm_service role does), or correct user and group.",
        any_level=True,
    ),
    _rule(
        "unknown",
        r"Failed (to locate executable|at step EXEC)|Unable to locate executable|status=203/EXEC",
        "the program of the service can't be executed",
        "Check executable: the file must exist, be executable, and its interpreter must exist.",
        any_level=True,
    ),
    _rule(
        "unknown",
        r"Illegal instruction|signal=ILL|core-dump|Segmentation fault|signal=SEGV|SIGSEGV|SIGILL"
        r"|Failed core proc\(s\): \{[^}]*: -(4|8|11)\b|exit ?code:? -(4|8|11)\b",
        "the server was ended by a fault of its own machine code",
        "Look at `coredumpctl` and the kernel's log; a library built for another processor or GPU looks like this.",
        any_level=True,
    ),
    _rule(
        "unknown",
        r"NCCL (error|WARN)|ncclSystemError|ncclUnhandledCudaError|ncclInternalError",
        "the GPUs could not talk to each other (NCCL)",
        "Start it once with NCCL_DEBUG=INFO in env and read what NCCL says.",
    ),
    # A warning for vLLM, which fails later where it misses what the library would have brought.
    _rule(
        "unknown",
        r"Failed to import from vllm\._C\b.*?(?P<library>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "vLLM's own kernels could not be loaded: {library} is missing on the host",
        "Install the package that has {library}, or the build of vLLM that fits this host.",
        any_level=True,
    ),
)

# Only where no exception says what failed: a worker that has told of its end dies all the same.
LAST_RULES: Tuple[Rule, ...] = (
    _rule(
        "unknown",
        r"EngineDeadError|EngineCore encountered an issue|Engine core proc .* died|died unexpectedly",
        "the engine died, and its journal names no cause",
        "Look at the kernel's log of that time (`journalctl -k`), and start it again.",
    ),
)
