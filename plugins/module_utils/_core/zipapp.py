# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One executable file, made of the very sources that the modules run.

The sources come from whatever loader imported them, so that this works in a checkout, an installed collection, and the
payload that Ansible sends to a host (a zip file itself). What goes in is found by following the relative imports from
the program's ``main``. The result depends on the sources alone: byte for byte the same on every host.

It is built at every look at a host, so it has to be cheap: imports are found by their text, which is forty times faster than
parsing a hundred files. A relative import in a text that is no code would at worst pack one file more.
"""

from __future__ import annotations

import io
import os
import re
import sys
from importlib.util import decode_source
from typing import Dict, List, Optional, Tuple

from .errors import GpuFleetError
from .unpacked import place_of, unpacked

_PLACE = os.path.dirname(os.path.dirname(__file__))
_SHEBANG = b"#!/usr/bin/python3\n"
_START = '''import sys

from %s.%s import main

sys.exit(main(sys.argv[1:]))
'''
_UNPACKED = "_core.unpacked"
_START_UNPACKED = '''

sys.exit(load(%r, %r, %r)(sys.argv[1:]))
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)
_IMPORT = re.compile(r"^[ \t]*from (\.+)([\w.]*) import (?:\(([^)]*)\)|([^\n#]*))", re.M)
_COMMENT = re.compile(r"#[^\n]*")


def build(main: str, package: str, directory: Optional[str] = None) -> bytes:
    """The zipapp that calls ``main()`` of the module ``main`` (as ``_room.main``) and carries everything under ``package``.

    With ``directory`` it runs what ``_core/unpacked.py`` has made of it there, if anything. Raises GpuFleetError when a source can't be
    had (bytecode-only installations).
    """
    running = _as_it_runs(package, directory) if directory is not None else None
    if running is not None:
        return running
    import zipfile

    files = {"%s/%s.py" % (package, name.replace(".", "/")): text for name, text in closure(main).items()}
    for name in list(files):
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            files.setdefault("/".join(parts[:depth]) + "/__init__.py", "")
    if directory is None:
        files["__main__.py"] = _START % (package, main)
    else:
        files["__main__.py"] = source_of(_UNPACKED) + _START_UNPACKED % (package, main, directory)
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name].encode("utf-8"))
    return buffer.getvalue()


def _as_it_runs(package: str, directory: str) -> Optional[bytes]:
    """The zipapp whose own files, unpacked in ``directory``, run here: of these sources it was made, and would be made again.

    None where this is no such program, or it is not any more the one that was unpacked.
    """
    program = sys.argv[0]
    place = unpacked(program, directory)
    if place is None or not __file__.startswith(os.path.join(place, package, "")):
        return None
    try:
        with open(program, "rb") as handle:
            content = handle.read()
            return content if place_of(os.fstat(handle.fileno()), directory) == place else None
    except OSError:
        return None


def closure(first: str) -> Dict[str, str]:
    """Sources by module name relative to the collection's ``module_utils``: ``first`` and all that it imports relatively."""
    found: Dict[str, str] = {}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = source_of(name)
        for base, names in imports(found[name], name):
            waiting += ["%s.%s" % (base, each) for each in names] if _is_package(base) else [base]
    return found


def imports(text: str, name: str) -> List[Tuple[str, List[str]]]:
    """A module's relative imports: (what is imported from, relative to the root; the names)."""
    package = name.split(".")[:-1]
    found: List[Tuple[str, List[str]]] = []
    for dots, module, many, one in _IMPORT.findall(text):
        base = package[: len(package) - (len(dots) - 1)] + (module.split(".") if module else [])
        names = [each.split()[0] for each in _COMMENT.sub("", many or one).split(",") if each.strip()]
        found.append((".".join(base), names))
    return found


def _is_package(name: str) -> bool:
    # The rooms are packages of one level; asking the loader for each name would cost more than the rest.
    return "." not in name


def source_of(name: str) -> str:
    """The text of a module by its name relative to the collection's ``module_utils``. Raises GpuFleetError where it can't be had."""
    # By its path: asked for a module by name, the loader of a zip file compiles it to say where it is.
    spec = sys.modules[__name__].__spec__
    get_data = getattr(spec.loader, "get_data", None) if spec is not None else None
    path = os.path.join(_PLACE, *name.split(".")) + ".py"
    try:
        if get_data is None:
            raise OSError("no loader")
        return decode_source(get_data(path))
    except OSError as exc:
        raise GpuFleetError(
            "The source of %s can't be read, and what runs on the host by itself is built from it. Install the collection with its "
            ".py files." % path
        ) from exc
