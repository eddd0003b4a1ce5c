// Other readings of the same pixels.
addSection('trust', 'Trust', content => {
  const own = (title, metric, format) => ({ title, of: row => pooledAt(row.method, 'all', metric)[0], show: row => format(pooledAt(row.method, 'all', metric)[0]) });
  const columns = [own('ECE %', 'ece', percent), own('debiased', 'ece-debiased', percent), own('smooth', 'ece-smooth', percent),
    own('NLL\ncalibration', 'nll-calibration', value => fixed(value, 4)), own('NLL\nrefinement', 'nll-refinement', value => fixed(value, 4)),
    own('Brier\ncalibration', 'brier-calibration', value => fixed(value, 4)), own('Brier\nrefinement', 'brier-refinement', value => fixed(value, 4))]
    .filter(column => methods.some(method => known(column.of({ method }))));
  const table = node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Other estimates'), sortable([methodColumn, ...columns], methods.map(method => ({ method }))),
    node('p', { class: 'note' }, 'All pixels together. Debiased: without what the finite number of pixels in a bin adds. Smooth: with a kernel instead of bins. NLL and Brier score are each the sum of a calibration part, which a calibrator could remove, and a refinement part, which it could not.'));
  const chart = content.bins ? node('div', { class: 'card' }, node('h3', { class: 'head' }, 'ECE against the number of bins'), legend(),
    lines(methods.map(method => ({ method, points: content.bins[method] })), 'ece', 'bins', 'ECE (%)')) : null;
  const bias = value => { const shown = percent(value, 1); return Number(shown) === 0 ? '0.0' : (value > 0 ? '+' : '') + shown.replace('-', '−'); };
  const volumes = !content.volumes ? null : node('div', { class: 'card', id: 'volumes' }, node('h3', { class: 'head' }, 'Volume bias by class, %'), node('div', { class: 'tall' }, sortable([
    { title: 'Class', of: row => row, show: row => row },
    ...methods.map(method => ({ title: method, of: row => (content.volumes[row][method] || [])[0], show: row => {
      const [value, low, high] = content.volumes[row][method] || [null, null, null];
      return known(value) ? node('td', null, bias(value), node('span', { class: 'side' }, known(low) ? `[${bias(low)}, ${bias(high)}]` : '')) : '–';
    } }))], Object.keys(content.volumes))),
    node('p', { class: 'note' }, 'Sum of the probability of a class, relative to its true volume: calibrated probabilities give the right volume on average.'));
  return section('trust', 'Do other estimates agree?', 'The ECE depends on its bins. These estimates do not, or use other bins.',
    table, node('div', { class: 'grid halves', style: 'margin-top:1rem' }, chart, volumes));
});
