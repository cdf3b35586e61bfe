# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rank: what a process does with its GPU, from vLLM's memory check to the captured graphs, and in sleep."""

from __future__ import annotations

import getpass
import hashlib
import math
import os
import subprocess
import time

from lab.driver.client import Allocation, DriverError, OutOfMemory, memory_mib

from . import log, model
from .plan import MIB, Failure, Plan, cache_root, format_gib

_CONTEXT_MIB = 512  # CUDA context and NCCL, before vLLM's first look at the memory
_NON_TORCH_MIB = {1: 150, 2: 600}  # what libraries take while loading, by tensor parallel size; 4 and more: 1700
_GRAPHS_MIB = 420
# Bytes per sequence and word of the vocabulary: what profiling counts for the sampler, and what its warm-up takes.
_SAMPLER_PROFILED = 8
_SAMPLER_WARM_UP = 39
_POISON = "compiled_graph.poisoned"

_INIT = (
    ("v1/executor/multiproc_executor.py", 1033, "worker_main", "worker = WorkerProc(*args, **kwargs)"),
    ("v1/executor/multiproc_executor.py", 781, "__init__", "self.worker.init_device()"),
)
_LOAD = (
    ("v1/executor/multiproc_executor.py", 1033, "worker_main", "worker = WorkerProc(*args, **kwargs)"),
    ("v1/executor/multiproc_executor.py", 789, "__init__", "self.worker.load_model()"),
    ("v1/worker/gpu_worker.py", 609, "load_model", "self.model_runner.load_model(load_dummy_weights=dummy_weights)"),
)
_RPC = (("v1/executor/multiproc_executor.py", 1155, "_execute_worker_rpc", "output = func(*args, **kwargs)"),)
_PROFILE = (*_RPC, ("v1/worker/gpu_worker.py", 700, "determine_available_memory", "self.model_runner.profile_run("))
_WARM_UP = (
    *_RPC,
    ("v1/worker/gpu_worker.py", 1080, "compile_or_warm_up_model", "self.model_runner._dummy_sampler_run("),
)


class Rank:
    """One GPU's part of the engine. Every step raises Failure with vLLM's words."""

    def __init__(self, plan: Plan, local_rank: int, *, data_rank: int = 0) -> None:
        self.plan = plan
        self.rank = local_rank
        self.first = local_rank == 0 and data_rank == 0
        self._local_device = data_rank * plan.parallel.world + local_rank
        self._device = plan.devices[self._local_device]
        self._memory: Allocation | None = None
        self._free_at_start_mib = 0
        self._total_mib = 0
        self._requested_mib = 0
        self._weights_mib = 0
        self._asleep_mib: int | None = None

    # --- memory, in the words of CUDA

    def _measure(self) -> tuple[int, int]:
        try:
            return memory_mib(self._device.spec)
        except (DriverError, OSError) as error:
            raise Failure(f"RuntimeError: CUDA error: unknown error ({error})") from error

    def _hold(self, mib: int, frames: tuple[log.Frame, ...]) -> None:
        """Hold mib MiB in all on this rank's GPU. Raises Failure as torch reports memory that is out."""
        try:
            if self._memory is None:
                self._memory = Allocation(self._device.spec, mib)
            else:
                self._memory.resize(mib)
        except OutOfMemory:
            held = 0 if self._memory is None else self._memory.mib
            raise Failure(self._out_of_memory(mib - held, held), frames) from None
        except DriverError as error:
            raise Failure(f"RuntimeError: CUDA error: unknown error ({error})", frames) from error
        except OSError as error:
            raise Failure(f"RuntimeError: CUDA unknown error - {error}", frames) from error

    def _out_of_memory(self, wanted_mib: int, held_mib: int) -> str:
        free, total = self._measure()
        return (
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted_mib / 1024:.2f} GiB. GPU "
            f"{self._local_device} has a total capacity of {total / 1024:.2f} GiB of which {free / 1024:.2f} GiB is "
            f"free. Including non-PyTorch memory, this process has {held_mib / 1024:.2f} GiB memory in use. Of the "
            f"allocated memory {max(held_mib - _CONTEXT_MIB, 0) / 1024:.2f} GiB is allocated by PyTorch, and "
            "23.42 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
            "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
            "Memory Management (https://docs.pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )

    # --- steps of a start

    def init_device(self) -> None:
        """Take the device and apply vLLM's memory check."""
        plan = self.plan
        world = plan.parallel.world
        log.info(
            "parallel_state.py:1846",
            f"world_size={world} rank={self.rank} local_rank={self.rank} "
            "distributed_init_method=file:///tmp/vllm-dist backend=nccl",
        )
        plan.maybe_die("device", "worker", self.rank)
        self._hold(_CONTEXT_MIB, _INIT)
        plan.pause("device")
        if self.first and world > 1:
            log.info("pynccl.py:148", "vLLM is using nccl==2.28.9")
        free, total = self._measure()
        self._free_at_start_mib, self._total_mib = free, total
        requested = math.ceil(total * MIB * plan.utilisation)
        self._requested_mib = -(-requested // MIB)
        if free * MIB < requested:
            raise Failure(
                f"ValueError: Free memory on device cuda:{self._local_device} ({format_gib(free * MIB)}/"
                f"{format_gib(total * MIB)} GiB) on startup is less than desired GPU memory utilization "
                f"({plan.utilisation}, {format_gib(requested)} GiB). Decrease GPU memory utilization or reduce GPU "
                "memory used by other processes.",
                (*_INIT, ("v1/worker/gpu_worker.py", 542, "init_device", "self.requested_memory = request_memory(")),
            )

    def load_model(self) -> None:
        """Build the model and read its weights."""
        plan = self.plan
        started = time.monotonic()
        if self.first:
            log.info("gpu_model_runner.py:4978", f"Starting to load model {plan.model.name}...")
            log.info(
                "cuda.py:508",
                "Using FLASH_ATTN attention backend out of potential backends: "
                "['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION'].",
            )
        try:
            if plan.behaviours["fp8_block"]:
                tensor = max(plan.parallel.tensor, 1)
                size = (plan.model.expert_intermediate or plan.model.intermediate) // tensor
                raise model.Refused(
                    f"ValueError: The output_size of gate's and up's weight = {size} is not divisible by weight "
                    f"quantization block_n = {(plan.model.block or (128, 128))[0]}."
                )
            plan.model.check_split(plan.parallel)
            if not plan.model.weight_files:
                raise model.Refused(f"RuntimeError: Cannot find any model weights with `{plan.model.name}`")
        except model.Refused as refused:
            raise Failure(str(refused), _LOAD) from None
        plan.maybe_die("weights", "worker", self.rank)
        self._read_weights()
        if self.first:
            log.info("default_loader.py:506", f"Loading weights took {time.monotonic() - started:.2f} seconds")
            log.info(
                "gpu_model_runner.py:5088",
                f"Model loading took {format_gib(self._weights_mib * MIB)} GiB memory and "
                f"{time.monotonic() - started:.6f} seconds",
            )

    def _read_weights(self) -> None:
        plan = self.plan
        self._weights_mib = plan.model.weights_mib(plan.parallel)
        shards = len(plan.model.weight_files)
        steps = min(max(shards, 1), 10)
        printed = 0
        started = time.monotonic()
        if self.first:
            self._progress(0, shards, 0.0)
        for step in range(1, steps + 1):
            wanted = _CONTEXT_MIB + self._weights_mib * step // steps
            if plan.behaviours["oom_load"] and step > steps // 2:
                self._report_oom_load(self._out_of_memory(self._weights_mib // steps, wanted))
            try:
                self._hold(wanted, _LOAD)
            except Failure as failure:
                self._report_oom_load(failure.last)
            plan.pause("weights", 1 / steps)
            if self.first:
                for done in range(printed + 1, shards * step // steps + 1):
                    self._progress(done, shards, time.monotonic() - started)
                    printed = done
        while plan.behaviours["never_ready"]:
            time.sleep(3600)

    def _report_oom_load(self, last: str) -> None:
        if "out of memory" in last:
            log.error(
                "gpu_model_runner.py:5086",
                "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory "
                "for weights, increasing --tensor-parallel-size, or using --quantization. See "
                "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more tips. "
                f"(original error: {last.partition(': ')[2]})",
            )
        raise Failure(last, _LOAD)

    @staticmethod
    def _progress(done: int, shards: int, seconds: float) -> None:
        """The line of the progress bar when done shards are read."""
        rate, left = "?it/s", "?"
        if done:
            rest = int((shards - done) * seconds / done)
            rate, left = f"{done / max(seconds, 1e-6):.2f}it/s", f"{rest // 60:02d}:{rest % 60:02d}"
        elapsed = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
        log.raw(
            f"\rLoading safetensors checkpoint shards: {100 * done / max(shards, 1):3.0f}% Completed | "
            f"{done}/{shards} [{elapsed}<{left}, {rate}]"
        )

    def profile(self) -> int:
        """Compile, profile, and return what is left for the KV cache, in bytes."""
        plan = self.plan
        plan.maybe_die("profile", "worker", self.rank)
        started = time.monotonic()
        cached = self._compile()
        plan.pause("profile", 0.6 if cached else 1.0)
        if self.first and not plan.arguments.enforce_eager:
            log.info("monitor.py:81", f"torch.compile took {time.monotonic() - started:.2f} s in total")
        if plan.arguments.kv_cache_memory_bytes:
            reserved = int(plan.arguments.kv_cache_memory_bytes)
            log.info(
                "gpu_worker.py:676",
                f"Initial free memory {format_gib(self._free_at_start_mib * MIB)} GiB, reserved "
                f"{format_gib(reserved)} GiB memory for KV Cache as specified by kv_cache_memory_bytes config and "
                "skipped memory profiling. This does not respect the gpu_memory_utilization config.",
            )
            return reserved
        self._hold(self._loaded_mib(), _PROFILE)
        free, _total = self._measure()
        if self._free_at_start_mib < free:
            raise Failure(
                "AssertionError: Error in memory profiling. Initial free memory "
                f"{format_gib(self._free_at_start_mib * MIB)} GiB, current free memory {format_gib(free * MIB)} GiB. "
                "This happens when other processes sharing the same container release GPU memory while vLLM is "
                "profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate "
                "vLLM in its own container.",
                (*_RPC, ("v1/worker/gpu_worker.py", 732, "determine_available_memory", "assert init_free_memory >= ")),
            )
        # As vLLM does: all that disappeared on the device meanwhile is taken for its own.
        consumed = self._free_at_start_mib - free
        available = (self._requested_mib - consumed - self._activation_mib() - self._graphs_mib()) * MIB
        if self.first:
            log.info("gpu_worker.py:772", f"Available KV cache memory: {format_gib(available)} GiB")
        return available

    def _loaded_mib(self) -> int:
        extra = _NON_TORCH_MIB.get(self.plan.parallel.tensor, 1700)
        return _CONTEXT_MIB + self._weights_mib + extra

    def _activation_mib(self) -> int:
        """What profiling leaves for a forward pass with max_num_seqs sequences."""
        return max(1024, self._sampler_mib(_SAMPLER_PROFILED))

    def _sampler_mib(self, bytes_each: int) -> int:
        return bytes_each * self.plan.max_num_seqs * self.plan.model.vocabulary // MIB

    def _graphs_mib(self) -> int:
        return 0 if self.plan.arguments.enforce_eager else _GRAPHS_MIB

    def _compile(self) -> bool:
        """What torch.compile and JIT kernels need of their surroundings. True: a compile cache was there already."""
        plan = self.plan
        if plan.behaviours["needs_ninja"]:
            self._run_ninja()
        if not plan.behaviours["needs_home"]:
            return False
        try:
            if not os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
                getpass.getuser()
            if plan.arguments.enforce_eager:
                return False
            return self._use_compile_cache()
        except (KeyError, OSError) as error:
            raise Failure(f"{type(error).__name__}: {error}", _PROFILE) from error

    def _run_ninja(self) -> None:
        try:
            subprocess.run(["ninja", "--version"], check=True, capture_output=True)
        except FileNotFoundError as error:
            raise Failure(f"FileNotFoundError: {error}", _PROFILE) from error
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failure(f"RuntimeError: Ninja build failed. Ninja output:\n{error}", _PROFILE) from error

    def _use_compile_cache(self) -> bool:
        plan = self.plan
        key = f"{plan.version} {plan.model} {plan.parallel} {plan.max_model_len}"
        name = hashlib.sha256(key.encode()).hexdigest()[:10]
        directory = cache_root() / "torch_compile_cache" / name / f"rank_{self.rank}_0" / "backbone"
        if self.first:
            log.info("backends.py:1136", f"Using cache directory: {directory} for vLLM's torch.compile")
        poison = directory / _POISON
        if poison.exists():
            raise Failure("RuntimeError: Expected tensors only, but got: <class 'int'>", _PROFILE)
        cached = (directory / "vllm_compile_cache.py").exists()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "vllm_compile_cache.py").write_text("{}\n", encoding="utf-8")
        if plan.behaviours["poison_cache"]:
            poison.touch()
        if self.first:
            what = "Directly load the compiled graph(s) for" if cached else "Cache the graph of"
            rest = "from the cache, took 0.21 s" if cached else "for later use"
            log.info("backends.py:311" if cached else "backends.py:402", f"{what} compile range (1, 8192) {rest}")
        return cached

    def init_kv_cache(self, kv_bytes: int) -> None:
        """Take the KV cache."""
        self.plan.maybe_die("kv_cache", "worker", self.rank)
        self._hold(self._loaded_mib() + kv_bytes // MIB, _RPC)
        self.plan.pause("kv_cache")

    def warm_up(self) -> None:
        """Capture the graphs, run the sampler once with max_num_seqs sequences, settle at the final size."""
        plan = self.plan
        assert self._memory is not None
        plan.maybe_die("graphs", "worker", self.rank)
        started = time.monotonic()
        if not plan.arguments.enforce_eager:
            self._hold(self._memory.mib + self._graphs_mib(), _WARM_UP)
            plan.pause("graphs")
            if self.first:
                log.info(
                    "gpu_model_runner.py:6516",
                    f"Graph capturing finished in {time.monotonic() - started:.0f} secs, "
                    f"took {self._graphs_mib() / 1024:.2f} GiB",
                )
        plan.maybe_die("warmup", "worker", self.rank)
        self._warm_up_sampler()
        plan.pause("warmup")
        final = plan.behaviours["worker_mib"]
        if final is None:
            # What torch keeps of the profiled peak: the process ends at about what it asked for.
            final = max(self._memory.mib, min(self._requested_mib, self._memory.mib + self._activation_mib()))
        self._hold(final, _WARM_UP)

    def _warm_up_sampler(self) -> None:
        """Passes over the logits of max_num_seqs sequences, with sorted copies, on top of all that is held."""
        assert self._memory is not None
        held = self._memory.mib
        short = self.plan.behaviours["oom_warmup"]
        try:
            self._hold(held + self._sampler_mib(_SAMPLER_WARM_UP), _WARM_UP)
            self._hold(held, _WARM_UP)
        except Failure as failure:
            if "out of memory" not in failure.last:
                raise
            short = True
        if short:
            raise Failure(
                "RuntimeError: CUDA out of memory occurred when warming up sampler with "
                f"{self.plan.max_num_seqs} dummy requests. Please try lowering `max_num_seqs` or "
                "`gpu_memory_utilization` when initializing the engine.",
                _WARM_UP,
            )

    # --- afterwards

    def sleep(self) -> None:
        """Give back weights and KV cache."""
        if self._memory is None or self._asleep_mib is not None:
            return
        self._asleep_mib = self._memory.mib
        if not self.plan.behaviours["sleep_keeps_memory"]:
            freed = self._memory.mib - _CONTEXT_MIB - 650
            self._hold(self._memory.mib - max(freed, 0), _RPC)
            log.info(
                "gpu_worker.py:335",
                f"Sleep mode freed {format_gib(max(freed, 0) * MIB)} GiB memory, "
                f"{format_gib(self._memory.mib * MIB)} GiB memory is still in use.",
            )

    def wake_up(self) -> None:
        """Take them again."""
        if self._asleep_mib is not None:
            self._hold(self._asleep_mib, _RPC)
            self._asleep_mib = None

    def close(self) -> None:
        """Give everything back."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
