"""Layers: a unit imports only from floors below its own; imports are light, and no file can run code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import segcal
from support.program import printed_by

ROOT = Path(segcal.__file__).parent
FLOORS = (
    ("types", "text", "version"),
    ("files", "progress"),
    ("kernels",),
    ("functional", "networks"),
    ("cases", "evidence", "regions", "losses", "oracle", "data", "statistics", "training"),
    ("engines", "calibrators", "fusion", "tables"),
    ("evaluation", "apply"),
    ("report",),
    ("integrations",),
    ("cli",),
    ("__main__",),  # starts cli, so it lies above it
)
"""Top-level modules and packages of segcal. A new one must be placed here, above everything that it imports."""

OPTIONAL = {"nibabel", "SimpleITK", "sklearn", "matplotlib", "plotly", "onnx", "torchvision"}
"""Packages that only some functions need."""

HEAVY = OPTIONAL | {"pandas", "scipy", "torchmetrics", "numba", "rich", "typer", "safetensors", "PIL"}
"""Packages that are not needed to build a case."""

parsed = cache(ast.parse)


def floor_of(unit: str) -> int:
    found = [k for k, units in enumerate(FLOORS) if unit in units]
    assert len(found) == 1, f"'{unit}' must be placed on one floor of FLOORS, it is on {len(found)}"
    return found[0]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its name inside segcal: `losses`, `data.io`, `data` for `data/__init__.py`."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:  # segcal/__init__.py holds the public names and may import anything
            found[name] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of segcal that a module imports, anywhere in its text."""
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif text := imported_by_name(node):
            targets = [text]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively; write from segcal.{name} in full"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target == "segcal" or target.startswith("segcal."):
                yield longest_module(target.removeprefix("segcal").removeprefix("."), known)


def imported_by_name(node: ast.AST) -> str | None:
    """The module in `import_module("segcal...")`; formatted names load parts of the own package."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args):
        return None
    text = node.args[0]
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else None


def longest_module(target: str, known: dict[str, Path]) -> str:
    """The module that a dotted name lies in; "" for the package itself."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def sideways(known: dict[str, Path]) -> list[str]:
    """Imports that do not go down, one sentence each."""
    wrong = []
    for name, path in known.items():
        unit = name.partition(".")[0]
        for target in imports(name, path, known):
            other = target.partition(".")[0]
            if not target:
                wrong.append(f"{name} imports the package segcal itself, which lies above everything")
            elif other != unit and floor_of(other) >= floor_of(unit):
                wrong.append(f"{name} (floor {floor_of(unit)}) imports {target} (floor {floor_of(other)})")
    return wrong


def cycle(known: dict[str, Path]) -> list[str] | None:
    """Modules that import one another in a circle, if there are any."""
    try:
        TopologicalSorter({name: {*imports(name, path, known)} - {name, ""} for name, path in known.items()}).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return None


def test_every_unit_has_its_floor() -> None:
    for unit in {name.partition(".")[0] for name in modules()}:
        floor_of(unit)


def test_the_table_of_the_contributors_has_every_floor() -> None:
    page = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page.partition("| floor | modules |")[2], flags=re.MULTILINE)
    assert {int(floor): tuple(re.findall(r"`(\w+)`", units)) for floor, units in rows} == dict(enumerate(FLOORS))


def test_few_modules_lie_loose() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 10


def test_imports_go_down() -> None:
    assert sideways(modules()) == []


def test_no_circle_of_imports() -> None:
    assert cycle(modules()) is None


def build(root: Path, texts: dict[str, str]) -> dict[str, Path]:
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return modules(root)


@pytest.mark.parametrize(
    "line",
    [
        "from segcal.evaluation import results",  # upwards
        "import segcal.evaluation",
        "from segcal import evaluation",
        "from segcal.regions import boundary",  # sideways
        "from segcal import Case",  # the package itself
        "def late():\n    from segcal.cli.app import app",  # hidden in a function
        "if True:\n    import segcal.cli.app as cli",
    ],
)
def test_the_test_sees_imports_that_do_not_go_down(tmp_path: Path, line: str) -> None:
    others = {"evaluation.py": "", "regions.py": "", "cli.py": "", "types.py": "", "data/__init__.py": ""}
    known = build(tmp_path, {**others, "statistics.py": line})
    assert len(sideways(known)) == 1
    assert sideways(build(tmp_path, {"statistics.py": "from segcal.types import Case\nimport torch"})) == []


def test_the_test_sees_circles_and_unknown_units(tmp_path: Path) -> None:
    known = build(tmp_path, {"data/a.py": "from segcal.data import b", "data/b.py": "from segcal.data.a import x"})
    assert cycle(known) == ["data.a", "data.b"]
    with pytest.raises(AssertionError, match="'attic' must be placed"):
        floor_of("attic")


def loaded_by(*statements: str) -> list[set[str]]:
    """The packages that a fresh interpreter has loaded after each of several statements."""
    shown = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    code = "\n".join(f"{statement}\n{shown}" for statement in statements)
    return [set(line.split()) for line in printed_by("-c", code).splitlines()]


def test_imports_are_light() -> None:
    lazy, case, functions = loaded_by(
        "import segcal; dir(segcal); segcal.__version__",
        "segcal.Case; segcal.InputError",
        "segcal.evaluate; segcal.CalibratedModel; segcal.load_sample",
    )
    assert lazy & (HEAVY | {"torch", "numpy"}) == set()
    assert case & HEAVY == set()
    assert functions & (OPTIONAL | {"torchmetrics"}) == set()
    (commands,) = loaded_by("import segcal.cli.app")
    assert commands & (HEAVY | {"torch", "numpy"}) - {"rich", "typer"} == set()


def unsafe(text: str) -> list[str]:
    """Ways in which reading a file could run code: pickle and everything built on it."""
    found = []
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            roots = {name.partition(".")[0] for name in names}
            found += sorted(roots & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"})
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found += [] if isinstance(node.value, ast.Constant) and node.value.value is False else ["allow_pickle"]
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            found += [dotted] if dotted in ("torch.load", "torch.save", "pd.read_pickle", "pandas.read_pickle") else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            given = any(keyword.arg == "allow_pickle" for keyword in node.keywords)
            found += [] if given else ["np.load without allow_pickle=False"]
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec"):
            found.append(node.id)
    return found


def test_no_file_can_run_code() -> None:
    assert {path: found for path in ROOT.rglob("*.py") if (found := unsafe(path.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import numpy as np\nnp.load('a', allow_pickle=True)",
        "import numpy as np\nflag = True\nnp.load('a', allow_pickle=flag)",
        "import numpy as np\nnp.load('a')",
        "import torch\ntorch.load('a')",
        "from x import y\neval('1')",
    ],
)
def test_the_test_sees_unsafe_code(text: str) -> None:
    assert len(unsafe(text)) == 1
    assert unsafe("import numpy as np\nnp.load('a', allow_pickle=False)") == []
