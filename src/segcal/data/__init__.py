"""Files on disk become Cases: `segcal.data.folders.folder` reads and writes the folders that the commands work on."""
