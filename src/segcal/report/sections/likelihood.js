// NLL against entropy.
addSection('likelihood', 'NLL', content => {
  const rows = methods.map(method => ({ method, name: method, nll: pooledAt(method, 'all', 'nll').value, entropy: pooledAt(method, 'all', 'entropy').value })).filter(row => known(row.nll));
  const points = methods.flatMap(method => samples(method, 'all', 'nll').map((y, k) => ({ method, name: DATA.cases[k], y, x: samples(method, 'all', 'entropy')[k] })).filter(p => known(p.x) && known(p.y)));
  const holder = node('div'), hidden = new Set();
  const render = () => holder.replaceChildren(scatter(points, hidden));
  const toggles = node('ul', { class: 'legend' }, methods.map(method => node('li', null, node('button', { type: 'button', 'aria-pressed': 'true', onclick: event => {
    hidden.has(method) ? hidden.delete(method) : hidden.add(method);
    event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(method)));
    render();
  } }, key(method), method))));
  render();
  const four = value => fixed(value, 4);
  const table = sortable('NLL and entropy', [methodColumn, number('NLL', row => row.nll, four), number('Entropy', row => row.entropy, four), number('NLL − entropy', row => row.nll - row.entropy, four)], rows);
  return section('likelihood', 'NLL and entropy', 'At the best temperature, NLL equals entropy. Above the diagonal the probabilities are overconfident, below it underconfident; a method that adapts to the image brings every image to the line.',
    node('div', { class: 'grid halves' },
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'All pixels together'), node('p', { class: 'note', style: 'margin:0 0 .4rem' }, '● NLL   ○ entropy, in nats'), dumbbells(rows), table),
      node('div', { class: 'card' }, node('h3', { class: 'head' }, 'Each image'), toggles, holder)));
});
