"""The paper's numbers, and the tables that stand beside them."""

from __future__ import annotations

import pytest

from experiments.beside_paper import markdown, paper_numbers
from experiments.multi_atlas.table import PAPER
from segcal import Results, create, evaluate
from support.slow_evaluation import PROTOCOL, fixed_temperature, make_cases

SUMS = {
    "coco": {
        "UC": (452.96, 289.90),
        "IsoReg": (404.32, 253.38),
        "VS": (436.90, 261.20),
        "ETS": (402.07, 255.70),
        "DirODIR": (382.80, 273.49),
        "TS": (401.89, 255.81),
        "IBTS": (397.74, 252.47),
        "LTS": (350.60, 224.97),
    },
    "camvid": {
        "UC": (361.07, 158.60),
        "IsoReg": (308.02, 154.19),
        "VS": (355.53, 172.37),
        "ETS": (304.72, 151.85),
        "DirODIR": (379.24, 203.91),
        "TS": (282.04, 147.73),
        "IBTS": (282.05, 148.31),
        "LTS": (270.26, 141.60),
        "MMCE": (40.37, 25.83),
        "MMCE+LTS": (36.58, 21.87),
        "FL": (247.06, 147.88),
        "FL+LTS": (238.48, 151.43),
    },
    "lpba40": {"UC": (183.52, 36.87), "TS": (125.90, 35.52), "IBTS": (126.33, 34.96), "LTS": (110.17, 33.50)},
    "votenet": {"UC": (161.43, 23.66), "TS": (124.53, 23.63), "IBTS": (73.03, 18.67), "LTS": (49.14, 18.81)},
}
"""Sums of the means and of the standard deviations that the paper prints for each method, taken from its source."""
TABLE_2 = {  # Best Fusion, Best Calibration, UC, TS, IBTS, LTS
    "ASD": "0.04 0.27 0.99 0.99 1.00 0.98",
    "SD": "99.06 93.51 75.89 75.85 75.75 75.96",
    "95MD": "0.18 1.69 3.82 3.83 3.86 3.82",
    "VD All": "98.99 93.71 81.19 81.21 81.20 81.27",
    "VD Boundary": "97.29 87.70 61.01 61.01 60.87 61.15",
    "VC All: rate": "20.53 13.96 - 0.45 1.43 1.88",
    "VC All: w->c": "94.62 98.88 - 43.20 41.14 42.42",
    "VC All: c->w": "0.00 0.00 - 40.16 43.27 37.53",
    "VC Boundary: rate": "35.85 25.93 - 0.73 2.35 2.96",
    "VC Boundary: w->c": "94.11 98.68 - 39.34 36.93 40.51",
    "VC Boundary: c->w": "0.00 0.00 - 41.37 45.14 35.59",
}


@pytest.mark.parametrize("experiment", SUMS)
def test_the_paper_is_transcribed_whole(experiment: str) -> None:
    numbers = paper_numbers(experiment)
    assert {method for method, _, _ in numbers} == set(SUMS[experiment])
    for method, wanted in SUMS[experiment].items():
        own = [text.rstrip(")").split("(") for (name, _, _), text in numbers.items() if name == method]
        assert len(own) == (4 if method.startswith("MMCE") else 16), "MMCE is given for All alone"
        assert tuple(round(sum(float(cell[k]) for cell in own), 2) for k in (0, 1)) == wanted


def test_cells_of_the_paper_are_in_their_places() -> None:
    camvid = paper_numbers("camvid")
    assert camvid["UC", "ace", "local-max"] == "30.60(12.46)"
    assert camvid["FL+LTS", "mce", "boundary"] == "19.61(9.82)"
    assert paper_numbers("coco")["LTS", "ece", "boundary"] != paper_numbers("coco")["UC", "ece", "boundary"]
    assert paper_numbers("lpba40")["TS", "sce", "local-max"] == "11.49(2.53)"
    assert paper_numbers("votenet")["UC", "ace", "all"] == "2.30(0.39)"
    assert paper_numbers("votenet")["LTS", "mce", "boundary"] == "11.55(1.68)"


def test_table_2_is_transcribed_whole() -> None:
    methods = ("Best Fusion", "Best Calibration", "UC", "TS", "IBTS", "LTS")
    assert tuple(PAPER) == methods
    by_column = zip(*(PAPER[method].split() for method in methods), strict=True)
    assert [" ".join(cells) for cells in by_column] == list(TABLE_2.values())


@pytest.fixture(scope="module")
def results() -> Results:
    cases = make_cases(count=8)
    worse = create("ts", 3, ignore_index=9, bounds=(0.2, 0.2)).fit(cases[:1])
    return evaluate(cases, {"UC": None, "TS": worse, "FL+LTS": fixed_temperature(2.5)}, **PROTOCOL)


def test_a_table_is_presented_as_the_papers(results: Results) -> None:
    """Each cell is mean(std) in percent, the best is bold, and beside it stands what the paper prints."""
    text = markdown(results, reference="FL+LTS", experiment="camvid", metrics=("ece",), test="paper")
    header, _, *rows = text.split("\n\n")[0].splitlines()
    regions = ("All", "Boundary", "Local-Avg", "Local-Max")
    titles = [f"ECE(%) {region}" for region in regions] + [f"paper: {region}" for region in regions]
    assert header.strip("| ").split(" | ") == ["Method", *titles]
    cells = {name: own for name, *own in (row.strip("| ").split(" | ") for row in rows)}
    assert list(cells) == ["UC", "TS", "FL+LTS"]
    for name, own in cells.items():
        values = results.to_frame().query(f"method == '{name}' and region == 'all' and metric == 'ece'").value
        assert own[0].strip("*") == f"{100 * values.mean():.2f}({100 * values.std(ddof=0):.2f})"
        assert own[4:] == [paper_numbers("camvid")[name, "ece", region.lower()] for region in regions]
    assert sum(own[0].startswith("**") for own in cells.values()) == 1
    assert "the reference FL+LTS is significantly better (Mann-Whitney U" in text
    assert cells["TS"][0].endswith(")*")
    assert not any(cell.endswith(")*") for cell in cells["FL+LTS"])
