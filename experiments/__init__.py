"""The experiments of the paper, one folder for each of its tables; they import segcal and are never imported."""
