// Runs in every page before its own scripts: chance that follows from a seed, no way out of the page, and what the
// player sees and does. The clock is stopped by the driver.
(() => {
  const frame = window.requestAnimationFrame.bind(window);
  let state = 1;
  Math.random = () => {  // until a task seeds its own
    state = (state * 48271) % 2147483647;
    return (state - 1) / 2147483646;
  };
  window.open = () => null;
  const stay = event => event.preventDefault();
  document.addEventListener('submit', stay, true);
  document.addEventListener('click', event => {
    const link = event.target.closest && event.target.closest('a[href]');
    if (link && !/^(#|javascript:)/.test(link.getAttribute('href'))) event.preventDefault();
  }, true);

  const APART = '#reward-display, #sync-task-cover, #click-canvas, #query';
  const USED = new Set(['button', 'input', 'a', 'select', 'textarea', 'label', 'li', 'canvas', 'img', 'td']);
  const SILENT = new Set(['script', 'style', 'br', 'svg', 'g', 'defs', 'body', 'option', 'optgroup', 'clippath', 'marker']);
  const SHOWN = 200;
  const clean = text => text.replace(/\s+/g, ' ').trim();
  let elements = [];

  const listens = element => {
    const events = window.jQuery && jQuery._data && jQuery._data(element, 'events');
    return Boolean(element.onclick || element.__onclick || element.__on || events && (events.click || events.mousedown));
  };
  const describe = (element, box, style, own) => {
    const tag = element.tagName.toLowerCase(), parts = [tag];
    if (tag === 'input') parts.push(element.type);
    if (own) parts.push(JSON.stringify(own));
    if (tag === 'select') {
      const options = [...element.options];
      parts.push('options: ' + options.map(each => clean(each.text)).join(' | '));
      parts.push('selected: ' + options.filter(each => each.selected).map(each => clean(each.text)).join(' | '));
    } else if (tag === 'input' && ['checkbox', 'radio'].includes(element.type)) {
      if (element.checked) parts.push('checked');
    } else if (tag === 'input' || tag === 'textarea') {
      parts.push('value=' + JSON.stringify(element.value));
    }
    if (element.disabled) parts.push('disabled');
    if (element === document.activeElement) parts.push('focused');
    const shape = element instanceof SVGElement;
    if ((shape || !own) && !['input', 'select', 'textarea'].includes(tag)) {
      const name = clean(element.getAttribute('class') || '');
      if (name) parts.push('class=' + name);
      const fill = shape ? style.fill : style.backgroundColor;
      if (fill && fill !== 'none' && fill !== 'rgba(0, 0, 0, 0)') parts.push('colour=' + fill.replace(/ /g, ''));
      parts.push(`at ${Math.round(box.left)},${Math.round(box.top)} size ${Math.round(box.width)}x${Math.round(box.height)}`);
    }
    return parts.join(' ');
  };

  window.ragenPage = {
    begin(seed) {
      if (window.jQuery) jQuery.fx.off = true;
      const still = document.createElement('style');
      still.textContent = '* { transition: none !important; animation: none !important; caret-color: transparent !important }';
      document.head.appendChild(still);
      core.EPISODE_MAX_TIME = 1e9;
      Math.seedrandom(seed);
      core.startEpisodeReal();
    },
    look() {
      const lines = [];
      elements = [];
      for (const element of document.body.querySelectorAll('*')) {
        const tag = element.tagName.toLowerCase();
        if (SILENT.has(tag) || element.closest(APART)) continue;
        const box = element.getBoundingClientRect(), style = getComputedStyle(element);
        if (!(box.width || box.height) || style.visibility === 'hidden') continue;
        const own = clean([...element.childNodes].filter(each => each.nodeType === 3).map(each => each.data).join(' '));
        const bare = !element.children.length && (element.hasAttribute('style') || element instanceof SVGElement);
        if (!(own || bare || USED.has(tag) || element.isContentEditable || listens(element))) continue;
        elements.push(element);
        if (elements.length <= SHOWN) lines.push(`[${elements.length}] ${describe(element, box, style, own)}`);
      }
      if (elements.length > SHOWN) lines.push(`... and ${elements.length - SHOWN} more`);
      const query = document.getElementById('query');
      return {
        task: query ? clean(query.innerText) : '',
        elements: lines.join('\n'),
        count: elements.length,
        reward: Number(WOB_RAW_REWARD_GLOBAL),
        done: Boolean(WOB_DONE_GLOBAL),
      };
    },
    async find(number, verb) {  // where to click, or null
      const element = elements[number - 1];
      if (!element || !element.isConnected) return null;
      const before = element.getBoundingClientRect();
      element.scrollIntoView({block: 'nearest', inline: 'nearest', behavior: 'instant'});
      const box = element.getBoundingClientRect();
      if (before.top !== box.top || before.left !== box.left) await this.settle();
      if (verb === 'type') {
        if (!('value' in element) && !element.isContentEditable) return null;
        element.focus();
        if (element.select) element.select(); else document.execCommand('selectAll');
      } else if (element.tagName === 'SELECT') {  // whose own window of choices is no part of the page
        element.focus();
        return {};
      }
      return {x: box.left + box.width / 2, y: box.top + box.height / 2};
    },
    choose(number, texts) {
      const element = elements[number - 1];
      if (!element || element.tagName !== 'SELECT' || !element.isConnected) return false;
      const options = texts.map(text => [...element.options].find(each => clean(each.text) === text));
      if (options.includes(undefined) || (texts.length > 1 && !element.multiple)) return false;
      for (const each of element.options) each.selected = options.includes(each);
      for (const name of ['input', 'change']) element.dispatchEvent(new Event(name, {bubbles: true}));
      return true;
    },
    async scroll(number, down) {
      let element = elements[number - 1];
      while (element && element.scrollHeight <= element.clientHeight + 1) element = element.parentElement;
      if (!element || element === document.documentElement) return false;
      const before = element.scrollTop;
      element.scrollTop += (down ? 1 : -1) * Math.max(20, Math.round(element.clientHeight * 0.8));
      await this.settle();
      return element.scrollTop !== before;
    },
    settle: () => new Promise(done => frame(() => frame(() => done()))),  // events of scrolling come with a frame
  };
})();
