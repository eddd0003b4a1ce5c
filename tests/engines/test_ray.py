"""A Ray cluster of two workers on this machine writes the bytes of one process, even if a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from segcal.engines import Engine, engine_of
from segcal.types import InputError
from support.commands import refuse, succeed
from support.runs import COMMANDS, contents, five_cases

ray = pytest.importorskip("ray", reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two workers, and a folder that they see."""
    here = Path(__file__).parents[1]
    paths = os.pathsep.join([str(here.parent / "src"), str(here)])
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield tmp_path_factory.mktemp("cluster")
    ray.shutdown()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_cluster_writes_the_bytes_of_one_process(
    cluster: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    five_cases(tmp_path)
    monkeypatch.chdir(tmp_path)
    printed = succeed(*COMMANDS[name], "--out", "one", "--json")
    assert succeed(*COMMANDS[name], "--out", "ray", "--json", "--engine", "ray").replace('"ray"', '"one"') == printed
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    assert not list(tmp_path.glob("*unfinished*"))


def test_a_bad_case_is_refused_and_the_others_are_kept(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = five_cases(tmp_path) / "logits" / "case-4.npy"
    monkeypatch.chdir(tmp_path)
    content = spoiled.read_bytes()
    spoiled.write_bytes(content[:-1])
    line = refuse(*COMMANDS["apply"], "--out", "out", "--engine", "ray")
    assert "case-4.npy' must be a readable .npy file" in line
    assert "4 finished cases are kept in 'out.unfinished'" in line
    spoiled.write_bytes(content)
    succeed(*COMMANDS["apply"], "--out", "out")
    succeed(*COMMANDS["apply"], "--out", "one")
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def killed_once(path: Path) -> bytes:
    """Kill the worker that runs this, unless one was killed before."""
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name.encode()


def test_a_killed_worker_is_replaced(cluster: Path) -> None:
    engine, places = engine_of("ray"), [cluster / name for name in ("a", "b", "c", "d")]
    assert list(engine.map(killed_once, places)) == list(Engine().map(killed_once, places))


def refusing(name: str) -> str:
    if name == "b":
        raise InputError("b is bad")
    return name


def test_errors_of_a_task_are_those_of_its_function(cluster: Path) -> None:
    found = engine_of("ray").map(refusing, ["a", "b", "c"])
    assert next(found) == "a"
    with pytest.raises(InputError, match=r"^b is bad$"):
        next(found)
