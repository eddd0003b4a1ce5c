"""Files on disk become Cases: `segcal.data.folder` reads and writes the folders that the commands work on."""
