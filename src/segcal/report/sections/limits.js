// What limits calibration: scores of temperatures chosen with the labels, beside those of the methods.
addSection('limits', 'Limits', content => {
  const number = k => ({ title: `${content.metrics[k].title}${unitOf(content.metrics[k].name)} ↓`, of: row => row.values[k], show: row => inUnit(content.metrics[k].name, row.values[k]) });
  const columns = title => [{ title, of: row => row.name, show: row => row.key ? node('td', null, key(row.name), row.name) : row.name }, ...content.metrics.map((_, k) => number(k))];
  return section('limits', 'What limits calibration', 'The best temperatures that the labels themselves allow. Where a method is close to the data set\'s best temperature and far from that of each image, more flexible methods could help, if the scores or the image show what they need.',
    node('div', { class: 'grid halves' },
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Best temperature, chosen with the labels'), sortable(columns('A temperature for'), content.levels)),
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'The methods'), sortable(columns('Method'), content.methods.map(row => ({ ...row, key: true }))))),
    node('p', { class: 'note' }, 'No calibrator can reach the scores of the smallest parts: they are found with the labels that a calibrator has to predict.'));
});
