# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What loading the filters costs. Ansible loads all of a collection to find one, anew in each worker process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PLUGINS = "ansible_collections.gpufleet.vllm.plugins"
PROGRAM = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module("%s.filter." + name).FilterModule().filters()
print(json.dumps([name[len("%s."):] for name in sys.modules if name.startswith("%s.")]))
""" % (PLUGINS, PLUGINS, PLUGINS)


def test_loading_every_filter_loads_no_more_than_the_catalogue() -> None:
    names = sorted(path.stem for path in (ROOT / "plugins" / "filter").glob("*.py") if path.stem != "__init__")
    assert len(names) > 3
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], cwd=ROOT, env={"PYTHONPATH": "collections"}, capture_output=True, text=True, check=True
    )
    loaded = [name.split(".") for name in json.loads(done.stdout)]
    rooms = {name[1] for name in loaded if name[0] == "module_utils" and len(name) > 1}
    assert rooms == {"_catalogue", "_core", "_unit"}
    assert not [name for name in loaded if name[0] in ("modules", "plugin_utils") and len(name) > 1]
    assert len(loaded) < 2 * len(names) + 12
