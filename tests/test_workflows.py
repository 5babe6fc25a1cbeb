"""The workflows: pinned actions, no right that is not needed, and nothing that is not in this repository.

actionlint and zizmor check the rest. zizmor is installed from PyPI into an environment of its own; actionlint has to be on
the path, or is built with Go by night.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.pythons import REQUIREMENTS

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TOOLS = ROOT / "target" / "workflow-tools"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
ZIZMOR = "zizmor==1.32.0"
PINNED = re.compile(r"^[\w.-]+/[\w./-]+@([0-9a-f]{40}) # v\d+\.\d+\.\d+$")
# The only job with a right to anything but reading, and the right.
MAY_WRITE = {("release", "publish"): {"id-token": "write"}}


def parsed(path):
    return yaml.safe_load(path.read_text())


def jobs():
    """Each job as (workflow, name, job)."""
    return [(path.stem, name, job) for path in WORKFLOWS for name, job in parsed(path)["jobs"].items()]


def runs():
    """Each script in a workflow."""
    return [step["run"] for _, _, job in jobs() for step in job["steps"] if "run" in step]


def test_the_workflows_are_there():
    assert {path.stem for path in WORKFLOWS} == {"ci", "night", "release", "docs", "audit"}


def test_each_action_is_pinned_by_its_hash_and_names_its_version():
    pins = {}
    for path in WORKFLOWS:
        for used in re.findall(r"^\s*(?:- )?uses: (.*)$", path.read_text(), re.M):
            assert PINNED.match(used), f"{path.name}: {used}"
            pins.setdefault(used.partition("@")[0], set()).add(used)
    assert len(pins) > 4
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}


def test_a_workflow_has_no_right_and_each_job_only_what_it_needs():
    for path in WORKFLOWS:
        assert parsed(path)["permissions"] == {}, path.name
    for workflow, name, job in jobs():
        expected = MAY_WRITE.get((workflow, name), {"contents": "read"})
        assert job["permissions"] == expected, (workflow, name)
        assert job["timeout-minutes"] <= 360, (workflow, name)


def test_no_workflow_has_a_secret_or_runs_the_code_of_a_pull_request_with_rights():
    for path in WORKFLOWS:
        text = path.read_text()
        assert "secrets." not in text, path.name
        assert "pull_request_target" not in text, path.name
        assert "workflow_run" not in text, path.name
    for script in runs():
        assert "${{" not in script, f"a value goes to a script by a variable of the environment: {script}"


def test_a_checkout_keeps_no_credentials():
    for workflow, name, job in jobs():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, (workflow, name)


def test_each_command_and_each_file_of_a_script_is_there():
    makefile = (ROOT / "Makefile").read_text()
    for script in runs():
        for target in re.findall(r"\bmake ([a-z-]+)", script):
            assert re.search(rf"^{target}:", makefile, re.M), target
        for place in re.findall(r"\btests/[\w/.]+", script):
            assert (ROOT / place).exists(), place
        for module in re.findall(r"-m (tests\.[\w.]+)", script):
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module


def test_a_release_publishes_the_files_that_were_built_once_and_tested():
    release = parsed(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert [release[name]["needs"] for name in ("test", "publish")] == ["build", ["build", "test"]]
    builds = [
        name for name, job in release.items() if any("make dist" in s.get("run", "") for s in job["steps"])
    ]
    assert builds == ["build"]
    for name in ("test", "publish"):
        assert any(step.get("with", {}).get("name") == "dist" for step in release[name]["steps"]), name


@pytest.mark.parametrize("job", ["test", "publish"])
def test_a_release_goes_on_only_with_the_files_that_were_built(tmp_path, job):
    release = parsed(ROOT / ".github" / "workflows" / "release.yml")["jobs"]

    def done(step, **environment):
        words = ["bash", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(words, cwd=tmp_path, env=os.environ | environment, check=False).returncode

    (tmp_path / "dist").mkdir()
    wheel, sdist = (tmp_path / "dist" / name for name in ("a.whl", "a.tar.gz"))
    for path in (wheel, sdist):
        path.write_text("built")
    (record,) = [step for step in release["build"]["steps"] if step.get("id") == "digests"]
    output = tmp_path / "output"
    assert done(record, GITHUB_OUTPUT=str(output)) == 0
    digests = output.read_text().removeprefix("digests=").strip()
    assert release["build"]["outputs"] == {"digests": "${{ steps.digests.outputs.digests }}"}
    steps = release[job]["steps"]
    (check,) = [step for step in steps if "DIGESTS" in step.get("env", {})]
    assert check["env"]["DIGESTS"] == "${{ needs.build.outputs.digests }}"
    (load,) = [step for step in steps if "download-artifact" in step.get("uses", "")]
    assert steps.index(check) == steps.index(load) + 1
    assert done(check, DIGESTS=digests) == 0
    assert done(check, DIGESTS="") != 0
    (tmp_path / "dist" / "more.whl").write_text("not built")
    assert done(check, DIGESTS=digests) != 0
    (tmp_path / "dist" / "more.whl").unlink()
    sdist.write_text("other")
    assert done(check, DIGESTS=digests) != 0
    sdist.unlink()
    assert done(check, DIGESTS=digests) != 0


def test_a_release_is_tested_with_the_libraries_of_the_other_pythons_and_as_both_files():
    steps = parsed(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["test"]["steps"]
    installs = [
        shlex.split(line)
        for step in steps
        for line in step.get("run", "").splitlines()
        if "pip install" in line
    ]
    wheel, sdist = (words[words.index("install") + 1 :] for words in installs)
    assert wheel == ["${wheels[0]}[all,spark]", *REQUIREMENTS]
    assert sdist == ["${sdists[0]}[cli]"]


@pytest.mark.parametrize("name", ["fault.yml", "wish.yml"])
def test_a_template_of_an_issue_has_what_github_needs(name):
    template = parsed(ROOT / ".github" / "ISSUE_TEMPLATE" / name)
    assert template["name"]
    assert template["description"]
    names = [field["id"] for field in template["body"] if field["type"] != "markdown"]
    assert names
    assert len(names) == len(set(names))
    assert all(field["attributes"].get("label") or field["type"] == "markdown" for field in template["body"])


def test_a_report_of_a_fault_has_to_have_the_report_of_the_doctor():
    fields = parsed(ROOT / ".github" / "ISSUE_TEMPLATE" / "fault.yml")["body"]
    (field,) = [one for one in fields if one.get("id") == "doctor"]
    assert field["validations"]["required"]
    assert "stablelog doctor --json" in field["attributes"]["label"]
    for name in ("SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md"):
        assert "stablelog doctor --json" in (ROOT / name).read_text()


# -- actionlint and zizmor ---------------------------------------------------------------------------------------------


def actionlint():
    """The program, or a skip that names what is missing."""
    found = shutil.which("actionlint") or shutil.which("actionlint", path=TOOLS)
    if found is not None:
        return found
    go = shutil.which("go")
    if go is None or os.environ.get("STABLELOG_NIGHT") != "1":
        pytest.skip("actionlint is not on the path, and is built only by night, with Go")
    environment = os.environ | {"GOBIN": str(TOOLS), "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        [go, "install", ACTIONLINT], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"actionlint cannot be built: {done.stderr.strip()[-200:]}")
    return str(TOOLS / "actionlint")


def zizmor():
    """The program, or a skip that names what is missing."""
    found = shutil.which("zizmor") or shutil.which("zizmor", path=TOOLS / "python" / "bin")
    if found is not None:
        return found
    environment = TOOLS / "python"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", ZIZMOR]
    done = subprocess.run(
        [environment / "bin" / "python", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"zizmor cannot be installed from PyPI: {done.stderr.strip()[-200:]}")
    return str(environment / "bin" / "zizmor")


@pytest.mark.extended
@pytest.mark.xdist_group("workflow tools")
def test_actionlint_finds_nothing():
    done = subprocess.run(
        [actionlint(), "-no-color", *map(str, WORKFLOWS)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extended
@pytest.mark.xdist_group("workflow tools")
def test_zizmor_finds_nothing():
    words = [zizmor(), "--offline", "--persona", "pedantic", "--no-progress", ".github"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
