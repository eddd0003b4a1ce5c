"""What one of several processes does in the tests of `CalibrationSuite`; spawned, so it must be importable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from segcal import CalibrationSuite

Scenarios = dict[str, tuple[str, int]]  # form, images
LIKELY = (0.0, 1.0)  # logits of every pixel of the uniform image: a confidence of 0.731


def scenario_batches(classes: int, images: int) -> list[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Images with labels (5 is ignored) and masks, the same in every process."""
    generator = torch.Generator().manual_seed(images)
    batches = []
    for _ in range(images):
        logits = 3 * torch.randn(1, classes, 6, 7, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, classes + 1, (1, 6, 7), generator=generator)
        labels[labels == classes] = 5
        odd = torch.rand(1, 6, 7, generator=generator) < 0.3
        batches.append((logits, labels, {"all": torch.ones_like(odd), "odd": odd}))
    return batches


def scenario_suite(form: str) -> CalibrationSuite:
    return CalibrationSuite(4, ignore_index=5, regions=("all", "odd"), form=form, per_image=True)


def everything(suite: CalibrationSuite) -> dict[str, Any]:
    return {
        "pooled": suite.compute(),
        "images": suite.compute_images(),
        "classes": suite.compute_classes(),
        "curves": suite.compute_curves(),
        "bound": {name: torch.tensor(bound) for name, bound in suite.ace_error_bound().items()},
    }


def uniform_updates(suite: CalibrationSuite, updates: int, pixels: int) -> None:
    """Show the suite `updates` images of equal logits; three pixels of four are right."""
    logits = torch.tensor(LIKELY, dtype=torch.float16).view(1, 2, 1).expand(1, 2, pixels)
    labels = (torch.arange(pixels) % 4 > 0).to(torch.uint8).unsqueeze(0)
    for _ in range(updates):
        suite.update(logits, labels)


def run(rank: int, processes: int, folder: str, scenarios: Scenarios, uniform: tuple[int, int]) -> None:
    """Show every process its share of each scenario and save what each of them computes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes)
    found = {}
    for name, (form, images) in scenarios.items():
        suite = scenario_suite(form)
        for logits, labels, masks in scenario_batches(4, images)[rank::processes]:
            suite.update(logits, labels, masks)
        before = [image.clone() for image in suite.images]
        found[name] = everything(suite)
        found[name]["kept its own"] = len(before) == len(suite.images)
    suite = CalibrationSuite(2)
    updates, pixels = uniform
    uniform_updates(suite, updates // processes, pixels)
    found["uniform"] = {"pooled": suite.compute()}
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
