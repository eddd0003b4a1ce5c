"""Every option that the page "differences from the paper" names gives the form that it promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from experiments.camvid.jobs import Recipe
from experiments.datasets.camvid import calibration_split
from segcal import Case, Results, create, evaluate
from segcal.calibrators import Calibrator, LocalTemperatureScaling
from segcal.functional.surfaces import Between, Form, surface_dice, surface_distances
from segcal.losses import FocalLoss, MMCELoss
from segcal.regions import local_patches

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "differences.md"


def cases() -> list[Case]:
    random = np.random.default_rng(0)
    made = []
    for k in range(3):
        labels = np.zeros((24, 24), np.int64)
        labels[6:18, 4 + k : 16] = 1
        labels[10:14, 8:12] = 2
        logits = random.normal(size=(3, 24, 24)) + 2 * (labels == np.arange(3)[:, None, None])
        made.append(Case(f"case{k}", logits.astype(np.float32), labels))
    return made


def local(**settings: Any) -> LocalTemperatureScaling:
    found = create("lts", num_classes=3, **settings).fit(cases()[:2], validation=cases()[2:], epochs=1)
    assert isinstance(found, LocalTemperatureScaling)
    return found


def plain(method: str, **settings: Any) -> Calibrator:
    return create(method, num_classes=3, **settings).fit(cases())


def measured(**settings: Any) -> Results:
    return evaluate(cases(), {"UC": None}, num_classes=3, background=0, repetitions=2, **settings)


def mean(results: Results, metric: str, region: str) -> float:
    frame = results.to_frame()
    return float(frame[(frame.metric == metric) & (frame.region == region)]["value"].mean())


def check_preset() -> None:
    paper, ours = local(preset="paper"), local()
    assert (paper.inputs, paper.sharpen, float(paper.base_temperature)) == ("logits", True, 1.0)
    assert (ours.inputs, ours.sharpen) == ("log_softmax", False)
    assert paper.fit_report_.details["share"] == 1
    settings = [create("lts", num_classes=3, spatial_dims=dims, preset="paper")._settings(None, {}) for dims in (2, 3)]
    assert [(s.epochs, s.learning_rate, s.milestones, s.gamma) for s in settings] == [
        (100, 1e-5, (50,), 0.1),
        (100, 1e-4, (50,), 0.1),
    ]


def check_root_offset() -> None:
    released = create("lts", num_classes=3, preset="paper", root_offset=1)
    assert torch.allclose(released.tree(torch.zeros(1, 3, 8, 8), None), torch.tensor(2.0))


def check_background() -> None:
    assert plain("ts", background=0).fit_report_.pixels < plain("ts").fit_report_.pixels


def check_losses() -> None:
    logits, labels = torch.zeros(1, 2, 1, 1), torch.zeros(1, 1, 1, dtype=torch.long)
    assert float(FocalLoss(gamma=1)(logits, labels)) == pytest.approx(0.5 * np.log(2))
    # one pixel of confidence 1/2 that is right: the squared error is 1/4
    assert float(MMCELoss(1.0, squared=True)(logits, labels)) == pytest.approx(np.log(2) + 0.25)


def check_form() -> None:
    assert mean(measured(form="equations"), "sce", "all") == pytest.approx(mean(measured(), "sce", "all") / 3)


def check_patches() -> None:
    few = {rule: measured(patch_size=4, patch_rule=rule).patches().shape[0] for rule in ("labelled", "paper")}
    assert few["paper"] >= few["labelled"]
    assert measured(patch_size=72).settings["patch_size"] == 72


def check_margin() -> None:
    places = [box[0].start + 36 for k in range(50) for box in local_patches((360, 480), name=str(k), margin=48)]
    assert min(places) == 84, "centres of the released scripts, whose patches have a side of 72"
    assert max(places) <= 360 - 84
    assert measured(patch_size=4, patch_margin=48).settings["patch_margin"] == 48


def check_ets() -> None:
    cited, usual = (plain("ets", **own) for own in ({"loss": "squared_error"}, {}))
    temperatures = [one.fit_report_.details["temperature"] for one in (cited, usual, plain("ts"))]
    assert temperatures[0] != temperatures[1] == temperatures[2]


def check_frames() -> None:
    frames = [f"{k:03d}" for k in range(101)]
    _, chosen = calibration_split(frames, Recipe(validation_frames="last").validation_frames)
    assert chosen == tuple(frames[90:])


def check_surfaces() -> None:
    one, other = (np.asarray(case.labels) for case in cases()[::2])
    found = {of: next(iter(surface_distances(one, other, [1], of=of))) for of in get_args(Between)}
    assert len(found["volumes"].both) > len(found["surfaces"].both)
    own = {form: surface_dice(found["surfaces"], 1.0, form=form) for form in get_args(Form)}
    assert own["share"] < own["equation"] < 1, "a point of both surfaces counts once"


def check_test() -> None:
    results = evaluate(cases(), {"UC": None, "TS": plain("ts")}, num_classes=3, repetitions=2)
    assert "Mann-Whitney" in results.table(reference="TS", test="paper").legend()


CHECKS: dict[str, Callable[[], object]] = {
    'preset="paper"': check_preset,
    "sharpen=True": lambda: local(sharpen=True),
    'init="zeros"': lambda: local(init="zeros"),
    "root_offset=1": check_root_offset,
    "image_channels=3": lambda: create("lts", num_classes=3, image_channels=3).tree,
    "bounds=(1e-30, 1e30)": lambda: plain("ts", bounds=(1e-30, 1e30)),
    "fit": check_background,
    "background=0": check_background,
    'loss="squared_error"': check_ets,
    "FocalLoss(gamma=1)": check_losses,
    "MMCELoss(1.0, squared=True)": check_losses,
    'form="equations"': check_form,
    'ace_edges="image"': lambda: measured(ace_edges="image"),
    'patch_rule="paper"': check_patches,
    "patch_size=72": check_patches,
    "patch_margin=48": check_margin,
    "boundary_ball=True": lambda: measured(boundary_ball=True),
    'of="volumes"': check_surfaces,
    'form="equation"': check_surfaces,
    "--test paper": check_test,
    "--validation-frames last": check_frames,
    'results.table(test="paper")': check_test,
}


def test_every_option_of_the_page_is_checked() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.count(" | ") == 3]
    named = {option for row in rows for option in re.findall("`([^`]+)`", row.split(" | ")[3])}
    assert named == set(CHECKS)


@pytest.mark.parametrize("check", list(dict.fromkeys(CHECKS.values())))
def test_the_form_of_the_paper_is_there(check: Callable[[], object]) -> None:
    check()
