"""The network behind `segcal.load_sample("brain")`."""
