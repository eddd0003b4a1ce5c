"""Results: readings of the rows, and the way to disk and back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from segcal.evaluation.results import Results
from segcal.evaluation.saved import TABLES
from segcal.types import InputError
from support.commands import succeed

NAN = math.nan
OPTIONAL = ("size_frame", "surface_frame", "limits_frame")


def make(
    methods: tuple[str, ...] = ("UC", "TS"),
    cases: tuple[str, ...] = ("a", "b", "c"),
    patches: int = 2,
    floor: bool = False,
) -> Results:
    """Values that tell where they come from; the last case has neither a boundary nor a second patch."""
    random = np.random.default_rng(1)
    rows = dict[str, list[tuple[Any, ...]]]({name: [] for name in TABLES if name not in OPTIONAL})
    rows["case_frame"] = [(case, "007" if k else "") for k, case in enumerate(cases)]
    for case, method in product(cases, methods):
        rows["volume_frame"].append((case, method, "NA", 1 / 3, 4))
        for metric in ("ece", "nll"):
            for region in ("all", "boundary", "local-avg", "local-max"):
                empty = case == cases[-1] and region == "boundary"
                value, pixels = (NAN, 0) if empty else (random.random() / 3, 10)
                rows["frame"].append((case, method, region, metric, value, pixels))
            for k in range(patches):
                empty = case == cases[-1] and k == 1
                value, pixels = (NAN, 0) if empty else (random.random() / 3, 5)
                rows["patch_frame"].append((case, method, k, f"{k} 7", metric, value, pixels))
    for method in methods:
        rows["pooled_frame"] += [(method, "all", name, 0.1, NAN, 0.2, 3, 30) for name in ("ece", "ace", "nll", "brier")]
        rows["curve_frame"] += [
            (method, "all", label, j, j / 3, (j + 1) / 3, j, 0, j / 7, NAN, 0.1 * j)
            for label in ("", "7")
            for j in range(3)
        ]
        rows["sensitivity_frame"] += [(method, "all", 5, 1 / 3), (method, "all", 6, NAN)]
    frames = {name: TABLES[name].frame(own) for name, own in rows.items()}
    settings = {"methods": list(methods), "num_classes": 3, "ignore_index": [9], "warnings": [], "floor": floor}
    redrawn = make(methods, cases, patches) if floor else None
    return Results(**frames, settings=settings, redrawn=redrawn)


def test_local_avg_is_over_patches_and_the_rest_over_images() -> None:
    found = make()
    cells = found.table().cells
    for method in found.methods:
        images, patches = found.frame, found.patch_frame
        own = images[(images.method == method) & (images.metric == "ece")]
        each = patches[(patches.method == method) & (patches.metric == "ece")].value.dropna()
        assert len(each) == 5
        assert cells[(method, "ece", "local-avg")].mean == pytest.approx(each.mean())
        assert cells[(method, "ece", "local-avg")].std == pytest.approx(each.std(ddof=0))
        for region in ("all", "boundary", "local-max"):
            sample = own[own.region == region].value.dropna()
            assert cells[(method, "ece", region)].mean == pytest.approx(sample.mean())
            assert cells[(method, "ece", region)].std == pytest.approx(sample.std(ddof=0))


def test_quality_is_shown_in_the_region_all_alone_except_nll() -> None:
    cells = make().table().cells
    assert {region for _, metric, region in cells if metric in ("accuracy", "brier")} <= {"all"}
    assert {region for _, metric, region in cells if metric == "nll"} > {"all"}


def test_repr_is_a_small_table() -> None:
    """Values of `make` are 0.1 pooled; a metric that was not pooled has no column."""
    assert repr(make()).splitlines() == [
        "Results of 3 cases, region All, pooled over all pixels:",
        "    ECE(%)↓    NLL↓  Brier↓",
        "UC    10.00  0.1000  0.1000",
        "TS    10.00  0.1000  0.1000",
    ]


def test_skipped_counts_regions_and_patches_once() -> None:
    assert make().skipped() == {"all": 0, "boundary": 1, "local-avg": 0, "local-max": 0, "patches": 1}
    assert "patches" not in make(patches=0).skipped()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"floor": True},
        {"patches": 0},
        {"cases": ("001", "NA", 'x, "y"', "ü")},  # names that look like numbers, like nothing, like two cells
        {"methods": ("None", "2", "nan")},
    ],
    ids=str,
)
def test_saved_is_what_is_loaded(tmp_path: Path, options: dict[str, Any]) -> None:
    found = make(**options)
    found.save(tmp_path / "results")
    loaded = Results.load(tmp_path / "results")
    dtypes = len(found.patch_frame) > 0  # a table without rows has no types
    assert_frame_equal(loaded.to_frame(), found.to_frame(), check_exact=True)
    assert_frame_equal(loaded.patches(), found.patches(), check_exact=True, check_dtype=dtypes)
    assert_frame_equal(loaded.pooled(), found.pooled(), check_exact=True)
    assert loaded.settings == found.settings
    assert loaded.methods == found.methods
    assert loaded.skipped() == found.skipped()
    assert str(loaded.table(reference=found.methods[0])) == str(found.table(reference=found.methods[0]))
    for read in (Results.cases, Results.curves, Results.sensitivity, Results.volumes):
        assert_frame_equal(read(loaded), read(found), check_exact=True)
    written = {table.file for name, table in TABLES.items() if name not in OPTIONAL} | {"segcal.json"}
    assert {path.name for path in (tmp_path / "results").iterdir() if path.is_file()} == written
    if found.redrawn is not None:
        assert_frame_equal(loaded.floor(), found.floor(), check_exact=True)
        assert_frame_equal(loaded.redrawn.patches(), found.redrawn.patches(), check_exact=True)
    else:
        with pytest.raises(InputError, match=r"the floor was not measured; evaluate with floor=True"):
            loaded.floor()


def test_saving_replaces_own_results_and_nothing_else(tmp_path: Path) -> None:
    make().save(tmp_path / "results")
    make(cases=("z",)).save(tmp_path / "results")
    assert set(Results.load(tmp_path / "results").frame.case) == {"z"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="did not write"):
        make().save(tmp_path / "other")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        ("[]", "holds no results"),
        ('{"format": 1, "method": "ts"}', "holds no results"),
        ('{"format": 99, "results": {}}', "another version of segcal"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "segcal.json").write_text(content)
    with pytest.raises(InputError, match=message):
        Results.load(tmp_path)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("")])
def test_damaged_tables_are_told(tmp_path: Path, damage: Any) -> None:
    make().save(tmp_path / "results")
    damage(tmp_path / "results" / "patches.csv")
    with pytest.raises(InputError, match=r"patches.csv' must be a table that segcal wrote"):
        Results.load(tmp_path / "results")


# --------------------------------------------------------------------------------------------------------------------
# tests of significance, summaries, export


def paired(groups: tuple[str, ...] = ("",) * 20) -> Results:
    """Twenty images of very different difficulty, on each of which TS is a little better."""
    hard = np.linspace(0.05, 0.5, 20)
    rows = [
        (f"{k:02d}", method, region, "ece", hard[k] - (0.01 if method == "TS" else 0), 10)
        for k in range(20)
        for method in ("UC", "TS")
        for region in ("all", "boundary", "local-avg", "local-max")
    ]
    whole = make()
    return replace(
        whole,
        frame=pd.DataFrame(rows, columns=list(whole.frame)),
        patch_frame=whole.patch_frame.iloc[:0],
        case_frame=pd.DataFrame({"case": [f"{k:02d}" for k in range(20)], "group": groups}),
    )


def test_paired_test_sees_what_the_other_does_not() -> None:
    usual, by_pairs = (paired().table("TS", test=test) for test in ("paper", "wilcoxon"))
    assert not usual.cells[("UC", "ece", "all")].beaten
    assert by_pairs.cells[("UC", "ece", "all")].beaten
    assert "paired Wilcoxon" in by_pairs.legend()
    assert "Mann-Whitney U" in usual.legend()


def test_images_of_one_group_are_one_pair() -> None:
    """Twenty images of four patients are four pairs, too few for a difference to be significant."""
    of_patients = paired(tuple(f"patient {k % 4}" for k in range(20)))
    assert not of_patients.table("TS", test="wilcoxon").cells[("UC", "ece", "all")].beaten


def test_summary_is_the_table_with_intervals() -> None:
    found = make(floor=True)
    table, floors = found.table(floor=True), found.table(floor=True).floors
    rows = found.summary()
    assert list(rows) == ["method", "region", "metric", "mean", "std", "low", "high", "count", "floor"]
    shown = rows[rows.metric == "ece"]
    assert len(shown) == 8
    for row in shown.itertuples():
        cell = table.cells[(row.method, "ece", row.region)]
        assert (row.mean, row.std) == pytest.approx((cell.mean, cell.std))
        assert row.floor == pytest.approx(floors[(row.method, "ece", row.region)].mean)
        assert row.low <= row.mean <= row.high
    assert make().summary().floor.isna().all()


@pytest.mark.parametrize("suffix", [".csv", ".CSV", ".parquet"])
def test_rows_are_exported(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    found = make(cases=("001", "NA", "ü"))
    found.export(tmp_path / f"rows{suffix}")
    if suffix == ".parquet":
        back = pd.read_parquet(tmp_path / "rows.parquet")
    else:
        back = pd.read_csv(
            tmp_path / f"rows{suffix}", dtype={"case": str}, keep_default_na=False, na_values={"value": ""}
        )
    assert_frame_equal(back, found.to_frame(), check_dtype=False)


def test_json_holds_everything_but_patches(tmp_path: Path) -> None:
    found = make(floor=True)
    found.export(tmp_path / "all.json")
    content = json.loads((tmp_path / "all.json").read_text(), parse_constant=pytest.fail)
    names = {"settings", "skipped", "images", "pooled", "cases", "curves", "bins", "volumes"}
    assert set(content) == names | {"floor", "signature"}
    assert set(content["floor"]) == names
    assert content["curves"] == json.loads(found.curves().to_json(orient="records", double_precision=15))
    assert content["images"][0]["value"] == pytest.approx(found.frame.value[0], rel=1e-14)


@pytest.mark.parametrize(("suffix", "start"), [(".tex", "% \\usepackage{graphicx}"), (".md", "| Method |")])
def test_the_table_is_exported(tmp_path: Path, suffix: str, start: str) -> None:
    make(floor=True).export(tmp_path / f"table{suffix}", "TS", test="wilcoxon", floor=True)
    text = (tmp_path / f"table{suffix}").read_text()
    assert text.startswith(start)
    assert "TS is significantly better (paired Wilcoxon" in text
    assert text.count("floor") >= 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("table.docx", {}, r"must end in one of .csv, .parquet, .json, .tex, .md, got '.*table.docx'"),
        ("table", {}, "must end in one of"),
        ("table.md", {"reference": "LTS"}, "reference must be one of UC, TS"),
        ("table.md", {"floor": True}, "the floor was not measured"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make().export(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install segcal\[parquet\]"):
        make().export(tmp_path / "rows.parquet")
    assert list(tmp_path.iterdir()) == []


def test_what_was_skipped_is_said_in_numbers_and_nouns(tmp_path: Path) -> None:
    make().save(tmp_path / "results")
    assert "skipped (no pixels, or too few): Boundary of 1 image, 1 patch" in succeed("table", tmp_path / "results")
