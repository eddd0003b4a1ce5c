"""A short slice of the campaign (`python -m tests.campaign`), and whether it would see a defect."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save

from tests.campaign import folders, minimise, mutants
from tests.campaign.checks import Done, check_fit, check_table
from tests.campaign.kept import wrongly_kept
from tests.campaign.mutants import Arena, Mutant, Verdict, _judged, mutant
from tests.campaign.mutators import mutate_tree
from tests.campaign.numbers import measures, pixels_of
from tests.campaign.operators import described, slips
from tests.campaign.reader import UnreadableError, read_data
from tests.campaign.running import Ran
from tests.campaign.subjects import Command, Subject
from tests.campaign.targets import EQUIVALENT, ROOT, TARGETS
from tests.campaign.trees import Tree, become, read_tree, write_tree


def subject(check=check_fit) -> Subject:
    tree = {f"data/{name}": content for name, content in folders.of_npy(np.random.default_rng(0)).items()}
    return Subject("data npy", tree, "data/", (Command(("fit", "data", "--out", "out"), check),))


def test_mutants_are_the_same_for_the_same_seed() -> None:
    one, other = (mutant(3, 5, [subject()]) for _ in range(2))
    assert (one.tree, one.args, one.family) == (other.tree, other.args, other.family)
    assert len({repr(mutant(3, k, [subject()]).tree) for k in range(40)}) > 30


@pytest.mark.parametrize("make", [*folders.FOLDERS.values(), folders.of_atlases])
def test_mutations_change_trees_that_can_be_written(make, tmp_path: Path) -> None:
    tree, now = {f"data/{name}": content for name, content in make(np.random.default_rng(0)).items()}, {}
    for k in range(60):
        changed, _ = mutate_tree(Random(k), tree, "data/")
        become(tmp_path, now, changed)
        now = read_tree(tmp_path)
        assert _files(now) == _files(changed)


def _files(tree: Tree) -> Tree:
    return {name: content for name, content in tree.items() if content is not None}


@pytest.mark.parametrize("name", sorted(folders.FOLDERS))
def test_the_independent_reader_reads_every_folder(name: str) -> None:
    tree = folders.FOLDERS[name](np.random.default_rng(1))
    data = read_data(tree, labels=True)
    assert [case.logits.shape[0] for case in data.cases] == [folders.CLASSES] * len(data.cases)
    assert 0.1 < measures(*pixels_of(data.cases, data.background))["nll"] < 3
    with pytest.raises(UnreadableError):
        read_data(
            {path: content for path, content in tree.items() if "label" not in path and "gt" not in path}, labels=True
        )


JUDGED = {
    "traceback: KeyError in x": Ran(1, "", "", "Traceback ...", "KeyError in x"),
    "exit status 1": Ran(1, "", ""),
    "status 2 without one sentence": Ran(2, "", "segcal: one\nsegcal: two\n"),
    "a refusal of several lines": Ran(2, "", "chatter\nsegcal: one\n"),
    "Python warning: x.py:3: RuntimeWarning": Ran(0, "", "/a/x.py:3: RuntimeWarning: overflow\n"),
    "NaN in JSON: fit": Ran(0, '{"nll_before": NaN}', ""),
    "fit: wrong number": Ran(0, '{"pixels": 72, "nll_before": 1.0, "nll_after": 0.9}', ""),
}


@pytest.mark.parametrize("cause", JUDGED)
def test_every_kind_of_defect_is_seen(cause: str, tmp_path: Path) -> None:
    whole = subject()
    tried = Mutant(0, whole, whole.commands[0], whole.tree, whole.commands[0].args, "bytes")
    found = _judged(tried, JUDGED[cause], whole.tree, whole.tree, {}, tmp_path)
    assert (found.kind, found.cause) == ("defect", cause)


def test_changed_inputs_and_leftovers_are_seen(tmp_path: Path) -> None:
    whole, fine = subject(), Ran(2, "", "segcal: no\n")
    tried = Mutant(0, whole, whole.commands[0], whole.tree, whole.commands[0].args, "bytes")
    judged = lambda after, new: _judged(tried, fine, whole.tree, after, new, tmp_path)  # noqa: E731
    assert judged(whole.tree, {}) == Verdict("refused")
    assert judged({**whole.tree, "data/segcal.toml": b""}, {}).cause == "input changed"
    assert judged(whole.tree, {".out.partial-abcdefgh/x": b""}).cause == "half-written: leftovers"
    assert judged(whole.tree, {"out/x": b""}).cause == "half-written: output of a refusal"


def test_a_value_that_differs_from_the_file_is_a_wrong_number(tmp_path: Path) -> None:
    tree = {"results/images.csv": b"case,metric,value\na,ece,0.25\nb,ece,\n"}
    shown = '{"images": [{"value": %s}, {"value": null}]}'
    assert check_table(Done(tree, shown % "0.25", tmp_path, tree)) is None
    assert check_table(Done(tree, shown % "0.26", tmp_path, tree)) is not None
    assert check_table(Done(tree, shown % "null", tmp_path, tree)) is not None


def test_minimising_keeps_only_the_damage_that_matters() -> None:
    whole = subject()
    tree = dict(whole.tree)
    tree["data/splits.json"] = b"{}"
    content = bytearray(tree["data/logits/a1.npy"] or b"")
    content[200:210] = b"0123456789"
    tree["data/logits/a1.npy"] = bytes(content)
    found = Mutant(0, whole, whole.commands[0], tree, (), "bytes")
    small = minimise.minimised(found, lambda other: (other.tree["data/logits/a1.npy"] or b"")[205:206] == b"5")
    assert minimise.described(small) == [
        f"'data/logits/a1.npy': at 205: {whole.tree['data/logits/a1.npy'][205:206]!r} -> b'5'"
    ]


def test_trees_become_one_another(tmp_path: Path) -> None:
    trees = [{"a/b": b"1", "c": b"2"}, {"a": None, "c": b"2"}, {"a": b"file", "c/d": b"3"}, {}, {"a": None}]
    write_tree(tmp_path, trees[0])
    now = trees[0]
    for wanted in [*trees, *reversed(trees)]:
        become(tmp_path, now, wanted)
        assert read_tree(tmp_path) == wanted
        now = wanted


SLIPS = """
def area(width: int, height: int = 2) -> int:
    \"\"\"Return 1 + 1.\"\"\"
    if width < 0 or not height:
        raise ValueError(1 + 1)
    return width * -height if width > 3 else max(width, 0)
"""


def test_every_slip_changes_one_expression_that_runs() -> None:
    found = {(slip.before, slip.after) for slip in slips(SLIPS)}
    assert found == {
        ("2", "3"),
        ("width < 0 or not height", "width < 0 and (not height)"),
        ("width < 0", "width <= 0"),
        ("0", "1"),
        ("not height", "height"),
        ("width * -height if width > 3 else max(width, 0)", "max(width, 0) if width > 3 else width * -height"),
        ("width * -height", "width / -height"),
        ("-height", "height"),
        ("width > 3", "width >= 3"),
        ("3", "4"),
    }
    for slip in slips(SLIPS):
        assert ast.unparse(ast.parse(SLIPS)) != slip.source
        compile(slip.source, "mutant", "exec")


def test_every_module_of_the_core_has_tests_that_exist() -> None:
    for module, files in TARGETS.items():
        assert (ROOT / "src" / "segcal" / f"{module}.py").is_file()
        assert files
        assert all((ROOT / file).is_file() for file in files)


def test_equivalent_changes_are_changes_of_the_present_code() -> None:
    for module in {module for module, _, _ in EQUIVALENT}:
        present = described((ROOT / "src" / "segcal" / f"{module}.py").read_text(encoding="utf-8"))
        assert {(text, after) for own, text, after in EQUIVALENT if own == module} <= present, module


def test_a_slice_of_the_fuzzing_finds_no_defect() -> None:
    """The full run is `python -m tests.campaign fuzz --number 100000`; docs/results/reliability.md has its table."""
    pytest.importorskip("nibabel")
    found = _python(
        "-m", "tests.campaign", "fuzz", "--methods", "ts", "vector", "--number", "150", "--seed", "7", "--workers", "1"
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "150 tried" in found.stdout


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


MARKER, NOTE = b'{"unfinished": {}}', b'{"case": "a.1", "bytes": [3, 2], "identity": "x"}'
KEPT: Tree = {
    "out.unfinished/segcal.json": MARKER,
    "out.unfinished/found/0a.jsonl": NOTE + b"\n",
    "out.unfinished/a.1.npy": b"123",
    "out.unfinished/temperature/a.1.npy": b"12",
}
SENTENCE = "segcal: no; 1 finished case is kept in 'out.unfinished', and the same command continues from there"


def test_finished_cases_that_are_announced_may_be_kept() -> None:
    assert wrongly_kept(SENTENCE, KEPT) is None


def test_measurements_that_are_announced_may_be_kept() -> None:
    content = save({"x": np.zeros(3, np.float32)}, {"about": "{}"})
    kept = {"out.unfinished/segcal.json": MARKER, "out.unfinished/found/0a-2.safetensors": content}
    sentence = SENTENCE.replace("1 finished case is", "2 finished cases are")
    assert wrongly_kept(sentence, kept) is None
    assert "2 noted" in (wrongly_kept(SENTENCE, kept) or "")
    with pytest.raises(ValueError, match="bytes"):
        wrongly_kept(sentence, {**kept, "out.unfinished/found/0a-2.safetensors": content[:-1]})


@pytest.mark.parametrize(
    ("sentence", "changes", "complaint"),
    [
        (SENTENCE, {"out/a.1.npy": b""}, "output of a refusal"),
        ("segcal: no", {}, "not announced"),
        (SENTENCE.replace("1 finished case is", "2 finished cases are"), {}, "2 cases announced and 1 noted"),
        (SENTENCE, {"out.unfinished/segcal.json": b"{}"}, "without its marker"),
        (SENTENCE, {"out.unfinished/a.1.npy": b"12"}, "noted"),
        (SENTENCE, {"out.unfinished/b.npy": b"12"}, "noted"),
        (SENTENCE, {"out.unfinished/found/0a.jsonl": None}, "noted"),
    ],
)
def test_other_leftovers_of_a_refusal_are_seen(sentence: str, changes: Tree, complaint: str) -> None:
    tree = {name: content for name, content in {**KEPT, **changes}.items() if content is not None}
    assert complaint in (wrongly_kept(sentence, tree) or "")


class Scripted:
    """Commands that leave what a script says."""

    def __init__(self, root: Path, *scenes: tuple[Ran, Tree]) -> None:
        self.root, self.scenes = root, list(scenes)

    def __call__(self, args: object, folder: Path) -> Ran:
        ran, tree = self.scenes.pop(0)
        become(self.root, {name: b"" for name in read_tree(self.root) if name.startswith("out")}, {})
        write_tree(self.root, tree)
        return ran


@pytest.mark.parametrize(
    ("then", "left", "cause"),
    [
        (Ran(0, "fine", ""), {"out/x": b""}, ""),
        (Ran(0, "fine", ""), {**KEPT, "out/x": b""}, "continued: leftovers"),
        (Ran(2, "", "segcal: no\n"), {}, "continued: refused"),
        (Ran(1, "", "", "Traceback ...", "KeyError in x"), {}, "continued: traceback: KeyError in x"),
    ],
)
def test_kept_work_must_be_finished_by_the_same_command(
    then: Ran, left: Tree, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = subject(lambda done: None)
    damaged = {**whole.tree, "data/segcal.toml": b"x"}
    tried = Mutant(0, whole, whole.commands[0], damaged, whole.commands[0].args, "bytes")
    arena = Arena(tmp_path / "arena")
    monkeypatch.setattr(mutants, "run", Scripted(arena.root, (Ran(2, "", f"{SENTENCE}\n"), KEPT), (then, left)))
    assert arena.judge(tried).cause == cause
    assert read_tree(arena.root) == damaged  # ready for the next mutant


SMALL = """
import time
def test_right(): pass
def test_wrong(): assert False
def test_slow(): time.sleep({seconds})
"""


def test_tests_run_in_a_copy_up_to_a_time(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    script = f"""
from pathlib import Path
from tests.campaign.testing import outcome_of
copy, wrong = Path({str(tmp_path)!r}), "tests/test_small.py::test_wrong"
for seconds, left_out, limit in ((0, (), 60), (0, (wrong,), 60), (60, (wrong,), 3)):
    (copy / "tests/test_small.py").write_text({SMALL!r}.format(seconds=seconds))
    found = outcome_of(copy, ["tests/test_small.py"], left_out, first=False, seconds=limit)
    print(found.state, *found.failed)
"""
    found = _python("-c", script)
    assert found.stdout.splitlines() == ["failed tests/test_small.py::test_wrong", "passed", "hung"], found
