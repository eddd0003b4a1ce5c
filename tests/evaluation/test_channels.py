"""Evaluation of sigmoid heads: one channel is a two-class problem, several are a loop of them and their mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

import segcal
from segcal.evaluation.compare import known_settings
from segcal.evaluation.diagnosis import diagnose
from segcal.evaluation.limits import limits
from segcal.evaluation.methods import heads_of
from segcal.evaluation.portraits import load_portraits, make_portraits, save_portraits
from segcal.evaluation.protocol import Protocol
from segcal.evaluation.results import Results
from segcal.report import page_content
from segcal.types import Case, InputError

SIZE, NAMES = (12, 14), ["whole", "core", "edge"]
SETTINGS: dict[str, Any] = {"repetitions": 20, "patches": 3, "patch_size": 6, "background": 0, "ignore_index": 9}


def cases_of(channels: int, many: int = 3) -> list[Case]:
    random = np.random.default_rng(2)
    cases = []
    for k in range(many):
        blocks = random.normal(scale=2, size=(channels, 4, 7)).repeat(3, 1).repeat(2, 2)
        scores = (blocks + random.normal(size=(channels, *SIZE))).astype(np.float32)
        labels = (scores / 2 + random.logistic(size=scores.shape) > 0).astype(np.int16)
        labels[:, -2:] = 9
        cases.append(Case(f"c{k}", scores, labels, group=f"g{k // 2}"))
    return cases


def channel(cases: list[Case], k: int) -> list[Case]:
    """One channel, without a channel axis of the labels."""
    return [replace(c, logits=np.asarray(c.logits)[[k]], labels=np.asarray(c.labels)[k]) for c in cases]


def two_class(cases: list[Case], k: int) -> list[Case]:
    """The same with the explicit logits [0, z]."""
    return [
        replace(c, logits=np.stack([0 * np.asarray(c.logits)[k], np.asarray(c.logits)[k]]), labels=c.labels[k])  # type: ignore[index]
        for c in cases
    ]


def tables(results: Results) -> dict[str, pd.DataFrame]:
    names = ("frame", "patch_frame", "pooled_frame", "curve_frame", "sensitivity_frame", "volume_frame", "size_frame")
    return {name: table for name in names if (table := getattr(results, name)) is not None}


def assert_same_results(one: Results, other: Results) -> None:
    for name, table in tables(one).items():
        assert_frame_equal(table, tables(other)[name], obj=name)


@pytest.mark.parametrize(
    "options", [{"floor": True, "patch_sizes": (4,)}, {"form": "marginal"}], ids=["floor", "marginal"]
)
def test_one_channel_is_measured_as_two_classes(options: dict[str, Any]) -> None:
    cases = cases_of(1)
    one = segcal.create("ts", 1, ignore_index=9).fit(cases)
    two = segcal.create("ts", 2, ignore_index=9).fit(two_class(cases, 0))
    names = {"class_names": ["outside", "vessel"]}
    found = segcal.evaluate(cases, {"UC": None, "TS": one}, num_classes=1, **names, **options, **SETTINGS)
    expected = segcal.evaluate(
        two_class(cases, 0), {"UC": None, "TS": two}, num_classes=2, **names, **options, **SETTINGS
    )
    assert_same_results(found, expected)
    assert found.settings["channels"] == ["vessel"]
    assert found.channels == {}
    assert set(found.volumes()["label"]) == {"outside", "vessel"}
    if found.redrawn is not None and expected.redrawn is not None:
        assert_same_results(found.redrawn, expected.redrawn)
    named = segcal.evaluate(cases, {"UC": None}, num_classes=1, class_names=["vessel"], **SETTINGS)
    assert named.settings["class_names"] == ["not vessel", "vessel"]


@pytest.fixture(scope="module")
def several() -> tuple[Results, list[Results], dict[str, Any]]:
    """The evaluation of three channels at once, and of each alone."""
    cases = cases_of(3)
    together = segcal.create("ts", 3, activation="sigmoid", ignore_index=9, background=0).fit(cases)
    found = segcal.evaluate(
        (case for case in cases),
        {"UC": None, "TS": together},
        num_classes=3,
        activation="sigmoid",
        class_names=NAMES,
        floor=True,
        **SETTINGS,
    )
    alone = []
    for k, name in enumerate(NAMES):
        own = segcal.create("ts", 1, ignore_index=9, background=0).fit(channel(cases, k))
        alone.append(
            segcal.evaluate(
                channel(cases, k), {"UC": None, "TS": own}, num_classes=1, class_names=[name], floor=True, **SETTINGS
            )
        )
    return found, alone, {"UC": None, "TS": together}


def test_every_channel_is_what_it_is_alone(several: tuple[Results, list[Results], Any]) -> None:
    found, alone, _ = several
    assert list(found.channels) == NAMES
    for own, expected in zip(found.channels.values(), alone, strict=True):
        assert_same_results(own, expected)


def test_values_are_means_over_channels(several: tuple[Results, list[Results], Any]) -> None:
    found, alone, _ = several
    for name in ("frame", "patch_frame", "pooled_frame"):
        table, own = getattr(found, name), [getattr(results, name) for results in alone]
        keys = [
            column for column in table.columns if column in ("case", "method", "region", "metric", "patch", "origin")
        ]
        assert_frame_equal(table[keys], own[0][keys])
        np.testing.assert_allclose(table["value"], np.mean([t["value"] for t in own], axis=0), rtol=1e-12)
        np.testing.assert_array_equal(table["pixels"], np.sum([t["pixels"] for t in own], axis=0))
    np.testing.assert_allclose(found.sensitivity()["ece"], np.mean([r.sensitivity()["ece"] for r in alone], axis=0))
    assert found.redrawn is not None
    floors = [results.floor()["value"] for results in alone]
    np.testing.assert_allclose(found.floor()["value"], np.mean(floors, axis=0), rtol=1e-12)


def test_curves_and_volumes_are_by_channel(several: tuple[Results, list[Results], Any]) -> None:
    found, alone, _ = several
    curves = found.curves()
    for name, own in zip(NAMES, alone, strict=True):
        every = own.curves()
        for column in ("count", "hit", "confidence", "low", "high"):
            np.testing.assert_allclose(
                curves.loc[curves.label == name, column], every.loc[every.label == "", column], rtol=1e-12
            )
        volumes, expected = found.volumes(), own.volumes()
        assert_frame_equal(
            volumes[volumes.label == name].reset_index(drop=True),
            expected[expected.label == name].reset_index(drop=True),
        )
    counts = [own.curves().query("label == ''")["count"] for own in alone]
    np.testing.assert_array_equal(curves.loc[curves.label == "", "count"], np.sum(counts, axis=0))


def test_the_interval_of_a_mean_over_equal_channels_is_that_of_one() -> None:
    """Images are drawn with all of their channels, so averaging copies of a channel narrows nothing."""
    cases = cases_of(1)
    doubled = [replace(c, logits=np.repeat(c.logits, 2, 0), labels=np.repeat(c.labels, 2, 0)) for c in cases]  # type: ignore[arg-type]
    settings = {**SETTINGS, "repetitions": 200}
    both = segcal.evaluate(doubled, {"UC": None}, num_classes=2, activation="sigmoid", **settings).pooled()
    one = segcal.evaluate(cases, {"UC": None}, num_classes=1, **settings).pooled()
    np.testing.assert_allclose(both[["value", "low", "high"]], one[["value", "low", "high"]], rtol=1e-12)


def test_a_channel_without_pixels_is_left_out_of_the_mean() -> None:
    cases = cases_of(2)
    for case in cases:
        case.labels[1] = 9  # type: ignore[index]
    found = segcal.evaluate(cases, {"UC": None}, num_classes=2, activation="sigmoid", **SETTINGS)
    alone = segcal.evaluate(channel(cases, 0), {"UC": None}, num_classes=1, **SETTINGS)
    np.testing.assert_allclose(found.frame["value"], alone.frame["value"], rtol=1e-12)
    np.testing.assert_allclose(found.pooled()["value"], alone.pooled()["value"], rtol=1e-12)
    assert found.channels["1"].frame["value"].isna().all()


def test_surfaces_limits_and_functions_of_channels() -> None:
    """Each channel is one structure; a function of logits is given all channels, and may mix them."""
    cases = cases_of(2)
    more = {**SETTINGS, "surfaces": True, "limits": True}

    def halved(logits: torch.Tensor) -> torch.Tensor:
        assert logits.shape == (1, 2, *SIZE)
        return logits.flip(1) / 2

    found = segcal.evaluate(cases, {"UC": None, "F": halved}, num_classes=2, activation="sigmoid", **more)
    swapped = [replace(case, logits=np.asarray(case.logits)[::-1] / np.float32(2)) for case in cases]
    for k in range(2):
        alone = segcal.evaluate(channel(cases, k), {"UC": None}, num_classes=1, class_names=[str(k)], **more)
        own = found.channels[str(k)]
        plain, expected = (
            table.query("method == 'UC'").reset_index(drop=True) for table in (found.surfaces(), alone.surfaces())
        )
        assert set(expected["label"]) == {str(k)}
        assert_frame_equal(plain[plain.label == str(k)].reset_index(drop=True), expected)
        assert_frame_equal(own.limits_frame, alone.limits_frame)
        other = segcal.evaluate(channel(swapped, k), {"F": None}, num_classes=1, **SETTINGS)
        np.testing.assert_allclose(own.frame.query("method == 'F'")["value"], other.frame["value"], rtol=1e-12)
    limits_of_both = [own.limits_frame["value"] for own in found.channels.values() if own.limits_frame is not None]
    assert found.limits_frame is not None
    np.testing.assert_allclose(found.limits_frame["value"], np.mean(limits_of_both, axis=0), rtol=1e-12)


def test_saved_and_loaded(several: tuple[Results, list[Results], Any], tmp_path: Path) -> None:
    found, _, _ = several
    presented = found.presented(replace(found.presentation, reference="TS"))
    presented.save(tmp_path / "results")
    again = Results.load(tmp_path / "results")
    assert list(again.channels) == NAMES
    assert_same_results(again, found)
    for name in NAMES:
        assert_same_results(again.channels[name], found.channels[name])
        assert_frame_equal(again.channels[name].floor(), found.channels[name].floor())
        assert again.channels[name].presentation.reference == "TS"
    assert set(again.to_dict()["channels"]) == set(NAMES)
    assert "mean over 3 channels" in repr(again)


def test_pages_show_every_channel(several: tuple[Results, list[Results], Any], tmp_path: Path) -> None:
    found, _, calibrators = several
    portraits = make_portraits(cases_of(3), calibrators, found, ["c1"])
    assert [(portrait.name, portrait.channel) for portrait in portraits] == [("c1", name) for name in NAMES]
    save_portraits(portraits, tmp_path)
    assert [portrait.channel for portrait in load_portraits(tmp_path)] == NAMES
    content = page_content(found, portraits)
    shown = content["sections"]["channels"]
    pooled = found.channels["core"].pooled().set_index(["method", "region", "metric"])["value"]
    assert shown["core"]["TS"]["all"]["nll"][0] == pytest.approx(pooled["TS", "all", "nll"], rel=1e-4)
    assert content["classes"] == NAMES
    assert "3 channels" in content["sections"]["summary"]["facts"]
    drawn = content["sections"]["cases"]["portraits"]
    assert [portrait["classes"] for portrait in drawn] == [[f"not {name}", name] for name in NAMES]


def test_diagnosis_and_limits_of_one_channel_are_those_of_two_classes() -> None:
    cases, ignored = cases_of(1), {"ignore_index": 9}
    one, two = diagnose(cases, num_classes=1, **ignored), diagnose(two_class(cases, 0), num_classes=2, **ignored)
    assert (one.dataset, one.images) == (two.dataset, two.images)
    assert (one.doubt, "background=0" in two.doubt) == ("", True)  # a channel has no unnamed background
    (head,) = heads_of(Protocol(1, **ignored))
    assert_frame_equal(limits(head.cases(cases), head.protocol), limits(two_class(cases, 0), Protocol(2, **ignored)))


def test_compare_counts_moved_labels_of_all_channels() -> None:
    cases = cases_of(2)
    found = segcal.compare(
        cases,
        cases,
        {
            "TS": segcal.create("ts", 2, activation="sigmoid", ignore_index=9),
            "VECTOR": segcal.create("vector", 2, activation="sigmoid", ignore_index=9),
        },
        num_classes=2,
        activation="sigmoid",
        **{**SETTINGS, "background": None},
    )
    vector = found.calibrators["VECTOR"]
    moved = kept = 0
    for case in cases:
        (slab,) = vector.calibrate_case(case)
        inside = np.asarray(case.labels) != 9
        moved += int((((slab.logits()[0].numpy() > 0) != (np.asarray(case.logits) > 0)) & inside).sum())
        kept += int(inside.sum())
    assert moved
    assert found.changed == {"TS": 0.0, "VECTOR": pytest.approx(moved / kept)}


@pytest.mark.parametrize("channels", [1, 2])
def test_fit_settings_are_found_behind_the_wrappers_of_sigmoid_heads(channels: int) -> None:
    lts, ts = (segcal.create(method, channels, activation="sigmoid") for method in ("lts", "ts"))
    assert known_settings(lts, {"epochs": 1, "watch": None}) == {"epochs": 1}
    assert "watch" in lts.fit_settings
    assert ts.fit_settings == frozenset()


def test_refuses_calibrators_of_another_head() -> None:
    ts = segcal.create("ts", 2, ignore_index=9).fit(two_class(cases_of(1, 1), 0))
    with pytest.raises(InputError, match=r"'TS' was built for activation='softmax', got activation='sigmoid'"):
        segcal.evaluate(cases_of(2), {"TS": ts}, num_classes=2, activation="sigmoid")
    with pytest.raises(InputError, match=r"'TS' was built for num_classes=2, got num_classes=1"):
        segcal.evaluate(cases_of(1), {"TS": ts}, num_classes=1)
    with pytest.raises(InputError, match="class_names must be 1 or 2 different names"):
        segcal.evaluate(cases_of(1), {"UC": None}, num_classes=1, class_names=["a", "b", "c"])
