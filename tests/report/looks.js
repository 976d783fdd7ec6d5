// What a test asks of a page; each function gives what JSON can hold.
const looks = {
  // Text whose contrast with what lies behind it is under `least` (WCAG 2.2, 1.4.3): [ratio, text].
  faint(least) {
    const numbers = (color) => (color.match(/[\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => {
      const part = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
      return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const color = numbers(getComputedStyle(at).backgroundColor);
        if (color.length === 3 || color[3] > 0) return color;
      }
      return numbers(getComputedStyle(document.body).backgroundColor);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const parent = node.parentElement;
      if (!node.data.trim() || !parent.checkVisibility() || parent.closest("title, desc")) continue;
      const style = getComputedStyle(parent);
      const pair = [light(numbers(parent.closest("svg") ? style.fill : style.color)), light(behind(parent))];
      const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
      if (ratio < least) found.push([ratio, node.data]);
    }
    return found;
  },
  // Everything drawn that leaves the window to the left or to the right.
  outside() {
    const boxes = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest(".skip, title, desc"));
    return boxes
      .map((e) => [e, e.getBoundingClientRect()])
      .filter(([, box]) => box.width > 0 && (box.left < -1 || box.right > document.documentElement.clientWidth + 1))
      .map(([e, box]) => [e.outerHTML.slice(0, 120), box.left, box.right]);
  },
  // Sections with their title, width and height.
  sections() {
    return [...document.querySelectorAll("main > section")].map((section) => {
      const box = section.getBoundingClientRect();
      return [section.id, box.width, box.height, section.checkVisibility()];
    });
  },
  // Charts with their boxes, how many shapes they draw, and whether they say what they show.
  charts() {
    return [...document.querySelectorAll("svg.chart")].map((chart) => {
      const box = chart.getBoundingClientRect();
      const drawn = [...chart.querySelectorAll("rect, circle, line")].filter((shape) => {
        const { width, height } = shape.getBoundingClientRect();
        return width + height > 0;
      });
      const said = chart.getAttribute("aria-labelledby").split(" ").map((id) => document.getElementById(id).textContent);
      return { id: chart.id, left: box.left, right: box.right, height: box.height, drawn: drawn.length, said };
    });
  },
  // Everything that a reader can find, without what the script adds.
  words() {
    const copy = document.body.cloneNode(true);
    copy.querySelectorAll("script, .controls").forEach((element) => element.remove());
    return copy.textContent;
  },
  openAll() {
    document.querySelectorAll("details").forEach((details) => (details.open = true));
  },
};
