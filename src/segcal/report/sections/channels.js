// Each channel of a sigmoid head by itself, beside the mean over channels.
addSection('channels', 'Channels', content => {
  const holder = node('div', { class: 'card' }), state = { metric: 'ece', region: curveRegions[0] };
  const cell = (pooled, method) => (((pooled[method] || {})[state.region] || {})[state.metric]) || [null, null, null];
  const column = method => ({
    title: method,
    of: row => cell(row.pooled, method)[0],
    show: row => {
      const [value, low, high] = cell(row.pooled, method);
      const side = known(low) ? `[${inUnit(state.metric, low)}, ${inUnit(state.metric, high)}]` : '';
      return node('td', null, known(value) ? inUnit(state.metric, value) : '–', node('span', { class: 'side' }, side));
    },
  });
  function render() {
    const rows = Object.entries(content).map(([name, pooled]) => ({ name, pooled }));
    const columns = [nameColumn('Channel'), ...methods.map(column)];
    holder.replaceChildren(sortable(`${metrics[state.metric].title} by channel`, columns, rows, { pinned: [{ name: 'mean', pooled: DATA.pooled }] }));
  }
  const names = [...DATA.calibration, ...DATA.quality].map(metric => [metric, `${metrics[metric].title}${unitOf(metric)}`]);
  const controls = node('div', { class: 'controls' },
    choice('Metric', names, state.metric, value => { state.metric = value; render(); }),
    choice('Region', curveRegions.map(region => [region, regionName(region)]), state.region, value => { state.region = value; render(); }));
  render();
  return section('channels', 'Every channel', `Channels may overlap, so each is a problem of its own with two classes; elsewhere on this page figures are means over channels. All pixels of all images together, with 95 % bootstrap intervals over ${DATA.units}.`, controls, holder);
});
