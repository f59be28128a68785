'use strict';
const tip = document.getElementById('tip');
for (const chart of document.querySelectorAll('svg[data-chart]')) {
  const data = JSON.parse(chart.dataset.chart), cursor = chart.querySelector('.cursor');
  const hide = () => { tip.hidden = true; cursor.classList.remove('shown'); };
  chart.addEventListener('pointermove', event => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) * chart.viewBox.baseVal.width / box.width;
    let near = 0;
    data.x.forEach((place, index) => { if (Math.abs(place - x) < Math.abs(data.x[near] - x)) near = index; });
    cursor.setAttribute('x1', data.x[near]); cursor.setAttribute('x2', data.x[near]);
    cursor.classList.add('shown');
    const head = document.createElement('b');
    head.textContent = data.name + ' ' + data.at[near];
    const rows = data.lines.map(line => {
      const row = document.createElement('span');
      row.textContent = line.name + ': ' + line.values[near];
      return row;
    });
    tip.replaceChildren(head, ...rows);
    tip.hidden = false;
    const at = event.clientX, room = 16 + tip.offsetWidth;
    tip.style.left = Math.max(4, at + room > innerWidth ? at - room : at + 16) + 'px';
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4) + 'px';
  });
  chart.addEventListener('pointerleave', hide);
  chart.addEventListener('pointercancel', hide);
}
