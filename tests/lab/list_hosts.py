# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's hosts as Ansible asks a dynamic inventory for them; inventories/lab/hosts runs this."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.dont_write_bytecode = True
# In the place of this file's own directory, whose modules are the package `lab`.
sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Answer --list or --host."""
    parser = argparse.ArgumentParser(description="The lab's hosts for Ansible.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="all hosts with their variables")
    what.add_argument("--host", help="the variables of one host")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036 - env finds whatever python3 comes first
        print("the lab needs Python 3.11 or newer", file=sys.stderr)
        return 1

    from lab.errors import LabError
    from lab.fleet import Lab

    try:
        inventory = Lab.attach().inventory()
    except LabError as error:
        # Ansible shows this as it is; after a failure it would go on to read this file in each other form it knows.
        print(error, file=sys.stderr)
        inventory = {"_meta": {"hostvars": {}}, "gpu_hosts": {"hosts": []}}
    if options.host is not None:
        inventory = inventory["_meta"]["hostvars"].get(options.host, {})
    print(json.dumps(inventory, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
