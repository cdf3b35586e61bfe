# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The three tools: what they are run with, and what their files say. The files are those of real runs, cut to a few requests."""

from __future__ import annotations

import json
import os
import pwd
import select
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark import builtin, guidellm, load, tool, vllm_bench
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.builtin import Builtin
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.guidellm import GuideLlm
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.profile import Profile, to_profile
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.result import level_of
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.tool import Aim, Tool
from ansible_collections.gpufleet.vllm.plugins.module_utils._benchmark.vllm_bench import VllmBench
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.runner import Completed, Runner

DATA = Path(__file__).parent / "data"
PROFILE = to_profile({"concurrency": [4], "input_tokens": 64, "output_tokens": 32, "requests": 6, "warmup": 2, "seed": 5})
SECRET = "sk-very-secret"


def aim(**more: Any) -> Aim:
    return Aim(**{"url": "http://127.0.0.1:8000", "model": "m", "tokenizer": "/models/m", "api_key": SECRET, "gpus": 2, **more})


class Playing(Runner):
    """Plays a tool: writes its file, ends with its exit status, remembers what it was given."""

    def __init__(self, content: Any = None, rc: int = 0, stderr: str = "", stdout: str = "") -> None:
        self.content = content
        self.answer = (rc, stdout, stderr)
        self.argv: List[str] = []
        self.env: Mapping[str, str] = {}
        self.stdin: Optional[str] = None
        self.directory = ""

    def run(
        self, argv: Sequence[str], timeout: float = 30.0, stdin: Optional[str] = None, env: Optional[Mapping[str, str]] = None
    ) -> Completed:
        self.argv, self.env, self.stdin = list(argv), env or {}, stdin
        self.directory = self.env["HOME"]
        if self.content is not None:
            (Path(self.directory) / "result.json").write_text(json.dumps(self.content))
        return Completed(tuple(argv), self.answer[0], self.answer[1], self.answer[2])


def data(name: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return found


def level(measured: tool.Measured, profile: Profile = PROFILE) -> Dict[str, Any]:
    return level_of(4, profile.requests_at(4), measured.samples, measured.duration, profile.output_tokens, 2)


def tools(runner: Runner) -> List[Tool]:
    return [VllmBench(aim(), runner, "/opt/vllm/bin/vllm"), GuideLlm(aim(), runner, "/opt/guidellm/bin/guidellm")]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_vllms_file_gives_its_own_figures() -> None:
    found = data("vllm_bench-0.32.0.json")
    samples = vllm_bench.samples_of(found)
    made = level_of(4, 6, samples, found["duration"], 32, None)
    assert made["completed"] == 6 and made["errors"] == [] and made["output_tokens"] == 192
    # The file was cut to six of its requests: what it says of all is made of the same by the same rules.
    ttfts = sorted(found["ttfts"])
    assert made["ttft_ms"]["median"] == pytest.approx(1000 * (ttfts[2] + ttfts[3]) / 2, abs=0.001)
    tpots = sorted((e2e - ttft) / 31 for e2e, ttft in zip(found["latencies"], found["ttfts"], strict=True))
    assert made["tpot_ms"]["p99"] == pytest.approx(1000 * (tpots[4] + 0.95 * (tpots[5] - tpots[4])), abs=0.001)


def test_a_run_of_vllms_lasts_from_the_first_request_to_the_last_token() -> None:
    found = data("vllm_bench-0.32.0.json")
    ends = [begun + took for begun, took in zip(found["start_times"], found["latencies"], strict=True)]
    assert vllm_bench.duration_of(found) == pytest.approx(max(ends) - min(found["start_times"]))
    # As if its last connection had been slow to close.
    found["duration"] += 5.0
    made = level(tools(Playing(found))[0].measure(PROFILE, 4, 1))
    assert made["duration_s"] == pytest.approx(max(ends) - min(found["start_times"]), abs=0.001)


@pytest.mark.parametrize("change", [{"start_times": None}, {"start_times": []}, {"start_times": [1.0]}, {"errors": [""] * 5 + ["Timeout"]}])
def test_vllms_own_duration_counts_where_it_does_not_tell_of_each_request(change: Dict[str, Any]) -> None:
    found = dict(data("vllm_bench-0.32.0.json"), **change)
    assert vllm_bench.duration_of(found) == found["duration"]


def test_vllms_file_of_a_run_that_failed_is_a_failure() -> None:
    found = data("vllm_bench-0.32.0-every-request-failed.json")
    assert found["completed"] == 0, "the tool ended with 0 all the same"
    made = level_of(2, 4, vllm_bench.samples_of(found), found["duration"], 32, None)
    assert (made["completed"], made["failed"]) == (0, 4)
    assert [(each["kind"], each["count"]) for each in made["errors"]] == [("http_500", 4)]


def test_a_request_that_vllm_calls_completed_and_that_was_cut_short_is_none() -> None:
    found = data("vllm_bench-0.32.0.json")
    found["output_lens"][2] = 7
    made = level_of(4, 6, vllm_bench.samples_of(found), found["duration"], 32, None)
    assert made["failed"] == 1 and made["errors"][0]["kind"] == "short" and "7 of 32" in made["errors"][0]["example"]


def test_a_file_without_details_proves_nothing() -> None:
    found = data("vllm_bench-0.32.0.json")
    del found["errors"]
    made = level_of(4, 24, vllm_bench.samples_of(found), found["duration"], 32, None)
    assert made["completed"] == 0 and made["errors"][0]["kind"] == "no_details"


def test_guidellms_file_gives_the_same_figures_by_the_same_names() -> None:
    read = guidellm.samples_of(data("guidellm-0.8.1.json"), 0, 4)
    assert read is not None
    samples, duration = read
    made = level_of(4, 6, samples, duration, 32, None)
    assert made["completed"] == 6 and made["output_tokens"] == 192
    assert duration == pytest.approx(0.4628, abs=0.001)
    assert made["e2e_ms"]["median"] == pytest.approx(140.83, abs=0.01)
    assert made["tpot_ms"]["median"] == pytest.approx(0.027, abs=0.001), "its own TPOT counts the first token in, and is over 4 ms here"
    assert made["itl_ms"]["median"] is None


def test_a_request_of_guidellms_ends_with_its_last_token() -> None:
    found = data("guidellm-0.8.1-times.json")
    requests = found["benchmarks"][0]["requests"]["successful"]
    for request in requests:
        # As if the connections had been slow to close: what it calls a request's end and latency comes after that.
        request["request_end_time"] += 5.0
        request["request_latency"] += 5.0
    read = guidellm.samples_of(found, 4, 1)
    assert read is not None
    samples, duration = read
    last = [request["info"]["timings"]["last_token_iteration"] for request in requests]
    assert duration == pytest.approx(max(last) - requests[4]["request_start_time"])
    e2e = [ended - request["request_start_time"] for ended, request in zip(last, requests, strict=True)]
    assert [sample.e2e for sample in samples] == pytest.approx(e2e[4:])
    # So that what comes before the first token and what comes after it are the whole.
    for sample in samples:
        assert sample.e2e == pytest.approx((sample.ttft or 0.0) + 31 * (sample.tpot or 0.0))


def test_guidellms_warm_up_is_left_out() -> None:
    read = guidellm.samples_of(data("guidellm-0.8.1.json"), 4, 1)
    assert read is not None
    samples, duration = read
    assert len(samples) == 2 and duration == pytest.approx(1795991739.885 - 1795991739.578, abs=0.001)


def test_guidellms_time_begins_when_its_streams_have_gone_over_from_the_warm_up_on_average() -> None:
    found = data("guidellm-0.8.1-times.json")
    requests = found["benchmarks"][0]["requests"]["successful"]
    # Four streams that take turns: each makes a token in 10 ms, and begins 80 ms after the one before it.
    for place, request in enumerate(requests):
        begun = 1000.0 + 0.08 * (place % 4) + 0.32 * (place // 4)
        request["request_start_time"] = begun
        request["info"]["timings"] = {"request_start": begun, "last_token_iteration": begun + 0.32}
    read = guidellm.samples_of(found, 4, 4)
    assert read is not None
    samples, duration = read
    # By the clock it is 0.88 s until the eight are done. In these, the streams that go over last make tokens of the warm-up first, and
    # those that are done first make none in the end: only the latter is lost.
    assert len(samples) == 8 and duration == pytest.approx(0.88 - (0.08 + 0.16 + 0.24) / 4)
    whole = guidellm.samples_of(found, 0, 4)
    assert whole is not None and whole[1] == pytest.approx(1.2), "nothing comes before the first of them"


def test_guidellms_failures_are_told_with_their_reason() -> None:
    found = data("guidellm-0.8.1.json")
    requests = found["benchmarks"][0]["requests"]
    failing = requests["successful"].pop()
    failing["info"] = {"status": "errored", "error": "HTTPStatusError: Server error '500 Internal Server Error' for url"}
    requests["errored"] = [failing]
    requests["incomplete"] = [dict(requests["successful"].pop(), info={"status": "cancelled", "error": None})]
    read = guidellm.samples_of(found, 0, 4)
    assert read is not None
    made = level_of(4, 6, read[0], read[1], 32, None)
    assert sorted(each["kind"] for each in made["errors"]) == ["http_500", "other"] and made["completed"] == 4


def test_guidellms_file_of_a_run_that_failed_is_a_failure() -> None:
    read = guidellm.samples_of(data("guidellm-0.8.1-every-request-failed.json"), 0, 4)
    assert read is not None
    made = level_of(2, 4, read[0], read[1], 32, None)
    assert (made["completed"], made["failed"]) == (0, 4), "the tool ended with 0 all the same"
    assert [(each["kind"], each["count"]) for each in made["errors"]] == [("http_500", 4)]


@pytest.mark.parametrize("found", [{}, {"benchmarks": []}, {"benchmarks": [3]}, {"benchmarks": None}])
def test_a_file_without_a_benchmark_is_none(found: Dict[str, Any]) -> None:
    assert guidellm.samples_of(found, 0, 4) is None


# -- running -----------------------------------------------------------------------------------------------------------


def test_a_tool_is_judged_by_its_file_and_not_by_its_exit_status() -> None:
    for place, content in enumerate((data("vllm_bench-0.32.0.json"), data("guidellm-0.8.1.json"))):
        profile = to_profile({"concurrency": [4], "requests": 6 if place == 0 else 4, "warmup": 2, "output_tokens": 32})
        made = level(tools(Playing(content, rc=1))[place].measure(profile, 4, 1), profile)
        assert made["success_percent"] == 100.0, "it ended with 1, and everything is there"
    made = level(tools(Playing(data("vllm_bench-0.32.0-every-request-failed.json")))[0].measure(PROFILE, 4, 1))
    assert made["success_percent"] == 0.0, "it ended with 0, and nothing is there"


@pytest.mark.parametrize("place", [0, 1])
def test_a_tool_without_a_file_is_an_error_with_its_last_words(place: int) -> None:
    runner = Playing(rc=2, stderr="usage: vllm\nvllm: error: unrecognized arguments: --num-warmups")
    with pytest.raises(GpuFleetError, match="exit status 2: .*unrecognized arguments: --num-warmups") as caught:
        tools(runner)[place].measure(PROFILE, 4, 1)
    assert shlex.split(caught.value.result["command"]) == runner.argv, "one line, to be run by hand"
    assert not os.path.exists(runner.directory)


@pytest.mark.parametrize("place", [0, 1])
def test_the_key_is_in_no_command_and_no_proxy_is_asked(place: int) -> None:
    runner = Playing(data("vllm_bench-0.32.0.json") if place == 0 else data("guidellm-0.8.1.json"))
    measured = tools(runner)[place].measure(PROFILE, 4, 1)
    assert SECRET not in " ".join(runner.argv) and SECRET not in " ".join(measured.command)
    assert SECRET in runner.env.values()
    assert runner.env["no_proxy"] == "*" and runner.env["HTTPS_PROXY"] == "" and runner.env["CUDA_VISIBLE_DEVICES"] == ""
    assert SECRET not in repr(aim())


def test_vllms_command_has_the_whole_load() -> None:
    runner = Playing(data("vllm_bench-0.32.0.json"))
    tools(runner)[0].measure(PROFILE, 4, 10)
    line = " ".join(runner.argv)
    for words in ("--random-input-len 64", "--random-output-len 32", "--num-prompts 6", "--max-concurrency 4", "--num-warmups 2",
                  "--seed 19", "--ignore-eos", "--temperature 0", "--save-detailed", "--served-model-name m",
                  "--tokenizer /models/m"):  # fmt: skip
        assert words in line
    assert runner.argv[:3] == ["setpriv", "--pdeathsig", "KILL"], "it must not outlive the module"
    assert runner.env["HF_HUB_OFFLINE"] == "1" and "--insecure" not in line


def test_a_tokenizer_with_code_of_its_own_is_trusted_as_the_server_trusts_it() -> None:
    argv = VllmBench(aim(trusted=True, tokenizer_mode="mistral"), Playing(), "/x").argv(PROFILE, 4, 1, ".")
    assert "--trust-remote-code" in argv and argv[argv.index("--tokenizer-mode") + 1] == "mistral"
    plain = VllmBench(aim(), Playing(), "/x").argv(PROFILE, 4, 1, ".")
    assert "--trust-remote-code" not in plain and "--tokenizer-mode" not in plain


def test_guidellms_command_has_the_whole_load() -> None:
    runner = Playing(data("guidellm-0.8.1.json"))
    tools(runner)[1].measure(PROFILE, 4, 10)
    line = " ".join(runner.argv)
    for words in ("count=8", "streams=4", "prompt_tokens=64,output_tokens=32", "request_format=/v1/completions", "value=19"):
        assert words in line


def test_a_setting_that_guidellm_cannot_be_given_is_refused() -> None:
    with pytest.raises(GpuFleetError, match="a comma separates its settings"):
        GuideLlm(aim(tokenizer="/models/a,b"), Playing(), "/x").measure(PROFILE, 4, 1)


def test_a_tool_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GpuFleetError, match="part of vLLM.*tool: builtin"):
        VllmBench(aim(), Playing(), str(tmp_path / "vllm")).version()
    with pytest.raises(GpuFleetError, match="pip install guidellm"):
        GuideLlm(aim(), Playing(), str(tmp_path / "guidellm")).version()
    with pytest.raises(GpuFleetError, match="python3-requests"):
        Builtin(aim(), Playing(rc=1), ["/opt/vllm/bin/python3"]).version()


def test_guidellms_version_is_its_own(tmp_path: Path) -> None:
    program = tmp_path / "guidellm"
    program.write_text("")
    program.chmod(0o755)
    assert GuideLlm(aim(), Playing(stdout="guidellm version: 0.8.1\n"), str(program)).version() == "0.8.1"
    with pytest.raises(GpuFleetError, match="no version"):
        GuideLlm(aim(), Playing(rc=1, stderr="ImportError"), str(program)).version()


# -- the built-in one --------------------------------------------------------------------------------------------------


class Second(Playing):
    """Only the second interpreter has the library."""

    def run(
        self, argv: Sequence[str], timeout: float = 30.0, stdin: Optional[str] = None, env: Optional[Mapping[str, str]] = None
    ) -> Completed:
        done = super().run(argv, timeout, stdin, env)
        return Completed(done.argv, 1 if "import requests" in argv and sys.executable in argv else 0, done.stdout, done.stderr)


def test_the_first_interpreter_that_can_is_taken() -> None:
    request = {"start": 1.0, "end": 2.0, "ttft": 0.1, "input_tokens": 64, "output_tokens": 32, "gaps": []}
    answer = {"requests": [request] * 6, "prompts": "words"}
    runner = Second(stdout=json.dumps(answer))
    found = Builtin(aim(), runner, ["/opt/vllm/bin/python3"])
    assert found.version()
    measured = found.measure(PROFILE, 4, 1)
    assert measured.command[0] == "/opt/vllm/bin/python3" and measured.about["prompts"] == "words"
    assert level(measured)["completed"] == 6
    assert runner.stdin is not None and json.loads(runner.stdin)["api_key"] == SECRET
    assert SECRET not in " ".join(measured.command) and SECRET not in " ".join(runner.argv)


def test_what_the_load_generator_refuses_is_told() -> None:
    runner = Second(rc=4, stdout=json.dumps({"refused": "http://x/tokenize gave no answer: refused"}))
    with pytest.raises(GpuFleetError, match="tokenize gave no answer"):
        Builtin(aim(), runner, ["/opt/vllm/bin/python3"]).measure(PROFILE, 4, 1)


def test_its_text_can_be_had_from_wherever_it_was_loaded() -> None:
    assert builtin.source() == Path(load.__file__).read_text(encoding="utf-8")


# -- the workplace -----------------------------------------------------------------------------------------------------


def test_the_workplace_is_private_and_gone_afterwards() -> None:
    with tool.workplace(Runner(), None) as place:
        assert stat.S_IMODE(os.stat(place.directory).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(place.write("x", "y")).st_mode) == 0o600
        done = place.run([sys.executable, "-c", "import os; print(os.environ['HOME'], os.environ['no_proxy'])"], 30.0, {})
        assert done.stdout.split() == [place.directory, "*"]
        directory = place.directory
    assert not os.path.exists(directory)


def test_tools_run_as_the_services_user() -> None:
    with tool.workplace(Runner(), "nobody") as place:
        path = place.write("x", "y")
        done = place.run(["/bin/sh", "-c", "id -u; cat %s" % path], 30.0, {})
        uid = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
        assert done.stdout.split() == [str(uid), "y"], done.stderr
        assert os.stat(path).st_uid == os.stat(place.directory).st_uid == uid


_BEGETS = "setsid sh -c 'echo there; exec sleep 30' & wait"
_MODULE = "import subprocess, sys; subprocess.run(sys.argv[1:])"


@pytest.mark.parametrize("user", [None, "nobody"])
def test_what_a_tool_has_started_dies_with_the_module_too(user: str | None) -> None:
    """The one who waits sees the end of the pipe only when nobody holds it any more: the tool, and what went its own way."""
    command = [*tool.as_user(user), "/bin/sh", "-c", _BEGETS]
    with subprocess.Popen([sys.executable, "-c", _MODULE, *command], stdout=subprocess.PIPE, text=True) as module:
        assert module.stdout is not None
        assert module.stdout.readline() == "there\n"
        module.kill()
        ended = select.select([module.stdout], [], [], 20.0)[0]
        if os.geteuid() == 0:
            assert ended and module.stdout.read() == "", "something of it lives on"
        else:
            assert command[:3] == ["setpriv", "--pdeathsig", "KILL"], "the tool itself, where no namespace can be had"


def test_a_user_that_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(GpuFleetError, match="There is no user no-such-user"):
        tool.as_user("no-such-user")
