// How images differ: the ECE of each image, and pictures of some of them (the paper's figure of data set variation).
addSection('variation', 'Variation', () => {
  const shown = regions.filter(region => methods.some(method => samples(method, region, 'ece').some(known)));
  const parts = live('card', { region: 'all', metric: 'ece' }, [byRegion(shown), byMetric(Object.keys(metrics).filter(metric => metric !== 'entropy'))], ({ region, metric }) => {
    const title = `${metrics[metric].title}${unitOf(metric)}, ${regionName(region)}, one dot per image`;
    return [node('h3', { class: 'head' }, title), strip(methods.map(method => ({ name: method, values: samples(method, region, metric) })), metric, title)];
  });
  const pictures = (DATA.sections.cases || { portraits: [] }).portraits;
  const cards = node('div', { class: 'maps gallery' });
  pictures.forEach((portrait, k) => galleryEntry(portrait, k).then(entry => cards.append(entry)));
  return section('variation', 'How much images differ', 'A data set average hides images that are far better or worse. The line marks the median image.',
    parts, pictures.length > 1 ? [node('h3', null, 'Image and labels of the cases shown above'), node('div', { class: 'card' }, cards)] : null);
});

async function galleryEntry(portrait, place) {
  const wanted = portrait.layers.filter(layer => layer.kind === 'image' || layer.kind === 'truth');
  const view = new CaseView(portrait), ece = samples(baseline, 'all', 'ece')[DATA.cases.indexOf(portrait.name)];
  const loaded = await Promise.all(wanted.map(layer => bytesOf(layer, portrait)));
  const frames = wanted.map((layer, k) => view.frame(`${layer.kind === 'image' ? 'image' : 'labels'} of ${portrait.name}`, loaded[k],
    layer.kind === 'image' ? greyTable() : tableOf(portrait.colours), null, { caption: false }));
  view.show();
  return node('div', { style: `order:${place}` }, frames, node('p', { class: 'note' }, node('b', null, portrait.name), ` ${portrait.why}`, node('br'), `${baseline}: ECE ${percent(ece)} %`));
}
