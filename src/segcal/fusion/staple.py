"""STAPLE (Warfield et al. 2004) through SimpleITK, to compare with: it knows no images and no probabilities."""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer

from segcal.functional.arrays import to_array
from segcal.fusion.registration import simple_itk
from segcal.fusion.voting import AtlasLabels
from segcal.types import InputError


def staple(labels: AtlasLabels) -> Integer[np.ndarray, "*S"]:
    """Return the consensus of several segmentations; voxels that SimpleITK leaves undecided get label 0."""
    sitk, labels = simple_itk(), to_array(labels)
    top = int(labels.max(initial=0))
    if labels.min(initial=0) < 0 or top > 254:
        raise InputError(f"STAPLE needs labels from 0 to 254, got {labels.min()} to {top}")
    filter_ = sitk.MultiLabelSTAPLEImageFilter()
    undecided = top + 1
    filter_.SetLabelForUndecidedPixels(undecided)
    # the filter counts labels in the type of its images, and in 8 bits never gets past label 255
    images = [sitk.GetImageFromArray(one.astype(np.uint16)) for one in labels]
    found = sitk.GetArrayFromImage(filter_.Execute(images))
    return np.where(found == undecided, 0, found).astype(labels.dtype)
