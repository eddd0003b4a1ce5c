// Two sentences, the diagrams before and after, the figures of each method, and what to do.
addSection('summary', 'Summary', content => {
  const { average, over } = DATA.presentation;
  const cards = [['nll', 'all'], ['ece', 'all'], ['ece', 'boundary'], ['ece', 'local-max']].map(([metric, region]) => {
    const local = region === 'local-max', title = `${metrics[metric]?.title}, ${regionName(region)}`;
    const rows = methods.map(name => ({ name, ...averageOf(local ? 'images' : average, name, region, metric) })).filter(row => known(row.value));
    return !rows.length ? null : node('div', { class: 'card' }, node('h3', { class: 'head' }, title, node('span', null, `${local ? 'mean over images' : over}${metrics[metric].percent ? ', %' : ''}`)),
      intervals(rows.map(row => ({ ...row, floor: metric === 'ece' ? row.floor : null })), metric, title));
  });
  const shown = curveRegions.includes('all') ? [...new Set([baseline, DATA.recommended])] : [];
  const diagram = (method, k) => node('div', { class: 'diagram' }, node('h4', null, key(method), k ? `after: ${method}` : shown.length > 1 ? `before: ${method}` : method,
    node('span', null, `pooled ECE ${percent(readCurve(DATA.curves[method].all['']).ece)} %`)), reliability(DATA.curves[method].all[''], `Reliability of ${method}`));
  document.title = content.dataset ? `Calibration of ${content.dataset}` : 'Calibration report';
  return node('section', { id: 'summary' },
    node('p', { class: 'kicker' }, content.dataset ? ['Calibration of ', node('b', null, content.dataset)] : 'Calibration report'),
    node('ul', { class: 'facts' }, content.facts.map(fact => node('li', null, fact))),
    node('div', { class: 'opening' },
      node('div', null, node('h1', { class: (content.severity || '').replace(' ', '-') }, content.state), content.best ? node('p', { class: 'more' }, content.best) : null,
        content.warnings.length ? node('div', { class: 'warning' }, content.warnings.map(warning => node('div', null, warning))) : null),
      shown.length ? node('div', { class: 'card before-after' }, shown.map(diagram)) : null),
    node('ul', { class: 'legend names' }, methods.map(method => node('li', null, key(method), node('b', null, method), content.titles[method] ? ` ${content.titles[method]}` : ''))),
    node('div', { class: 'grid cards' }, cards),
    node('p', { class: 'note' }, `Bars: 95 % bootstrap intervals over ${DATA.units}. Lower is better.${DATA.floor ? ' Dashed green: the floor, what the method would score on the same pixels if its probabilities were exactly right.' : ''} ${content.regions.join('. ')}.`),
    content.more.length ? node('details', null, node('summary', null, 'More about these results'), content.more.map(sentence => node('p', { class: 'more' }, sentence))) : null,
    content.advice ? adviceCard(content.advice) : null);
});

function adviceCard({ sentences, command }) {
  const code = node('code', null, command || ''), done = node('output');
  const copy = async () => {
    try { await navigator.clipboard.writeText(command); } catch { getSelection().selectAllChildren(code); }
    done.textContent = 'copied';
  };
  return node('div', { class: 'card advice' }, node('h3', { class: 'head' }, 'Recommendation'), sentences.map(sentence => node('p', null, sentence)),
    command ? node('div', { class: 'command' }, code, node('button', { type: 'button', onclick: copy }, 'Copy'), done) : null);
}
