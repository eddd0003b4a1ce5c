// Other readings of the same pixels.
addSection('trust', 'Trust', content => {
  const own = (title, metric, format) => number(title, row => pooledAt(row.method, 'all', metric).value, format), four = value => fixed(value, 4);
  const columns = [own('ECE %', 'ece', percent), own('debiased', 'ece-debiased', percent), own('smooth', 'ece-smooth', percent),
    own('NLL\ncalibration', 'nll-calibration', four), own('NLL\nrefinement', 'nll-refinement', four),
    own('Brier\ncalibration', 'brier-calibration', four), own('Brier\nrefinement', 'brier-refinement', four)]
    .filter(column => methods.some(method => known(column.of({ method }))));
  const table = node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Other estimates'), sortable('Other estimates', [methodColumn, ...columns], methods.map(method => ({ method }))),
    node('p', { class: 'note' }, 'All pixels together. Debiased: without what the finite number of pixels in a bin adds. Smooth: with a kernel instead of bins. NLL and Brier score are each the sum of a calibration part, which a calibrator could remove, and a refinement part, which it could not.'));
  const chart = content.bins ? node('div', { class: 'card spaced' }, node('h3', { class: 'head' }, 'ECE against the number of bins'), legend(),
    lines(methods.map(method => ({ method, points: content.bins[method].map(([bins, ece]) => [bins, known(ece) ? 100 * ece : null]) })),
      { x: 'bins', y: 'ECE (%)', tell: ([bins, ece]) => [['bins', String(bins)], ['ECE', `${fixed(ece, 2)} %`]] })) : null;
  const bias = value => { const shown = percent(value, 1); return Number(shown) === 0 ? '0.0' : (value > 0 ? '+' : '') + shown.replace('-', '−'); };
  const volumes = !content.volumes ? null : node('div', { class: 'card spaced', id: 'volumes' }, node('h3', { class: 'head' }, 'Volume bias by class, %'), node('div', { class: 'tall' }, sortable('Volume bias by class', [
    nameColumn('Class', row => row),
    ...methods.map(method => ({ title: method, of: row => (content.volumes[row][method] || [])[0], show: row => {
      const [value, low, high] = content.volumes[row][method] || [null, null, null];
      return known(value) ? node('td', null, bias(value), node('span', { class: 'side' }, known(low) ? `[${bias(low)}, ${bias(high)}]` : '')) : '–';
    } }))], Object.keys(content.volumes))),
    node('p', { class: 'note' }, 'Sum of the probability of a class, relative to its true volume: calibrated probabilities give the right volume on average.'));
  return section('trust', 'Do other estimates agree?', 'The ECE depends on its bins. These estimates do not, or use other bins.',
    table, volumes, node('div', { class: 'grid halves kept' }, chart));
});
