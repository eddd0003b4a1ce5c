// Segmentation quality of the methods, and of each structure.
addSection('surfaces', 'Segmentation', content => {
  const scores = content.metrics.map((metric, k) => number(metric.title, row => row.values[k], value => known(value) ? (metric.scale * value).toFixed(metric.digits) : '–'));
  return section('surfaces', 'Segmentation', `Dice, ${content.surface_dice} (SD), and the average (ASD), 95 % (95MD) and maximum distance (MD) between the surfaces of prediction and truth: the mean over the structures of a case, then over cases. Methods that keep every label have the same figures.`,
    node('div', { class: 'card' }, sortable('Segmentation of the methods', [methodColumn, ...scores], content.methods.map(row => ({ ...row, method: row.name })))),
    node('div', { class: 'card', style: 'margin-top:1rem' }, node('h3', { class: 'head' }, `Structures, ${content.first}`), sortable(`Segmentation of structures, ${content.first}`, [nameColumn('Structure'), ...scores], content.labels)),
    content.alone ? node('p', { class: 'note' }, `${content.alone === 1 ? '1 structure is' : `${content.alone} structures are`} only in the prediction or only in the truth of a case: Dice is 0, and there is no distance.`) : null);
});
