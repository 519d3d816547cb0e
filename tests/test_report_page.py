"""The report's page in a real browser: it opens with no complaint, all is there, nothing is too wide, and all can be read."""

import pytest
from browser import BINARY, Browser
from records import config, done, table1, undone

from ebl.report import write_report

pytestmark = pytest.mark.skipif(BINARY is None, reason="needs Chromium")

# Every text's contrast with what is behind it, by WCAG's formula; a canvas lays the colours over each other
CONTRASTS = """(() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const pen = canvas.getContext('2d', {willReadFrequently: true});
  const read = (layers) => { pen.clearRect(0, 0, 1, 1); layers.forEach(c => { pen.fillStyle = c; pen.fillRect(0, 0, 1, 1); });
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3); };
  const light = (c) => { const [r, g, b] = c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const found = [];
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const node = words.currentNode, at = node.parentElement;
    if (!node.textContent.trim() || !at.getClientRects().length || at.closest('title')) continue;
    const layers = [];
    for (let e = at; e; e = e.parentElement) layers.unshift(getComputedStyle(e).backgroundColor);
    const style = getComputedStyle(at), ink = at.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(read(layers)), light(read([...layers, ink]))];
    found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), node.textContent.trim().slice(0, 40)]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The comparison, some of it unfinished, and runs of no table: every kind of section and mark."""
    out = tmp_path_factory.mktemp("page")
    runs = table1()
    for i, status in ((5, "running"), (6, "failed"), (7, "waiting")):
        runs[i] = undone(runs[i].config, status, 34 if status == "running" else 0, "OSError: no space")
    runs += [done(config("quick", rule), 0.1, collapsed=rule == "cl") for rule in ("cl", "n-ep")]
    runs += [done(config("cifar10-sota-100", free__iterations=20), 0.104)]
    _, files = write_report("comparison", runs, out, ["a-run is damaged (no final): left out"])
    return files[0]


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_opens_whole_and_is_no_wider_than_the_window(page, browser, width, scheme):
    browser.open(page, width, scheme)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.querySelectorAll('table').length") >= 8
    shown = "[...document.querySelectorAll('svg.chart')].filter(e => e.getBoundingClientRect().width > 200).length"
    assert browser.run(shown) == 4 * (5 + 2 + 1)  # Table 1, Table 2 (C-EP on MNIST is its setting too), the others
    assert browser.run("[...document.querySelectorAll('.chart .line path')].every(e => e.getTotalLength() >= 0)")
    assert browser.run("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.getAttribute('href')))")
    assert browser.run("performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length") == 0
    assert browser.complaints == []


def test_wide_tables_scroll_in_their_own_box(page, browser):
    browser.open(page, 400, "light")
    script = (
        "[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth > e.clientWidth, getComputedStyle(e).overflowX])"
    )
    boxes = browser.run(script)
    assert any(wider for wider, _ in boxes)
    assert {overflow for _, overflow in boxes} == {"auto"}


def test_the_papers_whole_comparison_fits_a_wide_window(browser, tmp_path):
    spread = [0.9, 1.0, 1.1]  # of train errors too
    runs = [
        done(run.config, run.final["test_error"], run.final["train_error"] * spread[i % 3]) for i, run in enumerate(table1())
    ]
    _, files = write_report("comparison", runs, tmp_path)
    browser.open(files[0], 1400, "light")
    assert browser.run("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('.scroll'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page, browser, scheme):
    browser.open(page, 1280, scheme)
    browser.run("document.querySelectorAll('details').forEach(e => e.open = true)")
    contrasts = browser.run(CONTRASTS)
    assert len(contrasts) > 500
    assert min(contrasts)[0] >= 4.5, min(contrasts)
    dark = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(v => v < 60)")
    assert dark == (scheme == "dark")


def test_lines_take_their_colours_from_the_scheme(page, browser):
    strokes = "[...document.querySelectorAll('.chart .line path:not(.band)')].map(e => getComputedStyle(e).stroke)"
    drawn = []
    for scheme in ("light", "dark"):
        browser.open(page, 1280, scheme)
        drawn.append(browser.run(strokes))
    assert all(a != b and "none" not in (a, b) for a, b in zip(*drawn, strict=True))
    assert len(set(drawn[0])) >= 4  # EP, CpL, CL and the baselines
