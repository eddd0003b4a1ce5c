"""Compiled code on disk: kept where that is possible and safe, and never a reason to fail."""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from segcal.kernels.cpu import compiling
from segcal.kernels.cpu.compiling import compiled
from support.program import python

SOURCE = "def double(x):\n    return 2 * x\n"
SCRIPT = """
from segcal.kernels.cpu.compiling import compiled
import twice
double = compiled(twice.double)
assert double(21) == 42
print(double.stats.cache_path, sum(double.stats.cache_hits.values()))
"""


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    compiling._warn_once.cache_clear()
    yield
    compiling._warn_once.cache_clear()


def run(folder: Path, **environment: str) -> CompletedProcess[str]:
    """Compile and call a function of a module in `folder`, in another process."""
    (folder / "twice.py").write_text(SOURCE)
    script = f"import sys; sys.path[0] = {str(folder)!r}{SCRIPT}"
    done = python("-c", script, PYTHONDONTWRITEBYTECODE="1", **environment)
    assert done.returncode == 0, done.stderr
    return done


def test_code_is_kept(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    found = [run(tmp_path, NUMBA_CACHE_DIR=store).stdout.split()[1] for _ in range(2)]
    assert found == ["0", "1"], "compiled, then read"


def test_no_writable_folder_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    locators = "UserProvidedCacheLocator"  # as if neither the package nor the home could be written
    done = run(tmp_path, NUMBA_CACHE_DIR=str(blocked), NUMBA_CACHE_LOCATOR_CLASSES=locators)
    assert done.stdout.split() == ["None", "0"]
    assert done.stderr.count("compiled kernels are not kept on disk") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs owners of folders")
def test_folders_of_others_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o755)
    assert compiling._is_trusted(folder)
    folder.chmod(0o777)
    assert not compiling._is_trusted(folder), "everybody may write to it"
    folder.chmod(0o755)
    if folder.stat().st_uid == 0:  # root may give it away
        os.chown(folder, 54321, -1)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not compiling._is_trusted(folder), "it belongs to another user"


def test_without_a_trusted_folder_functions_are_compiled_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "_is_trusted", lambda folder: False)
    with caplog.at_level(logging.WARNING, logger="segcal"):
        functions = [compiled(lambda x, k=k: x + k) for k in range(2)]
        assert [function(1) for function in functions] == [1, 2]
    assert [function.stats.cache_path for function in functions] == [None, None]
    assert len(caplog.records) == 1, "reported once"


def test_kernels_assign_no_array_to_a_slice() -> None:
    """numba then compiles 30 functions for the text of an error, which takes two seconds at the first use."""
    for file in Path(compiling.__file__).parent.glob("*.py"):
        for function in compiled_functions(ast.parse(file.read_text("utf-8"))):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                    parts = [*ast.walk(node.targets[0]), *ast.walk(node.value.slice)]
                    slices = [part for part in parts if isinstance(part, ast.Slice)]
                    assert len(slices) < 2, f"{file.name}:{node.lineno}"


def compiled_functions(module: ast.Module) -> list[ast.FunctionDef]:
    names = {"compiled", "summing", "inlined"}
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return [each for each in functions if names & {getattr(mark, "id", "") for mark in each.decorator_list}]
