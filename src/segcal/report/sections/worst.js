// Tables of the worst images and patches.
addSection('worst', 'Worst', content => {
  const portrayed = new Set(((DATA.sections.cases || {}).portraits || []).map(portrait => portrait.name));
  const named = name => portrayed.has(name) ? node('button', { type: 'button', class: 'link', onclick: () => openCase(name), title: name }, name) : node('span', { title: name }, name);
  const local = regions.includes('local-max') ? 'local-max' : 'all';
  const images = node('div', { class: 'card' }), state = { metric: 'ece', region: local };
  function render() {
    const rows = DATA.cases.map((name, k) => ({ name, values: methods.map(method => samples(method, state.region, state.metric)[k]) }));
    const at = methods.indexOf(baseline);
    const columns = [{ title: 'Image', of: row => row.name, show: row => node('td', null, named(row.name)) },
      ...methods.map((method, k) => ({ title: method, of: row => row.values[k], show: row => inUnit(state.metric, row.values[k]) }))];
    images.replaceChildren(node('div', { class: 'tall' }, sortable('Worst images', columns, rows, { sorted: 1 + at, descending: !metrics[state.metric].higher })));
  }
  render();
  const patches = !content.patches.length ? null : node('div', null, node('h3', null, 'Worst patches, ECE %'), node('div', { class: 'card' }, node('div', { class: 'tall' }, sortable('Worst patches', [
    { title: 'Image', of: row => row.case, show: row => node('td', null, named(row.case)) }, { title: 'Patch', of: row => row.patch, show: row => String(row.patch) },
    nameColumn('Corner', row => row.origin),
    ...methods.map((method, k) => ({ title: method, of: row => row.values[k], show: row => percent(row.values[k]) }))], content.patches, { sorted: 3 + methods.indexOf(baseline), descending: true }))));
  return section('worst', 'Worst images and patches', 'Where to look first. Underlined images are shown above.',
    node('div', { class: 'controls' }, choice('Region', regions.map(region => [region, regionName(region)]), state.region, value => { state.region = value; render(); }),
      selection('Metric', Object.keys(metrics).map(metric => [metric, metrics[metric].title]), value => { state.metric = value; render(); })), images, patches);
});
