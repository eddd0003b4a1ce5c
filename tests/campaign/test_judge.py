"""Whether the campaign would see a defect: its judge, its independent reader and its damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nibabel")

from tests.campaign import folders, judge
from tests.campaign.artefacts import Artefact, Command
from tests.campaign.checks import Done, check_fit, check_table, measured
from tests.campaign.damage import Damaged, damaged
from tests.campaign.judge import Arena, Attack, DefectError, judged
from tests.campaign.reader import RegionsError, UnreadableError, read_data
from tests.campaign.running import Ran
from tests.campaign.trees import Tree, become, read_tree, write_tree

FIT = ("fit", "data", "--out", "out")


def attack(check=check_fit, **changes: bytes) -> Attack:
    tree = {f"data/{name}": content for name, content in folders.of_npy(np.random.default_rng(0)).items()}
    command = Command(FIT, check)
    return Attack(Artefact("data npy", tree, "data/", (command,)), command, FIT, {**tree, **changes})


def trees() -> list[Tree]:
    made = [make(np.random.default_rng(0)) for make in (*folders.FOLDERS.values(), folders.of_atlases)]
    return [{f"data/{name}": content for name, content in tree.items()} for tree in made]


@given(damage=st.sampled_from(trees()).flatmap(lambda tree: damaged(tree, "data/")))
def test_damaged_trees_can_be_written(damage: Damaged, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tree")
    become(folder, {}, damage.tree)
    files = {name: content for name, content in damage.tree.items() if content is not None}
    assert {name: content for name, content in read_tree(folder).items() if content is not None} == files


@pytest.mark.parametrize("name", sorted(folders.FOLDERS))
def test_the_independent_reader_reads_every_folder(name: str) -> None:
    tree = folders.FOLDERS[name](np.random.default_rng(1))
    if name in ("bids", "channels"):  # judged by form only
        with pytest.raises(RegionsError):
            read_data(tree, labels=True)
        return
    data = read_data(tree, labels=True)
    assert [case.logits.shape[0] for case in data.cases] == [folders.CLASSES] * len(data.cases)
    assert 0.1 < measured(data)["nll"] < 3
    with pytest.raises(UnreadableError):
        read_data(
            {path: content for path, content in tree.items() if "label" not in path and "gt" not in path}, labels=True
        )


FINE, NO = Ran(0, "", ""), Ran(2, "", "segcal: no\n")


@pytest.mark.parametrize(
    ("cause", "ran", "new"),
    [
        ("traceback: KeyError in x", Ran(1, "", "", "Traceback ...", "KeyError in x"), {}),
        ("exit status 1", Ran(1, "", ""), {}),
        ("status 2 without one sentence", Ran(2, "", "segcal: one\nsegcal: two\n"), {}),
        ("a refusal of several lines", Ran(2, "", "chatter\nsegcal: one\n"), {}),
        ("Python warning: x.py:3: RuntimeWarning", Ran(0, "", "/a/x.py:3: RuntimeWarning: overflow\n"), {}),
        ("NaN in JSON: fit", Ran(0, '{"nll_before": NaN}', ""), {}),
        ("fit: wrong number", Ran(0, '{"pixels": 72, "nll_before": 1.0, "nll_after": 0.9}', ""), {}),
        ("input changed", NO, {"data/segcal.toml": b""}),
        ("half-written: leftovers", NO, {".out.partial-abcdefgh/x": b""}),
        ("half-written: output of a refusal", NO, {"out/x": b""}),
        ("half-written: output of a refusal", NO, {"out.unfinished/x": b""}),
    ],
)
def test_every_kind_of_defect_is_seen(cause: str, ran: Ran, new: Tree, tmp_path: Path) -> None:
    tried = attack()
    with pytest.raises(DefectError, match=f"^{cause}"):
        judged(tried, ran, {**tried.tree, **new}, tmp_path)


def test_a_sentence_and_work_that_it_announces_are_no_defect(tmp_path: Path) -> None:
    tried = attack()
    assert judged(tried, NO, tried.tree, tmp_path) == "refused"
    kept = Ran(2, "", "segcal: no; 1 finished case is kept in 'out.unfinished', and the same command continues\n")
    assert judged(tried, kept, {**tried.tree, "out.unfinished/x": b""}, tmp_path) == "refused"


def test_a_value_that_differs_from_the_file_is_a_wrong_number(tmp_path: Path) -> None:
    tree = {"results/images.csv": b"case,metric,value\na,ece,0.25\nb,ece,\n"}
    shown = '{"images": [{"value": %s}, {"value": null}]}'
    assert check_table(Done(tree, shown % "0.25", tmp_path, tree)) is None
    assert check_table(Done(tree, shown % "0.26", tmp_path, tree)) is not None
    assert check_table(Done(tree, shown % "null", tmp_path, tree)) is not None


@pytest.mark.parametrize(
    ("then", "left", "cause"),
    [
        (Ran(0, "fine", ""), {"out/x": b""}, None),
        (Ran(0, "fine", ""), {"out.unfinished/x": b"", "out/x": b""}, "continued: leftovers"),
        (NO, {}, "continued: refused"),
        (Ran(1, "", "", "Traceback ...", "KeyError in x"), {}, "traceback: KeyError in x"),
    ],
)
def test_kept_work_must_be_finished_by_the_same_command(
    then: Ran, left: Tree, cause: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path / "arena")
    kept = Ran(2, "", "segcal: no; 1 finished case is kept in 'out.unfinished', and the same command continues\n")
    scenes = [(kept, {"out.unfinished/x": b""}), (then, left)]

    def run(args: object, folder: Path) -> Ran:
        ran, tree = scenes.pop(0)
        become(folder, {name: b"" for name in read_tree(folder) if name.startswith("out")}, {})
        write_tree(folder, tree)
        return ran

    monkeypatch.setattr(judge, "run", run)
    tried = attack(lambda done: None, **{"data/segcal.toml": b"x"})
    if cause is None:
        assert arena.judge(tried) == "refused"
    else:
        with pytest.raises(DefectError, match=f"^{cause}"):
            arena.judge(tried)
    assert read_tree(arena.root) == tried.tree  # ready for the next attack


def test_trees_become_one_another(tmp_path: Path) -> None:
    trees = [{"a/b": b"1", "c": b"2"}, {"a": None, "c": b"2"}, {"a": b"file", "c/d": b"3"}, {}, {"a": None}]
    write_tree(tmp_path, trees[0])
    now = trees[0]
    for wanted in [*trees, *reversed(trees)]:
        become(tmp_path, now, wanted)
        assert read_tree(tmp_path) == wanted
        now = wanted
