// Each channel of a sigmoid head by itself, beside the mean over channels.
addSection('channels', 'Channels', content => {
  const names = [...DATA.calibration, ...DATA.quality].map(metric => [metric, `${metrics[metric].title}${unitOf(metric)}`]);
  const rows = Object.entries(content).map(([name, own]) => ({ name, own })), mean = { name: 'mean', own: DATA.averages.pixels };
  const parts = live('card', { metric: 'ece', region: curveRegions[0] }, [[choice, 'Metric', 'metric', names], byRegion(curveRegions)], ({ metric, region }) => {
    const columns = methods.map(method => {
      const read = row => { const [value, low, high] = row.own[method]?.[region]?.[metric] || []; return { value, low, high }; };
      return { title: method, of: row => read(row).value,
        show: row => node('td', null, known(read(row).value) ? inUnit(metric, read(row).value) : '–', node('span', { class: 'side' }, interval(metric, read(row)))) };
    });
    return sortable(`${metrics[metric].title} by channel`, [nameColumn('Channel'), ...columns], rows, { pinned: [mean] });
  });
  return section('channels', 'Every channel', `Channels may overlap, so each is a problem of its own with two classes; elsewhere on this page figures are means over channels. All pixels of all images together, with 95 % bootstrap intervals over ${DATA.units}.`, parts);
});
