// Segmentation quality of the methods, and of each structure.
addSection('surfaces', 'Segmentation', content => {
  const number = (metric, k) => ({ title: metric.title, of: row => row.values[k], show: row => row.values[k] === null ? '–' : (metric.scale * row.values[k]).toFixed(metric.digits) });
  const columns = title => [{ title, of: row => row.name, show: row => row.key ? node('td', null, key(row.name), row.name) : row.name }, ...content.metrics.map(number)];
  return section('surfaces', 'Segmentation', `Dice, ${content.surface_dice} (SD), and the average (ASD), 95 % (95MD) and maximum distance (MD) between the surfaces of prediction and truth: the mean over the structures of a case, then over cases. Methods that keep every label have the same figures.`,
    node('div', { class: 'card' }, sortable(columns('Method'), content.methods.map(row => ({ ...row, key: true })))),
    node('div', { class: 'card', style: 'margin-top:1rem' }, node('h3', { class: 'head' }, `Structures, ${content.first}`), sortable(columns('Structure'), content.labels)),
    content.alone ? node('p', { class: 'note' }, `${content.alone === 1 ? '1 structure is' : `${content.alone} structures are`} only in the prediction or only in the truth of a case: Dice is 0, and there is no distance.`) : null);
});
