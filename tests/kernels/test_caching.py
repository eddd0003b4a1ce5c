"""Compiled code on disk: kept where that is possible and safe, and never a reason to fail."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from segcal.kernels.cpu import caching
from segcal.kernels.cpu.compiling import compiled

SOURCE = "def double(x):\n    return 2 * x\n"
SCRIPT = """
import sys
from pathlib import Path
from segcal.kernels.cpu.compiling import compiled
import twice
for damaged in sys.argv[1:]:
    if damaged != "nothing":
        Path(damaged).write_bytes(b"not a pickle")
    double = compiled(twice.double)
    assert double(21) == 42
    print(double.stats.cache_path, sum(double.stats.cache_hits.values()))
"""


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    caching._report.cache_clear()
    yield
    caching._report.cache_clear()


def run(folder: Path, *damaged: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Compile and call a function of a module in `folder`, in another process, after damage to each of these files."""
    (folder / "twice.py").write_text(SOURCE)
    path = os.pathsep.join([str(folder), str(Path(caching.__file__).parents[3])])
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *damaged],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


def test_code_is_kept_and_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = run(tmp_path, "nothing", NUMBA_CACHE_DIR=str(store))
    (index,) = store.rglob("twice*.nbi")
    (data,) = store.rglob("twice*.nbc")
    # each function that is compiled again looks at the disk, so that one process can see all of it
    second = run(tmp_path, "nothing", str(index), "nothing", str(data), "nothing", NUMBA_CACHE_DIR=str(store))
    assert "Error" not in first.stderr + second.stderr
    hits = [int(line.split()[1]) for done in (first, second) for line in done.stdout.splitlines()]
    assert hits == [0, 1, 0, 1, 0, 1], "compiled, read; damaged and compiled, read"


def test_no_writable_folder_costs_time_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    locators = "UserProvidedCacheLocator"  # as if neither the package nor the home could be written
    done = run(tmp_path, "nothing", NUMBA_CACHE_DIR=str(blocked), NUMBA_CACHE_LOCATOR_CLASSES=locators)
    assert done.stdout.split() == ["None", "0"]
    assert done.stderr.count("compiled kernels are not kept on disk") == 1
    assert "NUMBA_CACHE_DIR" in done.stderr


def test_folders_of_others_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, folder = tmp_path / "a.py", tmp_path / "store"
    source.touch()
    folder.mkdir(mode=0o755)
    assert caching._distrust(folder, source) is None
    folder.chmod(0o777)
    assert "everybody may write" in str(caching._distrust(folder, source))
    folder.chmod(0o755)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert caching._distrust(folder, source) is None, "the owner of the source can run code anyway"
    if folder.stat().st_uid == 0:
        os.chown(folder, 54321, -1)
    assert "another user" in str(caching._distrust(folder, Path("no such file")))


def test_what_cannot_be_trusted_is_compiled_in_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(caching, "_distrust", lambda folder, source: "a folder belongs to another user")
    with caplog.at_level(logging.WARNING, logger="segcal"):
        functions = [compiled(lambda x, k=k: x + k) for k in range(2)]
        assert [function(1) for function in functions] == [1, 2]
    assert [function.stats.cache_path for function in functions] == [None, None]
    assert len(caplog.records) == 1, "said once"


def test_code_that_cannot_be_stored_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(caching.FunctionCache, "save_overload", fail)
    monkeypatch.setattr(caching.FunctionCache, "flush", fail)
    function = compiled(lambda x: x + 3)
    assert function(1) == 4
