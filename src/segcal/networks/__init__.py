"""The 3D U-Net of the brain sample, which the experiments train as well."""
