// What limits calibration: scores of temperatures chosen with the labels, beside those of the methods.
addSection('limits', 'Limits', content => {
  const scores = content.metrics.map(({ name, title }, k) => number(`${title}${unitOf(name)} ↓`, row => row.values[k], value => inUnit(name, value)));
  return section('limits', 'What limits calibration', 'The best temperatures that the labels themselves allow. Where a method is close to the data set\'s best temperature and far from that of each image, more flexible methods could help, if the scores or the image show what they need.',
    node('div', { class: 'grid halves' },
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Best temperature, chosen with the labels'), sortable('Best temperatures', [nameColumn('A temperature for'), ...scores], content.levels)),
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'The methods'), sortable('Scores of the methods', [methodColumn, ...scores], content.methods.map(row => ({ ...row, method: row.name }))))),
    node('p', { class: 'note' }, 'No calibrator can reach the scores of the smallest parts: they are found with the labels that a calibrator has to predict.'));
});
