"""Several passes, end to end on tiny trees of frames and volumes, with networks that were never trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from experiments.camvid.jobs import Job as CamVidJob
from experiments.lpba40.recipes import Job
from experiments.passes.__main__ import main
from experiments.passes.measure import gathered
from experiments.passes.sets import SETS, views
from experiments.passes.table import tables
from experiments.passes.tasks import volume_tasks
from experiments.passes.views import ORIGINAL, other_sides, seen
from segcal import InputError
from segcal.files import MARKER, write_json
from segcal.integrations.passes import DEFAULT
from support.camvid_tree import write_camvid
from support.fits import choose_among_few


def test_views_of_a_network_that_looks_at_single_pixels_are_aligned() -> None:
    image = 255 * torch.rand(2, 3, 8, 12)
    pointwise = torch.nn.Conv2d(3, 4, 1)
    with torch.no_grad():
        plain = seen(pointwise, image, ORIGINAL)
        for view in ("mirror:0", "mirror:1", "mirror:0,1", "scale:1.0", "brightness:1.0"):
            torch.testing.assert_close(seen(pointwise, image, view), plain)
        flat = torch.full_like(image, 100.0)
        torch.testing.assert_close(seen(pointwise, flat, "mirror:1+scale:0.75"), seen(pointwise, flat, ORIGINAL))
        torch.testing.assert_close(seen(pointwise, flat, "brightness:1.3"), pointwise(1.3 * flat))
    with pytest.raises(InputError, match=r"mirror:, scale: and brightness:, got 'blur:3'"):
        seen(pointwise, image, "blur:3")


def test_a_mirror_of_left_and_right_exchanges_the_classes_of_the_sides() -> None:
    """A network that names each half by its side of the image sees the same in the mirror, if sides are exchanged."""
    image = torch.zeros(1, 1, 2, 2, 4)
    names = ["background", "thalamus, right", "thalamus, left"]
    halves = torch.tensor([[0.0, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0]])[None, :, None, None].expand(1, 3, 2, 2, 4)
    plain = seen(lambda _: halves, image, ORIGINAL, other_sides(names))
    torch.testing.assert_close(seen(lambda _: halves, image, "mirror:2", other_sides(names)), plain)
    torch.testing.assert_close(seen(lambda _: halves, image, "mirror:0,2", other_sides(names)), plain)
    torch.testing.assert_close(seen(lambda _: halves, image, "mirror:1", other_sides(names)), plain)
    assert (seen(lambda _: halves, image, "mirror:2").argmax(1) != plain.argmax(1)).all()
    assert other_sides(["background", "anterior", "posterior"]) is None


def test_passes_true_is_one_of_the_sets() -> None:
    for dims in (2, 3):
        views = [view.replace(f"mirror:{dims - 1}", "mirror") for view in SETS[dims]["mirror, scales, both"]]
        assert views == list(DEFAULT)


def test_sets_begin_with_few_passes_and_use_known_views() -> None:
    for dims in (2, 3):
        counts = [len(own) for name, own in SETS[dims].items() if name.startswith(("mirror", "all views"))]
        assert counts[0] == 1
        assert len(views(dims)) == len(set(views(dims))) >= 7


def test_frames_are_predicted_measured_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_among_few(monkeypatch)
    write_camvid(tmp_path / "camvid")
    torch.manual_seed(0)
    for seed in (0, 1):
        camvid = CamVidJob("tiny", "ce", seed)
        folder = camvid.folder(tmp_path / "weights")
        folder.mkdir(parents=True)
        save_file(camvid.build().state_dict(), folder / "network.safetensors")
    monkeypatch.setitem(SETS, 2, {name: SETS[2][name] for name in ("mirror", "other networks")})
    shared = ["--camvid", str(tmp_path / "camvid"), "--out", str(tmp_path / "out"), "--splits", "1"]
    assert main(["predict", *shared, "--weights", str(tmp_path / "weights"), "--device", "cpu"]) == 0
    own = np.load(tmp_path / "out" / "camvid" / "0" / "mirror:1" / "Seq05VD_f00000.npy")
    assert own.shape == (11, 44, 60)
    rows = ["TS", "CTS", "POOL mirror", "POOL other networks"]
    assert main(["measure", *shared, "--methods", *rows, "--processes", "1"]) == 0
    measured = gathered(tmp_path / "out")
    assert set(measured["part"]) == {"camvid, 0001TP", "camvid, Seq05VD", "camvid-0001TP", "camvid-Seq05VD"}
    assert set(measured["split"]) == {0, 1}, "one number for each network"
    assert set(measured["changed"]) == {0}
    assert set(measured["method"]) == set(rows)
    capsys.readouterr()
    assert main(["table", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert text.strip() == tables(measured).strip()
    for expected in ("| POOL mirror | 1 |", "| POOL other networks | networks |", "## CamVid, within Seq05VD"):
        assert expected in text
    own_rows = measured.query("part == 'camvid-0001TP' and method == 'TS' and metric == 'nll' and region == 'all'")
    nll = [np.average(own["value"], weights=own["pixels"]) for _, own in own_rows.groupby("split")]
    part = text.partition("## CamVid, within 0001TP")[2]
    assert f"| TS | {np.mean(nll):.4f} |" in part


def test_a_mean_of_mirrors_is_fitted_on_what_it_is_and_on_single_passes(tmp_path: Path) -> None:
    random, folder = np.random.default_rng(0), tmp_path / "prepared" / "hippocampus"
    folder.mkdir(parents=True)
    names = [f"h{k}" for k in range(9)]
    for name in names:
        labels = np.kron(random.integers(0, 3, (2, 2, 2)), np.ones((4, 4, 4))).astype(np.uint8)
        image = (60 * labels + random.integers(0, 90, labels.shape)).astype(np.uint8)
        np.savez(folder / f"{name}.npz", image=image, labels=labels, spacing=np.ones(3))
    classes = ["background", "anterior", "posterior"]
    write_json(folder / MARKER, {"names": names, "classes": classes, "shapes": [[8, 8, 8]] * 9})
    torch.manual_seed(0)
    job = Job("hippocampus-mirrored", 0, small=True)
    weights = job.folder(tmp_path / "weights", 0)
    weights.mkdir(parents=True)
    save_file(job.recipe.unet(len(classes)).state_dict(), weights / "network.safetensors")
    shared = ["--preset", "hippocampus-mirrored", "--small", "--seed", "0", "--fold", "0", "--device", "cpu"]
    shared += ["--prepared", str(tmp_path / "prepared"), "--out", str(tmp_path / "out")]
    assert main(["predict", *shared, "--weights", str(tmp_path / "weights")]) == 0
    assert main(["measure", *shared, "--methods", "TS", "TS of one pass", "--processes", "1"]) == 0
    measured = gathered(tmp_path / "out")
    nll = measured.query("metric == 'nll' and region == 'all'").groupby(["part", "method"])["value"].mean()
    assert set(nll.index) == {
        ("hippocampus-mirrored", "TS"),
        ("hippocampus-mirrored-mean", "TS"),
        ("hippocampus-mirrored-mean", "TS of one pass"),
    }
    one, mean, *_ = volume_tasks(tmp_path / "out", job, tmp_path / "prepared", [0])
    views, name = (ORIGINAL, *SETS[3]["7 mirrors"]), one.fit[0].name
    logits = [np.load(tmp_path / "out" / "hippocampus-mirrored" / "0" / view / f"{name}.npy") for view in views]
    np.testing.assert_allclose(mean.fit[0].logits, np.mean(logits, axis=0, dtype=np.float32), atol=1e-6)
    np.testing.assert_array_equal(mean.single[0].logits, logits[0])
