"""The paper's U-Net experiment in its small form, on a few blobs in the layouts of the data sets."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.beside_paper import paper_numbers
from experiments.lpba40 import recipes
from experiments.lpba40.__main__ import main
from experiments.lpba40.calibrate import METHODS, PAPERS_FORM, ROWS, title_of
from experiments.lpba40.gathered import gather
from experiments.lpba40.network import OUTSIDE, mean_dice
from experiments.lpba40.prepared import PreparedFolder
from experiments.lpba40.recipes import PRESETS, Job
from segcal.calibrators import load
from segcal.files import read_json
from support.program import printed_by

nibabel = pytest.importorskip("nibabel")
Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"
NUMBER = r"[-+]?\d+\.\d+"


def write_hippocampus(root: Path, count: int = 8) -> Path:
    """Write bright balls of two halves, in volumes of different sizes, types and scales."""
    random = np.random.default_rng(0)
    for folder in ("imagesTr", "labelsTr"):
        (root / folder).mkdir(parents=True)
    for k in range(count):
        shape = tuple(random.integers(11, 14, 3))
        grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
        labels = np.where((grid**2).sum(axis=0) < 0.5, 1 + (grid[1] > 0), 0)
        image = 10.0**k * (1 + labels + random.normal(0, 0.5, shape))
        for folder, values in (("imagesTr", image.astype(np.float32)), ("labelsTr", labels.astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), root / folder / f"h_{k}.nii.gz")
    return root


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything done: prepared volumes, and results in `out`."""
    root = tmp_path_factory.mktemp("lpba40")
    write_hippocampus(root / "data")
    shared = ("--preset", "hippocampus", "--prepared", str(root / "prepared"))
    assert main(["prepare", *shared, "--data", str(root / "data")]) == 0
    run = ["run", *shared, "--small", "--out", str(root / "out"), "--device", "cpu"]
    assert main([*run, "--methods", "uc", "ts", "--seed", "0", "1"]) == 0
    assert main([*run, "--methods", "lts", "ibts-paper", "--fold", "0"]) == 0  # on half of the volumes only
    return root


def test_prepared_volumes_are_small_and_equalised(finished: Path) -> None:
    data = PreparedFolder(finished / "prepared", "hippocampus")
    assert data.classes == ("background", "anterior", "posterior")
    for name, shape in zip(data.names, data.shapes, strict=True):
        volume = data.read(name)
        assert volume.image.dtype == volume.labels.dtype == np.uint8
        assert volume.image.shape == volume.labels.shape == shape
        assert 100 < volume.image.mean() < 155, "an equalised image has all levels equally often, whatever its scale"


def test_every_volume_is_measured_once_by_networks_that_never_saw_it(finished: Path) -> None:
    for seed in (0, 1):
        folder = finished / "out" / f"hippocampus-small-seed{seed}"
        for nested in read_json(folder / "splits.json"):
            for own in nested["calibration"]:
                assert not {*nested["network"]["fit"]} & {*own["fit"], *own["validation"], *own["test"]}
        for method in ("uc", "ts"):
            rows = pd.concat([pd.read_csv(path) for path in sorted(folder.glob(f"*/*/{method}/{ROWS}"))])
            own = rows[(rows.metric == "ece") & (rows.region == "all")]
            assert sorted(own["case"]) == [f"h_{k}" for k in range(8)]
            assert set(own["method"]) == {title_of(method)}


def test_both_forms_of_ibts_and_lts_are_measured(finished: Path) -> None:
    assert {"ibts", "lts", "ibts-paper", "lts-paper"} <= set(METHODS)
    half = finished / "out" / "hippocampus-small-seed0" / "fold-0" / "calibration-0"
    assert load(half / "lts" / "calibrator").preset == "default"
    paper = load(half / "ibts-paper" / "calibrator")
    assert (paper.method, paper.preset) == ("ibts", "paper")
    assert title_of("ibts-paper") == "IBTS (paper's schedule)"


def test_the_papers_form_is_measured_on_every_patch_too(finished: Path) -> None:
    assert [method for method in METHODS if method in PAPERS_FORM] == ["uc", "ts", "ibts-paper", "lts-paper"]
    for measured in gather(finished / "out"):
        default, every = (measured.rows[rule] for rule in ("labelled", "paper"))
        assert set(every.images["method"]) <= {"UC", "TS", "IBTS (paper's schedule)"}
        keys = ["case", "method", "patch", "metric"]
        both = default.patches.merge(every.patches, on=keys, suffixes=("", "_every"))
        kept = both[both["value"].notna()]
        assert len(kept) > 0
        np.testing.assert_array_equal(kept["value"], kept["value_every"])
        assert (both["value_every"].notna() >= both["value"].notna()).all()
        local = default.images["region"].str.startswith("local")
        assert (
            default.images[~local & default.images["method"].isin(["UC", "TS"])]
            .reset_index(drop=True)
            .equals(
                every.images[
                    ~every.images["region"].str.startswith("local") & every.images["method"].isin(["UC", "TS"])
                ].reset_index(drop=True)
            )
        )


def test_the_table_shows_every_method_and_seed(finished: Path, capsys: Captured) -> None:
    assert main(["table", "--out", str(finished / "out")]) == 0
    text = capsys.readouterr().out
    assert text.strip() == (finished / "out" / "tables.md").read_text().strip()
    for expected in (
        "## hippocampus (small), seed 1: 8 volumes",
        "| Minus TS |",
        "seeds 0 / 1",
        "Networks: Dice 0.",
        "With every Local patch, as in the paper:",
    ):
        assert expected in text
    assert "| LTS |" not in text.partition("| fit, s |")[0], "it was not measured on all volumes"
    assert all("LTS" not in set(one.rows["labelled"].images["method"]) for one in gather(finished / "out"))
    folder = finished / "out" / "hippocampus-small-seed0"
    rows = pd.concat([pd.read_csv(path) for path in folder.glob(f"*/*/ts/{ROWS}")])
    nll = rows[(rows.metric == "nll") & (rows.region == "all")]["value"].mean()
    assert f"| TS | {nll:.4f} [" in text


def test_published_tables_come_from_archives(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("experiments.lpba40.__main__.MEASURED", tmp_path)
    assert main(["table"]) == 2
    assert "holds no archive" in capsys.readouterr().err
    assert main(["archive", "--out", str(finished / "out")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"hippocampus-small-seed{seed}.zip" for seed in (0, 1)]
    assert main(["table"]) == 0
    published = capsys.readouterr().out
    assert main(["table", "--out", str(finished / "out")]) == 0
    ours = capsys.readouterr().out
    assert re.sub(NUMBER, "#", published) == re.sub(NUMBER, "#", ours)
    numbers = [[float(number) for number in re.findall(NUMBER, text)] for text in (published, ours)]
    np.testing.assert_allclose(*numbers, atol=0.011)  # archives keep the last digit that a table prints


def test_networks_run_side_by_side_give_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    """As a command, whose own module the processes that it starts cannot import."""
    run = ("-m", "experiments.lpba40", "run", "--prepared", finished / "prepared", "--small")
    printed_by(*run, "--out", tmp_path, "--device", "cpu", "--methods", "uc", "ts", "--processes", "2")
    for one in sorted((finished / "out" / "hippocampus-small-seed0").glob(f"*/*/ts/{ROWS}")):
        other = tmp_path / one.relative_to(finished / "out")
        pd.testing.assert_frame_equal(pd.read_csv(one), pd.read_csv(other), rtol=1e-3)


def test_what_is_done_is_not_done_again(finished: Path, capsys: Captured) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "out").rglob("*.json")}
    run = ["run", "--prepared", str(finished / "prepared"), "--small", "--out", str(finished / "out")]
    assert main([*run, "--methods", "uc", "ts", "--device", "cpu"]) == 0
    assert "trained already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in (finished / "out").rglob("*.json")}


def test_another_recipe_in_the_same_folder_is_refused(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    other = replace(recipes.small(PRESETS["hippocampus"]), epochs=7)
    monkeypatch.setattr(recipes, "small", lambda recipe: other)
    run = ["run", "--prepared", str(finished / "prepared"), "--small", "--out", str(finished / "out")]
    assert main(run) == 2
    assert "epochs=6" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--prepared", "nowhere", "--out", "x"], "holds no prepared volumes"),
        (["run", "--out", "x"], "--prepared"),
        (["table", "--out", "nowhere"], "nothing measured"),
        (["prepare", "--preset", "lpba40", "--data", "x", "--prepared", "y"], "--template is needed"),
    ],
)
def test_bad_calls_are_refused_in_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_stages_after_prepare_need_no_reader_of_images() -> None:
    code = "import sys; sys.modules |= dict.fromkeys(('nibabel', 'SimpleITK', 'PIL', 'torchmetrics', 'sklearn'))\n"
    code += "import experiments.lpba40.__main__"
    printed_by("-c", code)


@pytest.mark.parametrize("preset", tuple(PRESETS))
def test_presets_follow_the_paper_s_protocol(preset: str) -> None:
    count = {"lpba40": 40, "mouse": 17}.get(preset, 200)
    split = Job(preset, 0).split(tuple(f"v{k}" for k in range(count)))
    sizes = [[len(part) for part in asdict(nested.network).values()] for nested in split]
    own = {"hippocampus-200": [85, 15, 100], "hippocampus-mirrored": [85, 15, 100], "mouse": [6, 2, 9]}
    expected = own.get(preset, [17, 3, 20])
    assert sizes[0] == expected
    assert split != Job(preset, 1).split(tuple(f"v{k}" for k in range(count)))


def test_dice_worked_by_hand() -> None:
    labels = torch.tensor([0, 1, 1, 2, 2, OUTSIDE])
    predicted = torch.tensor([1, 1, 1, 2, 0, 3])
    # structure 1: 2*2/(3+2); structure 2: 2*1/(1+2); structure 3 is predicted outside only
    assert float(mean_dice(predicted, labels)) == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_the_paper_s_numbers_and_the_methods_are_complete() -> None:
    numbers = paper_numbers("lpba40")
    assert len(numbers) == 4 * 16
    assert numbers["LTS", "ece", "all"] == "0.90(0.51)"
    assert numbers["UC", "ece", "local-max"] == "10.23(2.82)"
    assert {"uc", "ts", "ibts", "lts", "isotonic", "vector", "ets", "dirichlet", "cts", "auto"} <= set(METHODS)


@pytest.mark.data
def test_real_mouse_brains_are_cropped_and_keep_their_structures(tmp_path: Path) -> None:
    if not (REAL / "mouse_brain").is_dir():
        pytest.skip(f"needs the data set mouse_brain in {REAL}")
    for name in ("images", "labels"):
        (tmp_path / "data" / name).mkdir(parents=True)
        source = sorted((REAL / "mouse_brain" / name).iterdir())[0]
        (tmp_path / "data" / name / source.name).symlink_to(source)
    (tmp_path / "data" / "structures.csv").symlink_to(REAL / "mouse_brain" / "structures.csv")
    shared = ["--preset", "mouse", "--prepared", str(tmp_path / "prepared")]
    assert main(["prepare", *shared, "--data", str(tmp_path / "data")]) == 0
    data = PreparedFolder(tmp_path / "prepared", "mouse_brain")
    volume = data.read(data.names[0])
    assert volume.labels.size < 0.6 * 112 * 128 * 80
    assert len(np.unique(volume.labels)) == 38
