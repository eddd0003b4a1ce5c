// Every method by metric, region and class.
addSection('table', 'Table', () => {
  const note = node('p', { class: 'note' }), names = [...DATA.calibration.map(metric => [metric, metrics[metric].title]), ['every', 'All four'], ['quality', 'NLL, Brier, accuracy']];
  const { reference, test } = DATA.presentation;
  const marks = `Bold: best. ${reference ? `* The reference ${reference} is significantly better (${test}).` : 'No reference was chosen, so no test is shown (--reference).'}`;
  const parts = live('card', { metric: 'ece', over: DATA.presentation.average },
    [[choice, 'Metric', 'metric', names], [choice, 'Average over', 'over', [['images', 'images'], ['pixels', 'pixels']]]], ({ metric, over }) => {
      note.textContent = (over === 'images' ? 'Mean (standard deviation) over images, Local-Avg over patches. '
        : `All pixels of all images together, with 95 % bootstrap intervals over ${DATA.units}. Patches are not pooled. `) + marks;
      const shown = metric === 'quality' ? DATA.quality : metric === 'every' ? DATA.calibration : [metric];
      const columns = shown.flatMap(one => (DATA.quality.includes(one) ? ['all'] : regions)
        .filter(region => methods.some(method => known(averageOf(over, method, region, one).value))).map(region => averageColumn(over, one, region)));
      const pinned = DATA.floor && metric !== 'quality' ? [{ method: `floor of ${DATA.recommended}`, floorOf: DATA.recommended, key: false }] : [];
      return sortable(`${metric === 'quality' ? 'Quality' : 'Calibration'} by method`, [methodColumn, ...columns], methods.map(method => ({ method })), { pinned });
    });
  return section('table', 'Every method, every region', 'Calibration errors by region. Press a heading to sort.', parts, note, classTableCard());
});

// The averages of a metric in a region, with a bar to compare them; the floor of a method is without marks.
function averageColumn(over, metric, region) {
  const { title, higher } = metrics[metric], most = Math.max(...methods.map(method => averageOf(over, method, region, metric).value).filter(known), 1e-12);
  const read = row => !row.floorOf ? averageOf(over, row.method, region, metric)
    : { value: over === 'images' || metric === 'ece' ? averageOf(over, row.floorOf, region, metric).floor : null };
  return {
    title: `${title}${unitOf(metric)} ${higher ? '↑' : '↓'}${DATA.quality.includes(metric) ? '' : `\n${regionName(region)}`}`,
    of: row => read(row).value,
    show: row => {
      const found = read(row);
      if (!known(found.value)) return node('td', null, '–');
      return node('td', { class: found.best ? 'best' : null }, inUnit(metric, found.value),
        node('span', { class: 'side' }, row.floorOf ? '' : over === 'images' ? `(${inUnit(metric, found.std)})` : interval(metric, found)),
        node('span', { class: 'mark' }, found.beaten ? '*' : ''),
        higher || row.floorOf ? null : node('span', { class: 'meter', style: `width:${(100 * found.value / most).toFixed(1)}%` }));
    },
  };
}

function classTableCard() {
  if (!curveRegions.length) return null;
  const parts = live('card', { region: curveRegions[0] }, [byRegion(curveRegions)], ({ region }) => {
    const total = readCurve(DATA.curves[baseline][region]['']).total || 1;
    const rows = DATA.classes.map(label => ({ label, share: readCurve(DATA.curves[baseline][region][label] || []).total / total }));
    const columns = [
      nameColumn(DATA.channels ? 'Channel' : 'Predicted class', row => row.label),
      number('Share of pixels %', row => row.share, value => percent(value, 1)),
      ...methods.map(method => {
        const read = row => readCurve(DATA.curves[method][region][row.label] || []);
        return { title: method, of: row => read(row).ece, show: row => {
          const { ece, confidence, accuracy } = read(row), way = confidence > accuracy ? 'over' : 'under';
          return node('td', null, percent(ece), node('span', { class: 'side', style: `color:var(--${way}-words)`, title: `${way}confident` }, !known(ece) ? '' : way === 'over' ? '+' : '−'));
        } };
      })];
    return node('div', { class: 'tall' }, sortable(`ECE by ${DATA.channels ? 'channel' : 'predicted class'}, ${regionName(region)}`, columns, rows));
  });
  return node('div', { id: 'classes' }, node('h3', null, DATA.channels ? 'By channel: ECE % of all pixels of this channel' : 'By class: ECE % of the pixels predicted as this class'),
    parts, node('p', { class: 'note' }, '+ overconfident overall, − underconfident overall; all pixels together.'));
}
