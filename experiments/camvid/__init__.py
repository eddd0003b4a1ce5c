"""Tiramisu on CamVid (Sec. 4.2 and appendix table): train, predict, calibrate, measure, print next to the paper."""
