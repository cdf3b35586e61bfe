# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model catalogue: what is accepted, what it becomes, and how each mistake is named."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.resolve import examine, resolve
from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.schema import FIELDS
from ansible_collections.gpufleet.vllm.plugins.module_utils._core.errors import GpuFleetError

MINIMAX: Dict[str, Any] = {
    "path": "/models/MiniMax-M2.5",
    "repo": "MiniMaxAI/MiniMax-M2.5",
    "revision": "0123456789abcdef0123456789abcdef01234567",
    "gpus": [0, 1, 2, 3],
    "port": 8000,
    "args": {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.92},
}
CATALOGUE: Dict[str, Any] = {"minimax-m2.5": MINIMAX, "kimi-k2.5-int4": {"repo": "moonshotai/Kimi-K2.5"}}


def problem_of(entry: Any, name: str = "m") -> str:
    """The one problem of an entry."""
    problems, parameters = examine({"m": entry}, name)
    assert parameters == {}
    assert len(problems) == 1, problems
    return problems[0]


def with_path(**more: Any) -> Dict[str, Any]:
    return {"path": "/models/m", **more}


def test_an_entry_becomes_the_modules_parameters() -> None:
    assert resolve(CATALOGUE, "minimax-m2.5") == {
        "name": "minimax-m2.5",
        "model": "/models/MiniMax-M2.5",
        "served_name": "minimax-m2.5",
        "gpus": ["0", "1", "2", "3"],
        "port": 8000,
        "args": {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.92},
    }


def test_a_repository_alone_means_the_default_directory() -> None:
    assert resolve(CATALOGUE, "kimi-k2.5-int4")["model"] == "/models/Kimi-K2.5"


def test_numbers_in_quotes_declare_the_same_service() -> None:
    quoted = dict(MINIMAX, gpus="0,1, 2,03", port="8000", ready_timeout="600", smoke="yes")
    plain = dict(MINIMAX, ready_timeout=600.0, smoke=True)
    assert resolve({"m": quoted}, "m") == resolve({"m": plain}, "m")


def test_a_name_that_yaml_reads_as_a_number_is_found() -> None:
    assert resolve({4.5: with_path()}, "4.5")["served_name"] == "4.5"
    assert resolve({"4.5": with_path()}, 4.5)["name"] == "4.5"


def test_every_key_is_accepted() -> None:
    entry = with_path(
        repo="a/b", revision="main", source="ops@mirror01:/models/b", served_name="s", gpus="all", port=1, host="127.0.0.1", args={},
        env={"A": 1},
        secrets={"HF_TOKEN": "x"}, executable="/opt/vllm/bin/vllm", user="u", group="g",
        unit_options={"Service": {"Nice": 5}}, guard={"enabled": False, "timeout": "9", "margin_mib": 0},
        drain_timeout=0, stop_timeout=1, ready_timeout=1, steady_time=0, smoke=False, overlap="never", warm_cache=False,
        preflight="warn", model_facts_path="/m",
    )  # fmt: skip
    assert set(entry) == set(FIELDS)
    parameters = resolve({"m": entry}, "m")
    assert parameters["guard"] == {"enabled": False, "timeout": 9, "margin_mib": 0}
    assert parameters["secrets"] == {"HF_TOKEN": "x"}
    assert set(parameters) == {field.option for field in FIELDS.values() if field.option} | {"name"}


def test_a_key_without_a_value_is_as_good_as_no_key() -> None:
    assert "port" not in resolve({"m": with_path(port=None)}, "m")


@pytest.mark.parametrize("models", [None, {}, [], "minimax"])
def test_a_catalogue_that_is_none(models: Any) -> None:
    with pytest.raises(GpuFleetError, match="vllm_models"):
        resolve(models, "minimax")


@pytest.mark.parametrize("name", [None, "", "  "])
def test_no_model_given_says_which_there_are(name: Any) -> None:
    with pytest.raises(GpuFleetError, match=r"No model was given.*-e model=NAME.*kimi-k2\.5-int4, minimax-m2\.5"):
        resolve(CATALOGUE, name)


def test_an_unknown_model_says_which_is_near_and_which_there_are() -> None:
    with pytest.raises(GpuFleetError) as caught:
        resolve(CATALOGUE, "minimax-m2")
    assert caught.value.msg == (
        "The model 'minimax-m2' is not in the catalogue (did you mean 'minimax-m2.5'?)."
        " The catalogue has: kimi-k2.5-int4, minimax-m2.5."
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (["x"], "has to be a dictionary with at least `path` or `repo`, not a list"),
        ({"gpus": [0]}, "needs `path`"),
        (with_path(gpu=[0]), "unknown key 'gpu' (did you mean 'gpus'?). Allowed: path, repo"),
        (with_path(gpuz=[0], prot=1), "unknown keys 'gpuz' (did you mean 'gpus'?), 'prot' (did you mean 'port'?)"),
        (with_path(state="started"), "'state' does not belong here: the playbook decides it"),
        (with_path(max_model_len=1), "'max_model_len' does not belong here: it is an engine argument"),
        ({"path": "models/m"}, ".path has to be an absolute path on the host, not 'models/m'"),
        ({"path": "/models/\nm"}, ".path holds a control character"),
        (with_path(source="models/b"), ".source has to be a directory of the host, or one of another host such as mirror01:/"),
        ({"repo": "https://host/a/b"}, ".repo has to be a repository such as"),
        (with_path(revision=123), ".revision has to be text in quotes, not 123"),
        (with_path(served_name="a b"), ".served_name has to be one word"),
        (with_path(served_name=True), ".served_name has to be one word"),
        (with_path(port="eight"), ".port has to be a whole number, not 'eight'"),
        (with_path(port=0), ".port has to be between 1 and 65535"),
        (with_path(port=True), ".port has to be a whole number"),
        (with_path(port=8000.5), ".port has to be a whole number"),
        (with_path(gpus=[]), '.gpus has to be "all" or a list'),
        (with_path(gpus={"a": 1}), '.gpus has to be "all" or a list'),
        (with_path(gpus=[0, True]), ".gpus holds True"),
        (with_path(gpus=[0, -1]), ".gpus holds -1; indices start at 0"),
        (with_path(gpus=[0, "0"]), ".gpus names GPU 0 twice"),
        (with_path(gpus=["all", 1]), '"all" beside other GPUs'),
        (with_path(args=["--x"]), ".args has to be a dictionary of engine arguments"),
        (with_path(args={"--max-num-seqs": 1}), "named without leading dashes"),
        (with_path(args={"max_num_seqs": None}), "max_num_seqs has no value"),
        (with_path(args={"served-model-name": "x"}), ".args.served-model-name goes in `served_name` instead"),
        (with_path(args={"api_key": "x"}), ".args.api_key goes in `secrets`, as VLLM_API_KEY instead"),
        (with_path(env={"A B": 1}), "cannot be the name of an environment variable"),
        (with_path(env={"A": [1]}), ".env A has to be text or a number, not a list"),
        (with_path(secrets="x"), ".secrets has to be a dictionary"),
        (with_path(secrets={"HF_TOKEN": ""}), ".secrets HF_TOKEN is empty"),
        (with_path(unit_options={"Service": "Nice=5"}), ".unit_options Service has to be a dictionary of settings"),
        (with_path(guard={"timeoutt": 5}), ".guard has no key 'timeoutt' (did you mean 'timeout'?)"),
        (with_path(guard={"timeout": "soon"}), ".guard timeout has to be a whole number"),
        (with_path(smoke="maybe"), ".smoke has to be true or false"),
        (with_path(preflight="off"), ".preflight has to be one of enforce, warn, skip"),
        (with_path(stop_timeout=0), ".stop_timeout has to be between 1 and"),
    ],
)
def test_each_mistake_is_named(entry: Any, expected: str) -> None:
    problem = problem_of(entry)
    assert problem.startswith("vllm_models['m']")
    assert expected in problem


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(GpuFleetError) as caught:
        resolve({"m": {"gpu": 1, "port": "x", "smoke": 7}}, "m")
    assert caught.value.msg.startswith("4 problems in the model catalogue:\n- ")
    assert len(caught.value.result["problems"]) == 4


@pytest.mark.parametrize("secrets", [{"KEY": ["hunter2"]}, {"A KEY": "hunter2"}, ["hunter2"], "hunter2"])
def test_no_message_repeats_a_secret(secrets: Any) -> None:
    assert "hunter2" not in problem_of(with_path(secrets=secrets))


def test_no_message_repeats_an_entry_of_the_wrong_form() -> None:
    assert "hunter2" not in problem_of([{"secrets": {"KEY": "hunter2"}}])
    assert "hunter2" not in problem_of("VLLM_API_KEY=hunter2")


@pytest.mark.parametrize(("models", "name", "said"), [
    ({"模型": {"path": "/m"}}, "模型", "can't be made a unit's name"),
    ({"---": {"path": "/m"}}, "---", "can't be made a unit's name"),
    ({"x" * 200: {"path": "/m"}}, "x" * 200, "too long"),
    ({"a b": {"path": "/m"}, "A-b": {"path": "/m"}}, "a b", "would both be the unit vllm-a-b.service"),
    ({"m": {"path": "/m", "gpus": [4, "x"]}}, "m", "gpus holds 'x', which is neither an index"),
    ({"m": {"path": "/m", "gpus": "0,1,two"}}, "m", "holds 'two'"),
    ({"m": {"path": "/m", "gpus": ["GPU"]}}, "m", "holds 'GPU'"),
])  # fmt: skip
def test_what_no_host_could_take_is_found_before_any_host_is_asked(models: dict[str, Any], name: str, said: str) -> None:
    problems, parameters = examine(models, name)
    assert len(problems) == 1 and said in problems[0] and parameters == {}, problems


@pytest.mark.parametrize("gpu", ["7", "GPU-1c2d", "MIG-0a1b-22", "MIG-GPU-1c2d/3/0", "0000:1b:00.0", "00000000:1B:00.0", "1b:00.0"])
def test_every_form_of_a_gpu_is_taken(gpu: str) -> None:
    assert examine({"m": {"path": "/m", "gpus": [gpu]}}, "m")[1]["gpus"] == [gpu]


@pytest.mark.parametrize(("args", "said"), [
    ({"max_model_len": 4096, "max-model-len": 8192}, "max_model_len and max-model-len are the same argument. Give it once."),
    ({"max_num_seqs": 8, "max_num-seqs": 8}, "are the same argument. Give it once."),
])
def test_an_argument_in_two_spellings_is_found_before_any_host_is_asked(args: Dict[str, Any], said: str) -> None:
    problem = problem_of(with_path(args=args))
    assert problem.startswith("vllm_models['m'].args: ") and said in problem


def test_the_message_of_one_problem_begins_with_the_name_as_it_is() -> None:
    with pytest.raises(GpuFleetError, match=r"^vllm_models\['m'\]\.port has to be"):
        resolve({"m": with_path(port="x")}, "m")
    with pytest.raises(GpuFleetError, match="^The model 'n' is not in the catalogue"):
        resolve({"m": with_path()}, "n")
