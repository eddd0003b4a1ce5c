// Segmentation quality of the methods, and of each structure.
addSection('surfaces', 'Segmentation', tables => section('surfaces', 'Segmentation',
  'Overlap of prediction and truth, and distances between their surfaces. Methods that keep every label have the same figures.', tables.map(writtenTable)));
