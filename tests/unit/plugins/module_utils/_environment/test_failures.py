# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each way in which an installation fails: the right reason, nothing left of it, and what stood before still stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest
from packages.index import Index, sdist_that_compiles

from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._environment.failures import explain

from .conftest import Host
from .test_install import version

# options, kind, what the message says
FAILURES: Dict[str, Tuple[Dict[str, Any], str, str]] = {
    "no such version": ({"version": "9.9.9"}, "no_such_version", "the index has no such version"),
    "no such package": ({"requirements": ["no-such-package"]}, "no_such_version", "the index has no such version"),
    "another Python": ({"version": "0.34.0"}, "python_version", "Set python to"),
    "does not start": ({"version": "0.33.1"}, "does_not_run", "`vllm --version` ended with 1"),
    "hangs": ({"version": "0.33.2", "proof_timeout": 2.0}, "does_not_run", "gave no answer in 2 s"),
    "says another version": ({"version": "0.33.3"}, "does_not_run", "said '0.1.0'"),
    "a dependency that there isn't": ({"version": "0.33.4"}, "no_such_version", "the index has no such version"),
    "contradicting": ({"version": "0.33.0", "constraints": ["torch<2.13"]}, "conflict", "contradict"),
    "no index": ({"index_url": "http://127.0.0.1:9/simple", "version": "0.33.0"}, "unreachable", "can't be reached"),
    "not in time": ({"timeout": 0.01, "version": "0.33.0"}, "timeout", "longer than the 0 s"),
}


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_the_reason_is_told_and_the_old_one_stands(host: Host, name: str) -> None:
    options, kind, said = FAILURES[name]
    host.ensure(version="0.31.0")
    before = host.everything()
    with pytest.raises(GpuFleetError) as failed:
        host.ensure(**options)
    assert failed.value.result["kind"] == kind, failed.value.result
    assert said in failed.value.msg and str(host.path) in failed.value.msg
    assert {path: time for path, time in host.everything().items() if not path.endswith(".versions")} == {
        path: time for path, time in before.items() if not path.endswith(".versions")
    }
    assert version(host) == "0.31.0"
    assert not host.ensure(version="0.31.0")["changed"]


@pytest.mark.parametrize("name", ["no such version", "another Python", "no index"])
def test_pip_says_it_too(host: Host, name: str) -> None:
    options, kind, said = FAILURES[name]
    with pytest.raises(GpuFleetError) as failed:
        host.ensure(installer="pip", **options)
    assert failed.value.result["kind"] == kind, failed.value.result
    assert said in failed.value.msg
    assert host.trees == [] and not host.path.exists()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_credentials_open_the_index_and_are_never_shown(
    host: Host, index: Index, monkeypatch: pytest.MonkeyPatch, installer: str
) -> None:
    commands = []
    real = subprocess.Popen

    def spy(argv: Any, **options: Any) -> Any:
        commands.append(" ".join(argv))
        return real(argv, **options)

    monkeypatch.setattr(subprocess, "Popen", spy)
    index.password = "s3cr%t"
    for wrong in (index.url, index.with_credentials("ci", "wr0ng-one")):
        with pytest.raises(GpuFleetError) as failed:
            host.ensure(installer=installer, index_url=wrong)
        assert failed.value.result["kind"] == "credentials", failed.value.result
        assert "wr0ng-one" not in repr(failed.value.result) + failed.value.msg
    done = host.ensure(installer=installer, index_url=index.with_credentials("ci", "s3cr%25t"))
    assert done["changed"] and "s3cr" not in repr(done)
    written = [path for path in Path(done["tree"]).rglob("*") if path.is_file() and not path.is_symlink()]
    assert [str(path) for path in written if b"s3cr" in path.read_bytes()] == []
    assert len(commands) > 6 and not [command for command in commands if "s3cr" in command or "wr0ng" in command]


def test_an_index_that_is_down_is_told_from_one_without_the_version(host: Host, index: Index) -> None:
    index.broken = True
    with pytest.raises(GpuFleetError, match="can't be reached, or broke off") as failed:
        host.ensure()
    assert failed.value.result["kind"] == "unreachable", failed.value.result


def test_a_package_that_is_not_the_promised_one_is_refused(host: Host, index: Index) -> None:
    index.corrupt = True
    with pytest.raises(GpuFleetError) as failed:
        host.ensure()
    assert failed.value.result["kind"] == "hash_mismatch", failed.value.result


def test_what_needs_a_compiler_says_so(host: Host, index: Index, wheels: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(wheels, own)
    sdist_that_compiles(own, "flash-something", "1.0")
    with Index(own) as other, pytest.raises(GpuFleetError, match=r"compiler or Python's headers are missing\. Install gcc") as failed:
        host.ensure(index_url=other.url, requirements=["flash-something"])
    assert failed.value.result["kind"] == "no_compiler", failed.value.result


def test_without_uv_and_venv_the_package_is_named(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bare-python"
    python.write_text("#!/bin/sh\necho '[[3, 11, 2], false]'\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(GpuFleetError, match=r"lacks its venv and ensurepip modules.*python3-venv"):
        host.ensure(python=str(python), installer="pip")


@pytest.mark.parametrize(("options", "said"), [
    ({"python": "python3.99"}, "There is no Python 'python3.99'"),
    ({"python": "/bin/false"}, "asked for its version it ended with 1"),
    ({"version": ">=0.33"}, "one exact version"),
    ({"version": "0.33.*"}, "one exact version"),
    ({"path": "opt/vllm"}, "absolute"),
    ({"path": "/"}, "absolute"),
    ({"requirements": ["x @ https://ci:hunter2@host/x.whl"]}, "credentials in it"),
    ({"requirements": ["--pre"]}, "not the installer's option"),
    ({"keep": -1}, "negative"),
    ({"timeout": 0.0}, "more than 0"),
])
def test_slips_are_refused_in_words(host: Host, options: Dict[str, Any], said: str) -> None:
    with pytest.raises(GpuFleetError) as refused:
        host.ensure(check_mode=True, **options)
    assert said in refused.value.msg and "hunter2" not in refused.value.msg


# As the installers print them where a test can't bring it about.
RECORDED = {
    "no_space": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "certificate": "WARNING: Retrying (Retry(total=4)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: "
    "CERTIFICATE_VERIFY_FAILED] certificate verify failed'))': /simple/vllm/\nERROR: No matching distribution found for vllm==0.33.0",
    "platform": "  x No solution found when resolving dependencies:\n  `-> Because vllm==0.33.0 has no wheels with a matching platform tag",
    "build": "error: subprocess-exited-with-error\n  x Getting requirements to build wheel did not run successfully.",
    "unreachable": "  ERROR: HTTP error 404 while getting http://index/files/vllm-0.32.0-py3-none-any.whl (from http://index/simple/vllm/)",
    "unknown": "something new",
}


@pytest.mark.parametrize("kind", sorted(RECORDED))
def test_recorded_failures_are_told_apart(kind: str) -> None:
    failure = explain(RECORDED[kind], [], "0.33.0")
    assert failure.kind == kind and failure.evidence and failure.advice
