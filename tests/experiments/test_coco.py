"""COCO, VOC and coarse scores: labels against those of COCO's own tools, loaders, splits, and the experiment whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F  # noqa: N812

from experiments.coco.__main__ import main
from experiments.coco.networks import OfUnitImages, load_network
from experiments.datasets.coarse import interpolated, open_coarse
from experiments.datasets.coco import (
    mask_of,
    open_coco,
    polygon_mask,
    runs_mask,
    runs_of_letters,
)
from experiments.datasets.voc import CLASSES, open_voc
from segcal import InputError
from segcal.calibrators import load
from segcal.evaluation.results import Results
from support.coarse_networks import Inner, Pair

VOC = Path(__file__).parents[3] / "shared" / "data" / "voc"
DRAWN = {  # polygons, and what pycocotools 2.0.10 makes of them
    "inside": (
        (24, 30),
        [3.2, 2.1, 26.8, 5.5, 20.1, 21.7, 8.4, 18.9],
        "Z21g03N3L3M3M3M000010O000001O0000010OO1N2M3N2M3Nm2",
        293,
    ),
    "beyond the edge": (
        (20, 20),
        [-3, 4.5, 12.25, -2, 25, 10, 9.6, 24.5, 10.1, 9.9],
        "33a00O2O0O2O000O2O001Oj2G^M2N2N2N2NL",
        235,
    ),
    "across itself": (
        (40, 36),
        [3.1, 9.5, 28.8, 23.3, 3.4, 17.3, 17.2, 6.4, 26.4, 4.5, 14.1, 20.7, 15.5, 23.5, 26.6, 38.3, 10.2, 25.9],
        "Z533On02PONP12QOMP11RO0l0OVO2h0NXO4f0LZO6c0L\\O5b0M^O3`0N@2?0A0>0@I06>3@H44:4BJ41:4DJ3283FK4152JL2231LN1022OM10"
        "O12O00M05OO1KO80g00b:",
        224,
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_polygons_are_drawn_as_by_cocos_own_tools(name: str) -> None:
    size, points, letters, area = DRAWN[name]
    mask = polygon_mask(np.array(points).reshape(-1, 2), size)
    assert np.array_equal(mask, runs_mask(runs_of_letters(letters), size))
    assert mask.sum() == area


def test_a_rectangle_by_hand() -> None:
    expected = np.zeros((5, 6), bool)
    expected[1:3, 1:4] = True
    assert np.array_equal(mask_of([[1, 1, 4, 1, 4, 3, 1, 3]], (5, 6)), expected)
    assert np.array_equal(mask_of([[1, 1, 4, 1, 4, 2, 1, 2], [1, 2, 4, 2, 4, 3, 1, 3]], (5, 6)), expected)
    assert np.array_equal(mask_of({"size": [5, 6], "counts": [6, 2, 3, 2, 3, 2, 12]}, (5, 6)), expected)


def test_letters_go_both_ways(rng: np.random.Generator) -> None:
    """Against an encoder written from COCO's description, over long and short runs."""

    def letters_of(runs: list[int]) -> str:
        text = ""
        for k, run in enumerate(runs):
            value, more = run - (runs[k - 2] if k > 2 else 0), True
            while more:
                bits, value = value & 31, value >> 5
                more = value != (-1 if bits & 16 else 0)
                text += chr(bits + 32 * more + 48)
        return text

    for _ in range(50):
        runs = rng.integers(0, 10 ** rng.integers(1, 6), size=rng.integers(1, 20)).tolist()
        assert runs_of_letters(letters_of(runs)) == runs


def test_an_annotation_without_polygons_holds_no_pixel() -> None:
    assert not mask_of([], (2, 3)).any()
    assert mask_of([], (2, 3)).shape == (2, 3)


def test_bad_run_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="sum to the 4 pixels"):
        runs_mask([1, 2], (2, 2))
    with pytest.raises(InputError, match=r"size \(2, 2\), got \(2, 3\)"):
        mask_of({"size": [2, 3], "counts": [6]}, (2, 2))


CATEGORIES = [
    "airplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "dog",
    "horse",
    "person",
    "sheep",
    "train",
    "couch",
    "tv",
    "dining table",
    "motorcycle",
    "potted plant",
    "umbrella",
]


@pytest.fixture
def coco(tmp_path: Path, rng: np.random.Generator) -> Path:
    root = tmp_path / "coco"
    (root / "val2017").mkdir(parents=True)
    (root / "annotations").mkdir()
    number = {name: 3 * k + 1 for k, name in enumerate(CATEGORIES)}
    images, annotations = [], []
    for k in range(12):
        name = f"{k:012d}.jpg"
        channels = (40, 50) if k == 1 else (40, 50, 3)
        Image.fromarray(rng.integers(0, 256, channels, dtype=np.uint8)).save(root / "val2017" / name)
        images.append({"id": 100 + k, "file_name": name, "height": 40, "width": 50})
        square = [[5, 5, 25, 5, 25, 25, 5, 25]]
        annotations += [
            {"image_id": 100 + k, "category_id": number["airplane"], "iscrowd": 0, "segmentation": square},
            {"image_id": 100 + k, "category_id": number["umbrella"], "iscrowd": 0, "segmentation": square},
        ]
    beside = [[20, 5, 45, 5, 45, 25, 20, 25]]
    annotations.append({"image_id": 100, "category_id": number["tv"], "iscrowd": 0, "segmentation": beside})
    crowd = {"size": [40, 50], "counts": [30, 5, 40 * 50 - 35]}
    annotations.append({"image_id": 100, "category_id": number["person"], "iscrowd": 1, "segmentation": crowd})
    categories = [{"id": number[name], "name": name} for name in CATEGORIES]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return root


def test_coco_becomes_voc_labels(coco: Path) -> None:
    data = open_coco(coco)
    assert data.names == tuple(f"{k:012d}" for k in range(12))
    assert (len(CLASSES), CLASSES[0], len({*CLASSES})) == (21, "background", 21), "the 20 classes of VOC"
    expected = np.zeros((40, 50), np.uint8)
    expected[5:25, 5:45] = CLASSES.index("tvmonitor")
    expected[5:25, 5:20] = CLASSES.index("aeroplane")
    expected[5:25, 20:25] = 255
    expected[30:35, 0] = CLASSES.index("person")
    assert np.array_equal(data.labels("000000000000"), expected)
    assert data.image("000000000001").shape == (3, 40, 50), "grey pictures have three channels too"
    assert set(np.unique(data.labels("000000000001"))) == {0, 1}, "an umbrella is background"


def test_missing_files_of_coco_are_named(coco: Path) -> None:
    (coco / "val2017" / "000000000003.jpg").unlink()
    with pytest.raises(InputError, match=r"000000000003\.jpg' is missing.*val2017\.zip"):
        open_coco(coco)
    shutil.rmtree(coco / "annotations")
    with pytest.raises(InputError, match=r"instances_val2017\.json' is missing"):
        open_coco(coco)


def test_a_category_that_coco_lacks_is_named(coco: Path) -> None:
    file = coco / "annotations" / "instances_val2017.json"
    file.write_text(file.read_text().replace('"couch"', '"settee"'))
    with pytest.raises(InputError, match="category 'couch'"):
        open_coco(coco)


def test_voc_reads_its_list(tmp_path: Path, rng: np.random.Generator) -> None:
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(InputError, match=r"val\.txt' is missing.*VOCtrainval"):
        open_voc(tmp_path)
    (tmp_path / "ImageSets" / "Segmentation" / "val.txt").write_text("2007_1\n2007_2\n")
    labels = np.array([[0, 20], [255, 5]], np.uint8)
    for name in ("2007_1", "2007_2"):
        Image.fromarray(rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
        Image.fromarray(labels).save(tmp_path / "SegmentationClass" / f"{name}.png")
        labels = labels + np.uint8(30) * (labels == 20)
    data = open_voc(tmp_path)
    assert data.names == ("2007_1", "2007_2")
    assert data.image("2007_1").shape == (3, 2, 2)
    assert data.labels("2007_1").tolist() == [[0, 20], [255, 5]]
    with pytest.raises(InputError, match="got 50"):
        data.labels("2007_2")
    (tmp_path / "JPEGImages" / "2007_2.jpg").unlink()
    with pytest.raises(InputError, match=r"2007_2\.jpg' is missing"):
        open_voc(tmp_path)


def test_interpolation_is_that_of_torchvision(rng: np.random.Generator) -> None:
    coarse = rng.normal(size=(3, 4, 5)).astype(np.float16)
    wanted = F.interpolate(torch.from_numpy(coarse).float()[None], (9, 11), mode="bilinear", align_corners=False)[0]
    assert np.array_equal(interpolated(coarse, (9, 11)), wanted)
    assert np.array_equal(interpolated(coarse, (4, 5)), coarse.astype(np.float32))


def test_cases_without_labels_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="logits' is missing"):
        open_coarse(tmp_path)
    for folder in ("logits", "labels", "images"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "logits" / "a.npy", np.zeros((21, 2, 2)))
    with pytest.raises(InputError, match=r"labels' holds no \.png"):
        open_coarse(tmp_path)
    for name in ("labels/b.png", "images/a.png"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"case 'a' .* must have labels"):
        open_coarse(tmp_path)


def test_coarse_scores_are_what_torchvision_interpolates() -> None:
    wrapped, image = OfUnitImages(Inner()).eval(), torch.rand(1, 3, 40, 50)
    with torch.no_grad():
        coarse, whole = wrapped.coarse(image), wrapped(image)["out"]
    assert coarse.shape == (1, 21, 5, 6)
    torch.testing.assert_close(torch.from_numpy(interpolated(coarse[0].numpy(), (40, 50))), whole[0])
    plain = OfUnitImages(nn.Conv2d(3, 21, 1))
    assert torch.equal(plain.coarse(image), plain(image))
    with pytest.raises(InputError, match="as a tensor, got tuple"):
        OfUnitImages(Pair()).coarse(image)


def test_networks_that_cannot_be_had_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MODULE:FUNCTION"):
        load_network("support.coarse_networks:nothing")
    with pytest.raises(InputError, match=r"weights\.pth' is missing"):
        load_network("support.coarse_networks:network", str(tmp_path / "weights.pth"))


def test_weights_come_from_a_file(tmp_path: Path) -> None:
    inner = Inner()
    with torch.no_grad():
        inner.classifier.bias.fill_(7)
    torch.save(inner.state_dict(), tmp_path / "weights.pth")
    found = load_network("support.coarse_networks:network", str(tmp_path / "weights.pth"))
    assert found.network.classifier.bias.tolist() == [7] * 21


def test_from_coco_to_the_table(coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores, out = tmp_path / "scores", tmp_path / "out"
    named = ["--network", "support.coarse_networks:network", "--device", "cpu"]
    assert main(["predict", "--coco", str(coco), *named, "--out", str(scores)]) == 0
    assert np.load(scores / "logits" / "000000000003.npy", allow_pickle=False).shape == (21, 5, 6)
    images = ["--images", str(coco / "val2017"), "--data", str(scores), "--beside", "coco"]
    few = ["--sizes", "6", "2", "4", "--epochs", "2", "--methods", "ts", "lts", "--learning-rate", "1e-4", "1e-2"]
    few += ["--preset", "default", "paper", "--patch-rule", "paper"]
    assert main(["measure", *images, *few, *named, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "10.04(11.54)" in text, "the paper's LTS stands beside"
    assert text.count("keeps every label of the network: True") == 3
    report = json.loads((out / "report.json").read_text())
    assert report["changed"] == {"TS": [0, 8000], "LTS": [0, 8000], "LTS (preset paper)": [0, 8000]}
    assert text.count("| LTS (preset paper) | ") == 6
    for name, preset in (("LTS", "default"), ("LTS (preset paper)", "paper")):
        assert load(out / "calibrators" / name).preset == preset
    parts = [set(report[part]) for part in ("fit", "validation", "test")]
    assert [len(part) for part in parts] == [6, 2, 4]
    assert len(set.union(*parts)) == 12
    assert set(report["fits"]["LTS"]["names"]) == parts[0]
    results = Results.load(out / "results")
    assert set(results.frame.case) == parts[2]
    assert results.settings["patch_rule"] == "paper"


def test_bad_input_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--network", "support.coarse_networks:network", "--out", str(tmp_path)]) == 2
    assert "--coco or" in capsys.readouterr().err
    assert main(["measure", "--out", str(tmp_path)]) == 2
    assert "with --data" in capsys.readouterr().err
    assert main(["predict", "--coco", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "with --network" in capsys.readouterr().err


def test_scores_of_two_networks_are_not_mixed(coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["predict", "--coco", str(coco), "--device", "cpu", "--out", str(tmp_path)]
    assert main([*options, "--network", "support.coarse_networks:network", "--limit", "2"]) == 0
    assert main([*options, "--network", "support.coarse_networks:another"]) == 2
    assert (
        "begun with network=support.coarse_networks:network, and now it is support.coarse_networks:another"
        in capsys.readouterr().err
    )
    assert len(list((tmp_path / "logits").iterdir())) == 2
    assert main([*options, "--network", "support.coarse_networks:network", "--limit", "3"]) == 0
    (tmp_path / "network.json").unlink()
    assert main([*options, "--network", "support.coarse_networks:network"]) == 2
    assert "does not name" in capsys.readouterr().err


@pytest.mark.data
@pytest.mark.skipif(not VOC.is_dir(), reason=f"needs the logits of VOC in '{VOC}'")
def test_the_real_logits_are_good() -> None:
    cases = open_coarse(VOC)
    assert len(cases) == 200
    hits = pixels = 0
    for case in cases[:5]:
        kept = np.asarray(case.labels) != 255
        hits += int((np.asarray(case.logits).argmax(0) == case.labels)[kept].sum())
        pixels += int(kept.sum())
    assert hits / pixels > 0.85
