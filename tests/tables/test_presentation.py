"""One choice of reference, test and average: checked when it is made, saved with the results, used by every table."""

from __future__ import annotations

from pathlib import Path

import pytest

from segcal import InputError, Results, create, evaluate
from segcal.calibrators import method_titles, methods
from segcal.functional.catalogue import CATALOGUE
from segcal.tables import Presentation
from segcal.tables.numbers import number, with_interval, with_unit
from support.scenes import simulated


@pytest.fixture(scope="module")
def found() -> Results:
    cases = simulated(3, num_classes=3, size=(16, 20))
    compared = {"UC": None, "TS": create("ts", num_classes=3).fit(cases)}
    return evaluate(cases, compared, num_classes=3, patch_size=6, patches=2, repetitions=20)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(InputError, match="test must be one of wilcoxon, paper, got 't'"):
        Presentation().with_changes(test="t")
    with pytest.raises(InputError, match="average must be one of images, pixels, got 'patients'"):
        Presentation().with_changes(average="patients")
    with pytest.raises(InputError, match="reference must be one of UC, TS, got 'LTS'"):
        Presentation("LTS").checked(("UC", "TS"))


def test_the_reference_is_found_in_any_case_unless_that_is_ambiguous(found: Results) -> None:
    assert Presentation("ts").checked(("UC", "TS")) == Presentation("TS")
    assert Presentation("ts").checked(("TS", "ts")) == Presentation("ts")
    with pytest.raises(InputError, match="reference must be one of TS, ts, got 'Ts'"):
        Presentation("Ts").checked(("UC", "TS", "ts"))
    assert found.table("ts").reference == "TS"
    assert str(found.table("ts")) == str(found.table("TS"))


def test_what_is_not_given_stays() -> None:
    shown = Presentation("TS", "wilcoxon", "pixels")
    assert shown.with_changes() == shown
    assert shown.with_changes(reference="UC") == Presentation("UC", "wilcoxon", "pixels")


def test_it_is_saved_and_used_by_tables(found: Results, tmp_path: Path) -> None:
    assert found.presentation == Presentation()
    shown = found.presented(Presentation("TS", "wilcoxon", "pixels"), dataset="street")
    shown.save(tmp_path / "results")
    loaded = Results.load(tmp_path / "results")
    assert loaded.presentation == shown.presentation
    assert loaded.settings["dataset"] == "street"
    assert str(loaded.table()) == str(found.table("TS", test="wilcoxon", average="pixels"))
    assert "paired Wilcoxon" in str(loaded.table())
    assert loaded.table(average="images").cells[("UC", "ece", "all")].interval is None
    loaded.export(tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    row = found.pooled().query("method == 'UC' and region == 'all' and metric == 'ece'").iloc[0]
    assert with_interval("ece", row.value, row.low, row.high) in text


def test_numbers_are_written_alike() -> None:
    assert (number("ece", 0.12345), with_unit("ece", 0.12345)) == ("12.35", "12.35\u00a0%")
    assert (number("nll-calibration", 0.12345), with_unit("nll", 0.12345)) == ("0.1235", "0.1235")
    assert with_interval("ece", 0.5, float("nan"), float("nan"), unit=True) == "50.00\u00a0%"
    assert CATALOGUE["miou"].higher_is_better
    assert not CATALOGUE["ece-smooth"].higher_is_better


def test_every_method_is_spelled_out() -> None:
    titles = method_titles([name.upper() for name in methods()])
    assert len(titles) == len(methods())
    assert titles["LTS"] == "local temperature scaling"
    assert all(title == title.strip() and " " in title for title in titles.values())
