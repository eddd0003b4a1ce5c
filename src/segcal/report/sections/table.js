// Every method by metric, region and class.
addSection('table', 'Table', content => {
  const holder = node('div', { class: 'card' }), note = node('p', { class: 'note' });
  const state = { metric: 'ece', over: DATA.presentation.average };
  const cell = (method, region, metric) => {
    const found = ((content[state.over][method] || {})[region] || {})[metric];
    if (!found || !known(found[0])) return null;
    const [value, low, high, best, beaten] = found;
    const side = state.over === 'images' ? `(${inUnit(metric, low)})` : known(low) ? `[${inUnit(metric, low)}, ${inUnit(metric, high)}]` : '';
    return { value, side, best, beaten };
  };
  function render() {
    const shown = state.metric === 'quality' ? DATA.quality : state.metric === 'every' ? DATA.calibration : [state.metric];
    const columns = shown.flatMap(metric => (DATA.quality.includes(metric) ? ['all'] : regions)
      .filter(region => methods.some(method => cell(method, region, metric))).map(region => ({ metric, region })));
    const made = columns.map(({ metric, region }) => {
      const values = methods.map(method => (cell(method, region, metric) || {}).value).filter(known), most = Math.max(...values, 1e-12);
      const head = DATA.quality.includes(metric) ? '' : `\n${regionName(region)}`;
      return {
        title: `${metrics[metric].title}${unitOf(metric)} ${metrics[metric].higher ? '↑' : '↓'}${head}`,
        of: row => (row.cell || cell)(row.method, region, metric)?.value,
        show: row => {
          const found = (row.cell || cell)(row.method, region, metric);
          if (!found || !known(found.value)) return node('td', null, '–');
          return node('td', { class: found.best ? 'best' : null }, inUnit(metric, found.value), node('span', { class: 'side' }, found.side || ''),
            node('span', { class: 'mark' }, found.beaten ? '*' : ''),
            metrics[metric].higher || row.cell ? null : node('span', { class: 'meter', style: `width:${(100 * found.value / most).toFixed(1)}%` }));
        },
      };
    });
    const pinned = DATA.floor && state.metric !== 'quality' ? [{ method: `floor of ${content.best}`, key: false, cell: (_, region, metric) => ({
      value: state.over === 'images' ? floorAt(content.best, region, metric) : metric === 'ece' ? pooledFloorAt(content.best, region) : null }) }] : [];
    holder.replaceChildren(sortable(`${state.metric === 'quality' ? 'Quality' : 'Calibration'} by method`, [methodColumn, ...made], methods.map(method => ({ method })), { pinned }));
    const { reference, test } = DATA.presentation;
    const marks = `Bold: best. ${reference ? `* The reference ${reference} is significantly better (${test}).` : 'No reference was chosen, so no test is shown (--reference).'}`;
    note.textContent = (state.over === 'images' ? 'Mean (standard deviation) over images, Local-Avg over patches. '
      : `All pixels of all images together, with 95 % bootstrap intervals over ${DATA.units}. Patches are not pooled. `) + marks;
  }
  const names = [...DATA.calibration.map(metric => [metric, metrics[metric].title]), ['every', 'All four'], ['quality', 'NLL, Brier, accuracy']];
  const controls = node('div', { class: 'controls' },
    choice('Metric', names, state.metric, value => { state.metric = value; render(); }),
    choice('Average over', [['images', 'images'], ['pixels', 'pixels']], state.over, value => { state.over = value; render(); }));
  render();
  return section('table', 'Every method, every region', 'Calibration errors by region. Press a heading to sort.', controls, holder, note, classTableCard());
});

function classTableCard() {
  if (!curveRegions.length) return null;
  const holder = node('div', { class: 'card' });
  function render(region) {
    const total = readCurve(DATA.curves[baseline][region]['']).total || 1;
    const rows = DATA.classes.map(label => ({ label, share: readCurve(DATA.curves[baseline][region][label] || []).total / total }));
    const columns = [
      nameColumn(DATA.channels ? 'Channel' : 'Predicted class', row => row.label),
      number('Share of pixels %', row => row.share, value => percent(value, 1)),
      ...methods.map(method => {
        const read = row => readCurve(DATA.curves[method][region][row.label] || []);
        return { title: method, of: row => read(row).ece, show: row => {
          const { ece, confidence, accuracy } = read(row), side = known(ece) ? `${confidence > accuracy ? '+' : '−'}` : '';
          return node('td', null, percent(ece), node('span', { class: 'side', style: `color:var(--${confidence > accuracy ? 'over' : 'under'}-words)`, title: confidence > accuracy ? 'overconfident' : 'underconfident' }, side));
        } };
      })];
    holder.replaceChildren(node('div', { class: 'tall' }, sortable(`ECE by ${DATA.channels ? 'channel' : 'predicted class'}, ${regionName(region)}`, columns, rows)));
  }
  render(curveRegions[0]);
  return node('div', { id: 'classes' }, node('h3', null, DATA.channels ? 'By channel: ECE % of all pixels of this channel' : 'By class: ECE % of the pixels predicted as this class'),
    node('div', { class: 'controls' }, choice('Region', curveRegions.map(region => [region, regionName(region)]), curveRegions[0], render)), holder,
    node('p', { class: 'note' }, '+ overconfident overall, − underconfident overall; all pixels together.'));
}
