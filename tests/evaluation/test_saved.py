"""Saved results that were damaged, changed or made up are refused in one sentence."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import segcal
from segcal.evaluation.results import Results
from segcal.evaluation.saved import TABLES, check_settings
from segcal.files.guards import list_files
from segcal.report.sections.fits import choices, influences
from segcal.report.sections.how import how
from segcal.report.sections.summary import summary
from segcal.report.sections.tables import surfaces
from segcal.report.view import View, shared_content
from segcal.tables import class_errors
from segcal.types import InputError


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    logits = [random.normal(size=(3, 20, 24)).astype(np.float32) * 2 for _ in range(3)]
    cases = [segcal.Case(f"00{k}", z, z.argmax(0) % 2) for k, z in enumerate(logits)]
    compared = {"UC": None, "TS": segcal.create("ts", 3).fit(cases)}
    options: dict[str, Any] = {"patch_size": 8, "patch_sizes": (6,), "repetitions": 20, "floor": True}
    options |= {"surfaces": True, "limits": True}
    folder = tmp_path_factory.mktemp("kept") / "results"
    segcal.evaluate(cases, compared, num_classes=3, **options).save(folder)
    return folder


def copied(kept: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(kept, tmp_path / "copy"))


def change_json(folder: Path, change: Callable[[dict[str, Any]], Any], *, signed: bool = True) -> None:
    """Change settings, with right checksums as anyone who makes results up can."""
    content = json.loads((folder / "segcal.json").read_text())
    change(content)
    (folder / "segcal.json").write_text(json.dumps(content))
    if signed:
        list_files(folder)


def test_what_is_read_is_what_was_saved(kept: Path, tmp_path: Path) -> None:
    whole, again = Results.load(kept), Results.load(copied(kept, tmp_path))
    for name, table in TABLES.items():
        written = pd.read_csv(
            kept / table.file,
            dtype={name: str for name, kind in table.columns.items() if kind is str},
            keep_default_na=False,
        )
        assert list(getattr(whole, name).columns) == list(written.columns)
        pd.testing.assert_frame_equal(getattr(again, name), getattr(whole, name))
    assert whole.cases()["case"].tolist() == ["000", "001", "002"]


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("files"),
        lambda content: content.update(files=3),
        lambda content: content["files"].pop("images.csv"),
        lambda content: content["results"].update(class_names=["a", "b", "c"]),
        lambda content: content["results"]["fits"]["TS"].update(nll_after=0.1),
    ],
)
def test_results_without_checksums_are_refused(kept: Path, tmp_path: Path, change: Any) -> None:
    folder = copied(kept, tmp_path)
    change_json(folder, change, signed=False)
    with pytest.raises(InputError, match="must be as they were saved"):
        Results.load(folder)


def test_a_table_without_rows_has_columns_of_numbers(kept: Path, tmp_path: Path) -> None:
    folder = copied(kept, tmp_path)
    path = folder / "curves.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    list_files(folder)
    assert class_errors(Results.load(folder).curve_frame, "TS") == {}


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.file)
def test_no_changed_byte_goes_unnoticed(kept: Path, tmp_path: Path, table: Any) -> None:
    folder, random = copied(kept, tmp_path), np.random.default_rng(1)
    whole = (folder / table.file).read_bytes()
    for at in random.integers(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 1 << int(random.integers(7))
        (folder / table.file).write_bytes(changed)
        with pytest.raises(InputError, match=r"must be as they were saved|must be a table that segcal wrote"):
            Results.load(folder)


def without_column(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns=rows.columns[-1])


def with_words(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.astype({rows.columns[-1]: object}).assign(**{rows.columns[-1]: "many"})


DAMAGE: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "no column": (without_column, "without the column"),
    "words": (with_words, "got a damaged one"),
    "no method": (lambda rows: rows[rows.method != "TS"], "of the methods UC instead of UC, TS"),
    "no row": (lambda rows: rows.iloc[1:], "not every method has the same rows"),
    "twice": (lambda rows: pd.concat([rows, rows.iloc[:1]]), "with a row twice"),
}


SEVERAL = ("frame", "patch_frame", "pooled_frame", "curve_frame", "sensitivity_frame")


@pytest.mark.parametrize(("name", "damage"), list(zip(SEVERAL, DAMAGE, strict=True)))
def test_tables_of_another_form_are_refused(kept: Path, tmp_path: Path, name: str, damage: str) -> None:
    folder, (change, message) = copied(kept, tmp_path), DAMAGE[damage]
    path = folder / TABLES[name].file
    change(pd.read_csv(path, dtype={"case": str}, keep_default_na=False)).to_csv(path, index=False)
    list_files(folder)
    with pytest.raises(InputError, match=message):
        Results.load(folder)


WRONG: tuple[Any, ...] = (5, -1, 10**400, 2.5, True, "text", [], [5], [[]], {}, {"TS": 5}, {"test": []}, None)


def keys_in(kept: Path) -> list[str]:
    """All settings of saved results, also those inside others."""
    settings = json.loads((kept / "segcal.json").read_text())["results"]
    settings |= {"presentation": {"reference": "TS"}, "dataset": "mine"}
    inner = [f"{key}.{name}" for key in ("fits", "versions", "presentation") for name in settings[key]]
    return [*settings, *inner, *(f"fits.TS.{name}" for name in settings["fits"]["TS"])]


def test_no_wrong_type_of_a_setting_is_a_traceback(kept: Path) -> None:
    """Each setting is replaced by values of other types: refused in one sentence, or usable for page and table."""
    whole, results, sentences = json.loads((kept / "segcal.json").read_text()), Results.load(kept), list[str]()
    for key in keys_in(kept):
        for wrong in WRONG:
            place = settings = copy.deepcopy(whole["results"])
            *path, last = key.split(".")
            for name in path:
                place = place.setdefault(name, {})
            place[last] = wrong
            try:
                check_settings(settings, kept)
            except InputError as error:
                sentences.append(str(error))
            else:
                use(replace(results, settings=settings))
    assert len(sentences) > 400, len(sentences)
    assert all("\n" not in sentence and len(sentence) < 1000 for sentence in sentences)


def use(results: Results) -> None:
    """Make what `table` and `report` show of the settings."""
    repr(results)
    results.surface_table()
    assert results.baseline in results.methods
    results.table()
    view = View(results)
    for section in (how, choices, influences, surfaces, summary, shared_content):
        section(view)


_USELESS: tuple[dict[str, Any], ...] = (
    *({"methods": wrong} for wrong in (None, "UC", [], ["UC", "UC"], [1, 2])),
    *({"warnings": wrong} for wrong in (None, [3])),
    *({"bins": wrong} for wrong in (10**9, "ten")),
    *({"num_classes": wrong} for wrong in (None, 1.5)),
    *({"presentation": wrong} for wrong in ({"reference": "nobody"}, {"test": 3}, [])),
    *({"repetitions": 10**12}, {"seed": -1}, {"class_names": 3}, {"fits": []}, {"versions": "new"}),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((change, "the settings of the results in") for change in _USELESS),
        ({"channels": 5}, "'channels' must be a list, got 5"),
        ({"ignore_index": -1}, "'ignore_index' must be a list, got -1"),
        ({"ignore_index": ["a"]}, r"'ignore_index\[0\]' must be a whole number, got 'a'"),
        ({"fits": {"TS": 5}}, "'fits.TS' must be a table with cases, .*, got 5"),
        ({"baseline": "nobody"}, "'baseline' must be one of UC, TS, got 'nobody'"),
        ({"background": -1}, "'background' must be 0 or more"),
        ({"floor": 1}, "'floor' must be true or false, got 1"),
    ],
)
def test_settings_of_another_form_are_refused(kept: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = copied(kept, tmp_path)
    change_json(folder, lambda content: content["results"].update(change))
    with pytest.raises(InputError, match=message):
        Results.load(folder)


@pytest.mark.parametrize(
    "details", [{"coefficients": 5}, {"coefficients": [1e9], "features": ["a"]}, {"scores": {"a": 1}}]
)
def test_details_of_another_form_are_not_shown(kept: Path, tmp_path: Path, details: dict[str, Any]) -> None:
    """Methods of one's own may report anything."""
    folder = copied(kept, tmp_path)
    change_json(folder, lambda content: content["results"]["fits"]["TS"].update(details={"chosen": "a", **details}))
    view = View(Results.load(folder))
    assert choices(view) is None
    assert influences(view) is None


def test_results_inside_results_inside_results_are_refused(kept: Path, tmp_path: Path) -> None:
    """Links that lead back would be followed for ever, and with channels ever more of them."""
    folder = copied(kept, tmp_path)
    shutil.rmtree(folder / "floor")
    (folder / "floor").symlink_to(folder)
    with pytest.raises(InputError, match="must not hold further ones"):
        Results.load(folder)
    change_json(folder, lambda content: content["results"].update(floor=False, channels=["a", "b"]))
    (folder / "channels").mkdir()
    for k in range(2):
        (folder / "channels" / str(k)).symlink_to(folder)
    with pytest.raises(InputError, match="must not hold further ones"):
        Results.load(folder)


@pytest.mark.parametrize("file", ["patches.csv", "images.csv"])
def test_a_floor_with_fewer_values_is_refused(kept: Path, tmp_path: Path, file: str) -> None:
    folder = copied(kept, tmp_path)
    path = folder / "floor" / file
    rows = pd.read_csv(path, dtype={"case": str})
    rows[rows["metric"] != "mce"].to_csv(path, index=False)
    list_files(folder / "floor")
    list_files(folder)
    with pytest.raises(InputError, match=r"the floor in .* must have every value of the results, got fewer"):
        Results.load(folder)
