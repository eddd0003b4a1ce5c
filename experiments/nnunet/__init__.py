"""nnU-Net end to end with its own package: folds are trained, ensembled and calibrated by the commands of the guide."""
