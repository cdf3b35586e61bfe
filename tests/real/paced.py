# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real vLLM as a GPU makes it, for comparing load generators without one: each step takes its time, and the processor waits meanwhile.

    PYTHONPATH=tests /opt/vllm/bin/python -m real.paced --port 8000 --directory /tmp/paced

A model of the CPU build that is big enough for a step of 40 ms keeps a core busy, and whatever else the machine does makes it slower or
faster. So a tiny model serves, and a logits processor, which vLLM takes with ``--logits-processors`` and calls once a step, sleeps for
``--step`` ms. All else is vLLM's own: HTTP, scheduler, batches, streams. The interpreter is the one that vLLM is installed in.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from real import tiny

_VARIABLE = "REAL_PACED_STEP_S"


def _nothing(*_given: Any) -> None:
    pass


def _wait(_self: Any, logits: Any) -> Any:
    time.sleep(float(os.environ[_VARIABLE]))
    return logits


def __getattr__(name: str) -> Any:
    """``Paced``, made when vLLM asks for it: nothing but its engine has the class that it comes from."""
    if name != "Paced":
        raise AttributeError(name)
    base = importlib.import_module("vllm.v1.sample.logits_processor").LogitsProcessor
    # One that says it can't change which token is the likeliest is not called where the likeliest is taken.
    members = {"__init__": _nothing, "apply": _wait, "is_argmax_invariant": lambda _self: False, "update_state": _nothing}
    return type(name, (base,), members)


def main() -> None:
    """Write the model, and become the server."""
    parser = argparse.ArgumentParser(prog="real.paced")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="where the model is written to; it is the tokenizer as well")
    parser.add_argument("--step", type=float, default=40.0, help="how many ms a step takes in addition to the model's own")
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    for name, content in tiny.files("llama").items():
        (asked.directory / name).write_bytes(content)
    os.environ[_VARIABLE] = str(asked.step / 1000.0)
    words = ["vllm", "serve", str(asked.directory), "--host", "127.0.0.1", "--port", str(asked.port), "--max-model-len", str(tiny.CONTEXT)]
    words += ["--max-num-seqs", "64", "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(256 << 20)]
    words += ["--logits-processors", "real.paced:Paced"]
    os.execv(str(Path(sys.executable).with_name("vllm")), words)


if __name__ == "__main__":
    main()
