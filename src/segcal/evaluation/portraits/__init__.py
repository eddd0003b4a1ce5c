"""Small pictures of chosen cases: what a page or a figure needs to show a case without its data.

A portrait holds some pixels of the case in 8 bits, as maps of each method (the paper's Fig. 1), and the reliability
histograms of the whole image and of three of its Local patches (Fig. 2).
"""

from segcal.evaluation.portraits.make import WINDOW, choose_cases, local_gap, local_optimum, make_portraits
from segcal.evaluation.portraits.model import (
    LEVELS,
    NOTHING,
    Curve,
    Kind,
    Layer,
    PixelRegion,
    Portrait,
    load_portraits,
    save_portraits,
)

__all__ = [
    "LEVELS",
    "NOTHING",
    "WINDOW",
    "Curve",
    "Kind",
    "Layer",
    "PixelRegion",
    "Portrait",
    "choose_cases",
    "load_portraits",
    "local_gap",
    "local_optimum",
    "make_portraits",
    "save_portraits",
]
