# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collection as a whole: what no public gate looks at."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import yaml
from ansible.playbook.task import Task

from ansible_collections.gpufleet.vllm.plugins.action import fleet_report
from ansible_collections.gpufleet.vllm.plugins.module_utils._catalogue.schema import FIELDS

from .conftest import ROOT, Collection

MODULES = Collection().modules()
ROLES = Collection().roles()
# Names of task keywords, such as `when` and `run_once`; whatever else stands in a task is its action.
KEYWORDS = set(Task.fattributes) | {"block", "rescue", "always", "action", "local_action", "with_items"}


def tasks_of(node: Any) -> Iterator[Dict[str, Any]]:
    """Every task in a list of tasks or plays, blocks opened."""
    for item in node or []:
        inner = [key for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always") if key in item]
        if inner:
            for key in inner:
                yield from tasks_of(item[key])
        elif "hosts" not in item and not any(key.endswith("import_playbook") for key in item):
            yield item


def actions_of(text: str) -> List[str]:
    """The actions that a YAML text of tasks or plays uses."""
    return [key for task in tasks_of(yaml.safe_load(text)) for key in task if key not in KEYWORDS]


def test_there_is_something_to_check() -> None:
    assert {"fleet_report", "gpu_memory_facts", "gpu_reclaim", "vllm_catalogue", "vllm_service"} <= set(MODULES)
    assert {"gpu_reclaim", "vllm_service", "vllm_swap"} <= set(ROLES)


def test_the_action_group_is_all_modules(collection: Collection) -> None:
    assert collection.yaml("meta/runtime.yml")["action_groups"] == {"all": MODULES}


def test_supported_cores_are_said_once(collection: Collection) -> None:
    assert collection.yaml("meta/runtime.yml")["requires_ansible"] == ">=2.19.0"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_states_its_attributes(collection: Collection, module: str) -> None:
    attributes = collection.attributes(module)
    assert {"check_mode", "diff_mode", "idempotent", "action_group", "platform"} <= set(attributes)
    for name, value in attributes.items():
        assert value.get("support"), "%s has no support" % name
        assert value.get("description"), "%s is described nowhere" % name
    assert collection.module_block(module, "DOCUMENTATION")["version_added"]


@pytest.mark.parametrize("module", MODULES)
def test_every_return_value_has_a_type_and_a_sample(collection: Collection, module: str) -> None:
    returned = collection.module_block(module, "RETURN")
    assert returned
    for name, value in returned.items():
        assert value.get("description") and value.get("returned") and value.get("type"), name
        assert "sample" in value or "contains" in value, name
        assert value.get("sample") not in ([], {}), "%s: a sample shows something" % name
        if value["type"] == "list":
            assert value.get("elements"), name


@pytest.mark.parametrize("module", MODULES)
def test_examples_use_full_names(collection: Collection, module: str) -> None:
    text = Collection.constant(ROOT / "plugins" / "modules" / (module + ".py"), "EXAMPLES")
    actions = actions_of(text)
    assert "gpufleet.vllm." + module in actions
    assert [action for action in actions if action.count(".") < 2] == []


def test_a_facts_module_promises_facts_and_nothing_else(collection: Collection) -> None:
    for module in MODULES:
        if module.endswith("_facts"):
            assert list(collection.module_block(module, "RETURN")) == ["ansible_facts"]


@pytest.mark.parametrize("path", [str(p.relative_to(ROOT)) for p in Collection().files("playbooks/*.yml")])
def test_playbooks_use_full_names(path: str) -> None:
    actions = actions_of((ROOT / path).read_text(encoding="utf-8"))
    assert actions
    assert [action for action in actions if action.count(".") < 2] == []


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_defaults_are_what_its_specs_say(collection: Collection, role: str) -> None:
    options = collection.yaml("roles/%s/meta/argument_specs.yml" % role)["argument_specs"]["main"]["options"]
    defaults = collection.yaml("roles/%s/defaults/main.yml" % role) or {}
    assert [name for name in options if not name.startswith(role + "_")] == []
    assert sorted(set(defaults) - set(options)) == []
    specified = {name: option["default"] for name, option in options.items() if "default" in option}
    # A default that is a template has no value before the play; the specs describe it in words.
    plain = {name: value for name, value in defaults.items() if "{{" not in str(value)}
    assert plain == specified
    assert [name for name, option in options.items() if option.get("required") and name in defaults] == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_describes_itself(collection: Collection, role: str) -> None:
    assert (ROOT / "roles" / role / "README.md").is_file()
    main = collection.yaml("roles/%s/meta/argument_specs.yml" % role)["argument_specs"]["main"]
    assert main["short_description"]
    for name, option in main["options"].items():
        assert option.get("description") and option.get("type"), name


def test_the_reports_options_are_the_documented_ones(collection: Collection) -> None:
    documented = collection.module_block("fleet_report", "DOCUMENTATION")["options"]
    assert described(documented) == described(fleet_report.ARGUMENT_SPEC)


def described(options: Dict[str, Any]) -> Dict[str, Tuple[Any, ...]]:
    """What documentation and an argument spec both say about options."""
    return {
        name: (
            option.get("type", "str"),
            option.get("elements"),
            option.get("choices"),
            option.get("default"),
            bool(option.get("required")),
            described(option.get("suboptions") or option.get("options") or {}),
        )
        for name, option in options.items()
    }


def test_the_catalogue_and_the_module_know_the_same_options(collection: Collection) -> None:
    options = collection.module_block("vllm_service", "DOCUMENTATION")["options"]
    taken = {field.option for field in FIELDS.values() if field.option}
    assert sorted(taken - set(options)) == []
    # What the catalogue has no key for is the playbook's to decide.
    assert set(options) - taken == {"name", "deployment", "state", "enabled", "replace", "rollback", "wait", "reconnect_timeout"}
    assert set(options["guard"]["suboptions"]) == {"enabled", "timeout", "margin_mib"}


def test_every_source_file_names_its_licence(collection: Collection) -> None:
    bare = []
    for name in collection.tracked():
        if name.endswith((".py", ".sh", ".c", ".h")) or name in (".ci/run", "Makefile"):
            head = (ROOT / name).read_text(encoding="utf-8")[:600]
            if head and ("SPDX-License-Identifier: GPL-3.0-or-later" not in head or "Copyright (c) 2026" not in head):
                bare.append(name)
    assert bare == []


def test_the_version_is_the_same_everywhere(collection: Collection) -> None:
    version = collection.yaml("galaxy.yml")["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    for module in MODULES:
        added = str(collection.module_block(module, "DOCUMENTATION")["version_added"])
        assert tuple(map(int, added.split("."))) <= tuple(map(int, version.split(".")))


TEMPLATED = sorted(str(path.relative_to(ROOT)) for part in ("playbooks", "roles") for path in (ROOT / part).rglob("*.yml"))


@pytest.mark.parametrize("path", TEMPLATED)
def test_no_template_calls_what_a_variable_of_ours_may_be_named(path: str) -> None:
    """`query` is Jinja's function until somebody sets the variable of that name."""
    text = "\n".join(line for line in (ROOT / path).read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"\bquery\(", text), "lookup(..., wantlist=true) is the same"
