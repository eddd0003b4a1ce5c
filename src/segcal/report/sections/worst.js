// Tables of the worst images and patches.
addSection('worst', 'Worst', content => {
  const portrayed = new Set(((DATA.sections.cases || {}).portraits || []).map(portrait => portrait.name));
  const named = name => portrayed.has(name) ? node('button', { type: 'button', class: 'link', onclick: () => openCase(name), title: name }, name) : node('span', { title: name }, name);
  // The worst by the baseline come first.
  const worst = (title, rows, first, metric) => node('div', { class: 'tall' }, sortable(title, [{ title: 'Image', of: row => row.name, show: row => node('td', null, named(row.name)) }, ...first,
    ...methods.map((method, k) => number(method, row => row.values[k], value => inUnit(metric, value)))], rows, { sorted: 1 + first.length + methods.indexOf(baseline), descending: !metrics[metric].higher }));
  const images = live('card', { region: regions.includes('local-max') ? 'local-max' : 'all', metric: 'ece' }, [byRegion(regions), byMetric(Object.keys(metrics))], ({ region, metric }) =>
    worst('Worst images', DATA.cases.map((name, k) => ({ name, values: methods.map(method => samples(method, region, metric)[k]) })), [], metric));
  const patches = !content.patches.length ? null : node('div', null, node('h3', null, 'Worst patches, ECE %'), node('div', { class: 'card' },
    worst('Worst patches', content.patches, [number('Patch', row => row.patch, String), nameColumn('Corner', row => row.origin)], 'ece')));
  return section('worst', 'Worst images and patches', 'Where to look first. Underlined images are shown above.', images, patches);
});
