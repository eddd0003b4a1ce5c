"""The headline in words: one made result for each sentence, and the bands of severity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal import Results
from segcal.evaluation.recommendation import recommend
from segcal.evaluation.saved import TABLES
from segcal.report.sections.summary import SEVERITIES, headline, severity_of
from segcal.report.view import Value, View
from segcal.tables import Presentation

IMAGES = 14  # with fewer, ties make the Wilcoxon test count all permutations
SPREAD = np.linspace(-0.01, 0.01, IMAGES)  # what makes an image hard for every method


def made(
    nll: Mapping[str, float],
    ece: Mapping[str, float],
    *,
    bins: Sequence[tuple[int, int, float]] = ((100, 85, 98.0),),
    noise: Mapping[str, float] | None = None,
    accuracy: Mapping[str, float] | None = None,
    floor: float | None = None,
    shown: Presentation | None = None,
) -> Results:
    """Results of these means over images; `noise` is the deviation of a method's NLL from image to image."""
    rows: list[tuple[Any, ...]] = []
    for method in nll:
        wobble = (noise or {}).get(method, 0.0) * np.where(np.arange(IMAGES) % 2, 1.0, -1.0)
        for k in range(IMAGES):
            values = {
                "nll": nll[method] + SPREAD[k] + wobble[k],
                "brier": (nll[method] + SPREAD[k] + wobble[k]) / 2,
                "ece": ece[method] + SPREAD[k] / 10,
                "accuracy": (accuracy or {}).get(method, 0.9),
            }
            rows += [(f"case-{k}", method, "all", metric, value, 100) for metric, value in values.items()]
    frame = pd.DataFrame(rows, columns=["case", "method", "region", "metric", "value", "pixels"])
    curve = pd.DataFrame(bins, columns=["count", "hit", "confidence"]).assign(method="UC", region="all", label="")
    pooled = frame.groupby(["method", "region", "metric"], sort=False).agg(
        value=("value", "mean"), pixels=("pixels", "sum")
    )
    pooled = pooled.reset_index().assign(low=lambda t: t.value - 0.001, high=lambda t: t.value + 0.001, images=IMAGES)
    settings = {"methods": list(nll), "num_classes": 3, "warnings": [], "repetitions": 60}
    patches = pd.DataFrame(columns=["case", "method", "patch", "origin", "metric", "value", "pixels"])
    redrawn = None
    if floor is not None:
        redrawn = made(nll, dict.fromkeys(nll, floor), bins=bins)
    cases = TABLES["case_frame"].frame([(f"case-{k}", "") for k in range(IMAGES)])
    volumes = TABLES["volume_frame"].frame([(case, method, "0", 9.0, 9) for case in cases["case"] for method in nll])
    sensitivity = TABLES["sensitivity_frame"].frame([])
    results = Results(frame, patches, pooled, settings, cases, curve, sensitivity, volumes, redrawn=redrawn)
    return results if shown is None else results.presented(shown)


def said(results: Results) -> list[str]:
    return headline(View(results))


@pytest.mark.parametrize(
    ("ece", "bins", "words", "numbers"),
    [
        (0.12, [(100, 85, 98.0), (10, 5, 5.0)], "severely overconfident", "where it says 0.98 it is right 0.85"),
        (0.05, [(100, 85, 90.0)], "clearly overconfident", "where it says 0.90 it is right 0.85"),
        (0.05, [(100, 95, 88.0)], "clearly underconfident", "where it says 0.88 it is right 0.95"),
        (0.02, [(100, 96, 97.5)], "only slightly overconfident", "on average it says 0.97 and is right 0.96"),
        (0.004, [(100, 96, 96.3)], "well calibrated", "on average it says 0.96 and is right 0.96"),
        (
            *(0.1, [(100, 40, 50.0), (100, 90, 80.0)]),
            *("severely miscalibrated, in both directions", "where it says 0.50 it is right 0.40"),
        ),
    ],
)
def test_severity_and_direction(ece: float, bins: list[Any], words: str, numbers: str) -> None:
    assert said(made({"UC": 0.5}, {"UC": ece}, bins=bins))[0] == f"The network is {words}: {numbers} of the time."


def test_images_that_err_in_different_directions_are_not_hidden_by_the_average() -> None:
    results = made({"UC": 0.5}, {"UC": 0.09}, bins=[(100, 88, 90.0)])
    pooled = results.pooled_frame.copy()
    pooled.loc[pooled.metric == "ece", ["value", "low", "high"]] = (0.02, 0.015, 0.025)
    assert said(replace(results, pooled_frame=pooled))[0] == (
        "The network is only slightly overconfident over all pixels (on average it says 0.90 and is right 0.88 of the "
        "time), but severely miscalibrated in single images."
    )
    shown = replace(results, pooled_frame=pooled).presented(Presentation(average="pixels"))
    assert said(shown)[0].startswith("The network is only slightly overconfident: on average")


@given(ece=st.floats(0.001, 0.9), floor=st.floats(0, 0.2), half=st.floats(0, 0.1))
def test_more_error_is_never_called_less_severe(ece: float, floor: float, half: float) -> None:
    less, more = (severity_of(Value("ece", x, x - half, x + half, floor)) for x in (ece, ece + 0.02))
    assert SEVERITIES.index(less) <= SEVERITIES.index(more)
    assert SEVERITIES.index(severity_of(Value("ece", ece, ece - half, ece + half))) >= SEVERITIES.index(less)


def test_the_best_method_is_that_of_least_nll_and_a_low_ece_alone_is_not_praised() -> None:
    """The hippocampus: isotonic regression has the least ECE, and an NLL above that of the network."""
    nll = {"UC": 0.338, "TS": 0.336, "ISOTONIC": 0.340, "LTS": 0.327}
    results = made(nll, {"UC": 0.02, "TS": 0.018, "ISOTONIC": 0.005, "LTS": 0.012}, bins=[(100, 96, 97.0)])
    assert View(results).recommendation.method == "LTS"
    sentences = said(results)
    assert sentences[0].startswith("The network is only slightly overconfident")
    assert sentences[1] == (
        "LTS (local temperature scaling) is recommended: it changes the ECE from 2.00\u00a0% to 1.20\u00a0% and the "
        "negative log-likelihood (NLL) from 0.3380 to 0.3270."
    )
    assert (
        "ISOTONIC (isotonic regression) has the lowest ECE, 0.50\u00a0%, but its NLL is 0.3400, "
        "above 0.3270 of LTS and even above 0.3380 of UC."
    ) in sentences
    assert "ISOTONIC makes the NLL worse than UC." in sentences


def test_a_number_is_not_called_above_one_that_reads_the_same() -> None:
    nll, ece = {"UC": 0.20331, "TS": 0.20334, "LTS": 0.19}, {"UC": 0.02, "TS": 0.01, "LTS": 0.03}
    (sentence,) = [sentence for sentence in said(made(nll, ece)) if "lowest ECE" in sentence]
    assert sentence.endswith("but its NLL is 0.2033, above 0.1900 of LTS.")
    same = said(made({**nll, "LTS": 0.20332, "UC": 0.3}, ece))
    assert not any("lowest ECE" in sentence for sentence in same)


def test_a_gain_within_noise_is_called_noise() -> None:
    results = made({"UC": 0.338, "TS": 0.337}, {"UC": 0.02, "TS": 0.01}, noise={"TS": 0.02})
    assert said(results)[1] == recommend(results).reason
    assert "no method lowers its NLL by more than noise" in said(results)[1]


THREE: dict[str, Any] = {"nll": {"UC": 0.5, "TS": 0.4, "LTS": 0.39}, "ece": {"UC": 0.1, "TS": 0.02, "LTS": 0.02}}
HARM: dict[str, Any] = {"nll": {"UC": 0.3, "TS": 0.31, "LTS": 0.32}, "ece": {"UC": 0.01, "TS": 0.02, "LTS": 0.02}}
LOSS: dict[str, Any] = {"nll": {"UC": 0.5, "DIRICHLET": 0.4}, "ece": {"UC": 0.02, "DIRICHLET": 0.02}}
ALONE: dict[str, Any] = {"nll": {"UC": 0.5}, "ece": {"UC": 0.05}}
BETTER = "The reference LTS has a significantly lower ECE in All than UC, but not than TS"


@pytest.mark.parametrize(
    ("settings", "place", "words"),
    [
        (ALONE | {"floor": 0.045}, 0, "The network is well calibrated"),  # the floor counts in its favour
        (ALONE | {"floor": 0.045}, 2, r".*\(mean over 14 images\)\. Its floor is 4\.50\xa0%\.$"),
        (ALONE | {"bins": ()}, 0, r"UC \(uncalibrated\) was measured on 3 classes\.$"),
        (HARM, 1, "Keep UC: no method lowers its NLL"),
        (HARM, None, r"TS and LTS make the NLL worse than UC\.$"),
        (
            *(LOSS | {"accuracy": {"UC": 0.9, "DIRICHLET": 0.88}}, None),
            "DIRICHLET changes predicted labels: accuracy falls from 90.00\xa0% to 88.00\xa0%.",
        ),
        (THREE | {"shown": Presentation("LTS", "paper")}, None, rf"{BETTER} \(Mann-Whitney U over images"),
        (THREE | {"shown": Presentation("LTS")}, None, rf"{BETTER} \(paired Wilcoxon over images"),
        (
            *(THREE | {"shown": Presentation("UC")}, None),
            "The reference UC does not have a significantly lower ECE in All than any other method",
        ),
        (THREE, 2, r".*\(mean over 14 images\)\.$"),
        (THREE | {"shown": Presentation(average="pixels")}, 2, r".*\[9\.90, 10\.10\] \(all pixels of 14 images\)"),
    ],
)
def test_sentences(settings: dict[str, Any], place: int | None, words: str) -> None:
    """At a place, or at one of all."""
    sentences = said(made(**settings))
    assert len([one for one in (sentences if place is None else sentences[place:][:1]) if re.match(words, one)]) == 1
    tested = settings.get("shown", Presentation()).reference is not None
    assert any("reference" in sentence for sentence in sentences) == tested


def test_differences_are_paired_by_image_and_weighted_by_pixels() -> None:
    results = made({"UC": 0.5, "TS": 0.4}, {"UC": 0.1, "TS": 0.02})
    gap = View(results).difference("TS", "UC")
    assert (gap.value, gap.low, gap.high) == pytest.approx((-0.1, -0.1, -0.1))  # what images share cancels
    frame = results.frame.copy()
    heavy = (frame["case"] == "case-0") & (frame.method == "TS") & (frame.metric == "nll")
    frame.loc[heavy, "value"] -= 0.1
    frame.loc[frame["case"] == "case-0", "pixels"] = 1300  # half of all pixels
    for average, expected in (("images", -0.1 - 0.1 / 14), ("pixels", -0.15)):
        shown = replace(results, frame=frame)
        found = View(shown.presented(Presentation(average=average))).difference("TS", "UC")  # type: ignore[arg-type]
        assert found.value == pytest.approx(expected)


def test_an_unnamed_background_is_in_the_headline() -> None:
    results = made({"UC": 0.3}, {"UC": 0.002}, bins=((100, 99, 99.0),))
    about = {"class": 0, "name": "0", "fraction": 0.95, "scores": {"UC": {"ece": 0.13, "nll": 0.4, "accuracy": 0.8}}}
    plain, named = (
        headline(View(found))[0]
        for found in (results, replace(results, settings={**results.settings, "unnamed_background": about}))
    )
    assert plain.startswith("The network is well calibrated: ")
    assert named.startswith("Including class '0', the network is well calibrated: ")
    assert named.replace("\xa0", " ").endswith(
        "Without this class, which covers 95 % of the pixels, its ECE is 13.00 %."
    )
