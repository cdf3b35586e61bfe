# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An environment with vLLM in it, as an installer leaves one on disk, made of a few small files."""

from __future__ import annotations

import sys
from pathlib import Path

ENGINE = '''
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        group = parser.add_argument_group(title="ModelConfig")
%s
        return parser


class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--enable-log-requests", action="store_true")
        parser.add_argument(
            "--max-model-len",
            **kwargs["max_model_len"],
        )
'''
FRONT_END = '''
@config
class BaseFrontendArgs:
    """Not all of it."""

    chat_template: str | None = None
    """A template."""
    _private: int = 0


@config
class FrontendArgs(BaseFrontendArgs):
    host: str | None = None
    port: int = 8000


def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--api-server-count", "-asc", type=int)
'''
NAMES = [
    "tensor-parallel-size", "gpu-memory-utilization", "max-num-seqs", "enable-prefix-caching", "compilation-config", "runner",
    "enable-expert-parallel",
]


def make(root: Path, version: str = "0.33.0", cuda: str | None = "13.0", torch: str = "2.11.0", python: str = "python3.12") -> Path:
    """The executable of a new environment below ``root``."""
    site = root / "lib" / python / "site-packages"
    names = NAMES + [f"filler-{number}" for number in range(90)]
    added = "\n".join(f'        group.add_argument("--{name}", "-x{number}")' for number, name in enumerate(names))
    files = {
        site / "vllm/__init__.py": "raise RuntimeError('imported')\n",
        site / "vllm/engine/arg_utils.py": ENGINE % added,
        site / "vllm/entrypoints/openai/cli_args.py": FRONT_END,
        site / f"vllm-{version}.dist-info/METADATA": "Name: vllm\n",
        site / f"torch-{torch}.dist-info/METADATA": "Name: torch\n",
        site / "torch/version.py": (
            "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n"
            f"__version__ = '{torch}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
        ),
        root / "bin/vllm": f"#!{root}/bin/python3\nimport vllm\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "bin/vllm").chmod(0o755)
    (root / "bin/python3").symlink_to(sys.executable)
    return root / "bin/vllm"
